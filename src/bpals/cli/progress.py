"""The progress bar of a long command, drawn on stderr where somebody watches."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def bar() -> Progress:
    """Make a bar that vanishes when the work is done; on a pipe or a file there is none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
