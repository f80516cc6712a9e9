"""One registry for everything that a package may bring: judges, sources, signals, export formats and commands.

Each is named by an entry point and described by a small declaration beside its code; those of bpals come the same way.
Nothing is imported before its name is used, so an optional package is missed only by those who need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from bpals.errors import MissingExtra, UnknownName, UsageError, install_line
from bpals.optional import silence
from bpals.types import Dataset

OURS = "bpals"
"""The package whose entry points are ours."""

ASKING = "How it is asked"
SERVER = "The endpoint"
LOCAL = "A model in this process"
RUN = "The run"
"""The panels of `bpals judge run --help`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How one field of an options class is typed and explained on the command line."""

    help: str
    metavar: str | None = None
    flag: str = ""
    """The flag, where it is not the field's name with dashes."""
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    reads: type | None = None
    """The type that the command line reads, where the field's own annotation allows more."""


def option(default: Any, help: str, **details: Any) -> Any:  # noqa: A002  as typer calls it
    """Declare a field of an options class; the details are the other fields of `Option`."""
    return field(default=default, metadata={"option": Option(help=help, **details)})


def options_of(*classes: type | None) -> dict[str, tuple[Field[Any], Option]]:
    """List the declared options of classes by field name; a field without a declaration is for Python alone."""
    listed = [each for kind in classes if kind is not None for each in fields(kind)]
    return {each.name: (each, each.metadata["option"]) for each in listed if "option" in each.metadata}


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The options of every judge that looks at images."""

    images: Path | None = option(
        None, "The images: a folder, tar or zip, as it is. Remembered by the workspace.", metavar="PATH"
    )
    limit_images: int | None = option(None, "Ask about N images, drawn at random.", least=1, panel=RUN)
    shard: str | None = option(None, "Ask about part I of N of the images, by their names.", metavar="I/N", panel=RUN)
    retry_failed: bool = option(False, "Ask again what failed.", panel=RUN)
    require_all: bool = option(False, "Refuse if an image is missing.", panel=RUN)
    seed: int = option(0, "Where the order of the images starts.", panel=RUN)


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """The options of a judge that answers question by question, with a ledger of its answers."""

    ledger: str | None = option(
        None, "Keep the answers on PostgreSQL: postgresql://NAME@HOST/DATABASE. Remembered.", metavar="URL"
    )
    side: int = option(512, "The longer side of an image as the judge sees it.", metavar="PX", least=32, panel=ASKING)
    failure_share: float = option(0.005, "Stop when more than this share fails.", least=0, most=1, panel=RUN)
    verify: int = option(
        0, "Ask N stored questions again, in whole images: how far do they drift?", metavar="N", least=0, panel=RUN
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of a judge that may stand behind an endpoint."""

    base_url: list[str] | None = option(
        None, "http://HOST:PORT/v1; repeat it for several servers.", metavar="URL", panel=SERVER
    )
    allow_host: list[str] | None = option(
        None, "A host of your own network that may be asked.", metavar="HOST", panel=SERVER
    )
    ca_file: str | None = option(None, "Certificates to trust, as PEM.", panel=SERVER)
    deadline: float = option(120.0, "Seconds for one request, in all.", least=0.1, panel=SERVER)
    in_flight: int = option(64, "Requests at once, at most.", least=1, panel=SERVER)
    budget_tokens: int | None = option(None, "Stop when so many are spent.", least=1, panel=RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What every declaration says."""

    name: str
    summary: str
    form: str = ""
    """How it is typed."""
    extra: str = ""
    """The extra that brings what it needs beyond the core install."""
    packages: tuple[str, ...] = ()
    """What that extra must have made importable."""
    options: type | None = None
    """A frozen dataclass of its own options, each declared with `option`."""
    page: str = ""
    """The page of docs/ that explains it."""

    @property
    def missing(self) -> str:
        """The line that installs what it lacks here; empty where it can be used."""
        return install_line(self.extra) if any(find_spec(package) is None for package in self.packages) else ""

    @property
    def short(self) -> str:
        """Write how it is typed without what follows the target: `xrv:FILE`."""
        return re.sub(r"\[[@:]\w+\]|[\[\]]", "", self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeKind(Kind):
    """A kind of judge that a spec may name."""

    open: Callable[..., Any]
    """A function of target, revision and its own options that gives an ImageJudge, a ChatJudge or a RecordJudge."""
    runs: Literal["ask", "read", "learn", "audit"] = "ask"
    """How it comes to its answers: asked image by image, read from a table of scores, learnt from the dataset's labels
    on features of the images, or run by every audit."""
    takes: tuple[type, ...] = (ImageOptions, AskOptions, ServerOptions)
    """The shared options that it understands."""
    names_file: bool = False
    """Its target is a path, in which an `@` before a `/` is part of a folder's name."""
    endings: tuple[str, ...] = ()
    """Files that are meant for it where they are typed alone."""
    default: str = ""
    """The target that is taken, and announced, where none is typed."""

    def understands(self, option: str) -> bool:
        """Say whether it takes one of the options that judges declare."""
        return option in options_of(*self.takes, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind(Kind):
    """A kind of dataset that `--source` may name."""

    load: Callable[..., Dataset]
    """A function of target and its own options that reads a dataset: a Source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalKind(Kind):
    """A way from labels and answers to trust; its name stands in the column `method`."""

    estimate: Callable[..., Any]
    """A Signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind(Kind):
    """A format of reviews, and maybe of a signal, as files."""

    write: Callable[..., Any]
    """A function of the table of reviews and what is known of their images, that gives files as `Written`."""
    write_signal: Callable[..., Any] | None = None
    """A function of rows of a signal that gives files as `Written`; None for a format of reviews alone."""
    read: Callable[[bytes, str], Any] | None = None
    """A function of a file's content and name that gives `Found`; None for a format that is only written."""
    read_folder: Callable[[Mapping[str, bytes], str], Any] | None = None
    """The same for a folder of files."""
    content: Literal["table", "json", "dicom", ""] = ""
    """How an import recognises a file of it; empty where only --format tells."""
    is_ours: Callable[[Any], bool] = lambda _content: False
    """For JSON: whether what was parsed is of this format."""
    whole: bool = False
    """It has every column, also the one that says what was replaced."""
    needs: Literal["", "sizes", "files"] = ""
    """What it must know of the images: the size of those with boxes, or the files of all."""
    endings: tuple[str, ...] = ()
    """The file names that tell it without --format."""


K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Generic[K]):
    """The entry points of one group."""

    group: str
    noun: str
    declaration: type[K]
    wrap: Callable[[str, str, Any], K] | None = None
    """Makes a declaration of a plain function: its name, its package and itself."""

    def names(self) -> list[str]:
        """List what is installed, ours first, in alphabetical order; nothing is imported."""
        if entries := self._entries():
            return sorted(entries, key=lambda name: (_packages(entries[name])[0] != OURS, name))
        # The code is here and its metadata is not, or is older: an editable install from before an update.
        raise UsageError(f"bpals is not installed whole: it names no {self.noun}. Type: {install_line()}")

    def load(self, name: str) -> K:
        """Import what one name means; a name that is missing, or taken twice, is an error that says what to do."""
        found = self._entries().get(name, [])
        if len(found) > 1:
            raise UsageError(self._clash(name, found))
        if not found:
            raise UnknownName.of(self.noun, name, self.names())
        loaded = _load(found[0])
        if isinstance(loaded, self.declaration):
            return loaded
        if self.wrap is not None and callable(loaded):
            return self.wrap(name, _packages(found)[0], loaded)
        raise UsageError(
            f"{name}: the package {_packages(found)[0]} names {found[0].value}, which is no "
            f"{self.declaration.__name__}. Tell its authors"
        )

    def every(self) -> list[K]:
        """Import all that can be imported; a package that is broken takes nothing else with it."""
        return [kind for kind in (self.attempt(name) for name in self.names()) if not isinstance(kind, UsageError)]

    def attempt(self, name: str) -> K | UsageError:
        """Import what one name means, or give the error."""
        try:
            return self.load(name)
        except UsageError as error:
            return error

    def packages(self, name: str) -> list[str]:
        """Name the packages that bring a name."""
        return _packages(self._entries().get(name, []))

    def _entries(self) -> dict[str, list[EntryPoint]]:
        # Read anew each time: a test, or a notebook, may have installed a package meanwhile.
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            if entry not in found.setdefault(entry.name, []):
                found[entry.name].append(entry)
        return found

    def _clash(self, name: str, entries: Iterable[EntryPoint]) -> str:
        packages = _packages(entries)
        return (
            f"{' and '.join(packages)} all call a {self.noun} {name!r}: one name cannot mean two of them. "
            f"Uninstall the package that you do not want: pip uninstall {packages[-1]}"
        )


def _packages(entries: Iterable[EntryPoint]) -> list[str]:
    """Name the packages of entry points, ours first."""
    names = {entry.dist.name if entry.dist else entry.value for entry in entries}
    return sorted(names, key=lambda name: (name != OURS, name))


def _load(entry: EntryPoint) -> Any:
    package = _packages([entry])[0]
    if package != OURS:
        silence()  # the package may import what reports to its makers
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{entry.name}: the package {package} names {entry.value}, which cannot be loaded "
            f"({error}). Install that package again, or tell its authors"
        ) from None


