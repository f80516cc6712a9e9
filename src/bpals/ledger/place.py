"""Where a ledger may lie, and whether a file is one: told before SQLite touches it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from bpals.errors import WorkspaceError

MAGIC = b"SQLite format 3\0"
OURS = 0x6270616C
"""SQLite's application id of a ledger: `bpal`."""

MOUNTS = Path("/proc/mounts")
ELSEWHERE = "Name a folder on a local disk with --workspace DIR"

_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|ncpfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|davfs|drvfs|9p)$"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|gcsfuse|goofys|rclone|davfs|mergerfs|hadoop|mount-s3)"
)
_NO_JOURNAL = ("exfat", "vfat", "msdos")

_FIXED = (3, 51, 3)


def unfit(folder: Path, mounts: str) -> str | None:
    """Say why a ledger may not lie in a folder, given the text of /proc/mounts; nothing where it may."""
    found = _mount_of(folder, mounts)
    if found is None:
        return None
    point, kind, options = found
    if _NETWORK.match(kind):
        return (
            f"{folder} lies on {point}, a network filesystem ({kind}): SQLite's log needs memory that all "
            f"its users share, and would be damaged there. {ELSEWHERE}"
        )
    if kind in _NO_JOURNAL:
        return f"{folder} lies on {point}, which is {kind}: it may lose a file in a power cut. {ELSEWHERE}"
    if "ro" in options.split(","):
        return f"{folder} lies on {point}, which is mounted read-only. {ELSEWHERE}"
    return None


def _mount_of(folder: Path, mounts: str) -> tuple[str, str, str] | None:
    """Find the innermost mount that holds a folder; of two on one point the later one hides the earlier."""
    best: tuple[str, str, str] | None = None
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
        if folder.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = (point, words[2], words[3])
    return best


def old_sqlite(version: tuple[int, ...]) -> str | None:
    """Say what to mind with an SQLite of this version; nothing where its log is sound."""
    if version >= _FIXED:
        return None
    written = ".".join(map(str, version))
    return (
        f"{written}, fine for a ledger: one process writes to a workspace, a judge run beside the reading room writes "
        "through it, and bpals refuses a second (before 3.51.3 SQLite itself does not bear two)"
    )


def _whole(header: bytes) -> int:
    """Give the size that a file's header says it has; while there is a log, the header may be of yesterday."""
    page = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)


class Place:
    """The file of one ledger and the files beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; nothing is read or made yet."""
        self.path = Path(path)
        self.log = Path(f"{self.path}-wal")
        self.lock = self.path.with_suffix(".lock")
        self.relayed = self.path.with_suffix(".relayed.lock")
        """Held by a run whose films the serving process writes."""
        self.socket = self.path.with_name(f".{self.path.stem}.sock")
        """Where the serving process takes what others want written."""
        self.birth = Path(f"{self.path}-birth")
        """Is there while the ledger is being made: a file that is not yet a ledger is then ours."""
        self.doubt = Path(f"{self.path}-doubt")
        """Is there after a failed read or write: the next writer verifies the ledger first."""

    def check(self, *, must_exist: bool) -> bool:
        """Say whether a ledger is here already; refuse a place or a file that is not fit to be one."""
        folder = self.path.absolute().parent.resolve()
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            mounts = ""  # only Linux has it
        if why := unfit(folder, mounts):
            raise WorkspaceError(why)
        try:
            return self._look(must_exist=must_exist)
        except OSError as error:
            raise WorkspaceError(f"{self.path} cannot be read: {error.strerror}. {ELSEWHERE}") from None

    def _look(self, *, must_exist: bool) -> bool:
        try:
            kind = self.path.stat().st_mode
        except FileNotFoundError:
            if self.log_bytes():
                raise WorkspaceError(
                    f"{self.path} is gone, but {self.log.name}, which holds its last answers, is still there. "
                    f"Put the ledger back, or remove {self.log} to begin anew"
                ) from None
            if must_exist:
                raise WorkspaceError(
                    f"{self.path} does not exist: no judge was asked here. "
                    f"Type: bpals judge run SPEC --images PATH --workspace {self.path.parent}"
                ) from None
            return False
        if not stat.S_ISREG(kind):
            raise WorkspaceError(f"{self.path} is no file. {ELSEWHERE}")
        self._read_header()
        return True

    def _read_header(self) -> None:
        with self.path.open("rb") as file:
            header = file.read(100)
        if self.birth.exists() and header[:16] in {b"", MAGIC}:
            return
        if not header:
            raise WorkspaceError(
                f"{self.path} is empty: its content was cut off. Put a backup in its place, or remove it to begin anew"
            )
        if header[:16] != MAGIC:
            raise WorkspaceError(f"{self.path} is not a database, and is left as it is. {ELSEWHERE}")
        if len(header) < 100 or (not self.log_bytes() and self.path.stat().st_size < _whole(header)):
            raise WorkspaceError(
                f"{self.path} is cut off after {self.path.stat().st_size} bytes. Put a backup in its place"
            )
        if int.from_bytes(header[68:72], "big") != OURS:
            raise WorkspaceError(
                f"{self.path} is a database that bpals did not make, and is left as it is. {ELSEWHERE}"
            )

    def log_bytes(self) -> int:
        """Give the size of the log; 0 if there is none."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def announce(self) -> None:
        """Say that a ledger is about to be made here, so that a half-made one is known as ours."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.birth.touch()
            self.sync_folder()
        except OSError as error:
            raise WorkspaceError(f"{self.path} cannot be made: {error.strerror}. {ELSEWHERE}") from None

    def take(self, part: Path) -> None:
        """Make a finished copy durable under this name."""
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(self.path)
        self.sync_folder()

    def sync_folder(self) -> None:
        """Make what was created or removed beside the ledger last."""
        handle = os.open(self.path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
