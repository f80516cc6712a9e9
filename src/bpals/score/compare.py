"""Two judges beside each other: their answers to the same pairs, and who of them is right.

Quality is measured on the pairs that both answered, patients whole, so that differences are paired. `dependence.py`
says who is wrong together, `behaviour.py` what each one's answers lean on, `gaps.py` where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.findings import Group
from bpals.score.delong import Difference, Placed

Row = dict[str, Any]

MEAN = "mean"
"""The name of the row that averages over findings."""
FEWEST = 5
"""Patients with the finding, and without it, that a figure needs at least."""
FIGURES = {
    "auroc": Placed.auroc,
    "ap": Placed.average_precision,
    "brier": Placed.brier,
    "ece": Placed.ece,
}
"""How well a judge tells, and how far its raw probability is one."""
LETTERS = "ab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two judges: its sealed answers, and its answer without a film, subject by subject."""

    name: str
    answers: Mapping[str, pl.DataFrame]
    """Finding -> its rows of the judge's table."""
    offsets: Mapping[str, tuple[float, float]]
    """Subject -> mean logit without a film of `present` and of `absent`; empty where the judge has no controls."""

    @classmethod
    def of(cls, name: str, answers: pl.DataFrame, offsets: Mapping[str, tuple[float, float]] | None = None) -> Side:
        """Sort a judge's table by finding."""
        parts = answers.partition_by("finding", as_dict=True, maintain_order=True)
        return cls(name=name, answers={str(key[0]): part for key, part in parts.items()}, offsets=offsets or {})

    def about(self, group: Group) -> pl.DataFrame:
        """Give `image_id, p` of a finding or a group; p is null where it was not answered.

        P(group) = 1 - product of (1 - p) over its members, all of which must be answered.
        """
        its = [
            self.answers[member].select("image_id", "p_present") for member in group.members if member in self.answers
        ]
        if not its:
            return pl.DataFrame(schema={"image_id": pl.String, "p": pl.Float64})
        if len(group.members) == 1:
            return its[0].rename({"p_present": "p"})
        whole = (pl.len() == len(group.members)) & pl.col("p_present").is_not_null().all()
        any_of = 1 - (1 - pl.col("p_present")).product()
        return pl.concat(its).group_by("image_id", maintain_order=True).agg(p=pl.when(whole).then(any_of))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of one finding that both judges were asked, film by film."""

    finding: str
    table: pl.DataFrame
    """image_id, patient (a number), p_a and p_b (null where not answered), truth (null where nobody knows)."""

    @property
    def known(self) -> pl.DataFrame:
        """The pairs of which the yardstick knows what is so."""
        return self.table.drop_nulls("truth")

    @property
    def answered(self) -> pl.DataFrame:
        """The pairs that both answered."""
        return self.table.drop_nulls(["p_a", "p_b"])

    @property
    def scored(self) -> pl.DataFrame:
        """The pairs that both answered and the yardstick knows."""
        return self.table.drop_nulls(["p_a", "p_b", "truth"])


def join(group: Group, a: Side, b: Side, truth: pl.DataFrame) -> Pairs:
    """Lay two judges' answers about a finding, or a group, beside the yardstick: `image_id, patient, truth`."""
    sides = [side.about(group).rename({"p": f"p_{letter}"}) for letter, side in zip(LETTERS, (a, b), strict=True)]
    table = sides[0].join(sides[1], on="image_id", how="inner", maintain_order="left")
    return Pairs(finding=group.name, table=table.join(truth, on="image_id", how="inner", maintain_order="left"))


def quality(several: Sequence[Pairs], against: str) -> list[Row]:
    """Score both against the yardstick on the pairs that both answered, with paired differences, and their mean."""
    rows, placed = [], []
    for pairs in several:
        both = pairs.scored
        figures = _placed(both, list(FIGURES))
        placed += [figures] if figures else []
        rows.append(
            {
                "finding": pairs.finding,
                "against": against,
                "n": both.height,
                "positives": int(both["truth"].sum()),
                "left_out": pairs.known.height - both.height,
                **_written(figures),
                **_difference("auroc_difference_filled", _placed(_filled(pairs), ["auroc"]).get("auroc")),
            }
        )
    rows = holm(rows)
    if len(placed) > 1:
        means = {name: _mean([figures[name] for figures in placed]) for name in FIGURES}
        rows.append({"finding": MEAN, "against": against, "findings": len(placed), **_written(means)})
    return rows


Both = tuple[Placed, Placed]
"""A figure of each judge."""


def _placed(table: pl.DataFrame, names: Sequence[str]) -> dict[str, Both]:
    """Work figures out for both judges; none where too few patients have the finding, or have it not."""
    truth = table["truth"].to_numpy().astype(np.bool_)
    patients: NDArray[Any] = table["patient"].to_numpy()
    if min(len(np.unique(patients[truth])), len(np.unique(patients[~truth]))) < FEWEST:
        return {}
    a, b = (table[f"p_{letter}"].to_numpy() for letter in LETTERS)
    return {name: (FIGURES[name](a, truth, patients), FIGURES[name](b, truth, patients)) for name in names}


def _mean(several: Sequence[Both]) -> Both:
    return Placed.mean([a for a, _ in several]), Placed.mean([b for _, b in several])


def _filled(pairs: Pairs) -> pl.DataFrame:
    """Give all pairs, with the judge's mean for what it did not answer.

    A refusal is no accident: a judge that leaves out what is hard would else look better than it is.
    """
    known = pairs.known
    return known.with_columns(pl.col("p_a", "p_b").fill_null(pl.col("p_a", "p_b").mean())).drop_nulls(["p_a", "p_b"])


def _written(figures: Mapping[str, Both]) -> Row:
    """Write every figure of both with its interval, and what A has more than B; null where there is none."""
    row: Row = {}
    for name in FIGURES:
        both = figures.get(name)
        for letter, one in zip(LETTERS, both or (None, None), strict=True):
            ends = (None, None, None) if one is None else (one.value, *one.interval)
            row |= dict(zip(_named(f"{name}_{letter}"), ends, strict=True))
        row |= _difference(f"{name}_difference", both)
    return row | {"p_value": Difference.of(*figures["auroc"]).p_value if figures else None}


def _difference(name: str, both: Both | None) -> Row:
    found = None if both is None else Difference.of(*both)
    ends = (None, None, None) if found is None else (found.value, found.low, found.high)
    return dict(zip(_named(name), ends, strict=True))


def _named(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def holm(rows: list[Row]) -> list[Row]:
    """Correct the p-values of the paired differences of AUROC for the number of findings, after Holm."""
    tested = sorted((row for row in rows if row["p_value"] is not None), key=lambda row: float(row["p_value"]))
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, row in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - place) * float(row["p_value"])))
        corrected[row["finding"]] = highest
    return [{**row, "p_holm": corrected.get(row["finding"])} for row in rows]
