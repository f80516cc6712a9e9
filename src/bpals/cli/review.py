"""`bpals review`: what an expert should read next, and the room to read it in."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from getpass import getpass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from bpals.cli import terminal
from bpals.cli.terminal import AS_JSON, AUDIT, WORKSPACE, Row, fitting, sheet, takes
from bpals.errors import MissingExtra, UsageError
from bpals.registry import EXPORTS, option
from bpals.reviews.verdicts import VERDICT_WORDS, write_sheet
from bpals.signal.queue import Draw
from bpals.signal.value import Worth
from bpals.store.workspace import DEMO
from bpals.tasks.demo import make_demo
from bpals.tasks.reading_list import reading_list
from bpals.tasks.review_files import as_json as import_json
from bpals.tasks.review_files import export_reviews, export_signal, import_reviews
from bpals.tasks.study_progress import study_progress
from bpals.text import several

PACKAGES = ("fastapi", "uvicorn", "argon2", "pyotp", "joserfc", "httpx")
FOUND = 1
"""The exit code where a log was changed."""
COMMAND_LINE = "command line"
"""Who made a change, as the log says it."""
WIDTH = 110
"""Columns of a table that is written to a file or a pipe, where COLUMNS does not say how many."""
VERSION = slice(len("sha256:"), len("sha256:") + 12)
"""What is shown of a signal's hash."""
FORMATS = EXPORTS.names()
FORMAT = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"

LEDGER = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="A ledger on PostgreSQL, instead of the workspace's own.")
]
NAME = Annotated[str, typer.Argument(help="The account.")]

app = terminal.group("review", "Send experts where their reading pays.", "bpals review next --n 50 --out list.csv")
account_app = terminal.group(
    "account", "Say who may enter the reading room.", "bpals review account add anna --role reader"
)


def load_room() -> Any:
    """Load the reading room: it needs packages that the core has not."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise MissingExtra.of("the reading room", "review")
    from bpals.tasks import serve as room

    return room


@dataclass(frozen=True, kw_only=True)
class OpeningOptions:
    """What is read in the room."""

    workspace: Path | None = option(None, "The folder of the audit; by default audit, and demo for the demo.")
    images: Path | None = option(None, "The films: a folder, a tar or a zip; given once, remembered.", metavar="PATH")
    study: Path | None = option(None, "A study file; by default one reader, every finding.", metavar="FILE")
    ledger: str | None = option(None, "A ledger on PostgreSQL, instead of the workspace's own.", metavar="URL")
    demo: bool = option(False, "Read 120 drawn films: nothing to download.")


@dataclass(frozen=True, kw_only=True)
class BindingOptions:
    """Where the room listens, and who may enter."""

    host: str = option("127.0.0.1", "The address to listen at.")
    port: int = option(8765, "The port to listen at; 0 takes a free one.")
    behind_proxy: str | None = option(None, "A proxy at this address speaks TLS for the room.", metavar="ADDRESS")
    public_url: str | None = option(None, "What readers type, where it is not the address above.", metavar="URL")
    tls_cert: Path | None = option(None, "Speak TLS with this certificate ...", metavar="FILE")
    tls_key: Path | None = option(None, "... and its key.", metavar="FILE")
    oidc: Path | None = option(None, "Let people in by an OIDC provider, named in a TOML file.", metavar="FILE")


def serve(
    what: OpeningOptions,
    where: BindingOptions,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR: how much is logged.")] = "WARNING",
) -> None:
    """Open the reading room: read the films whose labels are most in doubt, blind first."""
    rooms = load_room()
    home, images = what.workspace or (DEMO if what.demo else Path("audit")), what.images
    if what.demo:
        with terminal.progress() as show:
            made = make_demo(home, progress=show)
        images = images or made.images
    binding = rooms.Binding(
        host=where.host,
        port=where.port,
        certificate=where.tls_cert,
        key=where.tls_key,
        behind_proxy=where.behind_proxy,
        public=where.public_url,
    )
    opening = rooms.Opening(
        workspace=home, images=images, study=what.study, ledger=what.ledger, oidc=where.oidc, binding=binding
    )

    def greet(room: Any) -> None:
        terminal.print_notes(notice.message for notice in room.notices)
        films = several(room.cases, "film")
        print(f"{films} to read, the most doubtful first. Ctrl-C closes the room; what was read is kept.")
        print(f"Open: {room.entrance}", flush=True)
        if browser and sys.stdout.isatty():
            webbrowser.open(room.entrance)

    rooms.serve_room(opening, ready=greet, level=log_level.upper())


app.command("serve", epilog="Example: bpals review serve --workspace audit --images films")(terminal.expanded(serve))
app.add_typer(account_app)


@app.command("verify-log", epilog="Example: bpals review verify-log --workspace audit")
def verify_log(
    workspace: WORKSPACE = AUDIT,
    ledger: LEDGER = None,
    head: Annotated[
        str | None, takes("HASH", "The head that was printed before: nothing up to it may be missing.")
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Check that nothing in the log of the reading room was edited, removed or put in another order."""
    checked = load_room().verify_log(workspace, ledger=ledger, head=head)
    if as_json:
        end = {"sequence": checked.head.sequence, "hash": checked.head.hash}
        print(json.dumps({"whole": not checked.found, "found": checked.found, "head": end}, indent=1))
    elif checked.found:
        print("\n".join(checked.found))
    else:
        since = "" if head is None else ", and nothing of what was there with that head is missing"
        print(f"The log is whole{since}.")
        print(f"Head: {checked.head}")
    if checked.found:
        raise typer.Exit(FOUND)


