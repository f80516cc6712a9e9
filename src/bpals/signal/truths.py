"""What experts say of the dataset's pairs: adjudicated labels, and single reads settled by how their readers err."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import polars as pl

from bpals.signal.confusion import settle
from bpals.signal.learn import Reviewed
from bpals.signal.pairs import Matrix
from bpals.signal.voices import Bools, Ints
from bpals.types import Dataset, Reference, Reviews

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """Every pair that experts spoke of, once."""

    table: pl.DataFrame
    """row (of a film), image_id, patient_id, finding, present (a chance from 0 to 1), inclusion."""
    readers: Mapping[str, Mapping[str, Matrix]]
    """Finding -> reader -> P(verdict | truth), where single reads were settled."""
    reads: Mapping[str, tuple[pl.DataFrame, Matrix]] = field(default_factory=dict)
    """Finding -> those reads, and what is claimed of every film."""

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        reference: Reference | None,
        reviews: Reviews | None,
        said: Callable[[str], Matrix],
    ) -> Truths:
        """Join both to the films; an adjudicated label stands over single reads. `said` gives a finding's claims."""
        films = dataset.images.select("image_id", "patient_id").with_row_index("row")
        tables, readers, read = [], {}, {}
        if reference is not None:
            labels = reference.truth.join(films, on="image_id", how="inner", maintain_order="left")
            tables.append(labels.with_columns(inclusion=None).select(_TRUTH.names()))
        if reviews is not None:
            known = reviews.table.join(reviews.settled, on=["image_id", "finding"], how="left", maintain_order="left")
            reads = known.join(films, on="image_id", how="inner", maintain_order="left")
            if tables:
                reads = reads.join(tables[0], on=["row", "finding"], how="anti", maintain_order="left")
            for finding in reads["finding"].unique(maintain_order=True):
                read[finding] = (reads.filter(pl.col("finding") == finding), said(finding))
                settled = settle(*read[finding])
                readers[finding] = settled.readers
                told = pl.DataFrame(
                    {
                        "row": settled.rows.astype(np.uint32),
                        "finding": pl.repeat(finding, len(settled.rows), eager=True),
                        "present": settled.present,
                        "inclusion": pl.Series(settled.inclusion).fill_nan(None),
                    }
                )
                tables.append(told.join(films, on="row", how="left", maintain_order="left").select(_TRUTH.names()))
        table = pl.concat([each.cast(_TRUTH) for each in tables]) if tables else pl.DataFrame(schema=_TRUTH)
        return cls(table=table, readers=readers, reads=read)

    @property
    def patients(self) -> int:
        """Count the patients; a film of nobody is a patient of its own."""
        return self.table.select(pl.coalesce("patient_id", "image_id")).n_unique()

    def about(self, finding: str, answered: Bools, fold: Ints) -> Reviewed | None:
        """Give the reviews of a finding on films where a judge answered; None where they do not show both sides."""
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
        return None if reviewed.one_sided else reviewed

    def _settled(self, finding: str, rows: Ints, present: Matrix, fold: Ints) -> Callable[[frozenset[int]], Matrix]:
        """Settle the reads of a finding anew without those of some patients: their readers are then known by others."""
        reads, said = self.reads[finding]
        whose = fold[reads["row"].to_numpy().astype(np.int64)]

        @cache
        def settled(without: frozenset[int]) -> Matrix:
            again = settle(reads.filter(~np.isin(whose, list(without))), said)
            _, own, theirs = np.intersect1d(rows, again.rows, return_indices=True)
            changed = present.copy()
            changed[own] = again.present[theirs]
            return changed

        return settled


def _weight(inclusion: pl.Series) -> Matrix:
    """Let each review stand for the pairs that had its chance; where the chance is unknown it stands for one."""
    known = 1 / inclusion.to_numpy().astype(np.float64)
    usual = float(np.nanmean(known)) if (~np.isnan(known)).any() else 1.0
    return np.nan_to_num(np.minimum(known / usual, HEAVIEST), nan=1.0)
