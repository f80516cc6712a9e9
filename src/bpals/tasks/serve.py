"""Open and serve the reading room: a workspace's doubtful images, its readers, and the way back into the signal.

with open_room(Opening(workspace="audit", images="films")) as room:
    room.app        the application to serve
    room.entrance   where a reader enters

Images, queue, evidence and learning come from their rooms and are handed to `room/`, which knows none of them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shlex
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from fastapi import FastAPI

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.images.collection import ImageIndex, open_index
from bpals.images.rendition import Renditions
from bpals.reviews.ledger_reads import blind_reads, reads_of
from bpals.room.background import Learner, LowPriorityProcess, ProgressNumbers
from bpals.room.desk.desk import Desk
from bpals.room.desk.study import default_study, load_study
from bpals.room.people.accounts import ACTS, AccountCard, Accounts, RelayedAccounts
from bpals.room.people.oidc import Provider, invitation_of, load_oidc
from bpals.room.people.sessions import NEVER, Sessions, read_secret
from bpals.room.room import IMAGES, JUDGMENTS, SIGNAL, Evidence, Room, Settings
from bpals.room.web.app import create_app
from bpals.room.web.server import Binding, check_binding, is_loopback, make_server
from bpals.store.ledger import Ledger, old_sqlite
from bpals.store.ledger.ledger import is_there, ledger_of, open_ledger
from bpals.store.ledger.log import Checked, Head, check
from bpals.store.ledger.relay import is_served, serving
from bpals.store.workspace import Workspace
from bpals.tasks import review_files
from bpals.tasks.image_access import LISTING
from bpals.tasks.reading_list import draw_cases
from bpals.tasks.relearn import Taught, teach
from bpals.tasks.score import vocabulary_of
from bpals.tasks.study_progress import gather, progress
from bpals.types import Notice, Reviews

SECRET_FILE = "room.secret"  # noqa: S105 -- a file name: the installation's secret, mode 0600, in the workspace
ALONE = "reader"  # the account of whoever opens a room on their own machine without having made one
LOGIN = "/login"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is opened, and where."""

    workspace: str | os.PathLike[str] = "audit"
    images: str | os.PathLike[str] | None = None  # the films; by default where the workspace remembers them
    study: str | os.PathLike[str] | None = None  # a study file; by default one reader, every finding
    ledger: str | None = None  # A PostgreSQL address; by default the workspace's own file
    oidc: str | os.PathLike[str] | None = None
    binding: Binding = field(default_factory=Binding)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRoom:
    """A room that is ready to be served."""

    app: FastAPI
    room: Room
    binding: Binding
    entrance: str  # where to enter: on one's own machine with a link that works once
    cases: int
    notices: tuple[Notice, ...]


@contextlib.contextmanager
def open_room(opening: Opening) -> Iterator[OpenRoom]:
    """Open a reading room on a workspace's audit, and close it in the end; what was read is in its ledger."""
    home = Workspace(opening.workspace)
    home.repair()
    vocabulary = vocabulary_of(home.open().table("claims.parquet", "finding"))
    study = load_study(Path(opening.study), vocabulary) if opening.study else default_study(vocabulary)
    index = _index(home, opening)
    with contextlib.ExitStack() as leaving:
        ledger = leaving.enter_context(open_ledger(home, opening.ledger))
        leaving.enter_context(serving(ledger, {**ACTS, **review_files.ACTS}))
        films = leaving.enter_context(contextlib.closing(Renditions(index)))
        desk = Desk.open(ledger, study)
        queue = _Queue(home=home, desk=desk, vocabulary=vocabulary, films=frozenset(index.found))
        queue.fill()
        behind = desk.counts().locked % study.learn_every
        learner = Learner(queue.lesson, queue.follow, every=study.learn_every, behind=behind)
        leaving.callback(learner.close)
        numbers = ProgressNumbers(queue.state, queue.progress)
        leaving.callback(numbers.close)
        secret, renewed = read_secret(home.path / SECRET_FILE)
        accounts = Accounts(ledger, secret)
        check_binding(opening.binding, accounts.cards())
        settings = Settings(origin=opening.binding.origin, dataset=str(home.run["source"]["name"]))
        provider = Provider(load_oidc(opening.oidc), secret, settings.origin) if opening.oidc else None
        room = Room(
            settings=settings,
            study=study,
            desk=desk,
            accounts=accounts,
            sessions=Sessions(ledger, secret, idle_s=settings.idle_s, stay_s=settings.stay_s),
            film=films.film,
            # Through the queue at each call: a lesson puts new evidence in the place of the old.
            others=lambda image_id: queue.evidence.others(image_id),  # noqa: PLW0108
            signal=lambda: queue.evidence.version,
            reveal=lambda image_id: queue.evidence.reveal(image_id),  # noqa: PLW0108
            progress=lambda: numbers.latest() | {"learner": learner.state()},
            after_lock=learner.count_lock,
            oidc=provider,
        )
        entrance = _entrance(room, opening.binding)
        yield OpenRoom(
            app=create_app(room),
            room=room,
            binding=opening.binding,
            entrance=entrance,
            cases=desk.counts().cases,
            notices=(*index.notices, *films.notices, *_notices(home, room, ledger, renewed, entrance)),
        )


