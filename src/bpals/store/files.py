"""Where a result comes from: the version, the commit, the packages."""

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


def sha256(content: bytes) -> str:
    """Hash bytes; the algorithm stands in front, so that it can change one day."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def parquet(table: pl.DataFrame) -> bytes:
    """Turn a table into bytes; the same table gives the same ones."""
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd", statistics=True, row_group_size=262_144)
    return buffer.getvalue()


def named(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Name files with their hash and size, as a record does."""
    return {name: {"sha256": sha256(content), "bytes": len(content)} for name, content in files.items()}


def names_files(run: Mapping[str, Any]) -> bool:
    """Say whether a record names every file with its hash."""
    files = run.get("files")
    return isinstance(files, dict) and all(isinstance(f, dict) and "sha256" in f for f in files.values())


def write_durably(target: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def only_one_in(folder: Path, busy: str) -> Iterator[None]:
    """Make a folder where there is none, and be the only one who writes into it; `busy` is what a second is told."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise WorkspaceError(
            f"{folder} cannot be written: {error.strerror}. Name another with --workspace DIR"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockHeld(f"{busy}. Wait for it, or name another with --workspace DIR") from None
        yield


PACKAGES = ("numpy", "polars", "threadpoolctl", "jinja2")


def packages() -> dict[str, str]:
    """Name the versions that a result may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> tuple[str | None, bool | None]:
    """Name the commit of the checkout that runs, and whether it was changed; (None, None) for an installed package."""
    checkout = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None, None
    try:
        head = _ask(git, checkout, "rev-parse", "HEAD")
        changed = _ask(git, checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.strip(), bool(changed.strip())


def _ask(git: str, checkout: Path, *words: str) -> str:
    # A hook of another repository sets GIT_DIR, which would name that one's commit.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    answer = subprocess.run(  # noqa: S603  fixed words, no shell
        [git, "-C", str(checkout), *words], capture_output=True, text=True, timeout=10, check=True, env=ours
    )
    return answer.stdout
