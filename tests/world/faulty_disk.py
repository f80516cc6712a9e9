"""A disk that fails on command: an apsw VFS under a thin DB-API connection, for the ledger's own code to run on.

Every file also lies in a real folder. What was written and not yet synced is kept apart, so that `cut` can make the
folder as a power cut would leave it: of the writes since a file's last sync each one is there, is missing, or is torn
at a sector. `fail_at` makes the N-th write, sync or truncation from now fail.
"""

import sqlite3
from pathlib import Path

import apsw

SECTOR = 512
CODES = {"EIO": (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_FSYNC), "ENOSPC": (apsw.SQLITE_FULL, apsw.SQLITE_FULL)}


class Disk(apsw.VFS):
    """Files in a folder, with what of them would survive a power cut."""

    def __init__(self, name):
        """Register the disk under a name of its own."""
        super().__init__(name, "")
        self.name = name
        self.lasting = {}
        """Path -> what the last sync made sure of."""
        self.pending = {}
        """Path -> writes and truncations since then, in order."""
        self.operations = []
        """(what, file name) of every write, sync, truncation and removal."""
        self.failing = None
        self.before = None
        """Called with (what, file name) ahead of each of them."""

    def xOpen(self, name, flags):  # noqa: N802  SQLite's names
        """Open a file of the disk."""
        return File(self, name, flags)

    def xDelete(self, filename, syncdir):  # noqa: N802
        """Remove a file."""
        self.note("delete", filename)
        super().xDelete(filename, syncdir)
        self.lasting.pop(filename, None)
        self.pending.pop(filename, None)

    def fail_at(self, count, kind, only=""):
        """Let the count-th operation from now (or the count-th `only`) fail with EIO or ENOSPC, once; count from 1."""
        self.failing = [count, kind, only]

    def note(self, what, path):
        """Count an operation and fail if it is its turn."""
        file = Path(path).name
        if self.before:
            self.before(what, file)
        self.operations.append((what, file))
        if self.failing is None or what == "delete" or self.failing[2] not in {"", what}:
            return
        self.failing[0] -= 1
        if self.failing[0] == 0:
            kind, self.failing = self.failing[1], None
            code = CODES[kind][what == "sync"]
            raise apsw.exception_for(code)

    def cut(self, folder, randomness):
        """Write into a folder what a power cut at this moment leaves of every file."""
        for path in sorted({*self.lasting, *self.pending}):
            content = bytearray(self.lasting.get(path, b""))
            for write in self.pending.get(path, []):
                survive(content, write, randomness)
            (folder / Path(path).name).write_bytes(content)


def survive(content, write, randomness):
    """Apply one unsynced write to a file's content: wholly, in part, or not at all."""
    offset, written = write
    fate = randomness.random()
    if fate < 1 / 3:
        return
    if written is None:
        del content[offset:]
        return
    if fate < 2 / 3:
        sectors = [s for s in range(0, len(written), SECTOR) if randomness.random() < 0.5]
        for start in sectors:
            put(content, offset + start, written[start : start + SECTOR])
        return
    put(content, offset, written)


def put(content, offset, written):
    """Write into a file's content, filling a hole with zeros."""
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(written)] = written


class File(apsw.VFSFile):
    """One file of a disk; its lock and its shared memory are those of the real file."""

    def __init__(self, disk, name, flags):
        """Open the real file."""
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("", name, flags)
        there = Path(self.path)
        if self.path not in disk.lasting and there.exists() and there.stat().st_size:
            disk.lasting[self.path] = bytearray(there.read_bytes())

    def xWrite(self, data, offset):  # noqa: N802
        """Write, without any promise."""
        self.disk.note("write", self.path)
        super().xWrite(data, offset)
        self.disk.pending.setdefault(self.path, []).append((offset, bytes(data)))

    def xTruncate(self, size):  # noqa: N802
        """Cut off, without any promise."""
        self.disk.note("truncate", self.path)
        super().xTruncate(size)
        self.disk.pending.setdefault(self.path, []).append((size, None))

    def xSync(self, flags):  # noqa: N802
        """Make everything before this last."""
        self.disk.note("sync", self.path)
        super().xSync(flags)
        content = self.disk.lasting.setdefault(self.path, bytearray())
        for offset, written in self.disk.pending.pop(self.path, []):
            if written is None:
                del content[offset:]
            else:
                put(content, offset, written)


