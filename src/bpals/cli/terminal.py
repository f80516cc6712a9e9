"""What every command shares: its options, its progress bar, its tables, and the live line of a judge run."""

from __future__ import annotations

import copy
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text, TextType

from bpals.errors import UsageError
from bpals.registry import options_of
from bpals.text import several

if TYPE_CHECKING:
    # For the type alone: every command loads this module, and only one of them runs image judges.
    from bpals.judges.runner.progress import Snapshot

Row = dict[str, Any]


def takes(metavar: str, meaning: str) -> Any:
    """Declare an option that takes a value, and what that value is."""
    return typer.Option(metavar=metavar, help=meaning)


AUDIT = Path("audit")
"""The workspace where none is named."""
WORKSPACE = Annotated[Path, typer.Option(help="The folder of the audit.")]
NEW_WORKSPACE = Annotated[Path, typer.Option(help="The folder to write to.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]
SPLIT = Annotated[str, typer.Option(help="Which rows of the reference: val, test or all.")]
BOOTSTRAP = Annotated[int, takes("N", "Resamples of patients for the intervals.")]
RESAMPLING_SEED = Annotated[int, typer.Option(help="Where the resampling starts.")]
JUDGE = "A judge of the workspace; `record` is the metadata judge."

PLAIN_EVERY_S = 10.0
UNLIMITED = 10_000  # columns


@dataclass(slots=True)
class Invocation:
    """How a command was called, and what it says of itself."""

    debug: bool = False
    goes_on: bool = False
    """Whether the same command, typed again after Ctrl-C, goes on where it was."""


def alone(command: Callable[..., None], example: str) -> typer.Typer:
    """Make an application of one command."""
    app = typer.Typer(add_completion=False)
    app.command(epilog=f"Example: {example}")(command)
    return app


def group(name: str, purpose: str, example: str) -> typer.Typer:
    """Make an application of several commands."""
    app = typer.Typer(name=name, help=purpose, epilog=f"Example: {example}", add_completion=False, no_args_is_help=True)
    # Without a callback typer would drop the name of a group's only command.
    app.callback()(lambda: None)
    return app


def expanded(command: Callable[..., None], **classes: type) -> Callable[..., None]:
    """Give typer one parameter per declared option, and the command one object per options class that it takes.

    A class is the annotation of a parameter, or is named here where it is known only when the command is built.
    """
    annotated = get_type_hints(command).items()
    classes = {name: hint for name, hint in annotated if isinstance(hint, type) and is_dataclass(hint)} | classes
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        options = classes.get(parameter.name)
        plain = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += [plain] if options is None else _typer_parameters(options)

    def call(**values: Any) -> None:
        given = {name: kind(**{each: values.pop(each) for each in options_of(kind)}) for name, kind in classes.items()}
        command(**given, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call


def _typer_parameters(options: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(options)
    for name, (field, option) in options_of(options).items():
        # Without its name a switch would get a second one, --no-ocr.
        flag = option.flag or (f"--{name.replace('_', '-')}" if hints[name] is bool else None)
        declared = typer.Option(
            *filter(None, [flag]),
            help=option.help,
            metavar=option.metavar,
            min=option.least,
            max=option.most,
            rich_help_panel=option.panel,
        )
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[hints[name], declared]
        )


def given_files(reviews: Sequence[Path] | None) -> Path | list[Path] | None:
    """Give the one file, all of several, or none: what is recorded of one is its path and not a list."""
    if not reviews:
        return None
    return reviews[0] if len(reviews) == 1 else list(reviews)


@contextmanager
def progress(first: str = "starting", total: float | None = 1.0) -> Iterator[Callable[[str, float], None]]:
    """Draw a bar that vanishes when the work is done; on a pipe or a file there is none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as drawn:
        task = drawn.add_task(first, total=total)
        yield lambda what, share: drawn.update(task, description=what, completed=share)


def print_notes(messages: Iterable[str]) -> None:
    """Print notes on stderr, beside the output and not in it."""
    for message in messages:
        print(f"note: {message}", file=sys.stderr)


def write_text(text: str, file: Path, flag: str) -> None:
    """Write a file that an option names."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another with {flag} FILE") from None


def wide_console(width: int, *, markup: bool = True) -> Console:
    """Make a console as wide as the terminal, or `width` columns wide for a file or a pipe."""
    console = Console(highlight=False, markup=markup)
    return console if console.is_terminal else Console(highlight=False, markup=markup, width=width)


def print_tables(tables: Iterable[Table], width: int = 100, *, markup: bool = True) -> None:
    """Print tables under one another."""
    console = wide_console(width, markup=markup)
    for table in tables:
        for part in fitting(table, console):
            console.print(part)


def fitting(table: Table, console: Console) -> Iterator[Table]:
    """Cut a table that is too wide into tables under one another, each with the columns of words.

    Rich would squeeze the words until nobody can read them, and then cut the numbers.
    """
    words = [column for column in table.columns if not column.no_wrap]
    waiting = [column for column in table.columns if column.no_wrap]
    # Without this, what a table measures stops at the console's width.
    unlimited = console.options.update(width=UNLIMITED)
    if not words or not waiting or console.measure(table, options=unlimited).maximum <= console.width:
        yield table
        return
    title = table.title
    while waiting:
        shown = waiting[:1]
        while len(shown) < len(waiting):
            wider = _with_columns(table, [*words, *waiting[: len(shown) + 1]], title)
            if console.measure(wider, options=unlimited).maximum > console.width:
                break
            shown = waiting[: len(shown) + 1]
        yield _with_columns(table, [*words, *shown], title)
        title, waiting = None, waiting[len(shown) :]


def _with_columns(table: Table, columns: Sequence[Column], title: TextType | None) -> Table:
    """Copy a table with some of its columns."""
    part = copy.copy(table)
    part.title = title
    part.columns = [replace(column, _index=place) for place, column in enumerate(columns)]
    return part


def sheet(title: str, words: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> Table:
    """Make a table: columns of words, then columns of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in words:
        # A name may take two lines, so that no number is cut.
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """Write .558 for 0.558; what is not defined is a dash."""
    if value is None:
        return "-"
    text = f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def printable(text: str) -> str:
    """Take out what could play with a terminal: a file name or a cell may hold anything."""
    return "".join(character if character.isprintable() else " " for character in text)


class LiveLine:
    """Shows a run's snapshots on stderr: redrawn on a terminal, a plain line every ten seconds elsewhere."""

    def __init__(self) -> None:
        """Begin with nothing drawn."""
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=5, transient=True)
        self._next_s = time.monotonic() + PLAIN_EVERY_S

    def __enter__(self) -> Self:
        """Start drawing where somebody watches."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wipe the line."""
        if self._console.is_terminal:
            self._live.stop()

    def draw(self, snapshot: Snapshot) -> None:
        """Show how far the run is."""
        if self._console.is_terminal:
            self._live.update(Text(line_of(snapshot)))
        elif time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PLAIN_EVERY_S
            print(line_of(snapshot), file=sys.stderr, flush=True)

    def note(self, sentence: str) -> None:
        """Print a sentence above the line."""
        if self._console.is_terminal:
            self._console.print(f"note: {sentence}", markup=False)
        else:
            print(f"note: {sentence}", file=sys.stderr, flush=True)


def line_of(snapshot: Snapshot) -> str:
    """Write a snapshot as one line: images, pairs per second, in flight, latency, cache, outcomes, tokens, time left.

    What a judge does not have is left out: a probe has no tokens, and nothing in flight.
    """
    tokens = snapshot.tokens.prompt + snapshot.tokens.output
    parts = (
        snapshot.stage,
        f"{snapshot.films_done:,}/{several(snapshot.films_all, 'image')}" if snapshot.films_all else "",
        f"{snapshot.pairs_per_s:,.1f} pairs/s" if snapshot.pairs_per_s else "",
        f"{snapshot.in_flight}/{snapshot.limit} in flight" if snapshot.limit else "",
        f"p50 {snapshot.p50_s:.2f} s p95 {snapshot.p95_s:.2f} s" if snapshot.p95_s else "",
        f"{snapshot.cached_share:.0%} cached" if tokens else "",
        " ".join(f"{count:,} {outcome}" for outcome, count in snapshot.outcomes.items() if count),
        f"{tokens:,} tokens" if tokens else "",
        f"{span(snapshot.eta_s)} left" if snapshot.eta_s is not None else "",
    )
    return " | ".join(filter(None, parts))


def span(seconds: float) -> str:
    """Write 4210 s as 1:10 h, 130 s as 2:10 min."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 60}:{whole % 60:02} min"
