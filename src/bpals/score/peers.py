"""Other people's error finders, for comparison: cleanlab (the optional extra `peers`)."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
from numpy.typing import NDArray

from bpals.errors import MissingExtra

Floats = NDArray[np.float64]


def cleanlab_suspicion(claimed: NDArray[np.bool_], p_present: Floats) -> Floats:
    """Rank claims as cleanlab does: those it prunes by noise rate first, then the others, both by self-confidence."""
    try:
        filtering = importlib.import_module("cleanlab.filter")
    except ImportError:
        raise MissingExtra.of("the method cleanlab", "peers") from None
    with warnings.catch_warnings():
        # It warns of classes with few examples; so few are ranked by self-confidence alone, which is what we want.
        warnings.simplefilter("ignore", UserWarning)
        pruned = filtering.find_label_issues(
            labels=claimed.astype(np.int64),
            pred_probs=np.column_stack([1.0 - p_present, p_present]),
            filter_by="prune_by_noise_rate",
            n_jobs=1,
        )
    doubt = np.where(claimed, 1.0 - p_present, p_present)
    return np.asarray(2.0 * np.asarray(pruned, dtype=np.float64) + doubt)