class Connection:
    """As much of a `sqlite3.Connection` as the ledger's engine uses."""

    isolation_level = None

    def __init__(self, path, disk):
        """Open a database on a disk."""
        with translated():
            self.inner = apsw.Connection(str(path), vfs=disk.name)

    def cursor(self):
        """Give a cursor."""
        return Cursor(self)

    def create_function(self, name, count, function, *, deterministic=False):
        """Add a function to SQL."""
        self.inner.create_scalar_function(name, function, count, deterministic=deterministic)

    def commit(self):
        """Commit if a transaction is open, as `sqlite3` does."""
        self.finish("COMMIT")

    def rollback(self):
        """Roll back if a transaction is open: SQLite may have done it already."""
        self.finish("ROLLBACK")

    def finish(self, statement):
        """End the transaction that is open, if one is."""
        if self.inner.in_transaction:
            with translated():
                self.inner.execute(statement)

    def close(self):
        """Close the database; as with `sqlite3`, a log that cannot be emptied stays for the next one."""
        try:
            self.inner.close()
        except apsw.Error:
            self.inner.close(force=True)


class Cursor:
    """As much of a `sqlite3.Cursor` as the ledger's engine uses."""

    arraysize = 1

    def __init__(self, connection):
        """Belong to a connection."""
        self.connection = connection
        self.inner = connection.inner.cursor()
        self.inner.exec_trace = self.describe
        self.description = None
        self.rowcount = -1
        self.lastrowid = None
        self.rows = iter(())

    def execute(self, statement, parameters=()):
        """Run one statement and keep what it gives."""
        with translated():
            self.inner.execute(statement, parameters if isinstance(parameters, dict) else tuple(parameters))
            self.rows = iter(self.inner.fetchall())
        self.rowcount = self.connection.inner.changes()
        self.lastrowid = self.connection.inner.last_insert_rowid()
        return self

    def describe(self, cursor, _statement, _parameters):
        """Note the columns before the first row: a result without rows has columns too."""
        self.description = [(name, *[None] * 6) for name, _ in cursor.get_description()] or None
        return True

    def executemany(self, statement, many):
        """Run one statement with each of many sets of parameters."""
        with translated():
            self.inner.executemany(statement, [tuple(parameters) for parameters in many])
        return self

    def fetchone(self):
        """Give the next row."""
        return next(self.rows, None)

    def fetchmany(self, size=1):
        """Give some rows."""
        return [row for _, row in zip(range(size), self.rows, strict=False)]

    def fetchall(self):
        """Give all rows."""
        return list(self.rows)

    def close(self):
        """Let go."""
        self.inner.close(force=True)


class translated:  # noqa: N801  reads as a phrase
    """Turn an error of apsw into the one that `sqlite3` raises for the same code."""

    def __enter__(self):
        """Begin."""

    def __exit__(self, _kind, error, _trace):
        """Translate."""
        if not isinstance(error, apsw.Error):
            return
        code = getattr(error, "extendedresult", apsw.SQLITE_ERROR)
        raised = sqlite3.IntegrityError if code & 0xFF == apsw.SQLITE_CONSTRAINT else sqlite3.OperationalError
        new = raised(str(error))
        new.sqlite_errorcode = code
        new.sqlite_errorname = apsw.mapping_extended_result_codes.get(code) or apsw.mapping_result_codes.get(
            code & 0xFF
        )
        raise new from error
