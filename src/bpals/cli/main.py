"""The command `bpals`, and how it ends: 0 done, 2 you must act, 3 stopped and resumable, 130 interrupted, 1 our bug."""

from __future__ import annotations

import errno
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from bpals.cli.terminal import Invocation, printable
from bpals.errors import BpalsError, Stopped
from bpals.registry import Registry
from bpals.version import VERSION

YOU_MUST_ACT = 2
STOPPED = 3
INTERRUPTED = 130
OUR_BUG = 1

NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "a file grew beyond what the system allows (ulimit -f)",
}

COMMANDS = Registry(group="bpals.commands", noun="command", declaration=typer.Typer)


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported when it is used: `bpals audit` does not wait for the reading room."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS.names():
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = get_command(COMMANDS.load(name))
            self._made[name].name = name
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS.names())

    def __len__(self) -> int:
        return len(COMMANDS.names())


class _Group(TyperGroup):
    def __init__(self, **details: Any) -> None:
        super().__init__(**details)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(
    name="bpals",
    cls=_Group,
    help="Tell how far to trust each label of a chest X-ray dataset, and show the evidence.",
    epilog="Example: bpals audit --workspace audit",
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bpals {VERSION}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _before_any_command(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001  typer calls _print_version, which stops
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback with every error.")] = False,
) -> None:
    context.ensure_object(Invocation).debug = debug
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> NoReturn:
    """Run the command line and end the process with the right exit code."""
    sys.exit(obey(sys.argv[1:]))


def obey(arguments: Sequence[str], commands: typer.Typer = app) -> int:
    """Run a command, print an error as one line, and give the exit code."""
    invocation = Invocation()
    try:
        code = get_command(commands).main(
            args=list(arguments), prog_name="bpals", standalone_mode=False, obj=invocation
        )
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bpals"
        _say(f"{error.format_message().rstrip('.')}. Type: {command} --help")
        return YOU_MUST_ACT
    except BpalsError as error:
        if invocation.debug:
            traceback.print_exc()
        _say(str(error))
        return STOPPED if isinstance(error, Stopped) else YOU_MUST_ACT
    except Exception as error:  # noqa: BLE001  the one place that may: what nobody foresaw is our bug, and is shown whole
        return _unforeseen(error, arguments)
    if code == INTERRUPTED:
        again = "goes on" if invocation.goes_on else "starts again"
        _say(f"interrupted; nothing is left half-written. The same command {again}: {_typed(arguments)}")
    return code if isinstance(code, int) else 0


def _unforeseen(error: Exception, arguments: Sequence[str]) -> int:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        what = f"{NO_ROOM[error.errno]} ({error.filename or error.strerror})"
        _say(f"{what}. Make room, then type: {_typed(arguments)}")
        return YOU_MUST_ACT
    traceback.print_exception(error)
    _say("this is a bug in bpals. Please run `bpals doctor` and report what it prints with the traceback above.")
    return OUR_BUG


def _typed(arguments: Sequence[str]) -> str:
    return shlex.join(["bpals", *arguments])


def _say(sentence: str) -> None:
    """Print one line on stderr, whatever a file name or a cell may have brought into the sentence."""
    print(f"bpals: {' '.join(printable(sentence).split())}", file=sys.stderr)
