"""Image judges beside the record: how much each of them counts, learned from reviews of films that it saw.

    logit P(present) = r + a + b r + sum over families (c_f z_f) + d claim

r is what reviews made of the record judge alone; it was learned from all reviewed films, and the few numbers a to d
from those that an image judge saw. The pool's weights come from claims, which cannot teach how far a judge may be
believed; they stand until there are enough reviewed errors, and longer if they do better. So z_f hears the members of a
family alike. Films that no image judge saw keep the record's answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bpals.signal.calibrate import (
    OTHERS_ERRORS,
    OWN_ERRORS,
    Choose,
    Design,
    Fitted,
    Prediction,
    better,
    choose_among,
    losses,
)
from bpals.signal.learn import Rows, Topic
from bpals.signal.pairs import Matrix
from bpals.signal.voices import Bools

ALONE = "record"
"""The design that hears no image judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What stands beside the record's answer about one finding."""

    record: Choose
    """How the record judge's answer alone is calibrated."""
    own: Matrix
    """The logits of the families about the finding: a row a film, a column a family."""
    others: Matrix
    """The same about all findings, family by family."""


def chooser(topic: Topic, pooled: Choose, beside: Beside) -> Choose:
    """Choose between the fit on the pool and the judges beside the record, by patients that neither has seen."""
    seen = replace(topic, reviewed=topic.reviewed.only(topic.seen[topic.reviewed.rows] == 1))

    def choose(without: frozenset[int]) -> Fitted:
        first = pooled(without)
        if seen.errors(without) < OTHERS_ERRORS:
            return first
        alone = beside.record(without)
        rows = topic.reviewed.without(without).rows
        recall = _Recall.of(alone, rows, len(topic.judged))
        corrected = choose_among(_designs(topic, beside, recall), seen, without)
        saw = topic.seen[rows] == 1
        # Where no image judge is worth hearing the record's answer stands as it is, unshifted.
        held_out = alone.held_out if corrected.design == ALONE else _placed(alone.held_out, saw, corrected.held_out)
        reviewed = seen.reviewed.without(without)
        ours, theirs = losses(held_out[saw], reviewed), losses(first.held_out[saw], reviewed)
        # Few reviews can prefer either by chance: then the pool stands unless it is clearly worse.
        if not (better(ours, theirs) if seen.errors(without) < OWN_ERRORS else ours.mean() < theirs.mean()):
            return first
        name = f"{alone.design}, {corrected.design}"
        if corrected.design == ALONE:
            return replace(alone, design=name)
        predict = _predict(topic, alone, corrected)
        return Fitted(design=name, penalty=corrected.penalty, predict=predict, held_out=held_out)

    return choose


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recall:
    """What the record alone gives: films that taught it have their held-out answer, others are asked for once."""

    alone: Fitted
    z: Matrix
    spread: Matrix

    @classmethod
    def of(cls, alone: Fitted, taught: Rows, films: int) -> _Recall:
        z = np.full(films, np.nan)
        z[taught] = alone.held_out
        return cls(alone=alone, z=z, spread=np.zeros(films))

    def answer(self, rows: Rows) -> tuple[Matrix, Matrix]:
        if len(fresh := rows[np.isnan(self.z[rows])]):
            self.z[fresh], self.spread[fresh] = self.alone.predict(fresh)
        return self.z[rows], self.spread[rows]


def _designs(topic: Topic, beside: Beside, recall: _Recall) -> list[Design]:
    """List the designs, the plainest first; each corrects what the record alone gives, and the first hears nobody."""

    def start(rows: Rows, _without: frozenset[int]) -> tuple[Matrix, Matrix]:
        return recall.answer(rows)

    def own(rows: Rows) -> Matrix:
        z, _ = recall.answer(rows)
        return np.concatenate([z[:, None], topic.said[rows][:, None], beside.own[rows]], axis=1)

    def others(rows: Rows) -> Matrix:
        return np.concatenate([own(rows), beside.others[rows]], axis=1)

    return [
        Design(name=ALONE, start=start),
        Design(name="beside", start=start, columns=own),
        Design(name="beside, other findings", start=start, columns=others, many=True),
    ]


def _predict(topic: Topic, alone: Fitted, corrected: Fitted) -> Prediction:
    """Correct the record's answer on the films that an image judge saw."""

    def predict(films: Rows) -> tuple[Matrix, Matrix]:
        saw = topic.seen[films] == 1
        z, spread = np.empty(len(films)), np.empty(len(films))
        for its, fitted in ((saw, corrected), (~saw, alone)):
            if its.any():
                z[its], spread[its] = fitted.predict(films[its])
        return z, spread

    return predict


def _placed(values: Matrix, where: Bools, others: Matrix) -> Matrix:
    placed = values.copy()
    placed[where] = others
    return placed
