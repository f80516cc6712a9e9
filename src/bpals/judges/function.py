"""`python:`, a plain function as an image judge: the decorator, loading it from a file or module, and its hash.

`python:FILE.py:NAME` and `python:package.module:NAME` name a function under `@bpals.judge`. The hash of the code that
it reaches is part of the judge's identity: another code is another judge.
"""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import math
import numbers
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, get_args

from bpals.errors import UnknownName, UsageError
from bpals.findings import Vocabulary, fold
from bpals.judges.cards import commercial_use
from bpals.optional import silence
from bpals.registry import JudgeKind
from bpals.store.workspace import check_judge_name
from bpals.types import ChatJudge, Film, ImageJudge, JudgeCard, Question, Reply, Trained

VERSION = "1"
# A probability of 0 or 1 is taken this far from it, because its logit must be a number.
EDGE = 1e-12
# What a file may raise that somebody has just written.
MISTAKES = (AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError)

# Outcomes of a function that gives no number.
Without = Literal["abstained", "refused", "unparsed", "unsupported"]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NoAnswer(Exception):
    """Raised by a judge's function that has no number to give: the outcome, and why."""

    def __init__(self, outcome: Without, why: str) -> None:
        """Keep both for the reply."""
        super().__init__(f"{outcome}: {why}")
        self.outcome: Without = outcome
        self.why = why


