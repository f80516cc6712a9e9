"""A sealed judge: one image judge with all its answers, whole or not there.

    judgments/<judge>.parquet        what it says of the findings
    judgments/<judge>.films.parquet  what it says of the films themselves, where it was asked
    judgments/<judge>.json           its card, its outcomes counted, its offsets, and these files with their sha256

The record is written last. No audit removes a sealed judge, and sealing it anew breaks no audit: an audit names the
judges it used by the hash of their records.
"""

from __future__ import annotations

import fcntl
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bpals.durable import named, names_files, parquet, sha256, sync_folder, write_durably
from bpals.errors import UnknownName, UsageError, WorkspaceError

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
