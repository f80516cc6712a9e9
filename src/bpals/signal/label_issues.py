"""Label issues of arrays: cleanlab's two functions by its published method, and the same with patients kept apart.

    find_label_issues(labels, pred_probs)                  indices of doubtful labels, the worst first
    get_label_quality_scores(labels, pred_probs)           a score per image, low where a label is doubtful
    ...(labels, pred_probs, groups=patients)               the same on probabilities that other patients calibrated

Confident learning (Northcutt, Jiang and Chuang, JAIR 2021): an image counts as class j where its probability of j is at
least the mean probability of j among the images labelled j. Counts of (label, class) estimate how many labels of each
kind are wrong; that many are taken, by the margin between the two classes. A finding of a multi-label table is a
problem of two classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bpals.errors import UsageError
from bpals.numeric import NORMAL_95, Matrix, logit, newton, sigmoid

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEAR = 1e-6
"""Probabilities this near to a threshold reach it, as in cleanlab."""
NEVER = 2.0
"""The threshold of a class that no image is labelled with."""
FEWEST = 1
"""A class keeps at least so many labels, and one with no more is left alone."""
LAST = 0.8
"""How much the worst score of an image counts beside all better ones (exponential moving average)."""
FOLDS = 5
RIDGE = (1.0, 4.0)
"""Pull of the calibration's shift and slope towards none: a class with few labels keeps its probabilities."""
RANKED = "self_confidence"


class _Given(NamedTuple):
    """Arrays that were checked: one label per image, or one per image and class."""

    labels: Ints
    probs: Floats
    groups: Ints | None

    @property
    def multi(self) -> bool:
        return self.labels.ndim == 2


class _Calibrated(NamedTuple):
    """Probabilities that other patients calibrated, and the standard errors of their logits."""

    probs: Matrix
    errors: Matrix


def find_label_issues(
    labels: npt.ArrayLike | Sequence[Sequence[int]],
    pred_probs: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    *,
    return_indices_ranked_by: str | None = RANKED,
) -> npt.NDArray[Any]:
    """Find the images whose labels are probably wrong: their indices, the most doubtful first.

    `labels` has one class number per image; or, for several findings per image, a list of class numbers per image, or
    a 0/1 array of images and classes. `pred_probs` has one row per image and one column per class, from a model that
    did not see the image's patient. The indices are cleanlab's, in its order. With `groups`, one patient per image,
    probabilities are first calibrated on the labels of other patients. `return_indices_ranked_by=None` gives a mask.
    """
    if return_indices_ranked_by not in {RANKED, None}:
        asked = f"return_indices_ranked_by={return_indices_ranked_by!r}"
        raise UsageError(f"find_label_issues({asked}): give {RANKED!r}, or None for a mask")
    given = _checked("find_label_issues", labels, pred_probs, groups)
    probs = given.probs if given.groups is None else _calibrate(given, given.groups).probs
    found = _of_findings(given.labels, probs) if given.multi else _of_classes(given.labels, probs)
    if return_indices_ranked_by is None:
        return found
    indices = np.flatnonzero(found)
    scores = _scores(given.labels, probs)
    # numpy's default sort, as in cleanlab: among equal scores its order is not that of a stable one.
    return indices[np.argsort(scores[indices])]


def get_label_quality_scores(
    labels: npt.ArrayLike | Sequence[Sequence[int]],
    pred_probs: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    *,
    return_intervals: bool = False,
) -> Any:
    """Give each image a score from 0 to 1, low where its label is doubtful: cleanlab's self-confidence.

    With several findings per image, the scores of its findings are averaged so that the worst counts most. With
    `groups`, the score is the share of images with such a probability that carry the label, as other patients show it:
    it is calibrated to the labels, which may themselves be wrong. `return_intervals=True` then gives scores and the
    bounds of 95 % intervals, with patients as units.
    """
    given = _checked("get_label_quality_scores", labels, pred_probs, groups)
    if given.groups is None:
        if return_intervals:
            raise UsageError("get_label_quality_scores(return_intervals=True): an interval needs groups=PATIENTS")
        return _scores(given.labels, given.probs)
    made = _calibrate(given, given.groups)
    scores = _scores(given.labels, made.probs)
    return (scores, *_bounds(given.labels, made)) if return_intervals else scores


