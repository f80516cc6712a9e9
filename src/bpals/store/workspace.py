"""The workspace: a folder with the output of one audit and of the image judges, ignored unless complete.

    images.parquet  claims.parquet             the dataset: its images and its labels
    judgments/<judge>.parquet                  the answers of each judge
    signal.parquet  report.html  run.json      the signal, the report, and the record of the audit
    groups.parquet  calibration.parquet        if the audit was calibrated on expert labels
    group-judgments.parquet                    the metadata judge on groups, if experts label some
    judgments/<judge>.json                     the record of a finished image judge
    films.parquet  film-checks.json            what was checked about the images themselves
    remembered.json  ledger.sqlite             options for later commands; answers of judges and readers as they come

An audit writes into a staging folder, moves each file into its place and writes `run.json` last. `run.json` lists
every file with its sha256. A reader gets the whole old output, the whole new one, or a WorkspaceError. An output that
was killed while it moved its files is completed by the next writer, or by `repair`.
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
from bpals.store.files import (
    has_file_hashes,
    list_files,
    only_one_in,
    parquet,
    replace_file,
    sha256,
    sync_folder,
    writable,
    write_durably,
)
from bpals.text import several
from bpals.types import FILM_CHECKS, FLAG, SETTLED_COLUMNS, signal_schema

# The version of the layout. A workspace of another format is refused: a guess could mix two meanings of a column.
FORMAT = 1
RUN = "run.json"
JUDGMENTS = "judgments"
# What a command was given once and later commands reuse: where the images are, which dataset, which ledger.
REMEMBERED = "remembered.json"
# The answers of judges and readers, unless the workspace was given a PostgreSQL address. Nothing here touches it.
LEDGER = "ledger.sqlite"
# The folder of a command that names none, and the folder of the demo.
USUAL, DEMO = Path("audit"), Path("demo")

# Every audit runs the metadata judge again; `all` means it and every finished judge. So no judge may take these names.
RECORD_JUDGE = "record"
ALL_JUDGES = "all"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
LONGEST = 80
# Ends the name of the table with a judge's answers about the images themselves, before `.parquet`.
FILMS = ".films"
CHECKS_TABLE, CHECKS_RECORD = "films.parquet", "film-checks.json"
_AUDIT_AGAIN = "Type: bpals audit --workspace {}"


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
        again = _AUDIT_AGAIN.format(self.path)
        try:
            run = json.loads((self.path / RUN).read_bytes())
            written = run["format"]
        except FileNotFoundError:
            begun = (self.path / ".lock").exists() or bool(self._foreign_files())
            state = "is half-written" if begun else "holds no audit"
            raise WorkspaceError(f"{self.path} {state}: there is no {RUN}. {self.or_the_demo(again)}") from None
        except OSError as error:
            raise WorkspaceError(f"{self.path / RUN} cannot be read: {error.strerror}. {again}") from None
        except (ValueError, KeyError, TypeError):
            raise WorkspaceError(f"{self.path / RUN} is not a run record of bpals. {again}") from None
        if written != FORMAT:
            raise WorkspaceError(
                f"{self.path} was written by bpals {run.get('bpals', '?')} in format {written}; "
                f"this bpals reads format {FORMAT}. {again}"
            )
        if not has_file_hashes(run):
            raise WorkspaceError(f"{self.path / RUN} does not name its files: it is damaged. {again}")
        return dict(run)

    def or_the_demo(self, otherwise: str) -> str:
        """Return what to type next; if only a demo is here, most people mean that one."""
        demo = all((DEMO / name).exists() for name in (RUN, LEDGER))
        if self.path != USUAL or (self.path / RUN).exists() or not demo:
            return otherwise
        return (
            f"Type the same with --workspace {DEMO} for the demo that is here, or: {otherwise.removeprefix('Type: ')}"
        )

    def files(self) -> set[str]:
        """Name the files of this audit, whole or not; none if there is no readable `run.json`."""
        try:
            return set(self.run["files"])
        except WorkspaceError:
            return set()

    def open(self) -> FinishedAudit:
        """Check every file against `run.json` and return the audit; a set that does not match is refused."""
        audit = FinishedAudit(path=self.path, run=self.run)
        for name in audit.run["files"]:
            audit.read(name)
        return audit

    @property
    def keeps_ledger(self) -> bool:
        """Whether judges ran or people read images here: only then is there a ledger."""
        return self.remembered("ledger") is not None or (self.path / LEDGER).exists()

    def remember(self, **facts: str | None) -> None:
        """Keep what was given once, such as where the images are, for later commands."""
        kept = {**self._remembered(), **facts}
        with writable(self.path):
            replace_file(self.path, REMEMBERED, json.dumps(kept, indent=1, ensure_ascii=False).encode())

    def remember_dataset(self, source: str, mapping: str | None, fingerprint: str | None = None) -> None:
        """Keep which dataset this workspace is about, by absolute paths: the next command may run elsewhere."""
        kind, _, file = source.partition(":")
        described = str(Path(mapping).resolve()) if mapping and Path(mapping).is_file() else mapping
        whole = f"{kind}:{Path(file).resolve()}" if file else kind
        self.remember(source=whole, mapping=described, fingerprint=fingerprint)

    def remembered(self, fact: str) -> str | None:
        """Return what was kept, if anything was."""
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
        """Open a staging folder; call its `finish` inside to make the output real."""
        if foreign := self._foreign_files():
            raise WorkspaceError(
                f"{self.path} holds {', '.join(foreign)} that no audit made. Name another folder with --workspace DIR"
            )
        with only_one_in(self.path, f"another audit is writing to {self.path}"):
            self._complete_killed()
            # The lock says that nobody uses what other killed runs left behind.
            for leftover in self.path.glob(".staging-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            staging = Staging(workspace=self, path=self.path / f".staging-{os.getpid()}", names=[])
            staging.path.mkdir()
            try:
                yield staging
            finally:
                # While its files are being moved, the staging folder holds the only whole set.
                if not (staging.path / RUN).exists():
                    shutil.rmtree(staging.path, ignore_errors=True)

    def repair(self) -> bool:
        """Complete an output that was killed while it moved its files; return whether there was one."""
        if not any(self.path.glob(f".staging-*/{RUN}")):
            return False
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return self._complete_killed()

    def _foreign_files(self) -> list[str]:
        """Name files that an audit would overwrite although no audit was ever here: each one leaves its lock."""
        if (self.path / ".lock").exists() or (self.path / RUN).exists():
            return []
        return [name for name in ("report.html", "signal.parquet", "claims.parquet") if (self.path / name).exists()]

    def _complete_killed(self) -> bool:
        """Move what a killed run had wholly staged, `run.json` last; an incomplete set is left alone."""
        for record in sorted(self.path.glob(f".staging-*/{RUN}")):
            files = json.loads(record.read_bytes())["files"]
            staged = {name for name in files if (record.parent / name).exists()}
            if all(_matches(record.parent / n if n in staged else self.path / n, files[n]) for n in files):
                self.commit_staged(record.parent, staged, files)
                shutil.rmtree(record.parent, ignore_errors=True)
                return True
        return False

    def commit_staged(self, staged: Path, names: Iterable[str], files: Mapping[str, Any]) -> None:
        """Move staged files into place and `run.json` last; files that the new record does not list are removed."""
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).replace(self.path / name)
        # Before the new run.json, while the old one still lists them: a run that is killed here finds them again.
        for name in self.files() - set(files):
            (self.path / name).unlink(missing_ok=True)
        for folder in {(self.path / name).parent for name in files}:
            sync_folder(folder)
        (staged / RUN).replace(self.path / RUN)
        sync_folder(self.path)

    def write_judge(
        self,
        name: str,
        card: Mapping[str, Any],
        answers: pl.DataFrame,
        films: pl.DataFrame | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a finished judge's tables durably, its record last; return the path of that record.

        `films` are its answers about the images themselves. `extra` goes into the record: above all `offsets`,
        subject -> the judge's mean logits without an image, `[present, absent]`.
        """
        check_judge_name(name)
        folder = self.path / JUDGMENTS
        tables = {f"{name}.parquet": answers, f"{name}{FILMS}.parquet": films}
        written = {file: parquet(table) for file, table in tables.items() if table is not None}
        outcomes = answers["outcome"].cast(pl.String).alias("outcome")
        counts = dict(outcomes.value_counts().sort("outcome").iter_rows())
        record = {"format": FORMAT, "card": dict(card), "counts": counts, **(extra or {}), "files": list_files(written)}
        text = json.dumps(record, indent=1, ensure_ascii=False).encode()
        with writable(folder), (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # not the audit's lock: an audit must not keep a judge from finishing
            for part in folder.glob(".*.part"):
                part.unlink()
            for file, content in {**written, f"{name}.json": text}.items():
                replace_file(folder, file, content)
            for file in tables.keys() - written.keys():
                (folder / file).unlink(missing_ok=True)
        return folder / f"{name}.json"

    def judge_names(self) -> list[str]:
        """Name the judges that have a record here, whole or not."""
        records = (self.path / JUDGMENTS).glob("*.json")
        return sorted(path.name.removesuffix(".json") for path in records if NAME.fullmatch(path.name))

    def unfinished_judges(self) -> list[str]:
        """Name the judges whose answers lie here without a record: they were being written, and do not count."""
        folder = self.path / JUDGMENTS
        tables = (path.name.removesuffix(".parquet") for path in folder.glob("*.parquet") if NAME.fullmatch(path.name))
        names = {name.removesuffix(FILMS) for name in tables} - {RECORD_JUDGE}
        return sorted(name for name in names if not (folder / f"{name}.json").exists())

    def judge(self, name: str) -> FinishedJudge:
        """Open one finished judge; its record must be whole and its files those that the record lists."""
        path = self.path / JUDGMENTS / f"{name}.json"
        again = _judge_again(self.path)
        try:
            text = path.read_bytes()
            record = json.loads(text)
            whole = record["format"] == FORMAT and has_file_hashes(record) and isinstance(record["counts"], dict)
            whole = whole and isinstance(record["card"], dict) and f"{name}.parquet" in record["files"]
            whole = whole and {f"{name}.parquet", f"{name}{FILMS}.parquet"}.issuperset(record["files"])
        except FileNotFoundError:
            raise UnknownName.of("finished judge", name, self.judge_names(), where=str(self.path)) from None
        except OSError as error:
            raise WorkspaceError(f"{path} cannot be read: {error.strerror}. {again}") from None
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise WorkspaceError(f"{path} is not the record of a judge in format {FORMAT}: it is damaged. {again}")
        judge = FinishedJudge(path=path.parent, name=name, record=record, sha256=sha256(text))
        for file in record["files"]:
            judge.read(file)
        return judge

    def judges(self) -> list[FinishedJudge]:
        """Return every finished judge, by name; a broken one is an error, never left out in silence."""
        return [self.judge(name) for name in self.judge_names()]


@dataclass(frozen=True, slots=True)
class FinishedAudit:
    """One whole audit. If another replaces it while it is read, reading fails: two audits are never mixed."""

    path: Path
    run: dict[str, Any]

    def has(self, name: str) -> bool:
        """Return whether this audit made that file."""
        return name in self.run["files"]

    def read(self, name: str) -> bytes:
        """Read one file; it must be the one that `run.json` lists."""
        again = _AUDIT_AGAIN.format(self.path)
        if not self.has(name):
            raise WorkspaceError(f"{self.path} has no {name}: this audit did not make one. {again}")
        return _read_listed(self.path, name, self.run, f"{RUN} names: the set is broken. {again}", again)

    def table(self, name: str, *columns: str) -> pl.DataFrame:
        """Read one Parquet table, or some columns of it; in an older signal the newer columns are null."""
        content = io.BytesIO(self.read(name))
        if name not in ("signal.parquet", "groups.parquet"):
            return pl.read_parquet(content, columns=list(columns) or None)
        has = list(pl.read_parquet_schema(content))
        whole = signal_schema(()).names()
        wanted = list(columns) or (whole if set(whole) - set(has) == set(SETTLED_COLUMNS) else has)
        added = {each: kind for each, kind in SETTLED_COLUMNS.items() if each in wanted and each not in has}
        content.seek(0)
        table = pl.read_parquet(content, columns=[each for each in wanted if each not in added])
        if "flag" in table.columns:
            # Flags were added since then, and comparing with one that a column does not know is an error.
            table = table.with_columns(pl.col("flag").cast(FLAG))
        return table.with_columns(pl.lit(None, kind).alias(each) for each, kind in added.items()).select(wanted)


@dataclass(slots=True)
class Staging:
    """Files that are being written; `finish` makes them the workspace's output."""

    workspace: Workspace
    path: Path
    names: list[str]
    kept: dict[str, Any] = field(default_factory=dict)  # files of the replaced output that stay, as its record has them

    def write(self, name: str, content: bytes) -> None:
        """Write one file durably into the staging folder."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_durably(target, content)
        self.names.append(name)

    def write_table(self, name: str, table: pl.DataFrame) -> None:
        """Write one Parquet table; the same table gives the same bytes."""
        self.write(name, parquet(table))

    def keep(self, audit: FinishedAudit, name: str) -> None:
        """Keep a file of the present output in the new one, as it is."""
        self.kept[name] = audit.run["files"][name]

    def finish(self, run: dict[str, Any]) -> dict[str, Any]:
        """Move every file into place, then write `run.json`, which makes the set valid; return that record."""
        files: dict[str, Any] = dict(self.kept)
        for name in self.names:
            files |= list_files({name: (self.path / name).read_bytes()})
        record = json.dumps({"format": FORMAT, **run, "files": files}, indent=1, ensure_ascii=False)
        part = self.path / f".{RUN}.part"
        write_durably(part, record.encode())
        for folder in {(self.path / name).parent for name in self.names}:
            sync_folder(folder)
        # From here on a killed run can be completed: everything is staged, and its record lists it.
        part.replace(self.path / RUN)
        sync_folder(self.path)
        self.workspace.commit_staged(self.path, self.names, files)
        return dict(json.loads(record))


@dataclass(frozen=True, slots=True)
class FinishedJudge:
    """One image judge with all its answers. If it is written again while it is read, reading fails."""

    path: Path
    name: str
    record: dict[str, Any]  # card, counts by outcome, offsets by subject, and its files with their sha256
    sha256: str  # of the record, which lists the files: two judges with the same hash gave the same answers

    @property
    def card(self) -> dict[str, Any]:
        """Who the judge is."""
        return dict(self.record["card"])

    @property
    def offsets(self) -> dict[str, Any]:
        """Subject -> its mean logits without an image, `[present, absent]`; empty if it has no controls."""
        return dict(self.record.get("offsets") or {})

    def answers(self, *columns: str) -> pl.DataFrame:
        """Read its answers about findings, or some columns of them."""
        return pl.read_parquet(io.BytesIO(self.read(f"{self.name}.parquet")), columns=list(columns) or None)

    def film_answers(self) -> pl.DataFrame | None:
        """Read its answers about the images themselves; None if there are none."""
        name = f"{self.name}{FILMS}.parquet"
        return pl.read_parquet(io.BytesIO(self.read(name))) if name in self.record["files"] else None

    def read(self, name: str) -> bytes:
        """Read one of its files; it must be the one that its record lists."""
        again = _judge_again(self.path.parent)
        return _read_listed(self.path, name, self.record, f"{self.name}.json names. {again}", again)


def check_judge_name(name: str) -> str:
    """Refuse a name that cannot be a file's, or that means something else; return it."""
    if name in (RECORD_JUDGE, ALL_JUDGES):
        raise UsageError(f"a judge cannot be called {name!r}: the word has a meaning of its own. Call it 'my-{name}'")
    if not NAME.fullmatch(name) or name.endswith(FILMS) or len(name) > LONGEST:
        plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._").removesuffix(FILMS)[:LONGEST] or "my-judge"
        raise UsageError(
            f"a judge cannot be called {name!r}: a name is small letters, digits, '-', '_' and '.', "
            f"at most {LONGEST} of them, and does not end in {FILMS!r}. Call it {plain!r}"
        )
    return name


def _judge_again(home: Path) -> str:
    return (
        "Run that judge again (bpals judge run), or audit without any image judge: "
        f"bpals audit --workspace {home} --judges {RECORD_JUDGE}"
    )


def _read_listed(folder: Path, name: str, record: Mapping[str, Any], unlike: str, again: str) -> bytes:
    """Read a file whose hash must be the one that a record lists."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise WorkspaceError(f"{folder / name} cannot be read: {error.strerror}. {again}") from None
    if sha256(content) != record["files"][name]["sha256"]:
        raise WorkspaceError(f"{folder / name} is not the file that {unlike}")
    return content


def _matches(file: Path, entry: Mapping[str, Any]) -> bool:
    return file.is_file() and sha256(file.read_bytes()) == entry["sha256"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChecks:
    """What was found out about the images of a workspace."""

    table: pl.DataFrame  # FILM_CHECKS
    record: dict[str, Any]


def write_image_checks(home: Path, table: pl.DataFrame, facts: Mapping[str, Any]) -> ImageChecks:
    """Write the checks durably, their record last."""
    content = parquet(table)
    record = {"format": FORMAT, **facts, "files": list_files({CHECKS_TABLE: content})}
    with writable(home):
        replace_file(home, CHECKS_TABLE, content)
        replace_file(home, CHECKS_RECORD, json.dumps(record, indent=1, ensure_ascii=False).encode())
    return ImageChecks(table=table, record=record)


def open_image_checks(home: Path) -> ImageChecks | None:
    """Open the checks; None if there are none. A set that is not whole is an error, never left out in silence."""
    broken = WorkspaceError(
        f"{home / CHECKS_RECORD} and {home / CHECKS_TABLE} are not a whole set. Run the probe again "
        "(bpals judge run probe:), which checks the images again, or remove both"
    )
    try:
        record = json.loads((home / CHECKS_RECORD).read_bytes())
        content = (home / CHECKS_TABLE).read_bytes()
        whole = record["format"] == FORMAT and has_file_hashes(record)
        whole = whole and record["files"][CHECKS_TABLE]["sha256"] == sha256(content)
        table = pl.read_parquet(io.BytesIO(content)) if whole else None
    except (FileNotFoundError, NotADirectoryError):
        if (home / CHECKS_RECORD).exists():
            raise broken from None
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise broken from None
    if table is None or table.schema != FILM_CHECKS:
        raise broken
    return ImageChecks(table=table, record=record)


def summary(record: Mapping[str, Any]) -> str:
    """Count images by what is odd about them, in one line; checks that were not made come first."""
    fired = {name: f"{count:,} {name.replace('_', ' ')}" for name, count in record["fired"].items() if count}
    if "near_duplicate" in fired and "near_duplicate_pairs" in record:
        pairs = several(record["near_duplicate_pairs"], "pair")
        fired["near_duplicate"] += f" ({pairs}, {record['pairs_of_two_patients']:,} of two patients)"
    checked = record.get("checked", record["films"])
    unread = f" ({record['films'] - checked:,} more could not be read)" if checked < record["films"] else ""
    skipped = f", not for {', '.join(record['not_looked_for'])}" if record.get("not_looked_for") else ""
    words = ", ".join(fired.values()) or "nothing odd was found"
    return f"{several(checked, 'image was', 'images were')} checked{unread}{skipped}: {words} (docs/image-checks.md)"
