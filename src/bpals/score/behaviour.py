"""Behaviour: how a judge answers, whatever is so: how often it says yes, contradicts itself, or does not look.

Evidence. e = logit(p_present). A film that is shown in place of another moves it, or the judge did not look.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.score.compare import MEAN, Row, Side
from bpals.score.resamples import Resamples, interval
from bpals.types import OUTCOME

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOVED = 0.06
"""Nats. What a server may drift between two equal requests; an answer that moves less does not look at the film."""
LITTLE = 0.9
"""A mass below it says that the model wanted to say something else than yes or no."""
SMALLEST = 1e-6
FIGURES = ("yes_rate", "coherent", "acquiescence", "low_mass", "reliance", "depends")


def behaviour(
    side: Side, findings: Sequence[str], films: pl.DataFrame, resamples: Resamples, draw: np.random.Generator
) -> list[Row]:
    """Say of each finding, and of their mean, how one judge answers; `films` has `image_id` and `patient`, a number."""
    rows: list[Row] = []
    sums = []
    for finding in findings:
        its = side.answers.get(finding)
        known = pl.DataFrame() if its is None else its.join(films, on="image_id", how="inner", maintain_order="left")
        counts = _counts(known)
        offset = side.offsets.get(finding)
        rows.append({"judge": side.name, "finding": finding, **counts, "p_without_film": _without(offset)})
        answered = known.filter(pl.col("outcome") == "answered") if counts["answered"] else None
        sums.append(_sums(answered, offset, draw, resamples))
    totals = resamples.totals(np.hstack(sums)).reshape(len(resamples.counts) + 1, len(rows), len(FIGURES), 2)
    values = _over(totals[..., 0], totals[..., 1])
    for place, row in enumerate(rows):
        row.update(_with_intervals(values[:, place]))
    return [*rows, {"judge": side.name, "finding": MEAN, **_with_intervals(_mean(values))}]


def _counts(its: pl.DataFrame) -> dict[str, int]:
    """Count what became of each question."""
    outcomes = its["outcome"].cast(pl.String) if its.height else pl.Series(dtype=pl.String)
    counted = dict(outcomes.alias("outcome").value_counts().iter_rows())
    return {"asked": its.height, **{outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories}}


def _without(offset: tuple[float, float] | None) -> float | None:
    """The probability that it gives when there is no film."""
    return None if offset is None else float(1 / (1 + np.exp(-(offset[0] - offset[1]) / 2)))


def _sums(
    its: pl.DataFrame | None, offset: tuple[float, float] | None, draw: np.random.Generator, resamples: Resamples
) -> Floats:
    """Add up each figure and how many films have it, patient by patient."""
    if its is None:
        return np.zeros((resamples.counts.shape[1], 2 * len(FIGURES)))
    patient = its["patient"].to_numpy()
    figures = _figures(its, patient, offset, draw)
    columns = [column for name in FIGURES for column in (np.nan_to_num(figures[name]), ~np.isnan(figures[name]))]
    return resamples.add_up(patient, columns)


def _figures(
    its: pl.DataFrame, patient: Ints, offset: tuple[float, float] | None, draw: np.random.Generator
) -> dict[str, Floats]:
    """One value a film for each figure; NaN where the judge has no such answer."""
    p = its["p_present"].to_numpy()
    kept = np.clip(p, SMALLEST, 1 - SMALLEST)
    evidence = np.log(kept / (1 - kept))
    without = offset or (np.nan, np.nan)
    present, absent = (
        its[f"logit_{polarity}"].cast(pl.Float64).to_numpy() - habit
        for polarity, habit in zip(("present", "absent"), without, strict=True)
    )
    both = ~np.isnan(present) & ~np.isnan(absent)
    moved = np.abs(evidence - of_another_patient(evidence, patient, draw))
    mass = its["mass"].cast(pl.Float64).to_numpy()
    return {
        "yes_rate": (p >= 0.5).astype(np.float64),
        "coherent": np.where(both, (present > 0) != (absent > 0), np.nan),
        "acquiescence": (present + absent) / 2,
        "low_mass": np.where(np.isnan(mass), np.nan, mass < LITTLE),
        "reliance": moved,
        "depends": np.where(np.isnan(moved), np.nan, moved > MOVED),
    }


def of_another_patient(values: Floats, patient: Ints, draw: np.random.Generator) -> Floats:
    """Give each film the value of a film of another patient, drawn at random; NaN if there is none."""
    order = draw.permutation(len(values))
    # Sorted by patient, a shift by the most films of one patient lands on another, unless one has more than half.
    order = order[np.argsort(patient[order], kind="stable")]
    shift = int(np.bincount(patient).max())
    other = np.empty(len(values))
    other[order] = np.where(patient[order] == np.roll(patient[order], shift), np.nan, np.roll(values[order], shift))
    return other


def _with_intervals(values: Floats) -> Row:
    row: Row = {}
    for place, name in enumerate(FIGURES):
        row[name] = None if np.isnan(values[0, place]) else float(values[0, place])
        row[f"{name}_low"], row[f"{name}_high"] = interval(values[1:, place])
    return row


def _mean(values: Floats) -> Floats:
    """Average each figure over the findings that have it."""
    here = ~np.isnan(values[:1])
    return _over(np.where(here, values, 0.0).sum(axis=1), np.broadcast_to(here.sum(axis=1), values[:, 0].shape))


def _over(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0))
