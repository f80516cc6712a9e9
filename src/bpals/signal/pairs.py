"""Claims and answers as matrices: a row a film, a column a finding, a group treated as a finding of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.findings import Group, Vocabulary

Matrix = npt.NDArray[np.float64]

SMALLEST = 1e-6
"""Probabilities are kept this far from 0 and 1, so that every logit is finite."""
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What is claimed and what the judges say, for every film and every finding."""

    image_ids: pl.Series
    findings: tuple[str, ...]
    states: Matrix
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    p_present: Matrix
    """The judges' probability; NaN where nobody answered."""
    spread: Matrix
    """Standard deviation of its logit."""
    answered: npt.NDArray[np.int32]

    @property
    def usual(self) -> Matrix:
        """The judges' mean probability of each finding; NaN where nobody answered."""
        answers = (~np.isnan(self.p_present)).sum(axis=0)
        return np.where(answers > 0, np.nansum(self.p_present, axis=0) / np.maximum(answers, 1), np.nan)

    def column(self, finding: str) -> int:
        """Find a finding's column."""
        return self.findings.index(finding)


def logit(p: Matrix) -> Matrix:
    """Turn probabilities into logits."""
    kept = np.clip(p, SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(kept / (1 - kept)))


def sigmoid(z: Matrix) -> Matrix:
    """Turn logits into probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))))


def lay_out(images: pl.DataFrame, claims: pl.DataFrame, judgments: pl.DataFrame, vocabulary: Vocabulary) -> Pairs:
    """Lay claims and judgments out as matrices."""
    rows = images.select("image_id").with_row_index("row")
    states = np.full((images.height, len(vocabulary.findings)), np.nan)
    said = claims["says"].cast(pl.String).replace_strict({"present": 1.0, "absent": 0.0, "uncertain": 0.5})
    states[_places(claims, rows)] = said.to_numpy()
    return _judged(images["image_id"], vocabulary.findings, states, judgments)


def _judged(image_ids: pl.Series, findings: tuple[str, ...], states: Matrix, judgments: pl.DataFrame) -> Pairs:
    """Lay judgments beside states; the answers of several judges are averaged as logits."""
    rows = pl.DataFrame({"image_id": image_ids}).with_row_index("row")
    total, variance, last = np.zeros(states.shape), np.zeros(states.shape), np.full(states.shape, np.nan)
    answered = np.zeros(states.shape, dtype=np.int32)
    answers = judgments.filter(pl.col("outcome") == "answered")
    for judge in answers["judge"].unique().sort():
        its = answers.filter(pl.col("judge") == judge)
        place = _places(its, rows)
        low, high = (its[side].fill_null(its["p_present"]).to_numpy() for side in ("p_low", "p_high"))
        last[place] = its["p_present"].to_numpy()
        total[place] += logit(last[place])
        variance[place] += ((logit(high) - logit(low)) / (2 * NORMAL_95)) ** 2
        answered[place] += 1
    # One judge's own probability is kept to the last bit: it does not go through logits.
    p_present = np.where(answered > 1, sigmoid(total / np.maximum(answered, 1)), last)
    return Pairs(
        image_ids=image_ids,
        findings=findings,
        states=states,
        p_present=p_present,
        spread=np.sqrt(variance) / np.maximum(answered, 1),
        answered=answered,
    )


def with_groups(pairs: Pairs, groups: Sequence[Group], judgments: pl.DataFrame | None = None) -> Pairs:
    """Make each group a finding of its own: present if a member is; its P as the judges give it for the group.

    Where no judge was asked about the groups, P(group) = min(1, sum of its members' P): the sum, because a labeller
    that reads reports seldom names two members at once.
    """
    states = np.stack([group.claim(pairs.states[:, _members(pairs, group)]) for group in groups], axis=1)
    if judgments is not None:
        names = [group.name for group in groups]
        answers = judgments.with_columns(pl.col("finding").cast(pl.String)).filter(pl.col("finding").is_in(names))
        answers = answers.with_columns(pl.col("finding").cast(pl.Enum(names)))
        return _judged(pairs.image_ids, tuple(names), states, answers)
    p_present, spread, answered = [], [], []
    for group in groups:
        members = _members(pairs, group)
        p = pairs.p_present[:, members]
        summed = np.minimum(p.sum(axis=1), 1 - SMALLEST)
        p_present.append(summed)
        moved = np.sqrt(((p * (1 - p) * pairs.spread[:, members]) ** 2).sum(axis=1))
        spread.append(moved / np.maximum(summed * (1 - summed), SMALLEST))
        answered.append(pairs.answered[:, members].min(axis=1))
    return Pairs(
        image_ids=pairs.image_ids,
        findings=tuple(group.name for group in groups),
        states=states,
        p_present=np.stack(p_present, axis=1),
        spread=np.stack(spread, axis=1),
        answered=np.stack(answered, axis=1),
    )


def _members(pairs: Pairs, group: Group) -> list[int]:
    return [pairs.column(name) for name in group.members]


def _places(table: pl.DataFrame, rows: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    placed = table.select("image_id").join(rows, on="image_id", how="left", maintain_order="left")
    return placed["row"].to_numpy().astype(np.int64), table["finding"].to_physical().to_numpy().astype(np.int64)
