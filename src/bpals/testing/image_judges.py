"""The contract of an image judge: who it says it is, what it asks, and what it replies."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, get_args

import numpy as np
from PIL import Image

from bpals.errors import BpalsError, ContractBroken
from bpals.findings import NIH, Vocabulary
from bpals.testing.contracts import require
from bpals.types import BaseJudge, Film, JudgeCard, Outcome, Polarity, Question, Reply, Trained


def tiny_film(*, seed: int = 0, side_px: int = 64, grey: int | None = None) -> Film:
    """Make up a film: noise around two dark lungs, or one grey all over."""
    draw = np.random.default_rng(seed)
    if grey is None:
        y, x = np.mgrid[-1 : 1 : side_px * 1j, -1 : 1 : side_px * 1j]
        lungs = np.exp(-((np.abs(x) - 0.45) ** 2 / 0.05 + y**2 / 0.3))
        bright = 180 - 120 * lungs + draw.normal(0, 12, x.shape) + draw.uniform(-30, 30)
    else:
        bright = np.full((side_px, side_px), float(grey))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(bright, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    png = buffer.getvalue()
    return Film(sha256=sha256(png).hexdigest(), png=png, width_px=side_px, height_px=side_px)


TOLERANCE = 0.1
"""How far the logit of a repeated question may move: servers that batch differ by up to .06."""
NO_FINDING = "Not_A_Finding"
"""A name that no vocabulary has."""
BROKEN = (BpalsError, OSError, ValueError, TypeError, AttributeError, LookupError, RuntimeError, SyntaxError)
"""What a judge that did not expect its input raises."""


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks a judge of either sort, and checks every reply."""

    judge: Any
    line: Callable[[], Any] | None

    def ask(self, film: Film | None, questions: Sequence[Question]) -> list[Reply]:
        """Ask, and check that there is a sound reply per question."""
        handed = list(questions)
        replies = self._replies(film, handed)
        require(handed == list(questions), "ask: the judge changed the list of questions that it was handed")
        require(
            isinstance(replies, Sequence) and len(replies) == len(questions),
            f"ask: {len(replies) if isinstance(replies, Sequence) else replies!r} replies to {len(questions)} "
            "questions: give one per question, in order",
        )
        for question, reply in zip(questions, replies, strict=True):
            _check_reply(question, reply)
        return list(replies)

    def _replies(self, film: Film | None, questions: Sequence[Question]) -> Any:
        if hasattr(self.judge, "ask"):
            return self.judge.ask(film, questions)
        if self.line is None:
            raise ContractBroken("this judge asks an endpoint: hand in line=, which gives a new line for each image")
        return asyncio.run(self._through(self.line(), film, questions))

    async def _through(self, line: Any, film: Film | None, questions: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(questions), self.judge.at_once):
            part = questions[start : start + self.judge.at_once]
            asked: Coroutine[Any, Any, Sequence[Reply]] = self.judge.ask_line(film, part, line)
            replies += await asked
        return replies


def check_image_judge(
    judge: BaseJudge,
    vocabulary: Vocabulary = NIH,
    films: Sequence[Film] | None = None,
    *,
    again: BaseJudge | None = None,
    any_finding: bool = False,
    line: Callable[[], Any] | None = None,
) -> tuple[str, ...]:
    """Check an image judge; raise ContractBroken with what is wrong, give remarks on what is odd but allowed.

    `again` is the same judge made a second time; `any_finding` says that it may be asked about whatever has a name;
    `line` gives a way to the server for a judge behind an endpoint, a new one for each film.
    """
    shown = list(films) if films is not None else [tiny_film(), tiny_film(seed=1), tiny_film(grey=255)]
    before = _check_card(judge.card)
    if again is not None:
        require(again.card.fingerprint == before, "card: made a second time, the judge has another fingerprint")
    questions = _check_questions(judge, vocabulary)
    asker = _Asker(judge, line)
    replies = [asker.ask(film, questions) for film in shown]
    _check_same(replies[0], asker.ask(shown[0], questions), questions, "asked the same twice")
    if getattr(judge, "at_once", 1) == 1:
        backwards = asker.ask(shown[0], questions[::-1])[::-1]
        _check_same(replies[0], backwards, questions, "asked in another order")
    if not any_finding:
        _check_unknown(judge, asker, vocabulary, shown[0])
    _check_without_film(asker, questions)
    if hasattr(judge, "ask"):
        _check_corrupt(asker, questions)
    require(judge.card.fingerprint == before, "card: the fingerprint is another after the judge was asked")
    return _remarks(replies)


def _check_card(card: JudgeCard) -> str:
    """Check who it says it is, and give its fingerprint."""
    require(isinstance(card, JudgeCard), f"card: a {type(card).__name__} is no JudgeCard")
    require(card.kind == "image", f"card: kind is {card.kind!r}; the kind of an image judge is 'image'")
    require(
        re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", card.judge) is not None,
        f"card: a judge cannot be called {card.judge!r}: small letters, digits, '-', '_' and '.', at most 80",
    )
    for name in ("version", "licence"):
        require(bool(getattr(card, name)), f"card: {name} is empty; where nobody knows, say 'unknown'")
    for name in ("trained_on_target", "commercial_use"):
        word = getattr(card, name)
        require(word in get_args(Trained), f"card: {name} is {word!r}, not yes, no or unknown")
    require(
        card.trained_on_target == "unknown" or bool(card.evidence.strip()),
        f"card: trained_on_target is {card.trained_on_target!r}, and evidence does not say how you know",
    )
    require(
        bool(card.polarities) and set(card.polarities) <= set(get_args(Polarity)),
        f"card: polarities are {card.polarities}, not some of present and absent",
    )
    try:
        written, fingerprint = json.dumps(card.identity), card.fingerprint
    except (TypeError, ValueError) as error:
        raise ContractBroken(f"card: it cannot be written down ({error}); settings are texts and numbers") from None
    if address := re.search(r"0x[0-9a-fA-F]{6,}", written):
        raise ContractBroken(f"card: it holds {address[0]}, a place in memory, so it is another judge in every process")
    return fingerprint


