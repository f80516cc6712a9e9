"""The rows of the signal: what was estimated, written out a row a claim, with flag, reasons and rank."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal import flags, reasons
from bpals.signal.drawn import NOTHING, Read
from bpals.signal.filmchecks import unchecked
from bpals.signal.hardness import Hard, Subject, judges_split, quarrel
from bpals.signal.pairs import NORMAL_95, Matrix, Pairs, logit, sigmoid
from bpals.signal.sentences import Sentences, listed
from bpals.signal.value import ranks
from bpals.signal.voices import Bools, Ints, Panel, Voice
from bpals.types import DEVICES, FLAG, SAYS, signal_schema

METHOD = "record-1"
JUDGES_METHOD = "judges-2"
"""Where an image judge took part."""
DECIMALS = 6
BLOCK = 4096
"""Films that are voted on at a time: so few that the votes stay in the processor's cache."""
UNCERTAIN = (None, "uncertain_claim: the dataset itself is uncertain here")
REVIEWED = (None, "reviewed: an expert read this pair; its trust comes from a fit without this patient")

Wrong = Mapping[str, Read]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Findings, or groups, on their way to a signal table."""

    pairs: Pairs
    """What is claimed, and what the judges say together."""
    record: Pairs
    """The same with the record judge alone; it is `pairs` itself where there is no other judge."""
    voices: tuple[Voice, ...]
    """The image judges, each with what it is heeded on."""
    moved: Bools
    """Pairs in whose probability an image judge took part."""
    p_present: Matrix
    spread: Matrix
    fitted: Bools
    """Pairs whose probability comes from a fit on expert labels."""
    reviewed: Bools
    """... and was cross-fitted, because the pair is one of them."""
    notes: dict[str, str]
    """For each calibrated finding, the reason that says so."""
    apart: tuple[Matrix, ...] = ()
    """What each family of image judges says by itself, where somebody may learn from it: logits."""
    hard: Mapping[str, Hard] = field(default_factory=dict)
    """For each finding of which enough was read: where readers would split."""

    @property
    def subjects(self) -> list[Subject]:
        """Give each finding as the model of readers who split sees it."""
        judges = [logit(self.record.p_present), *(np.where(v.heeded, v.evidence, np.nan) for v in self.voices)]
        apart = quarrel(judges)
        return [
            Subject(
                finding=finding,
                states=self.pairs.states[:, column],
                p_present=self.p_present[:, column],
                spread=self.record.spread[:, column],
                quarrel=apart[:, column],
            )
            for column, finding in enumerate(self.pairs.findings)
        ]

    def split(self, agreement: Matrix) -> Matrix:
        """Say where readers would split, or where no read taught it, where judges do: 1, 0, NaN where nobody knows."""
        known = judges_split(agreement, self.asked)
        for column, finding in enumerate(self.pairs.findings):
            if finding in self.hard:
                known[:, column] = self.hard[finding].split
        return known

    @property
    def asked(self) -> Ints:
        """How many of the heeded judges answered."""
        count = (~np.isnan(self.record.p_present)).astype(np.int64)
        for voice in self.voices:
            count += voice.answered & voice.heeded
        return count

    @property
    def agreement(self) -> Matrix:
        """Share of the heeded judges that answered and stand on the claim's side; a family of judges has one vote."""
        said = self.record.states
        present, definite = said == 1, (said == 0) | (said == 1)
        families: dict[str, list[Voice]] = {}
        for voice in self.voices:
            families.setdefault(voice.family or voice.judge, []).append(voice)
        heard = [[(self.record.p_present, self.record.usual, np.ones(said.shape[1]))]]
        heard += [
            [
                (voice.p_present, voice.usual, np.asarray(voice.heeded * voice.vote, dtype=np.float64))
                for voice in family
            ]
            for family in families.values()
        ]
        share = np.full(said.shape, np.nan)
        for start in range(0, len(said), BLOCK):
            films = slice(start, start + BLOCK)
            stands, votes = np.zeros(said[films].shape), np.zeros(said[films].shape)
            for family in heard:
                its, whole = np.zeros(stands.shape), np.zeros(stands.shape)
                for given, usual, vote in family:
                    # Half a comparison with NaN is false, so who did not answer stands nowhere.
                    its += np.where(present[films], given[films] >= usual, given[films] <= usual) * vote
                    whole += ~np.isnan(given[films]) * vote
                stands += np.divide(its, whole, out=its, where=whole > 0)
                votes += whole > 0
            np.divide(stands, votes, out=share[films], where=(votes > 0) & definite[films])
        # Thirds and fifths of a vote do not add up to a whole to the last bit.
        return np.asarray(np.round(share, DECIMALS))


