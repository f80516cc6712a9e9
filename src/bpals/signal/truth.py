"""What experts say of the dataset's pairs: adjudicated labels, and single reads settled by how their readers err.

P(verdict | truth) is a row of three for each reader and truth: present, absent, uncertain. It is estimated together
with the truths by expectation-maximisation, finding by finding. A reader with few reads is held near all readers, and
they near what is usual for radiologists. No judge's answer enters, so that what readers teach about a judge is their
own. A pair that an adjudicator or a discussion settled has that truth, and teaches how its readers err.

What people settled also stands in the signal as it is, whatever a fit makes of it: `verdicts_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import polars as pl

from bpals.numeric import PAIR, Matrix, majority, sigmoid
from bpals.signal.hierarchical import Reviewed
from bpals.signal.layout import Bools, Counts, Ints, Pairs, places_of
from bpals.types import SETTLED_COLUMNS, Dataset, Reference, Reviews

WORDS = ("present", "absent", "uncertain")
USUAL: Matrix = np.array([[7.0, 2.0, 1.0], [0.5, 9.0, 0.5]])
"""Reads that are added for all readers together: of images with the finding, and of images without."""
STRENGTH = 20.0
"""Reads of all readers that are added for each single one."""
EVEN = 2.0
"""Pairs that are added, half with the finding, to how common it is."""
CHOSEN = 0.5
"""A pair with at least this chance to be read was chosen; with less, or none that is known, it was drawn."""
ROUNDS = 200
STILL = 1e-8
HEAVIEST = 10.0
"""A review counts at most this many times as much as the mean one: a single rare draw must not decide."""

_TRUTH = pl.Schema(
    {
        "row": pl.UInt32,
        "image_id": pl.String,
        "patient_id": pl.String,
        "finding": pl.String,
        "present": pl.Float64,
        "inclusion": pl.Float64,
    }
)


_PAIRS: dict[str, pl.DataType] = {"image_id": pl.String(), "finding": pl.String()}
_VERDICTS = pl.Schema(_PAIRS | dict(SETTLED_COLUMNS))
_ADJUDICATED = pl.Schema(_PAIRS | {"adjudicated": pl.Boolean()})
_VOTES = pl.Schema(_PAIRS | {"yes": pl.Int64(), "no": pl.Int64()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """Every pair that experts spoke of, once."""

    table: pl.DataFrame
    """row (of an image), image_id, patient_id, finding, present (a chance from 0 to 1), inclusion."""
    readers: Mapping[str, Mapping[str, Matrix]]
    """Finding -> reader -> P(verdict | truth), where single reads were settled."""
    reads: Mapping[str, tuple[pl.DataFrame, Matrix]] = field(default_factory=dict)
    """Finding -> those reads, and the label of every image."""

    @classmethod
    def of(
        cls, dataset: Dataset, reference: Reference | None, reviews: Reviews | None, claims: Callable[[str], Matrix]
    ) -> Truths:
        """Join both to the images; an adjudicated label stands over single reads. `claims` gives a finding's labels."""
        images = dataset.images.select("image_id", "patient_id").with_row_index("row")
        tables, readers, by_finding = [], {}, {}
        if reference is not None:
            labels = reference.truth.join(images, on="image_id", how="inner", maintain_order="left")
            tables.append(labels.with_columns(inclusion=None).select(_TRUTH.names()))
        if reviews is not None:
            known = reviews.table.join(reviews.settled, on=PAIR, how="left", maintain_order="left")
            reads = known.join(images, on="image_id", how="inner", maintain_order="left")
            # A pair that nobody calls present or absent says nothing of its label.
            voted = pl.col("verdict").cast(pl.String).is_in(WORDS[:2]).any().over(PAIR)
            reads = reads.filter(voted | pl.col("settled").is_not_null())
            # What was adjudicated stands; its single reads would count it a second time.
            if tables:
                reads = reads.join(tables[0], on=["row", "finding"], how="anti", maintain_order="left")
            for finding in reads["finding"].unique(maintain_order=True):
                by_finding[finding] = (reads.filter(pl.col("finding") == finding), claims(finding))
                settled = settle_reads(*by_finding[finding])
                readers[finding] = settled.readers
                truth = pl.DataFrame(
                    {
                        "row": settled.rows.astype(np.uint32),
                        "finding": pl.repeat(finding, len(settled.rows), eager=True),
                        "present": settled.present,
                        "inclusion": pl.Series(settled.inclusion).fill_nan(None),
                    }
                )
                tables.append(truth.join(images, on="row", how="left", maintain_order="left").select(_TRUTH.names()))
        table = pl.concat([each.cast(_TRUTH) for each in tables]) if tables else pl.DataFrame(schema=_TRUTH)
        return cls(table=table, readers=readers, reads=by_finding)

    @property
    def patients(self) -> int:
        """Count the patients; an image of nobody is a patient of its own."""
        return self.table.select(pl.coalesce("patient_id", "image_id")).n_unique()

    def about(self, finding: str, answered: Bools, fold: Ints) -> Reviewed | None:
        """Give the reviews of a finding on images that a judge answered; None where there is none."""
        its = self.table.filter(pl.col("finding") == finding)
        its = its.filter(answered[its["row"].to_numpy().astype(np.int64)])
        rows = its["row"].to_numpy().astype(np.int64)
        present = its["present"].to_numpy()
        reviewed = Reviewed(
            rows=rows,
            present=present,
            weight=_weight(its["inclusion"]),
            fold=fold[rows],
            settled=self._settled(finding, rows, present, fold) if finding in self.reads else None,
        )
        return reviewed if len(rows) else None

    def _settled(self, finding: str, rows: Ints, present: Matrix, fold: Ints) -> Callable[[frozenset[int]], Matrix]:
        """Settle the reads of a finding anew without those of some patients: their readers are then known by others."""
        reads, claim = self.reads[finding]
        whose = fold[reads["row"].to_numpy().astype(np.int64)]

        # Every design and penalty leaves out the same few sets of patients.
        @cache
        def settled(without: frozenset[int]) -> Matrix:
            again = settle_reads(reads.filter(~np.isin(whose, list(without))), claim)
            _, own, theirs = np.intersect1d(rows, again.rows, return_indices=True)
            changed = present.copy()
            changed[own] = again.present[theirs]
            return changed

        return settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What people say of a level's pairs: one row per image, one column per finding."""

    present: Matrix
    """What they settled: 1 present, 0 absent, NaN nothing."""
    adjudicated: Bools
    """Where an adjudicated label settled it, and no count of readers."""
    yes: Counts
    """Readers who say present, and who say absent."""
    no: Counts

    @classmethod
    def of(cls, table: pl.DataFrame, pairs: Pairs) -> Verdicts:
        """Lay out `verdicts_of`; what is about other images or findings is left out."""
        here = table.filter(pl.col("finding").is_in(list(pairs.findings)))
        column = here["finding"].cast(pl.Enum(pairs.findings)).to_physical().to_numpy()
        places = places_of(here["image_id"], column, pairs.image_ids, len(pairs.findings))
        values = here.select(
            (pl.col("verdict") == "present").cast(pl.Float64).fill_null(float("nan")),
            adjudicated=pl.col("verdict_by").eq_missing("adjudicated"),
            yes="readers_present",
            no="readers_absent",
        )
        size = pairs.states.size
        laid = []
        for series, blank in zip(values, (np.nan, False, 0, 0), strict=True):
            # One place more than there are pairs: there lies what is about an image that is not here.
            matrix = np.full(size + 1, blank, dtype=series.to_numpy().dtype)
            matrix[slice(size) if isinstance(places, slice) else np.minimum(places, size)] = series.to_numpy()
            laid.append(matrix[:size].reshape(pairs.states.shape))
        return cls(present=laid[0], adjudicated=laid[1], yes=laid[2], no=laid[3])

    @property
    def settled(self) -> Bools:
        """Where people settled the pair."""
        return np.asarray(~np.isnan(self.present))


