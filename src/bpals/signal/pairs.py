"""Claims and answers as matrices: a row a film, a column a finding, a group treated as a finding of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import ContractBroken
from bpals.findings import Group, Vocabulary
from bpals.signal.blocks import in_blocks
from bpals.types import SAYS

Value = TypeVar("Value", bound=np.generic)
Matrix = npt.NDArray[np.float64]
Place = npt.NDArray[np.int64] | slice

SMALLEST = 1e-6
"""Probabilities are kept this far from 0 and 1, so that every logit is finite."""
NORMAL_95 = 1.96
STATES: Mapping[str, float] = {"present": 1.0, "absent": 0.0, "uncertain": 0.5}


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
        return usual(self.p_present)

    def column(self, finding: str) -> int:
        """Find a finding's column."""
        return self.findings.index(finding)


def logit(p: Matrix) -> Matrix:
    """Turn probabilities into logits."""
    # In place: fresh memory for a matrix of all pairs costs as much as what is done in it.
    kept = np.asarray(np.clip(p, SMALLEST, 1 - SMALLEST))
    kept /= 1 - kept
    return np.log(kept, out=kept)


def sigmoid(z: Matrix) -> Matrix:
    """Turn logits into probabilities."""
    odds = np.asarray(-np.clip(z, -30, 30), dtype=np.float64)
    np.exp(odds, out=odds)
    odds += 1
    return np.divide(1, odds, out=odds)


def usual(p: Matrix) -> Matrix:
    """Average each finding's answers; NaN where there is none."""
    count = answers(p)
    total = p.sum(axis=0) if (count == len(p)).all() else np.nansum(p, axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def answers(p: Matrix) -> npt.NDArray[np.int64]:
    """Count each finding's answers."""
    silent = np.isnan(p)
    return len(p) - silent.sum(axis=0) if silent.any() else np.full(p.shape[1], len(p))


def by_finding(matrix: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """Lay each finding's numbers one behind the other in memory, for whoever goes through them finding by finding."""
    laid = np.empty(matrix.shape, dtype=matrix.dtype, order="F")

    def lay(films: slice) -> None:
        for column in range(matrix.shape[1]):
            laid[films, column] = matrix[films, column]

    in_blocks(len(matrix), lay)
    return laid


def lay_out(images: pl.DataFrame, claims: pl.DataFrame, judgments: pl.DataFrame, vocabulary: Vocabulary) -> Pairs:
    """Lay claims and judgments out as matrices."""
    states = np.full((images.height, len(vocabulary.findings)), np.nan)
    meaning = np.array([STATES[says] for says in SAYS.categories])
    place = _places("claims", claims, images["image_id"], vocabulary.findings)
    states.ravel()[place] = meaning[claims["says"].to_physical().to_numpy()]
    return _judged(images["image_id"], vocabulary.findings, states, judgments)


def _judged(image_ids: pl.Series, findings: tuple[str, ...], states: Matrix, judgments: pl.DataFrame) -> Pairs:
    """Lay judgments beside states; the answers of several judges are averaged as logits.

    A table that does not keep the promise of its schema is refused: it would land on other pairs, or as no number.
    """
    total, variance, p_present = np.zeros(states.size), np.zeros(states.size), np.full(states.size, np.nan)
    answered = np.zeros(states.size, dtype=np.int32)
    answers = judgments.filter(pl.col("outcome") == "answered")
    given = answers["p_present"]
    if wrong := answers.height - int((given.is_between(0, 1) & given.is_not_nan()).sum()):
        raise ContractBroken(f"{wrong:,} judgments give no probability from 0 to 1. Give one to each that is answered")
    judges = answers["judge"].unique().sort()
    for judge in judges:
        its = answers.filter(pl.col("judge") == judge)
        place = _places("judgments", its, image_ids, findings)
        if not isinstance(place, slice) and (twice := int((np.bincount(place) > 1).sum())):
            raise ContractBroken(f"{judge} answers twice about {twice:,} pairs. Keep one answer a pair")
        low, high = (its[side].fill_null(its["p_present"]).to_numpy() for side in ("p_low", "p_high"))
        p_present[place] = its["p_present"].to_numpy()
        if len(judges) > 1:
            total[place] += logit(its["p_present"].to_numpy())
        variance[place] += _variance(low, high)
        answered[place] += 1
    # One judge's own probability is kept to the last bit: it does not go through logits.
    several = answered > 1
    p_present[several] = sigmoid(total[several] / answered[several])
    return Pairs(
        image_ids=image_ids,
        findings=findings,
        states=states,
        p_present=p_present.reshape(states.shape),
        spread=(np.sqrt(variance, out=variance) / np.maximum(answered, 1)).reshape(states.shape),
        answered=answered.reshape(states.shape),
    )


def _variance(low: Matrix, high: Matrix) -> Matrix:
    """Give the variance of a logit from its 95 % interval."""
    deviation = logit(high)
    deviation -= logit(low)
    deviation /= 2 * NORMAL_95
    return np.square(deviation, out=deviation)


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


def places_of(films: pl.Series, columns: npt.NDArray[Any], image_ids: pl.Series, findings: int) -> Place:
    """Find each row's place in a matrix of films and findings, counted row by row, or beyond it: no such film.

    Tables are written film by film: a run of one name is looked up once. Mostly they go through all films and findings
    in the dataset's own order; then the place is all of the matrix.
    """
    runs = films.rle().struct.unnest()
    length = runs["len"].to_numpy()
    if runs["value"].equals(image_ids):
        if (length == findings).all() and (columns.reshape(-1, findings) == np.arange(findings)).all():
            return slice(None)
        rows = np.arange(len(image_ids))
    else:
        known = pl.DataFrame({"value": image_ids}).with_row_index("row")
        found = runs.join(known, on="value", how="left", maintain_order="left")["row"]
        rows = found.cast(pl.Int64).fill_null(len(image_ids)).to_numpy()
    places = np.repeat(rows * findings, length)
    places += columns
    return places


def _places(what: str, table: pl.DataFrame, image_ids: pl.Series, findings: tuple[str, ...]) -> Place:
    """Find each row's place in a matrix of films and findings; refuse films and findings that are not there."""
    named = table["finding"]
    strange = 0
    if named.dtype != pl.Enum(findings):
        named = named.cast(pl.String)
        strange = int((~named.is_in(list(findings))).sum())
    columns = named.cast(pl.Enum(findings), strict=False).to_physical().fill_null(0).to_numpy()
    places = places_of(table["image_id"], columns, image_ids, len(findings))
    if not isinstance(places, slice) and (missing := int((absent := places >= len(image_ids) * len(findings)).sum())):
        first = table["image_id"].filter(absent)[0]
        raise ContractBroken(f"{missing:,} {what} are about films that are not in the dataset (first: {first})")
    if strange:
        first = named.filter(~named.is_in(list(findings)))[0]
        raise ContractBroken(f"{strange:,} {what} are about findings that are not audited (first: {first!r})")
    return places
