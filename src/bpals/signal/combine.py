"""Many judges as one: the record's answer and what families of image judges see, pooled.

    logit p = c + sum over families (w * logit p_family),    the weights w sum to 1

The record judge is a family of its own. A family weighs as its logits vary: one that can hardly tell varies hardly.
The weights sum to 1 because every judge here was fitted to the dataset's claims, and those cannot teach how far several
of them together may be believed; reviews can (`learn.py`). The shift c makes the pool right on average about claims.

Where no image judge is heeded or answered, the record's own probability stands to the last bit. Cross-fitted: an answer
rests on claims of other patients of the record judge's same fold, whose record answers in turn rest on none of that
fold's claims. So no claim reaches the answer about itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from bpals.signal.dealt import PARTS, Dealt
from bpals.signal.families import Families, families
from bpals.signal.pairs import Matrix, Pairs, by_finding, logit, sigmoid
from bpals.signal.pool import Pooled, Recorded, pool
from bpals.signal.stack import stack
from bpals.signal.voices import Bools, Ints, Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Judges, combined."""

    pairs: Pairs
    """As one judge: the combined probability, its spread, and how many judges answered."""
    moved: Bools
    """Pairs whose probability an image judge took part in."""
    shares: Mapping[str, Mapping[str, float]]
    """Judge -> finding -> its share of the weight, where anybody is heeded."""
    families: Families
    apart: tuple[Matrix, ...] = ()
    """Where asked for, what each family says on average: its logit of every pair; NaN where it is not heard."""

    @property
    def effective(self) -> dict[str, float]:
        """Each judge's effective weight: the mean of its shares."""
        return {judge: float(np.mean(list(its.values()))) if its else 0.0 for judge, its in self.shares.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What all witnesses say of one finding, on the films where an image judge answered."""

    heard: Mapping[int, Sequence[Voice]]
    """Families by their number, without the judges that are not heeded."""
    films: Ints
    pooled: Pooled
    weights: Sequence[Matrix]
    """A family each: its members' weights, a row a part."""


def combine(pairs: Pairs, voices: Sequence[Voice], patients: pl.Series, fold: Ints, *, apart: bool = False) -> Combined:
    """Pool the record's answers with those of the image judges that are heeded; each voice knows where it is.

    With `apart` it also says what each family says by itself, its members heard alike: what claims taught of them is
    for a pool that knows nothing better.
    """
    p_present, spread, answered = pairs.p_present.copy(), pairs.spread.copy(), pairs.answered.copy()
    for voice in voices:
        answered += voice.answered
    moved = np.zeros(pairs.states.shape, dtype=bool)
    kin = families(voices)
    recorded = (pairs.answered > 0).any()
    shares: dict[str, dict[str, float]] = {"record": {}} if recorded else {}
    alone = {"record": 1.0} if recorded else {}
    shares |= {voice.judge: {} for voice in voices}
    dealt = Dealt.of(_part_of_patient(patients), fold)
    laid = replace(
        pairs,
        states=by_finding(pairs.states),
        p_present=by_finding(pairs.p_present),
        spread=by_finding(pairs.spread),
    )
    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        made = list(hands.map(lambda place: _answer(laid, place, kin, dealt), range(len(pairs.findings))))
        alike = made
        if apart and any(len(family) > 1 for family in kin.members):
            places = range(len(pairs.findings))
            alike = list(hands.map(lambda place: _answer(laid, place, kin, dealt, alike=True), places))
    for place, (finding, answer) in enumerate(zip(pairs.findings, made, strict=True)):
        if answer is None:
            _note(shares, finding, alone)
            continue
        pooled = answer.pooled
        films = answer.films[pooled.done]
        p_present[:, place][films] = sigmoid(pooled.z[pooled.done])
        spread[:, place][films], moved[:, place][films] = pooled.spread[pooled.done], True
        _note(shares, finding, _shares(answer, kin) or alone)
    return Combined(
        pairs=replace(pairs, p_present=p_present, spread=spread, answered=answered),
        moved=moved,
        shares={judge: dict(its) for judge, its in shares.items()},
        families=kin,
        apart=_apart(pairs, kin, alike) if apart else (),
    )


def _apart(pairs: Pairs, kin: Families, made: Sequence[_Answer | None]) -> tuple[Matrix, ...]:
    """Lay out what each family says of every pair."""
    laid = tuple(np.full(pairs.states.shape, np.nan) for _ in kin.members)
    for place, answer in enumerate(made):
        if answer is not None:
            for number, said in zip(answer.heard, answer.pooled.said[1:], strict=True):
                laid[number][answer.films, place] = said
    return laid


def _answer(pairs: Pairs, place: int, kin: Families, dealt: Dealt, *, alike: bool = False) -> _Answer | None:
    """Ask the record and the families about one finding; None where no image judge is heeded.

    With `alike` a family speaks by the mean of its members, and not as claims weigh them.
    """
    heeded = {number: [voice for voice in family if voice.heeded[place]] for number, family in enumerate(kin.members)}
    heard = {number: family for number, family in heeded.items() if family}
    if not heard:
        return None
    evidence = [np.stack([voice.evidence[:, place] for voice in family], axis=1) for family in heard.values()]
    if alike:
        evidence = [_mean(each)[:, None] for each in evidence]
    here = dealt.only(~np.logical_and.reduce([np.isnan(each).all(axis=1) for each in evidence]))
    films = here.films
    state = pairs.states[:, place][films]
    stacks = [stack(each.take(films, axis=0), state, here.parts) for each in evidence]
    record = Recorded(z=logit(pairs.p_present[:, place][films]), sure=pairs.spread[:, place][films])
    told = np.array([False, *(family[0].told for family in heard.values())])
    pooled = pool([record, *stacks], state, here, told)
    return _Answer(heard=heard, films=films, pooled=pooled, weights=[each.weights for each in stacks])


def _mean(evidence: Matrix) -> Matrix:
    """Average the members that spoke of a film; NaN where none did."""
    spoke = (~np.isnan(evidence)).sum(axis=1)
    return np.where(spoke > 0, np.nansum(evidence, axis=1) / np.maximum(spoke, 1), np.nan)


def _note(shares: dict[str, dict[str, float]], finding: str, its: Mapping[str, float]) -> None:
    """Write down every judge's share of one finding, if anybody has one."""
    if its:
        for judge, noted in shares.items():
            noted[finding] = its.get(judge, 0.0)


def _shares(answer: _Answer, kin: Families) -> dict[str, float]:
    """Divide each family's weight among its members as the stack weighs them, and a member's among its names."""
    weights = answer.pooled.weights
    if weights.sum() == 0:
        return {}
    shares = {"record": float(weights[0])}
    for family, each, whole in zip(answer.heard.values(), answer.weights, weights[1:], strict=True):
        own = each.mean(axis=0)
        for voice, part in zip(family, own / max(float(own.sum()), 1e-12), strict=True):
            names = kin.names[voice.judge]
            shares |= dict.fromkeys(names, float(whole * part) / len(names))
    return shares


def _part_of_patient(patients: pl.Series) -> Ints:
    """Give each film a part by a hash of its patient alone."""
    names = patients.unique(maintain_order=True).to_list()
    parts = [int.from_bytes(hashlib.sha256(b"combine:" + name.encode()).digest()[:4]) % PARTS for name in names]
    return patients.replace_strict(names, parts, return_dtype=pl.Int64).to_numpy()