@account_app.command("add", epilog="Example: bpals review account add anna --role reader")
def add(
    name: NAME,
    role: Annotated[str, typer.Option(help="reader, adjudicator or admin.")] = "reader",
    totp: Annotated[bool, typer.Option("--totp", help="Ask for a code at login too.")] = False,
    email: Annotated[str | None, takes("ADDRESS", "Enter by OIDC with this address, and without a password.")] = None,
    oidc: Annotated[Path | None, takes("FILE", "The OIDC provider that knows the address.")] = None,
    workspace: WORKSPACE = AUDIT,
    ledger: LEDGER = None,
) -> None:
    """Make an account; its password is asked for, or read from a pipe."""
    rooms = load_room()
    subject = rooms.invitation(oidc, email) if email else None
    with rooms.office(workspace, ledger) as office:
        made = office.make(name, role, password=None if subject else _password(name), subject=subject, by=COMMAND_LINE)
        print(f"{made.name} may enter as {made.role}.")
        if totp:
            print(f"For the app: {office.add_second_factor(made, 'bpals reading room', by=COMMAND_LINE)}")


@account_app.command("list", epilog="Example: bpals review account list --json")
def list_(
    workspace: WORKSPACE = AUDIT,
    ledger: LEDGER = None,
    as_json: AS_JSON = False,
) -> None:
    """List who may enter."""
    rows = [
        {
            "name": card.account.name,
            "role": card.account.role,
            "password": card.password,
            "totp": card.totp,
            "oidc": card.subject is not None,
            "disabled": card.disabled,
        }
        for card in load_room().list_accounts(workspace, ledger)
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        ways = ", ".join(way for way in ("password", "totp", "oidc") if row[way]) or "a login link"
        print(f"{row['name']:<24} {row['role']:<12} {ways}{', disabled' if row['disabled'] else ''}")
    if not rows:
        print("Nobody yet. Type: bpals review account add NAME --role admin")


@account_app.command("password", epilog="Example: bpals review account password anna")
def password(name: NAME, workspace: WORKSPACE = AUDIT, ledger: LEDGER = None) -> None:
    """Give somebody a new password; whoever is in by the old one is out."""
    with load_room().office(workspace, ledger) as office:
        office.set_password(office.named(name), _password(name), by=COMMAND_LINE)
        print(f"{name} has a new password.")


@account_app.command("disable", epilog="Example: bpals review account disable anna")
def disable(
    name: NAME,
    again: Annotated[bool, typer.Option("--enable", help="Let them in again.")] = False,
    workspace: WORKSPACE = AUDIT,
    ledger: LEDGER = None,
) -> None:
    """Let nobody in by an account any more; what was read by it stays."""
    with load_room().office(workspace, ledger) as office:
        office.set_disabled(office.named(name), disabled=not again, by=COMMAND_LINE)
        print(f"{name} may {'' if again else 'not '}enter.")


def _password(name: str) -> str:
    """Ask for a password twice, or read a line from a pipe."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    given = getpass(f"Password of {name}: ")
    if getpass("Again: ") != given:
        raise UsageError("the two passwords differ. Type the command again")
    return given


@app.command("progress", epilog="Example: bpals review progress --workspace audit --json")
def progress_of_study(
    workspace: WORKSPACE = AUDIT,
    study: Annotated[str | None, takes("NAME", "Which study; by default the last.")] = None,
    ledger: LEDGER = None,
    as_json: AS_JSON = False,
) -> None:
    """Say how far a study is: errors confirmed, the error rate, pace, agreement, and what is still needed."""
    found = study_progress(workspace, study=study, ledger=ledger)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    print(*_sentences(found), sep="\n")
    console = Console(highlight=False) if os.environ.get("COLUMNS") else terminal.wide_console(WIDTH)
    shown = [
        _errors(found["errors"]),
        _agreement("Readers of the same pair (95 %)", found["agreement"], "finding", "images"),
        _agreement("Each reader, reading an image again (95 %)", found["within"], "first", "repeats"),
        _agreement("Each reader and the consensus (95 %)", found["against"], "first", "images"),
        _fits(found["lessons"]),
    ]
    for title, (head, *rows) in shown:
        if rows:
            console.print(*fitting(sheet(title, head[:1], head[1:], rows), console))
    terminal.print_notes(found["notices"])


def _sentences(found: Row) -> list[str]:
    counted = found["counts"]
    first = (
        f"{several(counted['readings'], 'reading')} and {several(counted['repeats'], 'repeat')} by "
        f"{several(counted['readers'], 'reader')}; {several(counted['reads'], 'read')} of "
        f"{several(counted['pairs'], 'pair')} on {several(counted['films'], 'image')} vote"
    )
    if counted["unaudited"]:
        first += f", {counted['unaudited']:,} about findings that are not audited do not"
    lines = [first]
    if found["pace"]:
        whole = found["pace"][0]
        seconds = "less than a second" if whole["median_s"] < 1 else f"{whole['median_s']:.0f} s"
        lines.append(
            f"{several(round(whole['per_hour']), 'image')} per hour of active time, half of them within {seconds}"
        )
    if found["series"]:
        last = found["series"][-1]
        ends = [last[name] for name in ("random", "random_low", "random_high")]
        at_random = "" if None in ends else "; at random it would be {:.1f} ({:.1f} to {:.1f})".format(*ends)
        lines.append(f"{several(last['found'], 'error')} found in {several(last['reads'], 'reading')}{at_random}")
    least = found["least"]
    if found["errors"]:
        lines.append(
            f"an error rate needs at least {least['films']} images drawn at random, and an interval no wider than "
            f"{least['width']:g}; agreement needs images of at least {least['patients']} patients"
        )
    return [*lines, found["stopping"]["words"]]


def _errors(rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    counts = {
        "pairs\nread": "pairs",
        "settled": "settled",
        "wrong": "confirmed",
        "label\npresent": "present",
        "label\nabsent": "absent",
        "images at\nrandom": "films",
    }
    body = [[row["finding"], *(f"{row[name] or 0:,}" for name in counts.values()), _rate(row)] for row in rows]
    return "Errors confirmed, and the error rate of all labels", [["finding", *counts, "rate (95 %)"], *body]


def _rate(row: Row) -> str:
    if not row["enough"]:
        return f"too few reads\nyet ({row['films'] or 0:,})"
    return f"{row['rate']:.3f}\n{row['low']:.3f} to {row['high']:.3f}"


def _agreement(title: str, rows: Sequence[Row], who: str, what: str) -> tuple[str, list[list[str]]]:
    head = [who if who == "finding" else "reader", "pairs", "alike", "positive", "negative", "kappa", "AC1", "alpha"]
    names = ("agreement", "positive", "negative", "fleiss" if who == "finding" else "kappa", "ac1", "alpha")
    body = []
    for row in rows:
        figures = [_figure(row, name) for name in names]
        few = [f"too few\n{what} ({row['patients']:,})", *(["-"] * (len(names) - 1))]
        body.append([str(row[who]), f"{row['n']:,}", *(figures if row["enough"] else few)])
    return title, [head, *body]


def _figure(row: Row, name: str) -> str:
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2f}" if low is None else f"{row[name]:.2f}\n{low:.2f} to {high:.2f}"


def _fits(rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    head = ["fit", "readings", "reads", "findings\nchanged", "trusts\nchanged", "flags\nchanged", "signal"]
    body = []
    for row in rows:
        counts = (row["readings"], row["reads"], len(row["findings"]), row["changed"]["trust"], row["changed"]["flag"])
        body.append([row["at"][:16].replace("T", " "), *(f"{n:,}" for n in counts), row["version"][VERSION]])
    return "What was read became a new signal", [head, *body]


@app.command("export", epilog="Example: bpals review export --format label-studio --out tasks.json")
def export(
    out: Annotated[Path, takes("FILE", "A new file, or for dicom-sr a new folder.")],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=f"{FORMAT}; by default the ending of the file tells.")
    ] = None,
    workspace: WORKSPACE = AUDIT,
    images: Annotated[Path | None, takes("PATH", "The images, where the workspace does not know them.")] = None,
    ledger: LEDGER = None,
    as_json: AS_JSON = False,
) -> None:
    """Write every review to a file: one row per reader, image, finding and phase. Nothing is overwritten."""
    with terminal.progress() as show:
        done = export_reviews(workspace, out, format=format_, images=images, ledger=ledger, progress=show)
    if as_json:
        record = {"path": str(done.path), "reviews": done.reviews, "files": done.files}
        print(json.dumps({**record, "notices": [notice.message for notice in done.notices]}, indent=1))
    else:
        reports = f", {done.files:,} reports" if done.files > 1 else ""
        print(f"{several(done.reviews, 'review')} in {done.path}{reports}")
    terminal.print_notes(notice.message for notice in done.notices)


@app.command("import", epilog="Example: bpals review import readers.csv --workspace audit")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, or any sheet with one row per read.")],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help=f"{FORMAT}; by default its content tells.")
    ] = None,
    reader: Annotated[str | None, takes("NAME", "Who read, where the file names nobody.")] = None,
    workspace: WORKSPACE = AUDIT,
    ledger: LEDGER = None,
    as_json: AS_JSON = False,
) -> None:
    """Bring the reads of a file into the workspace, all or none; what was brought in before stays as it is."""
    with terminal.progress() as show:
        done = import_reviews(workspace, file, format=format_, reader=reader, ledger=ledger, progress=show)
    if as_json:
        print(json.dumps(import_json(done), indent=1, ensure_ascii=False))
    else:
        new = done.reviews
        fresh, known = several(new.height, "is", "are"), several(done.already, "was", "were")
        print(f"{several(done.read, 'read')} in {file}: {fresh} new, {known} here already")
        if new.height:
            print(f"images: {new['image_id'].n_unique():,}, readers: {new['reader'].n_unique():,}")
    terminal.print_notes(notice.message for notice in done.notices)


@app.command("next", epilog="Example: bpals review next --workspace audit --n 50 --out list.csv")
def next_(  # noqa: PLR0913  an option of the command is a parameter
    workspace: WORKSPACE = AUDIT,
    n: Annotated[int, typer.Option("--n", metavar="N", help="How many pairs.")] = 50,
    findings: Annotated[str | None, takes("A,B", "Only these findings; by default all of the audit.")] = None,
    gain: Annotated[
        list[str] | None, takes("FINDING=X", "What an error of a finding is worth, beside 1. May be given again.")
    ] = None,
    reviews: Annotated[
        list[Path] | None,
        takes("FILE", "Reads that there are: what was read is not offered again. May be given again."),
    ] = None,
    random_share: Annotated[float, takes("X", "Share that is drawn at random, unmarked.")] = 0.2,
    readers_per_pair: Annotated[int, takes("K", "Offer a pair until K have read it.")] = 1,
    all_films: Annotated[bool, typer.Option("--all-films", help="Several images of a patient may be offered.")] = False,
    seed: Annotated[int, typer.Option(help="Where the drawing starts.")] = 0,
    out: Annotated[
        Path | None, takes("FILE", "Write a sheet for the reader to fill in, and FILE's key beside it.")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Instead of a sheet: label-studio, pre-annotated.")
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Draw the pairs that an expert should read next: most by value, a share at random, in one unmarked order."""
    listed = reading_list(
        workspace,
        n=n,
        findings=None if findings is None else [word.strip() for word in findings.split(",")],
        reviews=terminal.given_files(reviews),
        worth=Worth(gains=_gains(gain or [])),
        draw=Draw(
            random_share=random_share, seed=seed, one_per_patient=not all_films, readers_per_pair=readers_per_pair
        ),
    )
    if format_ is not None:
        _pre_annotated(listed.table, workspace, out, format_, as_json=as_json)
        return
    key = None if out is None else write_sheet(listed.table, out)
    if as_json:
        print(json.dumps(listed.table.to_dicts(), indent=1, allow_nan=False))
    elif out is None:
        for image, finding in listed.table.select("image_id", "finding").iter_rows():
            print(f"{image}  {finding}")
    else:
        pairs = several(listed.table.height, "pair")
        print(f"{pairs} in {out}, to be filled in: reader, and verdict ({VERDICT_WORDS})")
        print(f"the chances of being drawn in {key}: keep it beside the sheet and from the reader")
    terminal.print_notes(notice.message for notice in listed.notices)


def _pre_annotated(listed: pl.DataFrame, workspace: Path, out: Path | None, name: str, *, as_json: bool) -> None:
    """Write a reading list for another tool, with what the judges say of it."""
    if out is None:
        raise UsageError(f"--format {name} needs a file. Type: --format {name} --out tasks.json")
    done = export_signal(workspace, out, format=name, pairs=listed)
    if as_json:
        print(json.dumps({"path": str(done.path), "labels": done.labels}, indent=1))
        return
    print(f"{several(done.labels, 'pair')} in {done.path}, with what the judges say")
    print("reads of it are not blind: they are kept, and do not vote")


def _gains(words: list[str]) -> dict[str, float]:
    gains = {}
    for word in words:
        name, mark, number = word.rpartition("=")
        try:
            gains[name] = float(number)
        except ValueError:
            mark = ""
        if not mark:
            raise UsageError(f"--gain {word}: it takes a finding and a number. Type: --gain Pneumothorax=3")
    return gains