def _scores(labels: Ints, probs: Floats) -> Floats:
    if labels.ndim == 1:
        return np.asarray(np.take_along_axis(probs, labels[:, None], axis=1)[:, 0])
    return _averaged(np.where(labels == 1, probs, 1 - probs).astype(np.float64))


def _averaged(scores: Matrix) -> Matrix:
    """Average the scores of an image from the best to the worst, each step in favour of the worse one."""
    falling = np.sort(scores, axis=1)[:, ::-1]
    average = falling[:, 0]
    for column in range(1, falling.shape[1]):
        average = LAST * falling[:, column] + (1 - LAST) * average
    return average


def _of_classes(labels: Ints, probs: Floats) -> Bools:
    """Take the doubtful labels of images that have one label each."""
    if not len(labels):
        return np.zeros(0, dtype=bool)
    counts = np.bincount(labels, minlength=probs.shape[1])
    confident = _confident_classes(probs, _thresholds(labels, probs, counts))
    joint = np.zeros((len(counts), len(counts)))
    here = confident >= 0
    np.add.at(joint, (labels[here], confident[here]), 1)
    wrong = _how_many(joint, counts)
    found = np.zeros(len(labels), dtype=bool)
    order = np.argsort(labels, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    for own in np.flatnonzero((counts > FEWEST) & (wrong.sum(axis=1) > 0)):
        rows = order[starts[own] : starts[own + 1]]
        its = probs[rows]
        for other in np.flatnonzero(wrong[own]):
            found[rows[_largest(its[:, other] - its[:, own], wrong[own, other])]] = True
    # A label that the model itself finds most likely is no issue, whatever the counts say.
    return np.asarray(found & (_scores(labels, probs) < probs.max(axis=1)))


def _of_findings(labels: Ints, probs: Floats) -> Bools:
    """Take the images of which at least one finding has a doubtful label."""
    found = np.zeros(len(labels), dtype=bool)
    # Column after column lies together in memory: twice as fast as strides through the table.
    for label, present in zip(np.ascontiguousarray(labels.T), np.ascontiguousarray(probs.T), strict=True):
        found |= _of_classes(label, np.column_stack([1 - present, present]))
    return found


def _thresholds(labels: Ints, probs: Floats, counts: Ints) -> Matrix:
    """Give the mean probability of each class among the images that are labelled with it."""
    sums = np.bincount(labels, weights=_scores(labels, probs), minlength=len(counts))
    means = np.divide(sums, counts, out=np.full(len(counts), NEVER), where=counts > 0)
    return np.asarray(np.maximum(means, 2 * NEAR))


def _confident_classes(probs: Floats, thresholds: Matrix) -> Ints:
    """Give the class of each image whose threshold is reached, the likelier of several; -1 where none is."""
    reached = probs >= thresholds - NEAR
    several = reached.sum(axis=1)
    # Of several, the likeliest class of all is taken, as cleanlab does: it may be one that is not reached.
    likeliest = np.where(several > 1, probs.argmax(axis=1), reached.argmax(axis=1))
    return np.where(several > 0, likeliest, -1)


def _how_many(joint: Matrix, counts: Ints) -> Ints:
    """Estimate how many labels of each class belong to each other class: rows are labels, the diagonal is left 0."""
    np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))
    # In this order of operations, and of the cells in memory: which of two equal remainders is rounded up hangs on the
    # last bit.
    scaled = np.ascontiguousarray(joint.T) / joint.sum(axis=1) * counts
    whole = _whole_numbers((scaled / scaled.sum() * counts.sum()).T)
    # A class of which no label seems right keeps one all the same: each of its other counts gives one up.
    whole -= (whole.diagonal() < FEWEST)[:, None]
    np.fill_diagonal(whole, 0)
    return np.maximum(whole, 0).astype(np.int64)


def _whole_numbers(table: Matrix) -> Matrix:
    """Round each row so that its sum stays: the cells that rounding moved furthest make up for what is off."""
    rounded = np.round(table)
    off = (np.round(table.sum(axis=1)) - rounded.sum(axis=1)).astype(np.int64)
    for row in np.flatnonzero(off):
        falling = np.argsort(table[row] - rounded[row])
        if off[row] > 0:
            rounded[row, falling[-off[row] :]] += 1
        else:
            rounded[row, falling[: -off[row]]] -= 1
    return rounded