def _plain_judge(name: str, package: str, function: Callable[..., Any]) -> JudgeKind:
    return JudgeKind(name=name, form=f"{name}:", summary=f"from the package {package}", open=function)


def _plain_source(name: str, package: str, function: Callable[..., Dataset]) -> SourceKind:
    return SourceKind(name=name, form=f"{name}:TARGET", summary=f"from the package {package}", load=function)


JUDGES = Registry(group="bpals.judges", noun="kind of judge", declaration=JudgeKind, wrap=_plain_judge)
SOURCES = Registry(group="bpals.sources", noun="source", declaration=SourceKind, wrap=_plain_source)
SIGNALS = Registry(group="bpals.signals", noun="signal", declaration=SignalKind)
EXPORTS = Registry(group="bpals.exports", noun="format", declaration=ExportKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Which judge is meant: `openai:org/model@abc` is kind, target and revision."""

    kind: str
    target: str = ""
    revision: str = ""
    """What stands after the last `@`: the commit of the weights, or the name of one judge of a table."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + (f"@{self.revision}" if self.revision else "")


class Known(NamedTuple):
    """A kind of judge, for `bpals judge list`."""

    kind: str
    what: str
    missing: str
    """What it lacks here, with the line to type; empty where it can be used."""


def parse_spec(text: str) -> Spec:
    """Take a spec apart; what cannot be one is answered with what to type."""
    name, colon, rest = text.strip().partition(":")
    if name not in JUDGES.names():
        raise _no_kind(text, name)
    kind = JUDGES.load(name)
    target, revision = _split(text, rest, names_file=kind.names_file)
    if not target and kind.form.partition(":")[2][:1] not in {"", "["}:
        raise UsageError(f"{name}{colon} names no judge. Type: bpals judge run {kind.form}")
    return Spec(kind=name, target=target, revision=revision)


def find(name: str) -> Callable[..., Any]:
    """Load what opens judges of a kind; what it needs must be installed."""
    kind = JUDGES.load(name)
    if kind.missing:
        raise MissingExtra.of(f"{name}:", kind.extra)
    return kind.open


def known() -> list[Known]:
    """List every kind of judge and what each lacks here."""
    listed = []
    for name in JUDGES.names():
        kind = JUDGES.attempt(name)
        if isinstance(kind, UsageError):
            listed.append(Known(f"{name}:", f"from the package {' and '.join(JUDGES.packages(name))}", str(kind)))
        else:
            listed.append(Known(kind.form, kind.summary, kind.missing))
    return listed


def _split(text: str, rest: str, *, names_file: bool) -> tuple[str, str]:
    target, at, revision = rest.rpartition("@")
    if not at or (names_file and "/" in revision):
        return rest, ""
    if not revision:
        raise UsageError(f"{text}: nothing stands after the @. Type {text.rstrip('@')}, or name what follows it")
    return target, revision


def _no_kind(text: str, name: str) -> UsageError:
    path = Path(name)
    ending = path.suffix.lower()
    meant = next((kind.name for kind in JUDGES.every() if ending in kind.endings), "") if ending else ""
    if meant:
        what = "is a file, not a judge" if path.is_file() else "names no kind of judge"
        return UsageError(f"{text} {what}. Type: bpals judge run {meant}:{text}")
    return UnknownName.of(JUDGES.noun, name, JUDGES.names(), where=text if text != name else "")
