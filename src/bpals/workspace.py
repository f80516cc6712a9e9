"""The workspace: a folder of sealed tables that is whole or does not count.

    claims.parquet  judgments/<judge>.parquet  signal.parquet  report.html  run.json
    groups.parquet  calibration.parquet        where the audit was calibrated on expert labels

An audit writes into a staging folder, moves each file into its place and writes `run.json` last. `run.json`
names every file with its sha256; a set that does not match it counts as none. So a reader sees the whole old
output, the whole new one, or a WorkspaceError. The ledger, `ledger.sqlite`, is never touched here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import WorkspaceError

FORMAT = 1
"""The version of the folder's layout; a workspace of another format is refused, never guessed at."""

RUN = "run.json"
AGAIN = "Type: bpals audit --workspace {}"


def sha256(content: bytes) -> str:
    """Hash bytes; the algorithm stands in front, so that it can change one day."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Workspace:
    """A folder with the output of one audit."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the folder; nothing is read or made yet."""
        self.path = Path(path)

    def __repr__(self) -> str:
        """Show where it is."""
        return f"Workspace({str(self.path)!r})"

    @property
    def run(self) -> dict[str, Any]:
        """The record of the run that made this workspace: what was read, decided and written."""
        again = AGAIN.format(self.path)
        try:
            text = (self.path / RUN).read_bytes()
        except FileNotFoundError:
            state = "is half-written" if self.path.is_dir() and any(self.path.iterdir()) else "holds no audit"
            raise WorkspaceError(f"{self.path} {state}: there is no {RUN}. {again}") from None
        except OSError as error:
            raise WorkspaceError(f"{self.path / RUN} cannot be read: {error.strerror}. {again}") from None
        try:
            run = json.loads(text)
            written = run["format"]
        except (ValueError, KeyError, TypeError):
            raise WorkspaceError(f"{self.path / RUN} is not a run record of bpals. {again}") from None
        if written != FORMAT:
            raise WorkspaceError(
                f"{self.path} was written by bpals {run.get('bpals', '?')} in format {written}; "
                f"this bpals reads format {FORMAT}. {again}"
            )
        if not _names_files(run):
            raise WorkspaceError(f"{self.path / RUN} does not name its files: it is damaged. {again}")
        return dict(run)

    def files(self) -> set[str]:
        """Name the files of the audit that is here, whole or not; none if there is no readable `run.json`."""
        try:
            return set(self.run["files"])
        except WorkspaceError:
            return set()

    def open(self) -> Sealed:
        """Check every file against `run.json` and give the audit that they make; what does not match counts as none."""
        sealed = Sealed(path=self.path, run=self.run)
        for name in sealed.run["files"]:
            sealed.read(name)
        return sealed

    @contextlib.contextmanager
    def writing(self) -> Iterator[Staging]:
        """Open a staging folder; on leaving without an error, call `seal` to make it real."""
        if strangers := self._strangers():
            raise WorkspaceError(
                f"{self.path} holds {', '.join(strangers)} that no audit made. Name another folder with --workspace DIR"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise WorkspaceError(
                f"{self.path} cannot be written: {error.strerror}. Name another with --workspace DIR"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise WorkspaceError(
                    f"another audit is writing to {self.path}. Wait for it, or name another with --workspace DIR"
                ) from None
            self._sweep()
            staging = Staging(workspace=self, path=self.path / f".staging-{os.getpid()}", names=[])
            staging.path.mkdir()
            try:
                yield staging
            finally:
                shutil.rmtree(staging.path, ignore_errors=True)

    def _strangers(self) -> list[str]:
        """Name files that an audit would overwrite although none has ever been here; every audit leaves its lock."""
        if (self.path / ".lock").exists() or (self.path / RUN).exists():
            return []
        return [name for name in ("report.html", "signal.parquet", "claims.parquet") if (self.path / name).exists()]

    def _sweep(self) -> None:
        """Remove what killed runs left behind; the lock says that nobody is using it."""
        for litter in self.path.glob(".staging-*"):
            shutil.rmtree(litter, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Sealed:
    """One whole audit. If another replaces it while it is read, reading fails: two audits are never mixed."""

    path: Path
    run: dict[str, Any]

    def has(self, name: str) -> bool:
        """Say whether this audit made that file."""
        return name in self.run["files"]

    def read(self, name: str) -> bytes:
        """Read one file; it must be the one that `run.json` names."""
        again = AGAIN.format(self.path)
        if not self.has(name):
            raise WorkspaceError(f"{self.path} has no {name}: this audit did not make one. {again}")
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise WorkspaceError(f"{self.path / name} cannot be read: {error.strerror}. {again}") from None
        if sha256(content) != self.run["files"][name]["sha256"]:
            raise WorkspaceError(f"{self.path / name} is not the file that {RUN} names: the set is broken. {again}")
        return content

    def table(self, name: str, *columns: str) -> pl.DataFrame:
        """Read one Parquet table, or some columns of it."""
        return pl.read_parquet(io.BytesIO(self.read(name)), columns=list(columns) or None)


@dataclass(slots=True)
class Staging:
    """Files that are being written; they become the workspace's when sealed."""

    workspace: Workspace
    path: Path
    names: list[str]

    def write(self, name: str, content: bytes) -> None:
        """Write one file durably into the staging folder."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_durably(target, content)
        self.names.append(name)

    def write_table(self, name: str, table: pl.DataFrame) -> None:
        """Write one Parquet table; the same table gives the same bytes."""
        buffer = io.BytesIO()
        table.write_parquet(buffer, compression="zstd", statistics=True, row_group_size=262_144)
        self.write(name, buffer.getvalue())

    def seal(self, run: dict[str, Any]) -> dict[str, Any]:
        """Move every file into its place, then write `run.json`, which makes the set count; give what it says."""
        home = self.workspace.path
        files = {}
        for name in self.names:
            content = (self.path / name).read_bytes()
            files[name] = {"sha256": sha256(content), "bytes": len(content)}
        record = json.dumps({"format": FORMAT, **run, "files": files}, indent=1, ensure_ascii=False)
        _write_durably(self.path / RUN, record.encode())
        for name in self.names:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).replace(home / name)
        # Before the new run.json, while the old one still names them: a run that is killed here finds them again.
        for name in self.workspace.files() - set(self.names):
            (home / name).unlink(missing_ok=True)
        for folder in {(home / name).parent for name in self.names}:
            _sync_folder(folder)
        (self.path / RUN).replace(home / RUN)
        _sync_folder(home)
        return dict(json.loads(record))


def _names_files(run: dict[str, Any]) -> bool:
    files = run.get("files")
    return isinstance(files, dict) and all(isinstance(f, dict) and "sha256" in f for f in files.values())


def _write_durably(target: Path, content: bytes) -> None:
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