def _largest(margins: Floats, n: int) -> Ints:
    """Give the places of the n largest margins; which of equal ones are taken is numpy's choice, as in cleanlab."""
    if n >= len(margins):
        return np.arange(len(margins))
    return np.asarray(np.argpartition(-margins, n)[:n])


def _calibrate(given: _Given, groups: Ints) -> _Calibrated:
    """Calibrate each class on the labels of other patients: a shift and a slope of the logit, fold by fold."""
    labels, probs = given.labels, given.probs
    there = labels if given.multi else (labels[:, None] == np.arange(probs.shape[1])).astype(np.int64)
    folds = _folds(groups)
    logits = np.ascontiguousarray(logit(probs.astype(np.float64)).T)
    made, errors = np.empty_like(logits), np.empty_like(logits)
    for fold in range(folds.max(initial=-1) + 1):
        others, own = folds != fold, folds == fold
        for place, (each, present) in enumerate(zip(logits, there.T, strict=True)):
            fit = _fit(each[others], present[others].astype(np.float64), groups[others])
            made[place, own], errors[place, own] = fit.predict(each[own])
    calibrated = sigmoid(made.T)
    # One image has one class: the probabilities of its classes add up to 1.
    return _Calibrated(calibrated if given.multi else calibrated / calibrated.sum(axis=1, keepdims=True), errors.T)


def _folds(groups: Ints) -> Ints:
    """Deal groups into folds at random, the same way each time."""
    n = int(groups.max(initial=-1)) + 1
    order = np.random.default_rng(0).permutation(n)
    return np.asarray((order % max(min(FOLDS, n), 1))[groups])


class _Fit(NamedTuple):
    """A shift and a slope of logits, with their covariance."""

    changes: Matrix
    by_model: Matrix
    by_patient: Matrix

    def predict(self, logits: Matrix) -> tuple[Matrix, Matrix]:
        """Give calibrated logits and their standard errors: the larger of the two that are known."""
        inputs = _inputs(logits)
        variances = [((inputs @ each) * inputs).sum(axis=1) for each in (self.by_model, self.by_patient)]
        return logits + inputs @ self.changes, np.sqrt(np.maximum(*variances))


def _inputs(logits: Matrix) -> Matrix:
    return np.column_stack([np.ones(len(logits)), logits])


def _fit(logits: Matrix, present: Matrix, groups: Ints) -> _Fit:
    inputs, ridge = _inputs(logits), np.array(RIDGE)
    changes, curvature = newton(inputs, logits, present, ridge)
    by_model = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
    # Images of one patient are not independent: what they say together is one observation (the sandwich estimator).
    pulls = inputs * (present - sigmoid(logits + inputs @ changes))[:, None]
    sums = np.column_stack([np.bincount(groups, weights=pull) for pull in pulls.T])
    n = len(np.unique(groups))
    meat = sums.T @ sums * (n / max(n - 1, 1))
    return _Fit(changes, by_model, by_model @ meat @ by_model)


def _bounds(labels: Ints, made: _Calibrated) -> tuple[Matrix, Matrix]:
    """Give 95 % bounds of scores; the bounds of an image's findings are averaged as its scores are."""
    one = labels.ndim == 1
    own = _scores(labels, made.probs) if one else np.where(labels == 1, made.probs, 1 - made.probs)
    errors = np.take_along_axis(made.errors, labels[:, None], axis=1)[:, 0] if one else made.errors
    # Nearer to 0 than usual: a score must lie within its own bounds.
    middle = logit(own, edge=1e-15)
    low, high = (sigmoid(middle + side * errors, furthest=40.0) for side in (-NORMAL_95, NORMAL_95))
    return (low, high) if one else (_averaged(low), _averaged(high))