def verdicts_of(
    reference: Reference | None = None, reviews: Reviews | None = None, random_sample: Reference | None = None
) -> pl.DataFrame:
    """Give one row per pair that people read: image_id, finding and SETTLED_COLUMNS.

    An adjudicated label settles its pair, and so do at least two readers of whom most agree. A tie, a single read and a
    hedge settle nothing. A verdict about a group has the group's name, and settles none of its members.
    """
    # What stands over what: the labels to calibrate on, what the readers settled, the labels of a random sample.
    labels = [_ADJUDICATED.to_frame(), *_adjudicated(reference)]
    if reviews is not None:
        labels.append(reviews.settled.select(*PAIR, adjudicated=pl.col("settled") > 0.5))
    told = pl.concat([*labels, *_adjudicated(random_sample)]).unique(PAIR, keep="first", maintain_order=True)
    votes = [each.votes for each in (reference, random_sample) if each is not None and each.votes is not None]
    if reviews is not None:
        # Who said the same of a pair in two studies is one reader; who said both stands on both sides.
        votes.append(majority(reviews.table.unique([*PAIR, "reader", "verdict"])))
    counted = pl.concat([_VOTES.to_frame(), *(each.select(_VOTES.names()) for each in votes)])
    # Two files may hold the same reads: of each pair those of one count, the one with more.
    most = counted.sort(pl.col("yes") + pl.col("no"), descending=True, maintain_order=True)
    both = told.join(most.unique(PAIR, keep="first", maintain_order=True), on=PAIR, how="full", coalesce=True)
    yes, no = (pl.col(name).fill_null(0) for name in ("yes", "no"))
    by_readers = pl.when((yes + no > 1) & (yes != no)).then(yes > no)
    present, known = pl.coalesce("adjudicated", by_readers), pl.col("adjudicated").is_not_null()
    return both.select(
        *PAIR,
        verdict=pl.when(present).then(pl.lit("present")).when(~present).then(pl.lit("absent")),
        verdict_by=pl.when(known).then(pl.lit("adjudicated")).when(by_readers.is_not_null()).then(pl.lit("readers")),
        readers_present=yes,
        readers_absent=no,
    ).cast(_VERDICTS)


