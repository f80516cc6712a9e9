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
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.store.files import named, names_files, only_one_in, parquet, sha256, sync_folder, write_durably
from bpals.text import several
from bpals.types import FILM_CHECKS

FORMAT = 1
"""The version of the folder's layout; a workspace of another format is refused, never guessed at."""
JUDGMENTS = "judgments"
RECORD_JUDGE = "record"
"""The judge that an audit asks anew ..."""
ALL_JUDGES = "all"
"""... and what stands for it and every sealed one; no sealed judge may take their names."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
LONGEST = 80
FILMS = ".films"
"""How the table of what a judge says of the films themselves ends, before `.parquet`."""


@dataclass(frozen=True, slots=True)
class SealedJudge:
    """One image judge with all its answers. If it is sealed anew while it is read, reading fails."""

    path: Path
    name: str
    record: dict[str, Any]
    """card, counts by outcome, offsets by subject, and its files with their sha256."""
    sha256: str
    """Of its record, which names its files: two judges with the same one gave the same answers."""

    @property
    def card(self) -> dict[str, Any]:
        """Who the judge is."""
        return dict(self.record["card"])

    @property
    def offsets(self) -> dict[str, Any]:
        """Subject -> its mean logits without a film, `[present, absent]`; empty where it has no controls."""
        return dict(self.record.get("offsets") or {})

    def answers(self, *columns: str) -> pl.DataFrame:
        """Read what it says of the findings, or some columns of it."""
        return pl.read_parquet(io.BytesIO(self.read(f"{self.name}.parquet")), columns=list(columns) or None)

    def film_answers(self) -> pl.DataFrame | None:
        """Read what it says of the films themselves; None where it was not asked."""
        name = f"{self.name}{FILMS}.parquet"
        return pl.read_parquet(io.BytesIO(self.read(name))) if name in self.record["files"] else None

    def read(self, name: str) -> bytes:
        """Read one of its files; it must be the one that its record names."""
        again = _again(self.path.parent)
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise WorkspaceError(f"{self.path / name} cannot be read: {error.strerror}. {again}") from None
        if sha256(content) != self.record["files"][name]["sha256"]:
            raise WorkspaceError(f"{self.path / name} is not the file that {self.name}.json names. {again}")
        return content


def check_judge_name(name: str) -> str:
    """Refuse a name that cannot be a file's, or that means something else; give it back."""
    if name in (RECORD_JUDGE, ALL_JUDGES):
        raise UsageError(f"a judge cannot be called {name!r}: the word has a meaning of its own. Call it 'my-{name}'")
    if not NAME.fullmatch(name) or name.endswith(FILMS) or len(name) > LONGEST:
        plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._").removesuffix(FILMS)[:LONGEST] or "my-judge"
        raise UsageError(
            f"a judge cannot be called {name!r}: a name is small letters, digits, '-', '_' and '.', "
            f"at most {LONGEST} of them, and does not end in {FILMS!r}. Call it {plain!r}"
        )
    return name


def seal_judge(
    home: Path,
    name: str,
    card: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame | None],
    extra: Mapping[str, Any],
) -> Path:
    """Write a judge's tables durably, its record last; give the path of that record.

    `tables` are its answers, under the empty name, and what it says of films. `extra` is what else the record says:
    above all `offsets`, subject -> the judge's mean logits without a film, `[present, absent]`.
    """
    check_judge_name(name)
    folder = home / JUDGMENTS
    written = {f"{name}{end}.parquet": parquet(table) for end, table in tables.items() if table is not None}
    answers = tables[""]
    outcomes = pl.Series(dtype=pl.String) if answers is None else answers["outcome"].cast(pl.String)
    counts = dict(outcomes.alias("outcome").value_counts().sort("outcome").iter_rows())
    record = {"format": FORMAT, "card": dict(card), "counts": counts, **extra, "files": named(written)}
    text = json.dumps(record, indent=1, ensure_ascii=False).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # not the audit's lock: an audit must not keep a judge from its seal
            for part in folder.glob(".*.part"):
                part.unlink()
            for file, content in {**written, f"{name}.json": text}.items():
                write_durably(folder / f".{file}.part", content)
                (folder / f".{file}.part").replace(folder / file)
                sync_folder(folder)
            for end in tables:
                if f"{name}{end}.parquet" not in written:
                    (folder / f"{name}{end}.parquet").unlink(missing_ok=True)
    except OSError as error:
        raise WorkspaceError(
            f"{folder} cannot be written: {error.strerror}. Name another with --workspace DIR"
        ) from None
    return folder / f"{name}.json"


