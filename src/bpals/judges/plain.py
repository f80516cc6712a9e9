"""A judge in six lines: a plain function under `@bpals.judge`.

    @bpals.judge("mean-brightness", findings=["Effusion"])
    def brightness(image, finding):
        return ImageStat.Stat(image).mean[0] / 255

The function is shown a film and the finding's name, and nothing else. It gives P(the finding is there), or None if it
cannot tell. A function of the film alone gives all findings at once, as a dict or as a list of `label` and `score`.
"""

from __future__ import annotations

import inspect
import io
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

from bpals.errors import UnknownName, UsageError
from bpals.findings import Vocabulary, fold
from bpals.judges.codehash import closed_over, code_sha256
from bpals.judges.licence import commercial_use
from bpals.sealedjudge import check_judge_name
from bpals.types import Film, JudgeCard, Question, Reply, Trained

VERSION = "1"
EDGE = 1e-12
"""A probability of 0 or 1 is taken this far from it, because its logit must be a number."""

TRAINED = ("yes", "no", "unknown")


class NoAnswer(Exception):
    """Raised by a judge's function that has no number to give: what happened, and why."""

    def __init__(self, outcome: Literal["abstained", "refused", "unparsed", "unsupported"], why: str) -> None:
        """Keep both for the reply."""
        super().__init__(f"{outcome}: {why}")
        self.outcome: Literal["abstained", "refused", "unparsed", "unsupported"] = outcome
        self.why = why


class UnreadableFilm(ValueError):
    """One film that cannot be opened: its row is `failed`, and the run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJudge:
    """A plain function as an image judge; called, it is still that function."""

    function: Callable[..., Any]
    card: JudgeCard
    findings: tuple[str, ...] | None
    """What it may be asked about; None is any finding, by its name."""
    whole_film: bool
    """True where the function takes the film alone and answers for all findings at once."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function itself."""
        return self.function(*given, **named)

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """Ask about every finding, in one polarity and without words."""
        return tuple(Question(subject=finding) for finding in vocabulary.findings)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer by calling the function: once a film, or once a finding."""
        if film is None:
            return [_none("unsupported", "it cannot be asked without a film") for _ in questions]
        image = _open(film)
        if self.whole_film:
            said = _said(self.function, image.copy())
            return [self._unasked(question) or _pick(said, question.subject) for question in questions]
        # A copy each, so that a function that draws on its image cannot change the next answer.
        return [
            self._unasked(question) or _pick(_said(self.function, image.copy(), question.subject), question.subject)
            for question in questions
        ]

    def _unasked(self, question: Question) -> Reply | None:
        """Say what it is never asked: the film itself, an absence, a finding that it does not know."""
        if question.about != "finding" or question.polarity != "present":
            return _none("unsupported", "it is asked whether a finding is present, and nothing else")
        if self.findings is not None and fold(question.subject) not in {fold(name) for name in self.findings}:
            return _none("unsupported", f"it does not know {question.subject}")
        return None


def judge(
    name: str,
    *,
    model: str = "",
    revision: str = "",
    findings: Iterable[str] | None = None,
    licence: str = "unknown",
    trained_on_target: Trained = "unknown",
    evidence: str = "",
) -> Callable[[Callable[..., Any]], PlainJudge]:
    """Make an image judge of a function: `f(image, finding) -> float | None`, or `f(image) -> dict`.

    `model`, `revision` and `licence` say whose weights it uses; `findings` what it may be asked about (default: any);
    `trained_on_target` whether it was trained on the labels it judges, and `evidence` how you know.
    """
    if not isinstance(name, str):
        written = getattr(name, "__name__", "f")
        called = written.strip("_").replace("_", "-").lower()
        raise UsageError(f"@bpals.judge needs a name. Write @bpals.judge({called!r}) above def {written}")
    check_judge_name(name)
    if trained_on_target not in TRAINED:
        raise UnknownName.of("trained_on_target", str(trained_on_target), TRAINED, where=f"judge {name!r}")
    known = None if findings is None else tuple(findings)

    def decorate(function: Callable[..., Any]) -> PlainJudge:
        if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
            raise UsageError(f"judge {name!r}: {function!r} is no plain function. Write def f(image, finding): ...")
        card = JudgeCard(
            judge=name,
            kind="image",
            version=VERSION,
            model=model,
            revision=revision,
            engine="python function",
            settings={
                "code": code_sha256(function),
                "closed_over": closed_over(function),
                "findings": None if known is None else list(known),
            },
            polarities=("present",),
            trained_on_target=trained_on_target,
            evidence=evidence,
            licence=licence,
            commercial_use=commercial_use(licence),
        )
        return PlainJudge(function=function, card=card, findings=known, whole_film=_takes(function, name) == 1)

    return decorate


def logit(p: float) -> float:
    """Turn a probability into log odds; 0 and 1 are taken EDGE inside."""
    inside = min(max(p, EDGE), 1 - EDGE)
    return math.log(inside) - math.log1p(-inside)


def _takes(function: FunctionType, name: str) -> int:
    """Count what a function must be given by position: an image, or an image and a finding."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    needed = [p for p in positional if p.default is p.empty]
    stray = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) not in {1, 2} or stray:
        given = inspect.signature(function)
        raise UsageError(f"judge {name!r}: def {function.__name__}{given} must take (image) or (image, finding)")
    return len(needed)


