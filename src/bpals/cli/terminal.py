"""The live line of a judge run: redrawn five times a second on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bpals.registry import options_of
from bpals.text import several

if TYPE_CHECKING:
    # For the type alone: every command loads this module, and only one of them runs image judges.
    from bpals.judges.runner.progress import Snapshot


@dataclass(slots=True)
class Invocation:
    """What a call was told, and what its command says of itself."""

    debug: bool = False
    goes_on: bool = False
    """Whether the same command, typed again after Ctrl-C, goes on where it was."""


def expanded(command: Callable[..., None], **classes: type) -> Callable[..., None]:
    """Give typer one parameter per declared option, and the command one object per options class that it takes.

    A class is the annotation of a parameter, or is named here where it is known only when the command is built.
    """
    annotated = get_type_hints(command).items()
    classes = {name: hint for name, hint in annotated if isinstance(hint, type) and is_dataclass(hint)} | classes
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        options = classes.get(parameter.name)
        parameters += [parameter] if options is None else _typer_parameters(options)

    def call(**values: Any) -> None:
        given = {name: kind(**{each: values.pop(each) for each in options_of(kind)}) for name, kind in classes.items()}
        command(**given, **values)

    plain = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call


def _typer_parameters(options: type) -> list[inspect.Parameter]:
    hints = get_type_hints(options)
    made = []
    for name, (declared, said) in options_of(options).items():
        hint = hints[name]
        flag = said.flag or f"--{name.replace('_', '-')}"
        # Without its name a switch would get a second one, --no-ocr.
        names = (flag,) if said.flag or hint is bool else ()
        shown = typer.Option(
            *names, help=said.help, metavar=said.metavar, min=said.least, max=said.most, rich_help_panel=said.panel
        )
        made.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=declared.default, annotation=Annotated[hint, shown]
            )
        )
    return made


def alone(command: Callable[..., None], example: str) -> typer.Typer:
    """Make an application of one command."""
    app = typer.Typer(add_completion=False)
    app.command(epilog=f"Example: {example}")(command)
    return app


def bar() -> Progress:
    """Make a bar that vanishes when the work is done; on a pipe or a file there is none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def given_files(reviews: Sequence[Path] | None) -> Path | list[Path] | None:
    """Give the one file, all of several, or none: what is recorded of one is its path and not a list."""
    if not reviews:
        return None
    return reviews[0] if len(reviews) == 1 else list(reviews)


PLAIN_EVERY_S = 10.0


class LiveLine:
    """Shows a run's snapshots on stderr."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def say(self, sentence: str) -> None:
        """Print a sentence above the line."""
        if self._console.is_terminal:
            self._console.print(f"note: {sentence}", markup=False)
        else:
            print(f"note: {sentence}", file=sys.stderr, flush=True)


def line_of(snapshot: Snapshot) -> str:
    """Write a snapshot as one line: films, pairs a second, in flight, latency, cache, outcomes, tokens, time left."""
    outcomes = " ".join(f"{count:,} {outcome}" for outcome, count in snapshot.outcomes.items() if count)
    tokens = snapshot.tokens.prompt + snapshot.tokens.output
    # What a judge does not have is left out: a probe has no tokens, and nothing in flight.
    return " | ".join(
        part
        for part in (
            snapshot.stage,
            f"{snapshot.films_done:,}/{several(snapshot.films_all, 'film')}" if snapshot.films_all else "",
            f"{snapshot.pairs_per_s:,.1f} pairs/s" if snapshot.pairs_per_s else "",
            f"{snapshot.in_flight}/{snapshot.limit} in flight" if snapshot.limit else "",
            f"p50 {snapshot.p50_s:.2f} s p95 {snapshot.p95_s:.2f} s" if snapshot.p95_s else "",
            f"{snapshot.cached_share:.0%} cached" if tokens else "",
            outcomes,
            f"{tokens:,} tokens" if tokens else "",
            f"{span(snapshot.eta_s)} left" if snapshot.eta_s is not None else "",
        )
        if part
    )


def span(seconds: float) -> str:
    """Write 4210 s as 1:10 h, 130 s as 2:10 min."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 60}:{whole % 60:02} min"
