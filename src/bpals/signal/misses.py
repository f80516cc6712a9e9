"""Conformal risk control of misses: how far up claims must be read so that few of the wrong ones are left out.

On the reviewed claims that are wrong, a cut leaves out those with more trust. A wrong claim that was not reviewed is as
likely to lie at any place among them, so the expected share that is left out is at most (left out + 1) / (wrong + 1).
"""

from __future__ import annotations

import math

import numpy as np

from bpals.signal.certificate import Certificate
from bpals.signal.drawn import Drawn

MISSED = 0.1
"""The share of the wrong claims that may be left out, on average."""


def control_misses(drawn: Drawn, *, missed: float = MISSED) -> Certificate:
    """Find the lowest trust up to which claims must be read so that at most `missed` of the wrong ones are left out."""
    least = None if drawn.inclusion is None or not len(drawn) else float(drawn.inclusion.min())
    trust = np.sort(drawn.trust[drawn.fair(drawn.wrong, least)])
    known, needed = len(trust), math.ceil(1 / missed - 1 - 1e-9)
    left_out = math.floor(missed * (known + 1) + 1e-9) - 1
    cut = float(trust[known - 1 - left_out]) if left_out >= 0 else None
    fair = drawn.fair(drawn.every)
    more = 0
    if cut is not None:
        words = f"reading up to trust {cut:.2f} leaves out at most {missed:.0%} of the errors on average: {known} known"
    else:
        rate = (known + 0.5) / (int(fair.sum()) + 1)
        more = math.ceil((needed - known) / rate)
        words = (
            f"misses of {missed:.0%} take {needed} reviewed errors, and there are {known}: "
            f"about {more:,} more reviews at the share of errors seen"
        )
    return Certificate(
        promise="misses",
        level=missed,
        doubt=None,
        cut=cut,
        reviewed=int(fair.sum()),
        wrong=known,
        more=more,
        population=drawn.population(drawn.every),
        words=words,
    )