def serve_room(opening: Opening, *, ready: Callable[[OpenRoom], None], level: str = "WARNING") -> None:
    """Open a room and serve it until it is interrupted; `ready` is called when it listens."""
    with _listening(opening.binding) as (listener, binding), open_room(replace(opening, binding=binding)) as room:
        # What was loaded stays: the collector would look at it again and again, for a third of a second each time.
        gc.collect()
        gc.freeze()
        ready(room)
        make_server(room.app, binding, level=level).run(sockets=[listener])


def verify_log(
    workspace: str | os.PathLike[str] = "audit", *, ledger: str | None = None, head: str | None = None
) -> Checked:
    """Say what was changed behind the log's back, and give its head; `head` is one that was kept from before."""
    known, home = None if head is None else Head.parse(head), Workspace(workspace)
    if not is_there(ledger_of(home, ledger)):
        raise UsageError(
            f"{home.path} holds no log: nobody has read there yet. Name the folder of the audit with --workspace DIR, "
            f"or type: bpals review serve --workspace {home.path}"
        )
    with open_ledger(home, ledger, readonly=True) as kept:
        return check(kept, known=known)


@contextlib.contextmanager
def office(workspace: str | os.PathLike[str] = "audit", ledger: str | None = None) -> Iterator[Accounts]:
    """Give the accounts of a workspace's ledger, to be changed; while a room is open on its file, through the room."""
    home = Workspace(workspace)
    address = ledger_of(home, ledger)
    if not is_there(address):
        home.open()  # a folder without an audit is a mistake in --workspace: no ledger is made there
    if is_served(address):
        with open_ledger(home, ledger, readonly=True) as kept:
            yield RelayedAccounts(kept)
        return
    with open_ledger(home, ledger) as kept, kept.lock("bpals review account"):
        yield Accounts(kept, read_secret(home.path / SECRET_FILE)[0])


def list_accounts(workspace: str | os.PathLike[str] = "audit", ledger: str | None = None) -> list[AccountCard]:
    """List who may enter, also while a room is open."""
    home = Workspace(workspace)
    if not is_there(ledger_of(home, ledger)):
        return []
    with open_ledger(home, ledger, readonly=True) as kept:
        return Accounts(kept, b"").cards()


def invitation(provider: str | os.PathLike[str] | None, address: str) -> str:
    """Say who somebody is for an OIDC provider before they have ever come: their address there."""
    if provider is None:
        raise UsageError("which provider knows that address? Type: --oidc FILE")
    return invitation_of(load_oidc(provider).issuer, address)


class _Queue:
    """Keeps the cases of a study and what is revealed of them in step with the signal."""

    def __init__(self, *, home: Workspace, desk: Desk, vocabulary: Vocabulary, films: frozenset[str]) -> None:
        self._home = home
        self._desk = desk
        self._vocabulary = vocabulary
        self._films = films
        self.evidence = _read_evidence(home)

    def fill(self) -> None:
        """Draw cases where there are none yet."""
        if not self._desk.counts().cases:
            self._put(draw_cases(self._home.path, self._desk.study, self._reads(), films=self._films))

    def lesson(self) -> Callable[[], Taught]:
        """Give the work of a lesson: all studies teach, and the queue leaves out what this one has read."""
        every = self._desk.ledger.look(lambda connection: reads_of(connection, self._vocabulary))
        return partial(teach, self._home.path, every, self._desk.study, films=self._films, read=self._reads())

    def state(self) -> object:
        """Give what changes when the progress page may: what was read, and which signal is in force."""
        return self._desk.counts(), self.evidence.version

    def progress(self) -> Callable[[], dict[str, Any]]:
        """Give the work of making the numbers of the progress page."""
        return partial(progress, self._home.path, gather(self._desk), self._desk.study, films=self._films)

    def follow(self, taught: Taught) -> Mapping[str, Any]:
        """Show the new signal, and put the cases that it doubts in the place of those that nobody has opened."""
        self.evidence = _read_evidence(self._home)
        learned = taught.learned
        drawn = self._put(taught.cases)
        if self._desk.study.stop_width is not None:
            # The study ends by itself where the error rate is known as closely as it wants to.
            width = LowPriorityProcess().run(self.progress())["needed"]["widest"]
            if width is not None:
                self._desk.note_width(width)
        return {"version": learned.version, "reads": learned.reads, "changed": dict(learned.changed), "drawn": drawn}

    def _reads(self) -> Reviews:
        return blind_reads(self._desk.reviews(), self._vocabulary)

    def _put(self, cases: pl.DataFrame) -> int:
        return self._desk.draw(cases, self.evidence.version, replace=True)


