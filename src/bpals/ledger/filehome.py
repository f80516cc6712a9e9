"""A ledger in a file of the workspace: one writing process, a backup before each change of the tables."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bpals.errors import BpalsError, LockHeld, WorkspaceError
from bpals.ledger import migrations, tally
from bpals.ledger.connection import Connect, Link, file_connection
from bpals.ledger.home import Dialect
from bpals.ledger.lock import SERVING, held, holder, only_writer
from bpals.ledger.migrations import Migration
from bpals.ledger.place import Place

BRINGING = "bringing the ledger up to date"
PATIENCE_S, PAUSE_S = 10.0, 0.05
"""How long one waits for another process that does just that."""


class FileHome:
    """The file of one ledger, the files beside it, and the connections to it."""

    dialect: Dialect = "sqlite"

    def __init__(self, place: Place, link: Link) -> None:
        """Take over a connection: use `FileHome.open`."""
        self._place = place
        self.link = link
        self.where = str(place.path)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], connect: Connect | None, *, readonly: bool, must_exist: bool
    ) -> FileHome:
        """Connect to the file at a path, making it if nothing is there; a file that is no ledger is never touched."""
        place = Place(path)
        if not place.check(must_exist=readonly or must_exist):
            place.announce()
        connect = connect or functools.partial(file_connection, place.path, readonly=readonly)
        return cls(place, Link(place, connect, readonly=readonly))

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._place.path

    def bring_up(self, known: Sequence[Migration], *, readonly: bool) -> None:
        """Make the changes of the tables that are due: all or none, and first a backup of what is there."""
        found = self.link.look(migrations.version)
        migrations.refuse_newer(self.where, found, known)
        if readonly and self._due(known):
            self._bring_up_elsewhere(known)
            return
        until = time.monotonic() + PATIENCE_S
        while self._due(known):
            try:
                self._bring_up_now(known)
            except LockHeld:
                # Two that find a new ledger at one moment: one makes its tables, the other finds them made.
                if time.monotonic() > until or holder(self._place.lock) not in {None, "", BRINGING}:
                    raise
                time.sleep(PAUSE_S)

    def _due(self, known: Sequence[Migration]) -> bool:
        return self.link.look(migrations.version) < known[-1].number or self._place.birth.exists()

    def _bring_up_now(self, known: Sequence[Migration]) -> None:
        latest = known[-1].number
        with only_writer(self._place.lock, BRINGING):
            found = self.link.look(migrations.version)
            if 0 < found < latest:
                self._copy(Path(f"{self.path}.before-{latest}"))
            with self.link.writing() as connection:
                migrations.make_due(connection, found, known)
            self.link.checkpoint()
            self._place.birth.unlink(missing_ok=True)
            self._place.sync_folder()

    def _bring_up_elsewhere(self, known: Sequence[Migration]) -> None:
        """Bring the tables up through a connection that may write: a reader of old tables has no other way."""
        found = self.link.look(migrations.version)
        try:
            writer = FileHome.open(self.path, None, readonly=False, must_exist=True)
            try:
                writer.bring_up(known, readonly=False)
            finally:
                writer.link.close()
        except (BpalsError, OSError) as error:
            raise WorkspaceError(
                f"{self.path} has tables {found}, this bpals reads {known[-1].number}, "
                f"and they could not be brought up to date: {error}"
            ) from error

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Be the only writer while inside; a second is refused, and told the process and host of the first."""
        with only_writer(self._place.lock, what):
            self._settle()
            yield

    def busy(self, _what: str) -> bool:
        """Say whether a run is at work, in this process or another: a file has one lock for all but a served room's."""
        now = holder(self._place.lock)
        return held(self._place.relayed) if now == SERVING else now is not None

    def _settle(self) -> None:
        """Look at what the last writer left: verify after an error of the disk, and empty the log.

        A log that was written but not synced may be read back from memory only. Copying it into the file and syncing
        that makes it true.
        """
        doubted = self._place.doubt.exists()
        if doubted and (found := self.link.look(tally.problems)):
            raise WorkspaceError(f"{self.path} is damaged: {found[0]}. Put a backup in its place")
        self.link.checkpoint()
        if doubted:
            self._place.doubt.unlink(missing_ok=True)

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the ledger as it is at one moment to a new file; runs may go on meanwhile."""
        target = Path(target)
        if target.exists():
            raise WorkspaceError(f"{target} is there already and is not overwritten. Name another file")
        self._copy(target)

    def _copy(self, target: Path) -> None:
        part = Path(f"{target}.part-{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            with self.link.bare() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(part),))
            place = Place(target)
            place.take(part)
        finally:
            part.unlink(missing_ok=True)
