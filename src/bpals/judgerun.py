"""How asking a judge ended, and the seal on everything that it has said so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from bpals.judges import controls
from bpals.judges.drift import Drift
from bpals.judges.snapshot import Tally
from bpals.ledger import Ledger
from bpals.lightbox import Named
from bpals.types import OUTCOME, JudgeCard, Notice
from bpals.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRun:
    """How asking a judge ended."""

    name: str
    card: JudgeCard
    state: str
    """done, interrupted, budget or verified; a run that had to stop raises Stopped."""
    counts: Mapping[str, int]
    """Each of the six outcomes -> pairs, over all runs of this judge here."""
    films: int
    why: str
    """Why there is no answer, as the judge or the run says of the first pair without one; empty where all have one."""
    sealed: Path | None
    """The record of its sealed answers; none where it has not been asked about any film yet."""
    tally: Tally | None = None
    """What this run did; none where nothing had to be asked."""
    drift: Drift | None = None
    notices: tuple[Notice, ...] = ()
    looked: tuple[int, int] | None = None
    """Films that a probe has looked at and keeps, and of how many, where it has not learnt from them yet."""


def seal_asked(
    home: Workspace, films: Named, ledger: Ledger, card: JudgeCard, state: str, notices: Sequence[Notice] = ()
) -> JudgeRun:
    """Seal everything that an asked judge has said so far, if it has said anything."""
    judge_id = ledger.judge_id(card.judge)
    observed = next(each["observed"] for each in ledger.cards() if each["judge_id"] == judge_id)
    drift = observed.pop("drift", None)
    whole = replace(card, observed=observed)
    answers, said = ledger.judgments(judge_id, films.vocabulary), ledger.film_answers(judge_id)
    extra = {
        "dataset": films.dataset,
        "state": state,
        "offsets": _offsets(ledger, judge_id),
        "tally": ledger.counts(judge_id),
        "drift": drift,
    }
    sealed = None
    if answers.height:
        sealed = home.seal_judge(whole.judge, whole.as_dict(), answers, said if said.height else None, extra)
    return ended(whole, state, answers, sealed, notices)


def ended(
    card: JudgeCard, state: str, answers: pl.DataFrame, sealed: Path | None, notices: Sequence[Notice]
) -> JudgeRun:
    """Count what a judge has said."""
    counted = dict(answers["outcome"].cast(pl.String).value_counts().iter_rows())
    return JudgeRun(
        name=card.judge,
        card=card,
        state=state,
        counts={outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories},
        films=answers["image_id"].n_unique(),
        why=str(answers["why"].drop_nulls().head(1).to_list()[0]) if answers["why"].count() else "",
        sealed=sealed,
        notices=tuple(notices),
    )


def _offsets(ledger: Ledger, judge_id: int) -> dict[str, list[float | None]]:
    """Give the judge's answer without a film, subject by subject, where it answered both polarities."""
    found = controls.offsets(ledger.replies(judge_id, control=True))
    return {subject: both for subject, both in found.items() if None not in both}
