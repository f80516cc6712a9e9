"""Small numerical tools that several rooms share: logits, ridge regression, order, timelines, the majority."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.float64]

NORMAL_95 = 1.96
SMALLEST = 1e-6
"""Probabilities are kept this far from 0 and 1, so that every logit is finite."""
PAIR = ["image_id", "finding"]


def logit(p: ArrayLike, edge: float = SMALLEST) -> Matrix:
    """Turn probabilities into logits; nearer to 0 or 1 than `edge` they are one."""
    # In place: fresh memory for a matrix of all pairs costs as much as what is done in it.
    odds = np.asarray(np.clip(p, edge, 1 - edge))
    odds /= 1 - odds
    return np.asarray(np.log(odds, out=odds))


def sigmoid(z: ArrayLike, furthest: float = 30.0) -> Matrix:
    """Turn logits into probabilities; beyond `furthest` they are one, so that nothing overflows."""
    # Clipped, not split by sign: outputs are compared bit by bit, and another formula differs in the last bit.
    odds = np.asarray(-np.clip(z, -furthest, furthest), dtype=np.result_type(np.asarray(z), np.float32))
    np.exp(odds, out=odds)
    odds += 1
    return np.asarray(np.divide(1, odds, out=odds))


def newton(
    inputs: Matrix, start: Matrix, present: Matrix, ridge: Matrix, weight: Matrix | None = None
) -> tuple[Matrix, Matrix]:
    """Fit a ridge logistic regression by damped Newton steps: the coefficients, and the curvature at the end.

    `start` is the logit that the columns correct. `present` may lie between 0 and 1, where a truth is known only so
    far; `weight` says how much each row counts.
    """
    heavy = np.ones(len(inputs)) if weight is None else weight
    weights, firm = np.zeros(inputs.shape[1]), np.diag(ridge)

    def tried(candidate: Matrix) -> tuple[Matrix, float]:
        z = inputs @ candidate + start
        loss = (heavy * log_loss(z, present)).sum() + 0.5 * (ridge * candidate**2).sum()
        return z, float(loss)

    z, now = tried(weights)
    for _ in range(50):
        p = sigmoid(z)
        slope = inputs.T @ (heavy * (p - present)) + ridge * weights
        curvature = (inputs * (heavy * p * (1 - p))[:, None]).T @ inputs + firm
        step = np.linalg.solve(curvature, slope)
        z, then = tried(weights - step)
        # A full step may overshoot where the loss is far from a parabola: it is halved until it helps.
        while then > now + 1e-12 and np.abs(step).max() > 1e-9:
            step = step / 2
            z, then = tried(weights - step)
        weights, gained, now = weights - step, now - then, then
        if gained < 1e-9 * max(1.0, abs(now)):
            break
    return weights, curvature


def log_loss(z: Matrix, present: Matrix) -> Matrix:
    """Give the log-loss of each logit against what is there: 1, 0, or a chance between."""
    return np.asarray(np.logaddexp(0, z) - present * z)


def order(values: Matrix) -> NDArray[np.int64]:
    """Sort: give the places of the values from the least to the greatest, equals in the order in which they stand.

    It gives what numpy's stable argsort gives, in less than half of its time.
    """
    # numpy sorts numbers of 16 bits by counting, and longer ones by comparing, which takes ten times as long. So
    # values are sorted by their nearest numbers of 32 bits, half by half; then those that share such a number.
    with np.errstate(over="ignore"):
        near = values.astype(np.float32) + np.float32(0)  # so that -0 is 0
    bits = near.view(np.int32)
    # As whole numbers, in the same order: floats have a sign, then an exponent, then digits.
    whole = np.where(bits < 0, ~bits, bits | np.int32(-(2**31))).view(np.uint32)
    place = np.argsort(whole.astype(np.uint16), kind="stable")
    place = place[np.argsort((whole >> 16).astype(np.uint16)[place], kind="stable")]
    ordered, rough = values[place], near[place]
    alike = rough[1:] == rough[:-1]
    apart = alike & (ordered[1:] != ordered[:-1])
    if apart.any():
        group = np.cumsum(np.append(False, ~alike))
        mixed = np.flatnonzero(np.bincount(group[1:][apart], minlength=group[-1] + 1)[group])
        place[mixed] = place[mixed][np.argsort(ordered[mixed], kind="stable")]
    return place


def patients(images: pl.DataFrame) -> pl.Series:
    """Name each image's patient; an image without one is a patient of its own."""
    return images.select(patient=pl.coalesce("patient_id", "film:" + pl.col("image_id"))).to_series()


def reports_of_films(images: pl.DataFrame) -> pl.DataFrame:
    """Give, one row per image in their order: patient, report (a number), rank in the patient, size, follow_up.

    A report is a study, or an image where the dataset names no study. Reports are numbered patient by patient in the
    order of time, so the neighbours of a report are its number minus and plus one, where the rank allows.
    """
    # Images of one study share one report and so one set of labels: they are no evidence for one another.
    films = images.select(
        "follow_up",
        patient=patients(images),
        study=pl.coalesce("study_id", "film:" + pl.col("image_id")),
        film=pl.int_range(pl.len()),
    )
    reports = (
        films.group_by("patient", "study")
        .agg(pl.col("follow_up").min().alias("at"), pl.col("film").min().alias("first"))
        .sort("patient", "at", "first", nulls_last=True)
        .with_columns(
            report=pl.int_range(pl.len(), dtype=pl.Int64),
            rank=pl.int_range(pl.len(), dtype=pl.Int64).over("patient"),
            size=pl.len().over("patient").cast(pl.Int64),
        )
    )
    placed = films.join(reports, on=["patient", "study"], how="left", maintain_order="left")
    return placed.select("patient", "report", "rank", "size", follow_up="at")


def majority(reads: pl.DataFrame, *kept: str) -> pl.DataFrame:
    """Give one row per pair: `present`, the votes `yes` and `no`, `hedged`, `unreadable`, and whether it is `tied`.

    `reads` has image_id, finding and verdict; of the columns `kept` the pair's first value stays. Every definite read
    has one vote and a tie is not present. Who read a pair twice has two votes: choose before what may vote.
    """
    verdict = pl.col("verdict").cast(pl.String)
    words = {"yes": "present", "no": "absent", "hedged": "uncertain", "unreadable": "unreadable"}
    counted = [(verdict == word).sum().cast(pl.Int64).alias(name) for name, word in words.items()]
    votes = reads.group_by(PAIR, maintain_order=True).agg(*counted, *(pl.col(name).first() for name in kept))
    present, tied = pl.col("yes") > pl.col("no"), pl.col("yes") == pl.col("no")
    return votes.select(*PAIR, present.alias("present"), *words, tied.alias("tied"), *kept)