def _check_questions(judge: BaseJudge, vocabulary: Vocabulary) -> tuple[Question, ...]:
    """Check what it asks: every finding, in every polarity of its card, once, the same each time."""
    questions = judge.questions(vocabulary)
    require(questions == judge.questions(vocabulary), "questions: asked twice, the judge lists other questions")
    whole = isinstance(questions, tuple) and all(isinstance(question, Question) for question in questions)
    require(whole, "questions: not a tuple of Question")
    known = set(vocabulary.findings)
    keys = [(q.about, q.subject, q.polarity, q.wording) for q in questions]
    for question, key in zip(questions, keys, strict=True):
        require(keys.count(key) == 1, f"questions: {', '.join(key)} stands there twice")
        named = question.about == "film" or question.subject in known
        require(named, f"questions: {question.subject!r} is no finding of {vocabulary.name}")
    for finding in vocabulary.findings:
        asked = {q.polarity for q in questions if q.about == "finding" and q.subject == finding}
        for polarity in judge.card.polarities:
            require(polarity in asked, f"questions: {finding} is not asked as {polarity}; ask, and reply unsupported")
    return questions


def _check_reply(question: Question, reply: Reply) -> None:
    """Check one reply: a number exactly if it answered, else a word on why not."""
    where = f"ask: {question.subject}, {question.polarity}"
    require(isinstance(reply, Reply), f"{where}: a {type(reply).__name__} is no Reply")
    require(reply.outcome in get_args(Outcome), f"{where}: {reply.outcome!r} is none of the six outcomes")
    require(reply.outcome != "failed", f"{where}: a judge does not reply failed: let the error through")
    answered = reply.outcome == "answered"
    require(answered or reply.logit is None, f"{where}: {reply.outcome}, and a logit of {reply.logit} all the same")
    require(not answered or reply.logit is not None, f"{where}: answered, and no logit")
    require(
        reply.logit is None or (isinstance(reply.logit, float) and math.isfinite(reply.logit)),
        f"{where}: the logit {reply.logit!r} is no finite number",
    )
    require(
        reply.mass is None or (isinstance(reply.mass, float) and 0 <= reply.mass <= 1 + 1e-6),
        f"{where}: the mass {reply.mass!r} is not from 0 to 1",
    )
    require(answered or bool(reply.why), f"{where}: {reply.outcome}, and nothing says why")


def _check_same(first: Sequence[Reply], second: Sequence[Reply], questions: Sequence[Question], when: str) -> None:
    for question, one, other in zip(questions, first, second, strict=True):
        near = one.logit is None or other.logit is None or abs(one.logit - other.logit) <= TOLERANCE
        same = one.outcome == other.outcome and near
        require(same, f"ask: {when} about {question.subject}, it replied {_words(one)} and then {_words(other)}")


def _check_unknown(judge: BaseJudge, asker: _Asker, vocabulary: Vocabulary, film: Film) -> None:
    """Ask about what is no finding: it must not be guessed."""
    wider = replace(vocabulary, findings=(*vocabulary.findings, NO_FINDING))
    asked = [question for question in judge.questions(wider) if question.subject == NO_FINDING]
    for question, reply in zip(asked, asker.ask(film, asked), strict=True):
        require(
            reply.outcome != "answered",
            f"ask: about {question.subject!r}, which is no finding, it replied {_words(reply)}: reply unsupported, or "
            "check with any_finding=True if it may be asked about whatever has a name",
        )


def _check_without_film(asker: _Asker, questions: Sequence[Question]) -> None:
    try:
        asker.ask(None, questions)
    except ContractBroken:
        raise
    except BROKEN as error:
        raise ContractBroken(
            f"ask: without an image it raises {type(error).__name__}: {error}; reply unsupported to every question"
        ) from None


def _check_corrupt(asker: _Asker, questions: Sequence[Question]) -> None:
    """Ask about a file that is no image: its error is let through, and becomes `failed`; no number may come."""
    film = Film(sha256="0" * 64, png=b"this is no picture", width_px=64, height_px=64)
    try:
        replies = asker.ask(film, questions)
    except ContractBroken:
        raise
    except BpalsError as error:
        raised = f"an image that cannot be opened raises {type(error).__name__}"
        raise ContractBroken(f"ask: {raised}, which stops a whole run: raise ValueError") from None
    except BROKEN:
        return
    answered = [reply for reply in replies if reply.outcome == "answered"]
    require(not answered, "ask: it answered about an image that cannot be opened: raise ValueError")


def _remarks(replies: Sequence[Sequence[Reply]]) -> tuple[str, ...]:
    """Say what is allowed and odd."""
    remarks = []
    logits = [[reply.logit for reply in film] for film in replies]
    if all(reply.outcome != "answered" for film in replies for reply in film):
        remarks.append("it answered no question about any image")
    elif len(logits) > 1 and all(film == logits[0] for film in logits):
        remarks.append("it says the same of every film: it may not look at them")
    return tuple(remarks)


def _words(reply: Reply) -> str:
    return reply.outcome if reply.logit is None else f"{reply.outcome} with a logit of {reply.logit:.3f}"
