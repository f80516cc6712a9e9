"""Detecting inverted, turned and cropped films: by lines fitted on altered copies of the user's own films.

A film is judged by lines that never saw its patient. Some of the films that the copies are made of are wrong
themselves: those that look more like a copy than like a film are left out, and the lines fitted again. The cut of a
check lies half way between the most copy-like per cent of the films and the least copy-like per cent of the copies;
where these overlap, it lies where one film in a hundred is flagged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bpals.films.altering import COPIES
from bpals.films.linear import Features, Floats, Ints, Line, crossfitted, fit, gathered

PENALTY = 0.01
FEWEST = 100
"""Films below which nothing is fitted."""
SAMPLE = 300
"""Films of which altered copies are made."""
TAIL = 0.01
MOST_ODD = 0.1
"""The share of the films that may be left out as wrong themselves; where more look so, they do not look so at all."""
WORKS = 0.8
"""A check that finds a smaller share of the copies says nothing."""

Bools = npt.NDArray[np.bool_]

TURNS = ("turned_90", "turned_180", "turned_270")
CHECKS: Mapping[str, tuple[str, ...]] = {"inverted": ("inverted",), "turned": TURNS, "cropped": ("cropped",)}
"""Each check, and the copies that it must find."""
TARGETS = ("inverted", *TURNS, "cropped")
"""What lines are fitted for; the last line, after these, is for films that stand upright."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The films of which altered copies were made."""

    places: Ints
    """Where they stand among all films."""
    copies: Floats
    """[film, copy, feature], copies in the order of COPIES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What one check says, and how well it told copies from films of other patients."""

    score: Floats
    """A film each; above 0 the check fires."""
    found: int
    """Copies on which it fires ..."""
    copies: int
    """... of so many."""
    alarms: int
    """Films of the sample on which it fires; they may be wrong films ..."""
    films: int
    """... of so many."""

    @property
    def works(self) -> bool:
        """Whether it finds enough of the copies to be heard."""
        return self.found >= WORKS * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What the three checks say."""

    checks: Mapping[str, Detected]
    degrees: Ints
    """By how much each film would be turned, if it were: 90, 180 or 270."""
    left_out: int
    """Films of the sample that looked like copies themselves."""


def detect(features: Features, fold: Ints, sample: Sample) -> Detection:
    """Check every film; `fold` is the same for all films of a patient."""
    own = gathered(features, sample.places, len(fold))
    shown = np.concatenate([own[:, None], sample.copies], axis=1)
    sound = ~_odd(_told(shown, fold[sample.places], np.ones(len(own), dtype=bool)))
    if sound.mean() < 1 - MOST_ODD:
        sound[:] = True
    told = _told(shown, fold[sample.places], sound)
    lines = _lines(shown, fold[sample.places], sound, np.unique(fold))
    scores = crossfitted(features, fold, lines.__getitem__)
    every, checks = _scores(scores), {}
    for check, copies in CHECKS.items():
        films, altered = told[check][:, 0], told[check][:, _places(copies)]
        cut = _cut(films[sound], altered[sound].ravel())
        checks[check] = Detected(
            score=every[check] - cut,
            found=int((altered[sound] > cut).sum()),
            copies=int(altered[sound].size),
            alarms=int((films > cut).sum()),
            films=len(films),
        )
    degrees = 90 * (1 + scores[:, 1:4].argmax(axis=1))
    return Detection(checks=checks, degrees=degrees.astype(np.int64), left_out=int((~sound).sum()))


def _places(copies: tuple[str, ...]) -> list[int]:
    """Find copies among a film and its copies."""
    return [1 + list(COPIES).index(copy) for copy in copies]


def _lines(shown: Floats, fold: Ints, sound: Bools, folds: Ints) -> dict[int, Line]:
    """Fit a line for each fold on the sound films of the others."""
    kinds = ["", *COPIES]
    wanted = [[kind == target for target in TARGETS] for kind in kinds]
    targets = np.array([[*each, not any(each[1:4])] for each in wanted], dtype=np.float32) * 2 - 1
    made = {}
    for number in folds:
        others = shown[sound & (fold != number)]
        made[int(number)] = fit(others.reshape(-1, shown.shape[2]), np.tile(targets, (len(others), 1)), PENALTY)
    return made


def _told(shown: Floats, fold: Ints, sound: Bools) -> dict[str, Floats]:
    """Score the sample's films and copies, each by the line that did not see its patient."""
    scores = np.zeros((*shown.shape[:2], len(TARGETS) + 1), dtype=np.float32)
    for number, line in _lines(shown, fold, sound, np.unique(fold)).items():
        scores[fold == number] = line.score(shown[fold == number])
    return _scores(scores)


def _scores(scores: Floats) -> dict[str, Floats]:
    """Make one number a check of what the lines say."""
    turned = scores[..., 1:4].max(axis=-1) - scores[..., 5]
    return {"inverted": scores[..., 0], "turned": turned, "cropped": scores[..., 4]}


def _odd(told: Mapping[str, Floats]) -> Bools:
    """Find the films that are nearer to the middle of the copies than to the middle of the films."""
    odd = [
        told[check][:, 0] > (np.median(told[check][:, 0]) + np.median(told[check][:, _places(copies)])) / 2
        for check, copies in CHECKS.items()
    ]
    return np.asarray(np.any(odd, axis=0))


def _cut(films: Floats, copies: Floats) -> float:
    most, least = float(np.quantile(films, 1 - TAIL)), float(np.quantile(copies, TAIL))
    return (most + least) / 2 if most < least else most
