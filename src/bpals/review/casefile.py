"""The case file: what a workspace knows of each film, found in a moment; a reader sees it after the lock only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from bpals.review.room import JudgeAnswer, PatientFilm, Revealed, RevealedPair

SIGNAL = ("image_id", "finding", "says", "p_present", "trust", "trust_low", "trust_high", "flag", "reasons")
JUDGMENTS = ("image_id", "finding", "judge", "outcome", "p_present")
IMAGES = ("image_id", "patient_id", "follow_up")


class _Pages:
    """A table whose rows are found by film."""

    def __init__(self, table: pl.DataFrame) -> None:
        """Take a table in any order; the rows of a film are laid side by side."""
        runs = table["image_id"].rle().struct.unnest()
        if runs["value"].n_unique() != runs.height:
            table = table.sort("image_id", maintain_order=True)
            runs = table["image_id"].rle().struct.unnest()
        self._table = table
        starts = runs["len"].cast(pl.Int64).cum_sum() - runs["len"].cast(pl.Int64)
        self._where = dict(zip(runs["value"], zip(starts, runs["len"], strict=True), strict=True))

    def of(self, image_id: str) -> pl.DataFrame:
        """Give the rows of a film."""
        start, length = self._where.get(image_id, (0, 0))
        return self._table.slice(start, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What a workspace holds, as tables; more columns than are named here do no harm."""

    version: str
    """sha256 of signal.parquet."""
    signal: pl.DataFrame
    judgments: Sequence[pl.DataFrame]
    """One table a judge."""
    images: pl.DataFrame


class CaseFile:
    """One version of the signal, by film."""

    def __init__(self, tables: Tables) -> None:
        """Lay the tables out by film."""
        self.version = tables.version
        self._signal = _Pages(tables.signal.select(SIGNAL))
        self._judgments = [_Pages(table.select(JUDGMENTS)) for table in tables.judgments]
        images = tables.images.select(IMAGES).with_row_index("row")
        self._names, self._patients, self._follow_ups = (images[name].to_list() for name in IMAGES)
        self._rows = {image_id: row for row, image_id in enumerate(self._names)}
        named = images.filter(pl.col("patient_id").is_not_null())
        self._films: Mapping[str, list[int]] = dict(
            named.group_by("patient_id").agg(pl.col("row").sort_by("follow_up", "row", nulls_last=True)).iter_rows()
        )

    def reveal(self, image_id: str) -> Revealed:
        """Give label, trust, reasons and the judges' answers of every finding that the dataset speaks of."""
        answers: dict[str, list[JudgeAnswer]] = {}
        for pages in self._judgments:
            for row in pages.of(image_id).iter_rows(named=True):
                said = JudgeAnswer(judge=row["judge"], outcome=row["outcome"], p_present=row["p_present"])
                answers.setdefault(row["finding"], []).append(said)
        pairs = tuple(
            RevealedPair(
                **{name: row[name] for name in SIGNAL[1:-1]},
                reasons=tuple(row["reasons"] or ()),
                judges=tuple(answers.get(row["finding"], ())),
            )
            for row in self._signal.of(image_id).iter_rows(named=True)
        )
        return Revealed(version=self.version, pairs=pairs)

    def others(self, image_id: str) -> list[PatientFilm]:
        """Give the patient's films in time order, the film itself among them."""
        row = self._rows.get(image_id)
        if row is None:
            return [PatientFilm(image_id=image_id, when="")]
        patient = self._patients[row]
        return [self._film(other) for other in (self._films[patient] if patient is not None else [row])]

    def _film(self, row: int) -> PatientFilm:
        at = self._follow_ups[row]
        return PatientFilm(image_id=self._names[row], when="" if at is None else f"follow-up {at}")
