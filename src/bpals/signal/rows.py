"""The rows of the signal: what was estimated, written out a row a claim, with flag, reasons and rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from bpals.signal import flags, reasons
from bpals.signal.blocks import in_blocks
from bpals.signal.drawn import Read
from bpals.signal.filmchecks import unchecked
from bpals.signal.hardness import Hard, Subject, judges_split, quarrel
from bpals.signal.pairs import NORMAL_95, Matrix, Pairs, by_finding, logit, sigmoid
from bpals.signal.sentences import Sentences, listed
from bpals.signal.value import ranks
from bpals.signal.voices import Bools, Counts, Ints, Panel, Voice
from bpals.types import DEVICES, FLAG, SAYS, signal_schema

METHOD = "record-1"
JUDGES_METHOD = "judges-2"
"""Where an image judge took part."""
DECIMALS = 6
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
        # Row by row in memory: in another order a column's sum differs in the last bit.
        judges = [
            logit(self.record.p_present),
            *(np.where(v.heeded, np.ascontiguousarray(v.evidence), np.nan) for v in self.voices),
        ]
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

    def split(self, finding: str, agreement: Matrix, asked: Counts) -> Matrix:
        """Say where readers would split, or where no read taught it, where judges do: 1, 0, NaN where nobody knows."""
        return self.hard[finding].split if finding in self.hard else judges_split(agreement, asked)

    @property
    def asked(self) -> Counts:
        """How many of the heeded judges answered."""
        count = (~np.isnan(self.record.p_present)).astype(np.int16)
        for voice in self.voices:
            count += voice.answered & voice.heeded
        return count

    @property
    def agreement(self) -> Matrix:
        """Share of the heeded judges that answered and stand on the claim's side; a family of judges has one vote."""
        said = self.record.states
        families: dict[str, list[Voice]] = {}
        for voice in self.voices:
            families.setdefault(voice.family or voice.judge, []).append(voice)
        everyone = np.ones(said.shape[1], dtype=bool)
        ballots = [[_Ballot(given=self.record.p_present, usual=self.record.usual, heeded=everyone, vote=1.0)]]
        ballots += [
            [_Ballot(given=v.p_present, usual=v.usual, heeded=v.heeded, vote=v.vote) for v in family]
            for family in families.values()
        ]
        share = np.full(said.shape, np.nan)

        def count(films: slice) -> None:
            here = said[films]
            present, stands, votes = here == 1, np.zeros(here.shape), np.zeros(here.shape, dtype=np.int16)
            for family in ballots:
                its, voted = _family_vote(family, films, present)
                stands += its
                votes += voted
            np.divide(stands, votes, out=share[films], where=(votes > 0) & (present | (here == 0)))

        in_blocks(len(said), count)
        # Thirds and fifths of a vote do not add up to a whole to the last bit.
        return np.asarray(np.round(share, DECIMALS, out=share))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ballot:
    """What one judge gives, and how it counts inside its family."""

    given: Matrix
    usual: Matrix
    heeded: Bools
    vote: float

    def cast(self, films: slice, present: Bools) -> tuple[Bools, Bools]:
        """Say of some films where the judge stands with the claim, and where it answered."""
        given = self.given[films]
        # A comparison with NaN is false, so who did not answer stands nowhere.
        stands = np.where(present, given >= self.usual, given <= self.usual)
        return stands & self.heeded, ~np.isnan(given) & self.heeded


def _family_vote(family: Sequence[_Ballot], films: slice, present: Bools) -> tuple[Matrix | Bools, Bools]:
    """Say how much of a family's one vote stands with each claim, and where it has one."""
    if len(family) == 1:
        return family[0].cast(films, present)
    its, whole = np.zeros(present.shape), np.zeros(present.shape)
    for ballot in family:
        stands, answered = ballot.cast(films, present)
        its += stands * ballot.vote
        whole += answered * ballot.vote
    return np.divide(its, whole, out=its, where=whole > 0), whole > 0