def _read_evidence(home: Workspace) -> Evidence:
    """Read what the signal in force says, and the answers of the judges that it used."""
    audit = home.open()
    record = [audit.table(name, *JUDGMENTS) for name in audit.run["files"] if name == "judgments/record.parquet"]
    used = {entry["judge"] for entry in audit.run["judges"]}
    others = [judge.answers(*JUDGMENTS) for judge in home.judges() if judge.name in used]
    return Evidence(
        version=audit.run["files"]["signal.parquet"]["sha256"],
        signal=audit.table("signal.parquet", *SIGNAL),
        judgments=[*record, *others],
        images=audit.table("images.parquet", *IMAGES),
    )


def _notices(home: Workspace, room: Room, ledger: Ledger, renewed: str, entrance: str) -> Iterator[Notice]:
    """Say what whoever opens the room should know before its readers do."""
    if renewed not in {"", NEVER}:
        message = f"{home.path / SECRET_FILE} was made anew, because {renewed}: whoever was logged in must log in again"
        yield Notice(code="secret_renewed", count=1, message=message)
    # An old SQLite may damage its log where a second process writes.
    warning = old_sqlite(sqlite3.sqlite_version_info) if ledger.dialect == "sqlite" else None
    if warning:
        yield Notice(code="old_sqlite", count=1, message=f"SQLite {warning}")
    # Who read alone came by a printed link; once anybody has a password, none is printed.
    cards = room.accounts.cards() if entrance.endswith(LOGIN) else []
    names = [card.account.name for card in cards if not (card.disabled or card.password or card.subject)]
    if names:
        typed = f"bpals review account password {shlex.quote(names[0])} --workspace {shlex.quote(str(home.path))}"
        whose = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no password yet"
        message = f"{whose}, and a link is printed only while nobody has one. Type: {typed}"
        yield Notice(code="no_password", count=len(names), message=message)


def _index(home: Workspace, opening: Opening) -> ImageIndex:
    where = opening.images if opening.images is not None else home.remembered("images")
    if where is None:
        raise UsageError("where are the films? Type: --images PATH (a folder, a tar or a zip)")
    path = Path(where).resolve()
    wanted = home.open().table("images.parquet", "image_id")["image_id"].to_list()
    index = open_index(path, wanted, listing=home.path / LISTING)
    home.remember(images=str(path))
    return index


def _entrance(room: Room, binding: Binding) -> str:
    """Say where to enter; who has no account with a password, on their own machine, gets a link that works once."""
    cards = [card for card in room.accounts.cards() if not card.disabled]
    if any(card.password or card.subject for card in cards) or not is_loopback(binding.host):
        return f"{binding.origin}{LOGIN}"
    account = cards[0].account if cards else room.accounts.make(ALONE, "admin")
    return f"{binding.origin}/enter#{room.accounts.make_link(account, by=ALONE)}"


@contextlib.contextmanager
def _listening(binding: Binding) -> Iterator[tuple[socket.socket, Binding]]:
    """Take the port first: with 0 the system chooses one, and the address must be known before the room opens."""
    family = socket.AF_INET6 if ":" in binding.host else socket.AF_INET
    # Named as TCP, so that asyncio sends at once: else each reply waits 40 ms for the acknowledgement of its head.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((binding.host, binding.port))
        except OSError as error:
            away = error.errno == errno.EADDRNOTAVAIL
            other = "--host with an address of this machine" if away else "--port 0"
            raise UsageError(
                f"{binding.host}:{binding.port} cannot be listened at: {error.strerror}. Type: {other}"
            ) from None
        yield listener, replace(binding, port=listener.getsockname()[1])
