"""Families: image judges that say nearly the same of the same films are one witness, not several.

Kinship is measured on what the judges say alone, so no claim can reach it: the correlation of their evidence over the
pairs that both answered. Judges of one model are kin whatever they say. Who was told the labels and who was not are
never of one family: what was told must not be heard in the others' name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bpals.signal.pairs import Matrix
from bpals.signal.voices import Voice

KIN = 0.6
"""Judges whose evidence correlates at least this far are of one family."""
SAME = 1e-9
"""Evidence that differs by no more than this is the same evidence under another name."""
SAMPLE = 20_000
"""Films on which kinship is measured, evenly spaced: more would not change it."""
ENOUGH = 200
"""Pairs that two judges must both have answered before they can be found kin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Which judges are heard together, and how alike they are."""

    members: tuple[tuple[Voice, ...], ...]
    """Every voice once: of voices that are the same under several names only the first is heard."""
    names: Mapping[str, tuple[str, ...]]
    """Judge that is heard -> all the names under which it came."""
    correlation: Matrix
    """Of every two judges, in the order of their names; NaN where too few pairs were answered by both."""

    @property
    def votes(self) -> dict[str, float]:
        """Judge -> its part of the vote of one: the names of one judge share it."""
        return {name: 1 / len(names) for names in self.names.values() for name in names}

    @property
    def heads(self) -> dict[str, str]:
        """Judge -> the judge whose name stands for its family."""
        return {
            name: family[0].judge for family in self.members for voice in family for name in self.names[voice.judge]
        }

    @property
    def effective(self) -> float:
        """How many independent judges they are worth (Kish); a correlation that nobody could measure counts as 0."""
        count = len(self.correlation)
        if count < 2:
            return float(count)
        others = ~np.eye(count, dtype=bool)
        return count / (1 + (count - 1) * float(np.maximum(np.nan_to_num(self.correlation[others]), 0).mean()))


def families(voices: Sequence[Voice]) -> Families:
    """Sort the voices into families: kin of kin are kin. The order in which judges are named does not matter."""
    voices = sorted(voices, key=lambda voice: voice.judge)
    correlation = _correlation(voices)
    first = [_first_like(voices, place, correlation) for place in range(len(voices))]
    # Of answers that are the same under several names, one name that admits it is enough.
    told = {place: any(voice.told for voice, its in zip(voices, first, strict=True) if its == place) for place in first}
    voices = [replace(voice, told=told[its]) for voice, its in zip(voices, first, strict=True)]
    head = list(range(len(voices)))
    for one in range(len(voices)):
        for other in range(one):
            alike = correlation[one, other] >= KIN or (voices[one].kin and voices[one].kin == voices[other].kin)
            related = alike and voices[one].told == voices[other].told
            if related and head[one] != head[other]:
                old, new = head[one], head[other]
                head = [new if its == old else its for its in head]
    distinct = [place for place in range(len(voices)) if first[place] == place]
    members = {root: tuple(voices[place] for place in distinct if head[place] == root) for root in head}
    names = {
        voices[place].judge: tuple(voice.judge for voice, its in zip(voices, first, strict=True) if its == place)
        for place in distinct
    }
    return Families(members=tuple(its for its in members.values() if its), names=names, correlation=correlation)


def _correlation(voices: Sequence[Voice]) -> Matrix:
    """Correlate the evidence of every two judges over what both answered."""
    count = len(voices)
    correlation = np.eye(count)
    if count < 2:
        return correlation
    step = max(1, len(voices[0].evidence) // SAMPLE)
    said = [voice.evidence[::step].ravel() for voice in voices]
    known = [~np.isnan(evidence) for evidence in said]
    for one in range(count):
        for other in range(one):
            both = known[one] & known[other]
            correlation[one, other] = correlation[other, one] = _cosine(said[one][both], said[other][both])
    return correlation


def _cosine(one: Matrix, other: Matrix) -> float:
    """Evidence is centred already, finding by finding."""
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other / size) if len(one) >= ENOUGH and size > 0 else np.nan


def _first_like(voices: Sequence[Voice], place: int, correlation: npt.NDArray[np.float64]) -> int:
    """Find the first judge that says the same of the same films."""
    mine = voices[place].evidence
    for earlier in range(place):
        theirs = voices[earlier].evidence
        alike = np.isnan(correlation[place, earlier]) or correlation[place, earlier] > 1 - 1e-6
        if alike and np.allclose(mine, theirs, rtol=0, atol=SAME, equal_nan=True):
            return earlier
    return place
