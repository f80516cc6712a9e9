"""Dependence: how far judges err together on the pairs that experts reviewed, and how many witnesses they are worth.

A judge's probability is raw, so 0.5 means little: on the reviewed pairs of a finding a judge *calls* as many present as
the experts do, those it gives most. Its errors are the calls that differ from them. Everyone errs more on films with
the finding, which alone makes errors correlate; so they are correlated within both truths as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpals.signal.learn import Reviewed
from bpals.signal.pairs import Matrix
from bpals.signal.voices import Bools

ENOUGH = 50
"""Reviewed pairs that all judges answered; fewer give no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What every judge gave of one reviewed finding, and the reviews."""

    given: Mapping[str, Matrix]
    """Judge -> its probability of every film; NaN where it did not answer."""
    reviewed: Reviewed


def dependence(findings: Sequence[Heard]) -> dict[str, Any]:
    """Correlate the judges' errors, pooled over findings: in all, and within films with the finding and without."""
    names = sorted({name for heard in findings for name in heard.given})
    wrong, there = _errors(findings, names)
    if len(names) < 2 or wrong.shape[1] < ENOUGH:
        return {}
    parts = {"all": np.ones(wrong.shape[1], dtype=bool), "present": there, "absent": ~there}
    told: dict[str, Any] = {"judges": names, "pairs": int(wrong.shape[1])}
    for part, chosen in parts.items():
        correlation = _correlation(wrong[:, chosen])
        told[part] = {"correlation": np.round(correlation, 4).tolist(), "effective": _effective(correlation)}
    return told


def _errors(findings: Sequence[Heard], names: Sequence[str]) -> tuple[Matrix, Bools]:
    """Call and compare, finding by finding, on the pairs that all judges answered: a row a judge, a column a pair."""
    wrong, there = [], []
    for heard in findings:
        if set(heard.given) != set(names):
            continue
        given = np.stack([heard.given[name][heard.reviewed.rows] for name in names])
        answered = ~np.isnan(given).any(axis=0)
        truth = heard.reviewed.present[answered] > 0.5
        count = int(truth.sum())
        if not 0 < count < len(truth):
            continue
        cut = np.sort(given[:, answered], axis=1)[:, -count]
        wrong.append((given[:, answered] >= cut[:, None]) != truth)
        there.append(truth)
    if not wrong:
        return np.zeros((len(names), 0)), np.zeros(0, dtype=bool)
    return np.concatenate(wrong, axis=1).astype(float), np.concatenate(there)


def _correlation(wrong: Matrix) -> Matrix:
    """Correlate rows; a judge without an error, or with nothing else, correlates with nobody."""
    centred = wrong - wrong.mean(axis=1, keepdims=True) if wrong.shape[1] else wrong
    size = np.sqrt((centred**2).sum(axis=1))
    scale = np.outer(size, size)
    together = np.divide(centred @ centred.T, scale, out=np.zeros(scale.shape), where=scale > 0)
    np.fill_diagonal(together, 1.0)
    return together


def _effective(correlation: Matrix) -> float:
    """Kish: M judges whose errors correlate by r are worth M / (1 + (M - 1) r)."""
    count = len(correlation)
    mean = float(correlation[~np.eye(count, dtype=bool)].mean())
    return round(count / (1 + (count - 1) * max(mean, 0.0)), 3)
