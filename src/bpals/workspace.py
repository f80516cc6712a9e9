"""The workspace: a folder of sealed tables that is whole or does not count.

    claims.parquet  judgments/<judge>.parquet  signal.parquet  report.html  run.json
    groups.parquet  calibration.parquet        where the audit was calibrated on expert labels
    group-judgments.parquet                    what the record judge says of groups, where experts speak of some
    judgments/<judge>.json                     an image judge that was sealed here, beside any audit

An audit writes into a staging folder, moves each file into its place and writes `run.json` last. `run.json`
names every file with its sha256; a set that does not match it counts as none. So a reader sees the whole old
output, the whole new one, or a WorkspaceError. One that was killed while it moved its files is finished by the next
that writes, or by `mend`. The ledger, `ledger.sqlite`, is never touched here.

An image judge is sealed by itself, beside the audit: see `sealedjudge.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bpals.durable import named, names_files, only_one_in, parquet, sha256, sync_folder, write_durably
from bpals.errors import WorkspaceError
from bpals.sealedjudge import FILMS, FORMAT, SealedJudge, judge_names, open_judge, seal_judge, unsealed

RUN = "run.json"
REMEMBERED = "remembered.json"
"""What was given once to a command and holds for the workspace: where the films are, which dataset it is."""
LEDGER = "ledger.sqlite"
"""What asked judges and readers said, unless the workspace was given an address for it."""
AGAIN = "Type: bpals audit --workspace {}"
USUAL, DEMO = Path("audit"), Path("demo")
"""The folder of a command that names none, and that of the demo."""


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
            begun = (self.path / ".lock").exists() or bool(self._strangers())
            state = "is half-written" if begun else "holds no audit"
            raise WorkspaceError(f"{self.path} {state}: there is no {RUN}. {self.or_the_demo(again)}") from None
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
        if not names_files(run):
            raise WorkspaceError(f"{self.path / RUN} does not name its files: it is damaged. {again}")
        return dict(run)

    def or_the_demo(self, otherwise: str) -> str:
        """Say what to type next: who has no audit here, and a demo that was read beside it, most likely means that."""
        read = all((DEMO / name).exists() for name in (RUN, LEDGER))
        if self.path != USUAL or (self.path / RUN).exists() or not read:
            return otherwise
        return (
            f"Type the same with --workspace {DEMO} for the demo that is here, or: {otherwise.removeprefix('Type: ')}"
        )

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

    @property
    def keeps_ledger(self) -> bool:
        """Whether judges were asked or films read here: only then is there a ledger to look into."""
        return self.remembered("ledger") is not None or (self.path / LEDGER).exists()

    def remember(self, **facts: str | None) -> None:
        """Keep what was given once, such as where the films are, for the commands that come later."""
        kept = {**self._remembered(), **facts}
        part = self.path / f".{REMEMBERED}.part"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_durably(part, json.dumps(kept, indent=1, ensure_ascii=False).encode())
            part.replace(self.path / REMEMBERED)
            sync_folder(self.path)
        except OSError as error:
            raise WorkspaceError(
                f"{self.path} cannot be written: {error.strerror}. Name another with --workspace DIR"
            ) from None

    def remember_dataset(self, source: str, mapping: str | None, fingerprint: str | None = None) -> None:
        """Keep which dataset this workspace is about, by whole paths: the next command may be typed elsewhere."""
        kind, _, file = source.partition(":")
        described = str(Path(mapping).resolve()) if mapping and Path(mapping).is_file() else mapping
        whole = f"{kind}:{Path(file).resolve()}" if file else kind
        self.remember(source=whole, mapping=described, fingerprint=fingerprint)

    def remembered(self, fact: str) -> str | None:
        """Give what was kept, if anything was."""
        return self._remembered().get(fact)

    def _remembered(self) -> dict[str, str | None]:
        try:
            return dict(json.loads((self.path / REMEMBERED).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError):
            raise WorkspaceError(
                f"{self.path / REMEMBERED} cannot be read. Remove it, and name what it held again: --images PATH"
            ) from None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Staging]:
        """Open a staging folder; on leaving without an error, call `seal` to make it real."""
        if strangers := self._strangers():
            raise WorkspaceError(
                f"{self.path} holds {', '.join(strangers)} that no audit made. Name another folder with --workspace DIR"
            )
        with only_one_in(self.path, f"another audit is writing to {self.path}"):
            self._finish()
            self._sweep()
            staging = Staging(workspace=self, path=self.path / f".staging-{os.getpid()}", names=[])
            staging.path.mkdir()
            try:
                yield staging
            finally:
                # While its files are being moved, what is staged is the only whole set there is.
                if not (staging.path / RUN).exists():
                    shutil.rmtree(staging.path, ignore_errors=True)

    def mend(self) -> bool:
        """Finish an output that was killed while it moved its files into place; say whether there was one."""
        if not any(self.path.glob(f".staging-*/{RUN}")):
            return False
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return self._finish()

    def seal_judge(
        self,
        name: str,
        card: Mapping[str, Any],
        answers: pl.DataFrame,
        films: pl.DataFrame | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a judge's whole output durably, its record last; give the path of that record."""
        return seal_judge(self.path, name, card, {"": answers, FILMS: films}, extra or {})

    def judge_names(self) -> list[str]:
        """Name the judges that have a record here, whole or not."""
        return judge_names(self.path)

    def unsealed(self) -> list[str]:
        """Name the judges whose answers lie here without a record: they were being sealed, and do not count."""
        return unsealed(self.path)

    def judge(self, name: str) -> SealedJudge:
        """Open one sealed judge; its record must be whole and its files those that it names."""
        return open_judge(self.path, name)

    def judges(self) -> list[SealedJudge]:
        """Give every sealed judge, by name; one that is broken is an error, never left out in silence."""
        return [self.judge(name) for name in self.judge_names()]

    def _strangers(self) -> list[str]:
        """Name files that an audit would overwrite although none has ever been here; every audit leaves its lock."""
        if (self.path / ".lock").exists() or (self.path / RUN).exists():
            return []
        return [name for name in ("report.html", "signal.parquet", "claims.parquet") if (self.path / name).exists()]

    def _finish(self) -> bool:
        """Move what a killed run had whole in its staging folder, `run.json` last; a part of a set is left alone."""
        for record in sorted(self.path.glob(f".staging-*/{RUN}")):
            files = json.loads(record.read_bytes())["files"]
            staged = {name for name in files if (record.parent / name).exists()}
            if all(_is(record.parent / name if name in staged else self.path / name, files[name]) for name in files):
                _move(record.parent, self, staged, files)
                shutil.rmtree(record.parent, ignore_errors=True)
                return True
        return False

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
    kept: dict[str, Any] = field(default_factory=dict)
    """Files of the output that is replaced which belong to the new one too, as its record names them."""

    def write(self, name: str, content: bytes) -> None:
        """Write one file durably into the staging folder."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_durably(target, content)
        self.names.append(name)

    def write_table(self, name: str, table: pl.DataFrame) -> None:
        """Write one Parquet table; the same table gives the same bytes."""
        self.write(name, parquet(table))

    def keep(self, sealed: Sealed, name: str) -> None:
        """Take a file of the output that is here over into the new one, as it lies."""
        self.kept[name] = sealed.run["files"][name]

    def seal(self, run: dict[str, Any]) -> dict[str, Any]:
        """Move every file into its place, then write `run.json`, which makes the set count; give what it says."""
        files: dict[str, Any] = dict(self.kept)
        for name in self.names:
            files |= named({name: (self.path / name).read_bytes()})
        record = json.dumps({"format": FORMAT, **run, "files": files}, indent=1, ensure_ascii=False)
        part = self.path / f".{RUN}.part"
        write_durably(part, record.encode())
        for folder in {(self.path / name).parent for name in self.names}:
            sync_folder(folder)
        # From here on a run that is killed can be finished: everything is staged, and its record says what it is.
        part.replace(self.path / RUN)
        sync_folder(self.path)
        _move(self.path, self.workspace, self.names, files)
        return dict(json.loads(record))


def _move(staged: Path, workspace: Workspace, names: Iterable[str], files: Mapping[str, Any]) -> None:
    """Move staged files into their places and `run.json` last; what the new record does not name goes."""
    home = workspace.path
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).replace(home / name)
    # Before the new run.json, while the old one still names them: a run that is killed here finds them again.
    for name in workspace.files() - set(files):
        (home / name).unlink(missing_ok=True)
    for folder in {(home / name).parent for name in files}:
        sync_folder(folder)
    (staged / RUN).replace(home / RUN)
    sync_folder(home)


def _is(file: Path, entry: Mapping[str, Any]) -> bool:
    """Say whether a file is there and the one that a record names."""
    return file.is_file() and sha256(file.read_bytes()) == entry["sha256"]
