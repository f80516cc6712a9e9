"""Dependence: how often two judges call alike, and are wrong together; two that always are count as one witness.

A judge's probability is raw, so 0.5 means little: a judge *calls* a finding on as many films as the yardstick (experts
or claims) does, those it gives most. Agreement and shared errors are counted on these calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bpals.score.compare import LETTERS, MEAN, Pairs, Row
from bpals.score.resamples import Resamples, interval

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CELLS = 4
"""Both, the first only, the second only, neither."""
JUDGES = 2


def dependence(several: Sequence[Pairs], against: str, resamples: Resamples) -> list[Row]:
    """Say of each finding, and of their mean, how alike the two call and how far they err together."""
    rows: list[Row] = [{"finding": pairs.finding, "against": against, "n": pairs.scored.height} for pairs in several]
    sums = [_sums(pairs, resamples) for pairs in several]
    if not sums:
        return []
    totals = resamples.totals(np.hstack(sums)).reshape(len(resamples.counts) + 1, len(sums), JUDGES, CELLS)
    calls, wrong = totals[:, :, 0], totals[:, :, 1]
    figures = {"agreement": _alike(calls), "kappa": _kappa(calls), "error_correlation": _phi(wrong)}
    for place, row in enumerate(rows):
        row.update(_with_intervals({name: values[:, place] for name, values in figures.items()}))
    if len(rows) > 1:
        means = {name: _mean(values) for name, values in figures.items()}
        known = int((~np.isnan(figures["error_correlation"][0])).sum())
        rows.append({"finding": MEAN, "against": against, "findings": known, **_with_intervals(means)})
    return rows


def called(p: Floats, count: int) -> Bools:
    """Call the finding on the `count` films that are given most; those tied with the last of them are called, too."""
    if count == 0:
        return np.zeros(len(p), dtype=np.bool_)
    return np.asarray(p >= np.partition(p, len(p) - count)[len(p) - count])


def _sums(pairs: Pairs, resamples: Resamples) -> Floats:
    """Count, patient by patient, who called and who was wrong: four cells each."""
    both = pairs.scored
    truth = both["truth"].to_numpy().astype(np.bool_)
    calls = [called(both[f"p_{letter}"].to_numpy(), int(truth.sum())) for letter in LETTERS]
    wrong = [call != truth for call in calls]
    return resamples.add_up(both["patient"].to_numpy(), [*_cells(*calls), *_cells(*wrong)])


def _cells(first: Bools, second: Bools) -> list[Bools]:
    return [first & second, first & ~second, ~first & second, ~first & ~second]


def _with_intervals(figures: dict[str, Floats]) -> Row:
    """Give each figure with its interval, and how many independent judges two that err together so far are worth."""
    row: Row = {}
    for name, values in figures.items():
        row[name] = None if np.isnan(values[0]) else float(values[0])
        row[f"{name}_low"], row[f"{name}_high"] = interval(values[1:])
    rho = row["error_correlation"]
    # Kish: n judges whose errors correlate by rho carry n / (1 + (n - 1) rho); below 0 they are no more than two.
    return row | {"effective_judges": None if rho is None else JUDGES / (1 + (JUDGES - 1) * max(rho, 0.0))}


def _mean(values: Floats) -> Floats:
    """Average over the findings that have the figure."""
    known = values[:, ~np.isnan(values[0])]
    return np.asarray(known.mean(axis=1)) if known.shape[1] else np.full(len(values), np.nan)


def _alike(cells: Floats) -> Floats:
    return _over(cells[..., 0] + cells[..., 3], cells.sum(axis=-1))


def _kappa(cells: Floats) -> Floats:
    """Cohen: agreement beyond what the two rates of calling give by chance."""
    whole = cells.sum(axis=-1)
    both, one, other, neither = np.moveaxis(cells, -1, 0)
    chance = _over((both + one) * (both + other) + (other + neither) * (one + neither), whole**2)
    return _over(_alike(cells) - chance, 1 - chance)


def _phi(cells: Floats) -> Floats:
    """Correlation of two yes/no columns."""
    both, one, other, neither = np.moveaxis(cells, -1, 0)
    spread = np.sqrt((both + one) * (other + neither) * (both + other) * (one + neither))
    return _over(both * neither - one * other, spread)


def _over(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0))
