"""Claims and answers as matrices: a row a film, a column a finding, a group treated as a finding of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import ContractBroken
from bpals.findings import Group, Vocabulary
from bpals.types import SAYS

Matrix = npt.NDArray[np.float64]

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
        answers = (~np.isnan(self.p_present)).sum(axis=0)
        return np.where(answers > 0, np.nansum(self.p_present, axis=0) / np.maximum(answers, 1), np.nan)

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
    total, variance, last = np.zeros(states.size), np.zeros(states.size), np.full(states.size, np.nan)
    answered = np.zeros(states.size, dtype=np.int32)
    answers = judgments.filter(pl.col("outcome") == "answered")
    given = answers["p_present"]
    if wrong := answers.height - int((given.is_between(0, 1) & given.is_not_nan()).sum()):
        raise ContractBroken(f"{wrong:,} judgments give no probability from 0 to 1. Give one to each that is answered")
    for judge in answers["judge"].unique().sort():
        its = answers.filter(pl.col("judge") == judge)
        place = _places("judgments", its, image_ids, findings)
        if twice := int((np.bincount(place) > 1).sum()):
            raise ContractBroken(f"{judge} answers twice about {twice:,} pairs. Keep one answer a pair")
        low, high = (its[side].fill_null(its["p_present"]).to_numpy() for side in ("p_low", "p_high"))
        last[place] = its["p_present"].to_numpy()
        total[place] += logit(its["p_present"].to_numpy())
        variance[place] += ((logit(high) - logit(low)) / (2 * NORMAL_95)) ** 2
        answered[place] += 1
    # One judge's own probability is kept to the last bit: it does not go through logits.
    p_present = np.where(answered > 1, sigmoid(total / np.maximum(answered, 1)), last)
    return Pairs(
        image_ids=image_ids,
        findings=findings,
        states=states,
        p_present=p_present.reshape(states.shape),
        spread=(np.sqrt(variance) / np.maximum(answered, 1)).reshape(states.shape),
        answered=answered.reshape(states.shape),
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


def rows_of(named: pl.Series, image_ids: pl.Series) -> npt.NDArray[np.int64]:
    """Find the row of each named film; where there is no such film, the number of films.

    Tables are written film by film, mostly in the dataset's own order: a run of one name is looked up once.
    """
    runs = named.rle().struct.unnest()
    if runs["value"].equals(image_ids):
        rows = np.arange(len(image_ids))
    else:
        known = pl.DataFrame({"value": image_ids}).with_row_index("row")
        found = runs.join(known, on="value", how="left", maintain_order="left")["row"]
        rows = found.cast(pl.Int64).fill_null(len(image_ids)).to_numpy()
    return np.repeat(rows, runs["len"].to_numpy())


def _places(what: str, table: pl.DataFrame, image_ids: pl.Series, findings: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Find each row's place in a matrix of films and findings, counted row by row."""
    placed = rows_of(table["image_id"], image_ids)
    if missing := int((absent := placed == len(image_ids)).sum()):
        first = table["image_id"].filter(absent)[0]
        raise ContractBroken(f"{missing:,} {what} are about films that are not in the dataset (first: {first})")
    named = table["finding"]
    if named.dtype != pl.Enum(findings):
        named = named.cast(pl.String)
        if strange := int((~named.is_in(list(findings))).sum()):
            first = named.filter(~named.is_in(list(findings)))[0]
            raise ContractBroken(f"{strange:,} {what} are about findings that are not audited (first: {first!r})")
        named = named.cast(pl.Enum(findings))
    return np.asarray(placed * len(findings) + named.to_physical().to_numpy())
