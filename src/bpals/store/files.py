"""Files that survive a crash, their hashes, and the versions and commit that made a result."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import LockHeld, WorkspaceError

# Only packages that can change a number in a result; a report of all would differ between machines for no reason.
PACKAGES = ("numpy", "polars", "threadpoolctl", "jinja2")


def sha256(content: bytes) -> str:
    """Hash bytes; the algorithm stands in front, so that it can change one day."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def parquet(table: pl.DataFrame) -> bytes:
    """Turn a table into bytes; the same table gives the same bytes."""
    buffer = io.BytesIO()
    # Every option is fixed: hashes of these bytes are kept, and a default of Polars may change.
    table.write_parquet(buffer, compression="zstd", statistics=True, row_group_size=262_144)
    return buffer.getvalue()


def list_files(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """List files with hash and size, as `run.json` does."""
    return {name: {"sha256": sha256(content), "bytes": len(content)} for name, content in files.items()}


def has_file_hashes(record: Mapping[str, Any]) -> bool:
    """Say whether a record lists every file with its hash."""
    files = record.get("files")
    return isinstance(files, dict) and all(isinstance(f, dict) and "sha256" in f for f in files.values())


def write_durably(target: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Replace one file of a folder durably: a reader sees the whole old file or the whole new one."""
    part = folder / f".{name}.part"
    write_durably(part, content)
    part.replace(folder / name)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    # A rename lives in the folder, not in the file: without this a power cut can undo it.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Make a folder where there is none; an error of the disk names another way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise WorkspaceError(
            f"{folder} cannot be written: {error.strerror}. Name another with --workspace DIR"
        ) from None


@contextlib.contextmanager
def only_one_in(folder: Path, busy: str) -> Iterator[None]:
    """Be the only writer in a folder, making it where there is none; a second writer gets the message `busy`."""
    with writable(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockHeld(f"{busy}. Wait for it, or name another with --workspace DIR") from None
        yield


def packages() -> dict[str, str]:
    """Name the versions that a result may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> tuple[str | None, bool | None]:
    """Name the commit of this checkout, and whether it was changed; (None, None) for an installed package."""
    checkout = Path(__file__).resolve().parents[3]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None, None
    try:
        head = _run_git(git, checkout, "rev-parse", "HEAD")
        changed = _run_git(git, checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.strip(), bool(changed.strip())


def _run_git(git: str, checkout: Path, *words: str) -> str:
    # A hook of another repository sets GIT_DIR, which would name that one's commit.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(  # noqa: S603  fixed words, no shell
        [git, "-C", str(checkout), *words], capture_output=True, text=True, timeout=10, check=True, env=ours
    )
    return done.stdout
