"""The pool of one finding's witnesses, the record and the families: averaged, and made right on average.

A witness that was told the labels of these films cannot be measured by how well it tells them. It is believed to vary
no more than the most telling of the others, and weighs half.

Cross-fitted twice over: an answer rests on the other parts of the patients, and of those on the films of the record
judge's same fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bpals.signal.dealt import PARTS, Dealt, joined
from bpals.signal.grid import Grid
from bpals.signal.pairs import Matrix
from bpals.signal.voices import Bools

PULL = 1.0
"""How firmly the shift of a pool is held near 0."""
WHISPER = 0.05
"""The share of the weight below which a witness is not heard."""
TOLD = 0.5
"""What a witness weighs that was told the labels, beside one that was not and whose logits vary as far."""

Some = Bools | slice
EVERY = slice(None)


class Witness(Protocol):
    """Who speaks of one finding, to each part of the patients by what no claim of that part reached."""

    def answer(self, part: int) -> Matrix:
        """Give every film's logit; NaN where there is none."""

    def spread(self, part: int, piece: slice) -> Matrix:
        """Give the standard deviation of some films' logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The record judge as a witness: it says the same to every part."""

    z: Matrix
    sure: Matrix

    def answer(self, part: int) -> Matrix:  # noqa: ARG002, it is cross-fitted already
        """Give every film's logit."""
        return self.z

    def spread(self, part: int, piece: slice) -> Matrix:  # noqa: ARG002
        """Give its standard deviation."""
        return self.sure[piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """What the witnesses say together: a number a film."""

    done: Bools
    """Whether there is an answer."""
    z: Matrix
    spread: Matrix
    weights: Matrix
    """A number a witness: its mean weight."""
    said: Matrix
    """A row a witness: its own logit of each film; NaN where it did not answer or was not heard."""


def pool(witnesses: Sequence[Witness], state: Matrix, dealt: Dealt, told: Bools | None = None) -> Pooled:
    """Average the witnesses of each film, weighed as their logits vary; where they differ, the average is less sure.

    The first witness is the record; where no other is heard, there is nothing to pool. `told` says of each witness
    whether it was told the labels of these films.
    """
    taught = np.zeros(len(witnesses), dtype=bool) if told is None else told
    done, shares = np.zeros(len(state), dtype=bool), []
    z, spread = np.zeros(len(state)), np.zeros(len(state))
    heard_alone = np.full((len(witnesses), len(state)), np.nan)
    image = np.arange(len(witnesses)) > 0
    said, claimed = np.empty(heard_alone.shape), np.stack([(state == 0) | (state == 1), state == 1])
    pieces = dealt.pieces
    for part, whole in enumerate(dealt.parts):
        np.stack([witness.answer(part) for witness in witnesses], out=said)
        spreads = np.stack([witness.spread(part, whole) for witness in witnesses])
        for fold, own in enumerate(pieces[part]):
            others = [pieces[other][fold] for other in range(PARTS) if other != part]
            theirs, claims = joined(said, others), joined(claimed, others)
            mine, theirs, varying = _believed(said[:, own], theirs, taught)
            if own.start == own.stop or not varying[1:].any():
                continue
            shares.append(varying / varying.sum())
            heard_alone[:, own] = mine
            sure = spreads[:, own.start - whole.start : own.stop - whole.start]
            for heard, here, there in _alike(mine, theirs):
                weight = varying[heard] / max(float(varying[heard].sum()), 1e-12)
                spoken = mine[heard][:, here]
                mean = weight @ spoken
                z[own][here] = mean + _shift(weight @ theirs[heard][:, there], *claims[:, there])
                spread[own][here] = np.sqrt(weight**2 @ (sure[heard][:, here] ** 2 + (spoken - mean) ** 2))
                done[own][here] = np.where(image, varying, 0.0)[heard].any()
    weights = np.mean(shares, axis=0) if shares else np.zeros(len(witnesses))
    return Pooled(done=done, z=z, spread=spread, weights=weights, said=heard_alone)


def _believed(mine: Matrix, theirs: Matrix, told: Bools) -> tuple[Matrix, Matrix, Matrix]:
    """Give the logits as far as they are believed, and what each witness weighs."""
    varying = _variance(theirs)
    if told.any():
        most = float(varying[~told].max(initial=0.0))
        # Where nobody else varies there is no other measure.
        wide = told & (varying > most) & (most > 0)
        narrow = np.sqrt(np.where(wide, most / np.maximum(varying, 1e-12), 1.0))[:, None]
        middle = np.nan_to_num(np.nansum(theirs, axis=1) / np.maximum((~np.isnan(theirs)).sum(axis=1), 1))[:, None]
        mine, theirs = (middle + narrow * (each - middle) for each in (mine, theirs))
        varying = varying * narrow[:, 0] ** 2 * np.where(told, TOLD, 1.0)
    return mine, theirs, _loud(varying)


def _loud(varying: Matrix) -> Matrix:
    """Silence who would have next to no weight: such a whisper tells nothing, and must move nothing."""
    return np.where(varying < WHISPER * varying.sum(), 0.0, varying)


def _variance(z: Matrix) -> Matrix:
    """The variance of each witness's logits: what it weighs."""
    known = ~np.isnan(z)
    if known.all() and z.size:
        return np.asarray(z.var(axis=1))
    count = np.maximum(known.sum(axis=1), 1)
    apart = z - (np.nansum(z, axis=1) / count)[:, None]
    return np.asarray(np.nansum(apart**2, axis=1) / count)


def _alike(mine: Matrix, theirs: Matrix) -> Iterator[tuple[Some, Some, Some]]:
    """Go through the sets of witnesses that answered one's films: who, on which of them, on which of the others."""
    answered, elsewhere = ~np.isnan(mine), ~np.isnan(theirs)
    if answered.all() and elsewhere.all():
        yield EVERY, EVERY, EVERY
        return
    bits = 1 << np.arange(len(mine))
    here, there = bits @ answered, bits @ elsewhere
    for pattern in np.unique(here):
        if pattern:
            yield (pattern & bits) > 0, here == pattern, there == pattern


def _shift(mean: Matrix, definite: Bools, present: Bools) -> float:
    """Find what makes a pool right on average about definite claims."""
    if not definite.any():
        return 0.0
    some = EVERY if definite.all() else definite
    return Grid.of(mean[some], present[some]).shift(PULL)
