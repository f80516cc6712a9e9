"""Ridge regressions in closed form, from moments alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpals.judges.moments import Doubles, Moments

FLAT = 1e-9
"""A feature that varies less is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Linear models, one a finding: label = features @ slopes + offsets + level."""

    slopes: Doubles
    """A row a feature, a column a finding."""
    offsets: Doubles
    """So that features at their mean give 0 ..."""
    level: Doubles
    """... and how common the finding is where it was fitted: no score, for where few have it more do elsewhere."""

    def squared_error(self, films: Moments) -> Doubles:
        """Say how far these are from the labels of films, finding by finding, without looking at the films again."""
        w, a = self.slopes, self.offsets + self.level
        fitted = np.einsum("dk,dk->k", w, films.products @ w) + 2 * a * (films.sums @ w) + a * a * films.films
        crossed = np.einsum("dk,dk->k", w, films.features_and_labels) + a * films.labels
        # A label is 0 or 1: it is its own square.
        return np.asarray(films.labels - 2 * crossed + fitted)


def fit(films: Moments, penalties: Sequence[float]) -> list[Lines]:
    """Fit the lines of every finding on films, once a penalty; features are standardised by these films alone."""
    count = max(films.films, 1.0)
    mean = films.sums / count
    products = films.products - np.outer(mean, films.sums)
    spread = np.sqrt(np.maximum(np.diag(products) / count, 0.0))
    scale = np.where(spread > FLAT, 1 / np.maximum(spread, FLAT), 0.0)
    products *= scale[:, None]
    products *= scale[None, :]
    aims = (films.features_and_labels - np.outer(mean, films.labels)) * scale[:, None]
    diagonal = np.diag_indices_from(products)
    unpenalised = products[diagonal].copy()
    found = []
    for penalty in penalties:
        products[diagonal] = unpenalised + penalty
        slopes: Doubles = np.asarray(np.linalg.solve(products, aims) * scale[:, None])
        found.append(Lines(slopes=slopes, offsets=-(mean @ slopes), level=films.labels / count))
    return found