def _adjudicated(labels: Reference | None) -> list[pl.DataFrame]:
    """Give the labels of a reference that are more than a vote of readers."""
    if labels is None or labels.votes is not None:
        return []
    return [labels.truth.select(*PAIR, adjudicated="present")]


def _weight(inclusion: pl.Series) -> Matrix:
    """Let each review stand for the pairs that had its chance; where the chance is unknown it stands for one."""
    known = 1 / inclusion.to_numpy().astype(np.float64)
    usual = float(np.nanmean(known)) if (~np.isnan(known)).any() else 1.0
    return np.nan_to_num(np.minimum(known / usual, HEAVIEST), nan=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The pairs of one finding, with the chance that each shows it, and how their readers err."""

    rows: Ints
    """One image per pair."""
    present: Matrix
    inclusion: Matrix
    """The chance with which the pair was drawn; NaN where nobody knows."""
    reads: Ints
    readers: Mapping[str, Matrix]
    """Reader -> P(verdict | truth): a row for images with the finding, a row for images without."""


def settle_reads(reads: pl.DataFrame, claim: Matrix) -> Settled:
    """Settle one finding's reads: `row` (of an image), `reader`, `verdict` and `inclusion`; `claim` has the labels.

    Unreadable images are no reads. A column `settled` holds 1 or 0 where the truth of a pair is known without them.
    """
    kept = reads.filter(pl.col("verdict").cast(pl.String).is_in(WORDS)).sort("row", "reader")
    rows, pair = np.unique(kept["row"].to_numpy().astype(np.int64), return_inverse=True)
    names, reader = np.unique(kept["reader"].to_numpy().astype(np.str_), return_inverse=True)
    words = {word: place for place, word in enumerate(WORDS)}
    verdict = kept["verdict"].cast(pl.String).replace_strict(words, return_dtype=pl.Int64).to_numpy()
    chance = _of_pairs(kept, "inclusion")
    known = _of_pairs(kept, "settled") if "settled" in kept.columns else np.full(len(rows), np.nan)
    # Chosen pairs, where most labels may be wrong, say nothing about how common a finding is among drawn ones.
    kind = 2 * (chance >= CHOSEN) + (claim[rows] == 1)
    present = np.full(len(rows), 0.5)
    confusion = np.zeros((len(names), 2, len(WORDS)))
    for turn in range(ROUNDS):
        sure = _vote(pair, verdict, len(rows)) if turn == 0 else present
        sure = np.where(np.isnan(known), sure, known)
        confusion = _confusion(sure[pair], reader, verdict, len(names))
        before, present = present, _posterior(confusion, sure, kind, (pair, reader, verdict))
        present = np.where(np.isnan(known), present, known)
        if np.abs(present - before).max(initial=0) < STILL:
            break
    return Settled(
        rows=rows,
        present=present,
        inclusion=chance,
        reads=np.bincount(pair, minlength=len(rows)),
        readers=dict(zip(names.tolist(), confusion, strict=True)),
    )


def _of_pairs(reads: pl.DataFrame, column: str) -> Matrix:
    """Give the first value of a column that a pair's reads know, in the order of the images; NaN where none does."""
    first = reads.group_by("row").agg(pl.col(column).drop_nulls().first()).sort("row")[column]
    return first.fill_null(float("nan")).to_numpy().astype(np.float64)


def _vote(pair: Ints, verdict: Ints, pairs: int) -> Matrix:
    """Begin with the share of reads that say present; a hedge is half a one."""
    worth = np.array([1.0, 0.0, 0.5])[verdict]
    return np.bincount(pair, worth, minlength=pairs) / np.maximum(np.bincount(pair, minlength=pairs), 1)


def _confusion(present: Matrix, reader: Ints, verdict: Ints, readers: int) -> Matrix:
    """Count each reader's verdicts by truth, and shrink them: a reader to all readers, all readers to the usual."""
    place, size = reader * len(WORDS) + verdict, readers * len(WORDS)
    sides = [np.bincount(place, side, minlength=size).reshape(readers, len(WORDS)) for side in (present, 1 - present)]
    counts = np.stack(sides, axis=1)
    every = counts.sum(axis=0) + USUAL
    own = counts + STRENGTH * every / every.sum(axis=1, keepdims=True)
    return np.asarray(own / own.sum(axis=2, keepdims=True))


def _posterior(confusion: Matrix, sure: Matrix, kind: Ints, reads: tuple[Ints, Ints, Ints]) -> Matrix:
    """Weigh each pair's reads by how their readers err, beside how common the finding is among pairs of its kind."""
    pair, reader, verdict = reads
    odds = np.log(confusion[reader, 0, verdict] / confusion[reader, 1, verdict])
    z = np.bincount(pair, odds, minlength=len(sure)).astype(np.float64)
    for one in np.unique(kind):
        side = kind == one
        share = (sure[side].sum() + EVEN / 2) / (side.sum() + EVEN)
        z[side] += np.log(share / (1 - share))
    # Not clipped: many readers who agree may be surer than any single judge.
    return sigmoid(z, np.inf)