def _checked(name: str, labels: Any, pred_probs: Any, groups: Any) -> _Given:
    """Check three arrays; what cannot be used is refused with its place."""
    probs = _numbers(name, "pred_probs", pred_probs)
    if probs.ndim != 2 or probs.shape[1] == 0:
        raise UsageError(f"{name}: pred_probs has shape {probs.shape}. Give one row per image, one column per class")
    bad = np.argwhere(~((probs >= 0) & (probs <= 1)))
    if len(bad):
        row, column = bad[0]
        raise UsageError(
            f"{name}: pred_probs[{row}, {column}] is {probs[row, column]}. Give probabilities from 0 to 1; "
            f"leave images without one out of all arrays ({len(bad):,} such values)"
        )
    checked = _labels(name, labels, *probs.shape)
    if checked.ndim == 1 and probs.shape[1] < 2:
        raise UsageError(f"{name}: one class number per image needs at least 2 columns of pred_probs, not 1")
    return _Given(checked, probs, None if groups is None else _groups(name, groups, len(probs)))


def _numbers(name: str, what: str, given: Any) -> Floats:
    try:
        array = np.asarray(given)
        return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {what} holds what is no number. Give an array of numbers") from None


def _labels(name: str, given: Any, images: int, classes: int) -> Ints:
    """Make class numbers, or a 0/1 table, of labels."""
    if not hasattr(given, "__len__"):
        raise UsageError(f"{name}: labels is a {type(given).__name__}. Give one label per image")
    if len(given) != images:
        raise UsageError(f"{name}: {len(given):,} labels for {images:,} rows of pred_probs. Give one label per row")
    # A list of lists has class numbers, as cleanlab takes it; only an array is a 0/1 table.
    if isinstance(given, list | tuple) and images and not np.isscalar(given[0]) and np.ndim(given[0]) == 1:
        return _table(name, given, classes)
    numbers = _numbers(name, "labels", given)
    if numbers.ndim not in {1, 2} or (numbers.ndim == 2 and numbers.shape[1] != classes):
        raise UsageError(
            f"{name}: labels has shape {numbers.shape}, pred_probs ({images}, {classes}). "
            "Give one class number per image, or a 0/1 array of the same shape"
        )
    top = 1 if numbers.ndim == 2 else classes - 1
    bad = np.argwhere(~((numbers >= 0) & (numbers <= top) & (numbers == np.floor(numbers))))
    if len(bad):
        place = ", ".join(map(str, bad[0]))
        allowed = "0 or 1" if numbers.ndim == 2 else f"whole numbers from 0 to {top}"
        raise UsageError(
            f"{name}: labels[{place}] is {numbers[tuple(bad[0])]}. Give {allowed}; leave images without a label out"
        )
    return numbers.astype(np.int64)


def _table(name: str, given: Sequence[Any], classes: int) -> Ints:
    lengths = [len(each) for each in given]
    rows = np.repeat(np.arange(len(given)), lengths)
    numbers = _numbers(name, "labels", [number for each in given for number in each])
    bad = np.flatnonzero(~((numbers >= 0) & (numbers < classes) & (numbers == np.floor(numbers))))
    if len(bad):
        raise UsageError(
            f"{name}: labels[{rows[bad[0]]}] has the class {numbers[bad[0]]}. "
            f"Give the numbers of an image's classes, from 0 to {classes - 1}, or a 0/1 array"
        )
    table = np.zeros((len(given), classes), dtype=np.int64)
    np.add.at(table, (rows, numbers.astype(np.int64)), 1)
    if (table > 1).any():  # a row such as [0, 1, 1, 0] is meant as 0/1, and would be read as the classes 0 and 1
        image, number = np.argwhere(table > 1)[0]
        raise UsageError(
            f"{name}: labels[{image}] names class {number} twice. Give each class once, or 0/1 labels as an array: "
            "np.array(labels)"
        )
    return table


def _groups(name: str, given: Any, images: int) -> Ints:
    """Number the groups."""
    values = np.asarray(given)
    if values.shape != (images,):
        raise UsageError(f"{name}: groups has shape {values.shape} for {images:,} images. Give one patient per image")
    missing = np.array([each is None or each != each or each == "" for each in values.tolist()], dtype=bool)  # noqa: PLR0124  NaN
    if missing.any():
        raise UsageError(
            f"{name}: groups[{missing.argmax()}] is missing ({missing.sum():,} are). "
            "Name the patient of each image, or leave those images out"
        )
    numbers = np.unique(values.astype(str), return_inverse=True)[1]
    if images and numbers.max() < 1:
        raise UsageError(f"{name}: groups names one patient only. Calibration needs others: leave groups out")
    return np.asarray(numbers, dtype=np.int64)