def write(
    part: Part, images: pl.DataFrame, reports: pl.DataFrame, panel: Panel | None, wrong: Wrong | None
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Write the part out, one row a claim in the order of films and findings; and the rules that flagged them.

    `reports` are `reports_of_films(images)`.
    """
    said, trusts = part.pairs.states, _Trusts.of(part)
    seen, rules = _flag(part, trusts, wrong or {})
    claimed = ~np.isnan(said)
    matrices = {
        "says": np.where(said == 1, np.uint32(0), np.where(said == 0, np.uint32(1), np.uint32(2))),
        "p_present": trusts.p_present,
        "trust": trusts.trust,
        "trust_low": trusts.low,
        "trust_high": trusts.high,
        "agreement": seen.agreement,
        "answered": part.pairs.answered,
        "flag": seen.flagged.astype(np.uint32),
    }
    kept = slice(None) if claimed.all() else claimed.ravel()  # mostly every pair is claimed, and nothing is copied
    films, columns = (np.arange(count, dtype=np.uint32) for count in said.shape)
    film = pl.Series(np.repeat(films, len(columns))[kept])
    table = pl.DataFrame(
        {
            "image_id": part.pairs.image_ids.gather(film),
            "finding": pl.Series(np.tile(columns, len(films))[kept]),
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
        pl.lit("unknown", dtype=DEVICES).alias("devices") if panel is None else panel.devices.column.gather(film),
        (unchecked(images) if panel is None or panel.checks is None else panel.checks.column).gather(film),
    )
    with ThreadPoolExecutor(2) as hands:
        ranked, told = hands.submit(ranks, plain), hands.submit(_reasons, part, images, reports, panel, claimed, seen)
        whole = plain.with_columns(ranked.result(), told.result())
    return whole.select(schema.names()).cast(schema), rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trusts:
    """How far each claim is trusted, with 95 % intervals; NaN where it is uncertain or silent, or nobody answered."""

    p_present: Matrix
    trust: Matrix
    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, part: Part) -> _Trusts:
        """Turn what the judges say of the findings into what they say of the claims."""
        p_present, trust, trust_low, trust_high = (np.empty(part.p_present.shape) for _ in range(4))

        def turn(films: slice) -> None:
            states, p = part.pairs.states[films], np.round(part.p_present[films], DECIMALS)
            low, high = _interval(p, part.spread[films])
            present, absent = states == 1, states == 0
            p_present[films] = p
            trust[films] = np.where(present, p, np.where(absent, 1 - p, np.nan))
            trust_low[films] = np.where(present, low, np.where(absent, 1 - high, np.nan))
            trust_high[films] = np.where(present, high, np.where(absent, 1 - low, np.nan))

        in_blocks(len(trust), turn)
        return cls(p_present=p_present, trust=trust, low=trust_low, high=trust_high)


def _interval(p: Matrix, spread: Matrix) -> tuple[Matrix, Matrix]:
    """95 % interval of a probability from the standard deviation of its logit."""
    z, reach = logit(p), NORMAL_95 * spread
    low, high = (np.round(sigmoid(side), DECIMALS) for side in (z - reach, z + reach))
    return np.minimum(low, p), np.maximum(high, p)


def _flag(part: Part, trusts: _Trusts, wrong: Wrong) -> tuple[reasons.Flagged, list[dict[str, Any]]]:
    """Flag every claim, finding by finding and direction by direction."""
    agreement, asked = part.agreement, part.asked
    flagged = np.full(agreement.shape, flags.UNJUDGED, dtype=np.int8)
    matrices = [by_finding(each) for each in (part.pairs.states, trusts.trust, trusts.high, agreement)]
    count = by_finding(asked)

    def flag(column: int) -> list[flags.Rule]:
        finding, rules = part.pairs.findings[column], []
        states, trust, high, alike = (matrix[:, column] for matrix in matrices)
        split = part.split(finding, alike, count[:, column])
        for says, state in (("present", 1), ("absent", 0)):
            here = (states == state) & ~np.isnan(trust)
            if finding in wrong:
                films, drawn = wrong[finding].among(here, trust, split)
                rule = flags.rule_by_review(finding, says, drawn, trust[_without(here, films)])
            elif finding in part.notes:
                rule = flags.rule_by_group(finding, says)
            else:
                rule = flags.rule_by_share(finding, says, trust[here])
            flagged[:, column][here] = flags.apply(rule, trust[here], high[here], split[here])
            rules.append(rule)
        return rules

    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        made = list(hands.map(flag, range(len(part.pairs.findings))))
    seen = reasons.Flagged(flagged=flagged, agreement=agreement, asked=asked)
    return seen, [asdict(rule) for rules in made for rule in rules]


def _without(here: Bools, films: Ints) -> Bools:
    """Leave some films out."""
    others = here.copy()
    others[films] = False
    return others


def _reasons(
    part: Part,
    images: pl.DataFrame,
    reports: pl.DataFrame,
    panel: Panel | None,
    claimed: Bools,
    flagged: reasons.Flagged,
) -> pl.Series:
    """Gather each claim's reasons, the most telling first."""
    pairs = part.pairs
    notes = [part.notes.get(name) for name in pairs.findings]
    noted = np.array([0 if note is None else column for column, note in enumerate(notes, start=1)])
    kinds = [
        Sentences(words=UNCERTAIN, which=pairs.states == 0.5),
        reasons.flag_reasons(flagged, pairs.findings, part.hard),
        reasons.timeline_reasons(pairs, images, reports),
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
