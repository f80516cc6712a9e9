"""Platt scaling: scores become probabilities by a line on their logits, fitted on other scores."""

from __future__ import annotations

import numpy as np

from bpals.judges.moments import Doubles

ROUNDS = 50
ENOUGH = 1e-10
HALVINGS = 30


def platt(scores: Doubles, labels: Doubles) -> tuple[float, float]:
    """Fit slope and offset; a slope below zero is noise, and becomes 0: the scores say nothing.

    Labels are drawn in a little, as Platt does, so that scores that part them wholly still have a finite slope.
    """
    present = float(labels.sum())
    absent = len(labels) - present
    aims = np.where(labels > 0, (present + 1) / (present + 2), 1 / (absent + 2))
    centre, spread = float(scores.mean()), float(scores.std())
    level = float(np.log((present + 1) / (absent + 1)))
    if not spread > 0:
        return 0.0, level
    unit = (scores - centre) / spread
    slope, offset = _newton(unit, aims, level)
    if slope <= 0:
        return 0.0, level
    return slope / spread, offset - slope * centre / spread


def sigmoid(logits: Doubles) -> Doubles:
    """Turn logits into probabilities, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(logits / 2)))


def _newton(unit: Doubles, aims: Doubles, level: float) -> tuple[float, float]:
    """Minimise the log loss; a step that makes it worse is halved."""
    slope, offset = 0.0, level
    loss = _loss(unit * slope + offset, aims)
    for _ in range(ROUNDS):
        p = sigmoid(unit * slope + offset)
        weight, left = p * (1 - p), p - aims
        a, b, c = float((weight * unit * unit).sum()), float((weight * unit).sum()), float(weight.sum())
        g, h = float((left * unit).sum()), float(left.sum())
        steep = a * c - b * b
        if not steep > 0:
            break
        step = ((c * g - b * h) / steep, (a * h - b * g) / steep)
        for half in range(HALVINGS):
            tried = slope - step[0] * 0.5**half, offset - step[1] * 0.5**half
            worse = _loss(unit * tried[0] + tried[1], aims)
            if worse <= loss:
                break
        else:
            break
        better, loss = loss - worse, worse
        slope, offset = tried
        if better < ENOUGH * abs(loss):
            break
    return slope, offset


def _loss(logits: Doubles, aims: Doubles) -> float:
    return float((np.logaddexp(0, logits) - aims * logits).sum())