def judge_names(home: Path) -> list[str]:
    """Name the judges that have a record here, whole or not."""
    records = (home / JUDGMENTS).glob("*.json")
    return sorted(path.name.removesuffix(".json") for path in records if NAME.fullmatch(path.name))


def unsealed(home: Path) -> list[str]:
    """Name the judges whose answers lie here without a record: they were being sealed, and do not count."""
    folder = home / JUDGMENTS
    tables = (path.name.removesuffix(".parquet") for path in folder.glob("*.parquet") if NAME.fullmatch(path.name))
    names = {name.removesuffix(FILMS) for name in tables} - {RECORD_JUDGE}
    return sorted(name for name in names if not (folder / f"{name}.json").exists())


def open_judge(home: Path, name: str) -> SealedJudge:
    """Open one sealed judge; its record must be whole and its files those that it names."""
    path = home / JUDGMENTS / f"{name}.json"
    again = _again(home)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UnknownName.of("sealed judge", name, judge_names(home), where=str(home)) from None
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror}. {again}") from None
    try:
        record = json.loads(text)
        whole = record["format"] == FORMAT and names_files(record) and isinstance(record["counts"], dict)
        whole = whole and isinstance(record["card"], dict) and f"{name}.parquet" in record["files"]
        whole = whole and {f"{name}.parquet", f"{name}{FILMS}.parquet"}.issuperset(record["files"])
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise WorkspaceError(f"{path} is not the record of a judge in format {FORMAT}: it is damaged. {again}")
    judge = SealedJudge(path=path.parent, name=name, record=record, sha256=sha256(text))
    for file in record["files"]:
        judge.read(file)
    return judge


def _again(home: Path) -> str:
    return (
        "Run that judge again (bpals judge run), which seals it anew, or leave it out: "
        f"bpals audit --workspace {home} --judges {RECORD_JUDGE}"
    )


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


TABLE, RECORD = "films.parquet", "film-checks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFilms:
    """What was found out about the films of a workspace."""

    table: pl.DataFrame
    """FILM_CHECKS."""
    record: dict[str, Any]


def seal_films(home: Path, table: pl.DataFrame, told: Mapping[str, Any]) -> SealedFilms:
    """Write the checks durably, their record last."""
    content = parquet(table)
    record = {"format": FORMAT, **told, "files": named({TABLE: content})}
    text = json.dumps(record, indent=1, ensure_ascii=False).encode()
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name, bytes_ in ((TABLE, content), (RECORD, text)):
            write_durably(home / f".{name}.part", bytes_)
            (home / f".{name}.part").replace(home / name)
            sync_folder(home)
    except OSError as error:
        raise WorkspaceError(f"{home} cannot be written: {error.strerror}. Name another with --workspace DIR") from None
    return SealedFilms(table=table, record=record)


def open_films(home: Path) -> SealedFilms | None:
    """Open the checks; None where there are none, and what is not whole is an error, never left out in silence."""
    broken = WorkspaceError(
        f"{home / RECORD} and {home / TABLE} are not a whole set. Run the probe again (bpals judge run probe:), "
        f"which checks the films anew, or remove both"
    )
    try:
        record = json.loads((home / RECORD).read_bytes())
        content = (home / TABLE).read_bytes()
        whole = record["format"] == FORMAT and names_files(record)
        whole = whole and record["files"][TABLE]["sha256"] == sha256(content)
    except (FileNotFoundError, NotADirectoryError):
        if (home / RECORD).exists():
            raise broken from None
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise broken from None
    if not whole:
        raise broken
    table = pl.read_parquet(io.BytesIO(content))
    if table.schema != FILM_CHECKS:
        raise broken
    return SealedFilms(table=table, record=record)


def summary(record: Mapping[str, Any]) -> str:
    """Count films by what is odd about them, in one line; what was not looked for comes first."""
    counts = {name: count for name, count in record["fired"].items() if count}
    fired = [f"{count:,} {name.replace('_', ' ')}{_in_pairs(name, record)}" for name, count in counts.items()]
    checked = record.get("checked", record["films"])
    unread = f" ({record['films'] - checked:,} more could not be read)" if checked < record["films"] else ""
    unasked = f", not for {', '.join(record['not_looked_for'])}" if record.get("not_looked_for") else ""
    words = ", ".join(fired) or "nothing odd was found"
    return f"{several(checked, 'film was', 'films were')} checked{unread}{unasked}: {words} (docs/film-checks.md)"


def _in_pairs(check: str, record: Mapping[str, Any]) -> str:
    """Say how many pairs near-duplicates are; nothing of another check."""
    if check != "near_duplicate" or "near_duplicate_pairs" not in record:
        return ""
    pairs = several(record["near_duplicate_pairs"], "pair")
    return f" ({pairs}, {record['pairs_of_two_patients']:,} of two patients)"
