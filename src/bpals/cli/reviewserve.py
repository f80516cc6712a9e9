"""`bpals review serve` and `bpals review verify-log`: the reading room, and the proof that its log is whole."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bpals.cli.progress import bar
from bpals.demo import make_demo
from bpals.errors import MissingExtra
from bpals.plural import several
from bpals.workspace import DEMO

PACKAGES = ("fastapi", "uvicorn", "argon2", "pyotp", "joserfc", "httpx")
FOUND = 1
"""The exit code where a log was changed."""

WORKSPACE = Annotated[Path, typer.Option(help="The folder of the audit.")]
LEDGER = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="A ledger on PostgreSQL, instead of the workspace's own.")
]


def load_room() -> Any:
    """Load the reading room: it needs packages that the core has not."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise MissingExtra.of("the reading room", "review")
    return import_module("bpals.readingroom")


def serve(  # noqa: PLR0913  an option of the command is a parameter
    workspace: Annotated[
        Path | None, typer.Option(help="The folder of the audit; by default audit, and demo for the demo.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The films: a folder, a tar or a zip; given once, remembered.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A study file; by default one reader, every finding.")
    ] = None,
    ledger: LEDGER = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at; 0 takes a free one.")] = 8765,
    behind_proxy: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A proxy at this address speaks TLS for the room.")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="What readers type, where it is not the address above.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Speak TLS with this certificate ...")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="... and its key.")] = None,
    oidc: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Let people in by an OIDC provider, named in a TOML file.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Read 120 drawn films: nothing to download.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR: how much is logged.")] = "WARNING",
) -> None:
    """Open the reading room: read the films whose labels are most in doubt, blind first."""
    rooms = load_room()
    home = workspace or (DEMO if demo else Path("audit"))
    if demo:
        with bar() as drawn:
            task = drawn.add_task("starting", total=1.0)
            made = make_demo(home, progress=lambda what, share: drawn.update(task, description=what, completed=share))
        images = images or made.images
    binding = rooms.Binding(
        host=host, port=port, certificate=tls_cert, key=tls_key, behind_proxy=behind_proxy, public=public_url
    )
    opening = rooms.Opening(workspace=home, images=images, study=study, ledger=ledger, oidc=oidc, binding=binding)
    rooms.serve_room(opening, ready=_greeter(open_browser=browser and sys.stdout.isatty()), level=log_level.upper())


def _greeter(*, open_browser: bool) -> Callable[[Any], None]:
    def greet(room: Any) -> None:
        for notice in room.notices:
            print(f"note: {notice.message}", file=sys.stderr)
        films = several(room.cases, "film")
        print(f"{films} to read, the most doubtful first. Ctrl-C closes the room; what was read is kept.")
        print(f"Open: {room.entrance}", flush=True)
        if open_browser:
            webbrowser.open(room.entrance)

    return greet


def verify_log(
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The head that was printed before: nothing up to it may be missing."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """Check that nothing in the log of the reading room was edited, removed or put in another order."""
    told = load_room().verify_log(workspace, ledger=ledger, head=head)
    if as_json:
        end = {"sequence": told.head.sequence, "hash": told.head.hash}
        print(json.dumps({"whole": not told.found, "found": told.found, "head": end}, indent=1))
    elif told.found:
        print("\n".join(told.found))
    else:
        since = "" if head is None else ", and nothing of what was there with that head is missing"
        print(f"The log is whole{since}.")
        print(f"Head: {told.head}")
    if told.found:
        raise typer.Exit(FOUND)