def write(
    part: Part, images: pl.DataFrame, panel: Panel | None, wrong: Wrong | None
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Write the part out, one row a claim in the order of films and findings; and the rules that flagged them."""
    said = part.pairs.states
    p = np.round(part.p_present, DECIMALS)
    low, high = _interval(p, part.spread)
    present, absent = said == 1, said == 0
    trust = np.where(present, p, np.where(absent, 1 - p, np.nan))
    trust_low = np.where(present, low, np.where(absent, 1 - high, np.nan))
    trust_high = np.where(present, high, np.where(absent, 1 - low, np.nan))
    del low, high
    agreement = part.agreement
    split = part.split(agreement)
    flagged, rules = _flag(part, trust, trust_high, split, wrong or {})
    claimed = ~np.isnan(said)
    films, columns = np.nonzero(claimed)
    says = np.where(present, np.uint32(0), np.where(absent, np.uint32(1), np.uint32(2)))
    matrices = {
        "says": says,
        "p_present": p,
        "trust": trust,
        "trust_low": trust_low,
        "trust_high": trust_high,
        "agreement": agreement,
        "answered": part.pairs.answered,
        "flag": flagged.astype(np.uint32),
    }
    kept = slice(None) if claimed.all() else claimed.ravel()  # mostly every pair is claimed, and nothing is copied
    table = pl.DataFrame(
        {
            "image_id": part.pairs.image_ids.gather(films),
            "finding": pl.Series(columns.astype(np.uint32)),
            **{name: matrix.ravel()[kept] for name, matrix in matrices.items()},
        },
        nan_to_null=True,
    )
    schema = signal_schema(part.pairs.findings)
    plain = table.with_columns(
        pl.Series("finding", list(part.pairs.findings), dtype=schema["finding"]).gather(table["finding"]),
        pl.Series("says", SAYS.categories, dtype=SAYS).gather(table["says"]),
        pl.Series("flag", flags.NAMES, dtype=FLAG).gather(table["flag"]),
        _method(part, claimed),
        pl.lit("unknown", dtype=DEVICES).alias("devices") if panel is None else panel.devices.column.gather(films),
        (unchecked(images) if panel is None or panel.checks is None else panel.checks.column).gather(films),
    )
    seen = reasons.Flagged(flagged=flagged, agreement=agreement, asked=part.asked)
    with ThreadPoolExecutor(2) as hands:
        ranked, told = hands.submit(ranks, plain), hands.submit(_reasons, part, images, panel, claimed, seen)
        whole = plain.with_columns(ranked.result(), told.result())
    return whole.select(schema.names()).cast(schema), rules


def _interval(p: Matrix, spread: Matrix) -> tuple[Matrix, Matrix]:
    """95 % interval of a probability from the standard deviation of its logit."""
    reach = NORMAL_95 * spread
    low = np.minimum(np.round(sigmoid(logit(p) - reach), DECIMALS), p)
    high = np.maximum(np.round(sigmoid(logit(p) + reach), DECIMALS), p)
    return low, high


def _flag(
    part: Part, trust: Matrix, high: Matrix, split: Matrix, wrong: Wrong
) -> tuple[npt.NDArray[np.int8], list[dict[str, Any]]]:
    """Flag every claim, finding by finding and direction by direction."""
    # Column by column in memory, because it is walked finding by finding.
    states, trust, high, split = (np.asfortranarray(each) for each in (part.pairs.states, trust, high, split))
    flagged = np.full(trust.shape, flags.UNJUDGED, dtype=np.int8, order="F")
    rules = []
    for column, finding in enumerate(part.pairs.findings):
        for says, state in (("present", 1), ("absent", 0)):
            here = (states[:, column] == state) & ~np.isnan(trust[:, column])
            if finding in part.notes:
                films, drawn = wrong.get(finding, NOTHING).among(here, trust[:, column], split[:, column])
                rule = flags.rule_by_review(finding, says, drawn, trust[_without(here, films), column])
            else:
                rule = flags.rule_by_share(finding, says, trust[here, column])
            flagged[here, column] = flags.apply(rule, trust[here, column], high[here, column], split[here, column])
            rules.append(asdict(rule))
    return np.ascontiguousarray(flagged), rules


def _without(here: Bools, films: Ints) -> Bools:
    """Leave some films out."""
    others = here.copy()
    others[films] = False
    return others


def _reasons(
    part: Part, images: pl.DataFrame, panel: Panel | None, claimed: Bools, flagged: reasons.Flagged
) -> pl.Series:
    """Gather each claim's reasons, the most telling first."""
    pairs = part.pairs
    notes = [part.notes.get(name) for name in pairs.findings]
    noted = np.array([0 if note is None else column for column, note in enumerate(notes, start=1)])
    kinds = [
        Sentences(words=UNCERTAIN, which=pairs.states == 0.5),
        reasons.flag_reasons(flagged, pairs.findings, part.hard),
        reasons.timeline_reasons(pairs, images),
        reasons.colabel_reasons(pairs),
        reasons.record_reasons(pairs, part.record),
        *(reasons.judge_reasons(voice) for voice in part.voices if voice.heeded.any()),
        *([] if panel is None else [panel.devices.sentences(len(pairs.findings))]),
        *([] if panel is None or panel.checks is None else panel.checks.sentences(len(pairs.findings))),
        Sentences(words=(None, *notes), which=np.where(part.fitted, noted, 0)),
        Sentences(words=REVIEWED, which=part.reviewed),
    ]
    return listed(kinds, claimed)


def _method(part: Part, claimed: Bools) -> pl.Series:
    """Name the signal that made each row; `/crossfit` marks a pair whose own review was left out."""
    which = np.where(part.reviewed, np.uint32(2), part.fitted) + np.uint32(3) * part.moved
    ends = ("", "+experts", "+experts/crossfit")
    names = [f"{method}{end}" for method in (METHOD, JUDGES_METHOD) for end in ends]
    return pl.Series("method", names).gather(which[claimed])
