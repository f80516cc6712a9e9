"""Conformal selection (Jin and Candes): a list of claims of which, on average, at most a share is right after all.

Each candidate is held against the reviewed claims that are right: its p-value is the share of all reviewed claims that
are right and no more trusted than it, with itself counted in. Benjamini and Hochberg's rule makes the list.
"""

from __future__ import annotations

import math

import numpy as np

from bpals.signal.certificate import Certificate
from bpals.signal.drawn import Drawn, Floats
from bpals.text import several

FALSE_SHARE = 0.2
"""The share of a list that may be right after all, on average."""


def p_values(drawn: Drawn, candidates: Floats) -> Floats:
    """Give each candidate's p-value against the reviewed claims; `candidates` are trusts."""
    right = np.sort(drawn.trust[~drawn.wrong])
    return np.asarray((1 + np.searchsorted(right, candidates, side="right")) / (len(drawn) + 1))


def control_discoveries(drawn: Drawn, candidates: Floats, *, false_share: float = FALSE_SHARE) -> Certificate:
    """List the unreviewed claims with the lowest trust so that on average at most `false_share` of them are right."""
    kept = drawn.take(drawn.fair(drawn.every))
    p = np.sort(p_values(kept, candidates))
    passing = np.flatnonzero(p <= false_share * np.arange(1, len(p) + 1) / max(1, len(p)))
    listed = int(passing[-1]) + 1 if len(passing) else 0
    cut = float(np.sort(candidates)[listed - 1]) if listed else None
    more = 0 if listed else _more(kept, candidates, false_share)
    if listed:
        those = several(listed, "claim is", "claims are")
        words = f"{those} listed, of which on average at most {false_share:.0%} are right after all"
    elif more is None:
        words = (
            f"no list is certified at {false_share:.0%}: no claim has less trust than every reviewed one that is right"
        )
    else:
        words = (
            f"no list is certified at {false_share:.0%} by {len(kept)} reviewed patients: it takes about {more:,} more"
        )
    return Certificate(
        promise="discoveries",
        level=false_share,
        doubt=None,
        cut=cut,
        reviewed=len(kept),
        wrong=int(kept.wrong.sum()),
        more=more,
        population=drawn.population(drawn.every),
        words=words,
    )


def _more(drawn: Drawn, candidates: Floats, false_share: float) -> int | None:
    """Say how many more reviews would list the candidates with less trust than all reviewed claims that are right."""
    right = drawn.trust[~drawn.wrong]
    ahead = int((candidates < right.min()).sum()) if len(right) else len(candidates)
    return math.ceil(len(candidates) / (false_share * ahead)) - 1 - len(drawn) if ahead else None