class UnreadableFilm(ValueError):
    """One image that cannot be opened: its row is `failed`, and the run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJudge:
    """A plain function as an image judge; called, it is still that function."""

    function: Callable[..., Any]
    card: JudgeCard
    findings: tuple[str, ...] | None
    """The findings that it answers for; None is any finding, by its name."""
    whole_film: bool
    """True where the function takes the image alone and answers for all findings at once."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function itself."""
        return self.function(*given, **named)

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """Ask about every finding, in one polarity and without words."""
        return tuple(Question(subject=finding) for finding in vocabulary.findings)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer by calling the function: once per image, or once per finding."""
        if film is None:
            return [_none("unsupported", "it cannot be asked without a film") for _ in questions]
        image = _open(film)
        # A copy each, so that a function that draws on its image cannot change the next answer.
        whole = self._call(image.copy()) if self.whole_film else None
        return [
            self._unsupported(question)
            or _pick(whole if self.whole_film else self._call(image.copy(), question.subject), question.subject)
            for question in questions
        ]

    def _call(self, *given: Any) -> Any:
        """Call the function; a NoAnswer that it raises is its result."""
        try:
            return self.function(*given)
        except NoAnswer as answer:
            return answer

    def _unsupported(self, question: Question) -> Reply | None:
        """Reply to a question that the function never gets: the image itself, an absence, an unknown finding."""
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

    `model`, `revision` and `licence` name the weights that it uses; `findings` what it answers for (default: any);
    `trained_on_target` whether it was trained on the labels it judges, and `evidence` how you know.
    """
    if not isinstance(name, str):
        written = getattr(name, "__name__", "f")
        called = written.strip("_").replace("_", "-").lower()
        raise UsageError(f"@bpals.judge needs a name. Write @bpals.judge({called!r}) above def {written}")
    check_judge_name(name)
    if trained_on_target not in get_args(Trained):
        raise UnknownName.of("trained_on_target", str(trained_on_target), get_args(Trained), where=f"judge {name!r}")
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
    """Count the arguments that a function needs: an image, or an image and a finding."""
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty]
    needed = [p for p in required if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if len(needed) not in {1, 2} or any(p.kind is p.KEYWORD_ONLY for p in required):
        given = inspect.signature(function)
        raise UsageError(f"judge {name!r}: def {function.__name__}{given} must take (image) or (image, finding)")
    return len(needed)


def _open(film: Film) -> Any:
    """Open the pixels, grey."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(film.png)) as opened:
            return opened.convert("L")
    except (OSError, SyntaxError, ValueError) as error:
        what = type(error).__name__
        raise UnreadableFilm(f"the film {film.sha256[:12]} cannot be opened as a picture ({what})") from None


def _pick(result: Any, finding: str) -> Reply:
    """Read one answer: a number, or the finding's part of many; nothing is ever guessed."""
    if isinstance(result, Mapping):
        pairs = list(result.items())
    elif isinstance(result, list | tuple):
        if not all(isinstance(part, Mapping) and {"label", "score"} <= part.keys() for part in result):
            return _none("unparsed", f"a {type(result).__name__} without label and score: {_short(result)}")
        pairs = [(part["label"], part["score"]) for part in result]
    else:
        return _read(result)
    meant = [value for key, value in pairs if isinstance(key, str) and fold(key) == fold(finding)]
    if not meant:
        return _none("unsupported", f"it left {finding} out of {_short([key for key, _ in pairs])}")
    if len(meant) > 1:
        return _none("unparsed", f"it names {finding} {len(meant)} times")
    return _read(meant[0])


def _read(result: Any) -> Reply:
    if isinstance(result, NoAnswer):
        return _none(result.outcome, result.why)
    if result is None:
        return _none("abstained", "it gave None")
    if isinstance(result, bool) or not isinstance(result, numbers.Real):
        return _none("unparsed", f"a {type(result).__name__} is no probability: {_short(result)}")
    p = float(result)
    if not 0 <= p <= 1:
        return _none("unparsed", f"{p} is no probability: it is not from 0 to 1")
    return Reply(outcome="answered", logit=logit(p), method="score")


def _none(outcome: Without, why: str) -> Reply:
    return Reply(outcome=outcome, why=why, method="score")


def _short(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def load(target: str, revision: str = "") -> ImageJudge | ChatJudge:
    """Load a judge from `FILE.py:NAME` or `package.module:NAME`; the name may be left out where there is one judge."""
    where = f"python:{target}"
    if revision:
        raise UsageError(f"{where}@{revision}: a function has no revision. Write revision=... in its @bpals.judge")
    place, _, name = target.rpartition(":")
    if not place:
        place, name = target, ""
    silence()  # the file may import what reports to its makers
    module = _file(Path(place), where) if place.endswith(".py") else _module(place, where)
    judges = {key: value for key, value in vars(module).items() if isinstance(value, ImageJudge | ChatJudge)}
    # A class looks like its instances to a runtime protocol; only what was made can be asked.
    judges = {key: value for key, value in judges.items() if not isinstance(value, type)}
    if name in judges:
        return judges[name]
    if hasattr(module, name):
        raise UsageError(f"{where}: {name} is no judge. Write @bpals.judge('{name}') above its def")
    if not judges:
        raise UsageError(f"{where} has no judge. Write @bpals.judge('my-judge') above a def f(image, finding)")
    if name or len(judges) > 1:
        raise UnknownName.of("judge", name, judges, where=where)
    return next(iter(judges.values()))


def _file(path: Path, where: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{where}: {path} does not exist. Check the path")
    # Two files of one name are two modules; dataclasses and pickle look a module up by its name.
    name = f"bpals_judge_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{where}: {path} cannot be loaded as Python. Name a .py file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MISTAKES as error:
        del sys.modules[name]
        raise UsageError(f"{where} cannot be loaded: {error}. Mend the file, or install what it imports") from None
    return module


def _module(name: str, where: str) -> ModuleType:
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return import_module(name)
    except (ImportError, SyntaxError) as error:
        raise UsageError(f"{where} cannot be loaded: {error}. Mend it, or install its package") from None
    raise UsageError(f"{where}: {name!r} is no module. Type python:FILE.py:NAME or python:package.module:NAME")


def code_sha256(function: FunctionType) -> str:
    """Hash the code that a function is made of; where there is no text, as in a plain prompt, its compiled form."""
    texts = _texts(function) or _compiled(function.__code__)
    written = "\0".join([function.__qualname__, *texts])
    return "sha256:" + sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def closed_over(function: FunctionType) -> dict[str, str]:
    """Write down the values that a function closes over or has as defaults: plain ones in full, of others the type."""
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    values: dict[str, object] = {}
    for name, cell in held.items():
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not got there yet
            values[name] = None
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    values |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    return {name: _written(value) for name, value in sorted(values.items())}


def _written(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(_written(part) for part in value)})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{_written(key)}: {_written(part)}' for key, part in value.items())})"
    return code_sha256(value) if isinstance(value, FunctionType) else type(value).__qualname__


def _texts(function: FunctionType) -> list[str]:
    """Give the texts of the statements that the function reaches in its file, in the order of the file."""
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    try:
        text = "".join(lines)
        # Without a decorator: its arguments are on the card, where each counts as it should.
        tops = [(node, ast.get_source_segment(text, node) or "") for node in ast.parse(text).body]
    except (SyntaxError, ValueError):
        return []
    line = function.__code__.co_firstlineno
    # A function begins at its first decorator.
    starts = [min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) for node, _ in tops]
    own = [place for place, (node, _) in enumerate(tops) if starts[place] <= line <= (node.end_lineno or 0)]
    if not own:
        return []
    reached, queue = set(own), list(own)
    while queue:
        used = {node.id for node in ast.walk(tops[queue.pop()][0]) if isinstance(node, ast.Name)}
        found = {place for place, (node, _) in enumerate(tops) if used & _bound(node)} - reached
        reached |= found
        queue += found
    return [tops[place][1] for place in sorted(reached)]


def _bound(node: ast.stmt) -> set[str]:
    """Name what a statement at the top of a file binds, wherever in it; the inside of functions is left out."""
    if isinstance(node, Definition):
        return {node.name}
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add((inner.asname or inner.name).partition(".")[0])
        elif isinstance(inner, Definition):
            names.add(inner.name)
    return names


def _compiled(code: CodeType) -> list[str]:
    """Write out compiled code; it differs between versions of Python, so the version is part of it."""
    inner = [part for const in code.co_consts if isinstance(const, CodeType) for part in _compiled(const)]
    consts = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    version = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return [version, code.co_code.hex(), *consts, *code.co_names, *code.co_varnames, *code.co_freevars, *inner]


JUDGE = JudgeKind(
    name="python",
    form="python:FILE.py[:NAME]",
    summary="a function of your own under @bpals.judge, in a file or a module",
    open=load,
    names_file=True,
    endings=(".py",),
    page="judges.md#a-judge-in-six-lines",
)