def _open(film: Film) -> Any:
    """Open the pixels, grey."""
    from PIL import Image  # noqa: PLC0415  `import bpals` does not wait for it

    try:
        with Image.open(io.BytesIO(film.png)) as opened:
            return opened.convert("L")
    except (OSError, SyntaxError, ValueError) as error:
        what = type(error).__name__
        raise UnreadableFilm(f"the film {film.sha256[:12]} cannot be opened as a picture ({what})") from None


def _said(function: Callable[..., Any], *given: Any) -> Any:
    """Call the function; what it raises as NoAnswer is what it says."""
    try:
        return function(*given)
    except NoAnswer as said:
        return said


def _pick(said: Any, finding: str) -> Reply:
    """Read one answer: a number, or the finding's part of many; nothing is ever guessed."""
    if isinstance(said, Mapping):
        return _one_of(list(said.items()), finding)
    if isinstance(said, list | tuple):
        if not all(isinstance(part, Mapping) and {"label", "score"} <= part.keys() for part in said):
            return _none("unparsed", f"a {type(said).__name__} without label and score: {_short(said)}")
        return _one_of([(part["label"], part["score"]) for part in said], finding)
    return _read(said)


def _one_of(pairs: Sequence[tuple[Any, Any]], finding: str) -> Reply:
    meant = [value for key, value in pairs if isinstance(key, str) and fold(key) == fold(finding)]
    if not meant:
        return _none("unsupported", f"it left {finding} out of {_short([key for key, _ in pairs])}")
    if len(meant) > 1:
        return _none("unparsed", f"it names {finding} {len(meant)} times")
    return _read(meant[0])


def _read(said: Any) -> Reply:
    if isinstance(said, NoAnswer):
        return _none(said.outcome, said.why)
    if said is None:
        return _none("abstained", "it gave None")
    if isinstance(said, bool) or not isinstance(said, numbers.Real):
        return _none("unparsed", f"a {type(said).__name__} is no probability: {_short(said)}")
    p = float(said)
    if not 0 <= p <= 1:
        return _none("unparsed", f"{p} is no probability: it is not from 0 to 1")
    return Reply(outcome="answered", logit=logit(p), method="score")


def _none(outcome: Literal["abstained", "refused", "unparsed", "unsupported"], why: str) -> Reply:
    return Reply(outcome=outcome, why=why, method="score")


def _short(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."
