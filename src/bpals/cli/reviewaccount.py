"""`bpals review account`: who may enter the reading room."""

from __future__ import annotations

import json
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from bpals.cli.reviewserve import LEDGER, WORKSPACE, load_room
from bpals.errors import UsageError

NAME = Annotated[str, typer.Argument(help="The account.")]
HERE = "command line"
"""Who made a change, as the log says it."""

app = typer.Typer(
    name="account",
    help="Say who may enter the reading room.",
    epilog="Example: bpals review account add anna --role reader",
    no_args_is_help=True,
)


@app.callback()
def _before_any_command() -> None:
    """Say who may enter the reading room."""


@app.command("add", epilog="Example: bpals review account add anna --role reader")
def add(
    name: NAME,
    role: Annotated[str, typer.Option(help="reader, adjudicator or admin.")] = "reader",
    totp: Annotated[bool, typer.Option("--totp", help="Ask for a code at login too.")] = False,
    email: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Enter by OIDC with this address, and without a password.")
    ] = None,
    oidc: Annotated[Path | None, typer.Option(metavar="FILE", help="The OIDC provider that knows the address.")] = None,
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
) -> None:
    """Make an account; its password is asked for, or read from a pipe."""
    rooms = load_room()
    subject = rooms.invitation(oidc, email) if email else None
    with rooms.office(workspace, ledger) as office:
        made = office.make(name, role, password=None if subject else _password(name), subject=subject, by=HERE)
        print(f"{made.name} may enter as {made.role}.")
        if totp:
            print(f"For the app: {office.add_second_factor(made, 'bpals reading room', by=HERE)}")


@app.command("list", epilog="Example: bpals review account list --json")
def list_(
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """List who may enter."""
    cards = load_room().list_accounts(workspace, ledger)
    rows = [
        {"name": card.account.name, "role": card.account.role, "password": card.password, "totp": card.totp,
         "oidc": card.subject is not None, "disabled": card.disabled}
        for card in cards
    ]  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        ways = ", ".join(way for way in ("password", "totp", "oidc") if row[way]) or "a login link"
        print(f"{row['name']:<24} {row['role']:<12} {ways}{', disabled' if row['disabled'] else ''}")
    if not rows:
        print("Nobody yet. Type: bpals review account add NAME --role admin")


@app.command("password", epilog="Example: bpals review account password anna")
def password(name: NAME, workspace: WORKSPACE = Path("audit"), ledger: LEDGER = None) -> None:
    """Give somebody a new password; whoever is in by the old one is out."""
    with load_room().office(workspace, ledger) as office:
        office.set_password(office.named(name), _password(name), by=HERE)
        print(f"{name} has a new password.")


@app.command("disable", epilog="Example: bpals review account disable anna")
def disable(
    name: NAME,
    again: Annotated[bool, typer.Option("--enable", help="Let them in again.")] = False,
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
) -> None:
    """Let nobody in by an account any more; what was read by it stays."""
    with load_room().office(workspace, ledger) as office:
        office.set_disabled(office.named(name), disabled=not again, by=HERE)
        print(f"{name} may {'' if again else 'not '}enter.")


def _password(name: str) -> str:
    """Ask for a password twice, or read a line from a pipe."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    given = getpass(f"Password of {name}: ")
    if getpass("Again: ") != given:
        raise UsageError("the two passwords differ. Type the command again")
    return given
