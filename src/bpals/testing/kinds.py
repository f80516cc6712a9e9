"""The contracts of what a package registers: a declaration with its options, and an export format."""

from __future__ import annotations

import inspect
import json
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import polars as pl

from bpals.registry import JUDGES, AskOptions, ExportKind, ImageOptions, JudgeKind, Kind, ServerOptions, options_of
from bpals.reviews.exchange import KEPT, TABLE, Films, Found, Written
from bpals.store.ledger.schema import PHASES, VERDICTS
from bpals.testing.contracts import require
from bpals.types import signal_schema

SIDE_PX = 1024
READ_BACK = ["external_id", "image_id", "finding", "reader", "verdict"]
"""What every format that can be imported gives back of a read."""


def check_kind(kind: Kind) -> None:
    """Check a declaration: it says what it is, and each option has one meaning among all installed judges."""
    require(bool(kind.name and kind.summary), f"{kind!r} has no name or no summary")
    require(bool(kind.extra) == bool(kind.packages), f"{kind.name}: an extra and its packages are named together")
    if kind.options is not None:
        frozen = is_dataclass(kind.options) and kind.options.__dataclass_params__.frozen  # type: ignore[attr-defined]
        require(frozen, f"{kind.name}: {kind.options.__name__} is no frozen dataclass")
    if isinstance(kind, JudgeKind):
        require(kind.form.partition(":")[0] == kind.name, f"{kind.name}: {kind.form} does not begin with its name")
        _check_options(kind)


def _check_options(kind: JudgeKind) -> None:
    shared = options_of(ImageOptions, AskOptions, ServerOptions)
    takes = inspect.signature(kind.open).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values())
    for name in options_of(kind.options):
        require(name not in shared, f"{kind.name}: {name} is an option of every judge. Call yours otherwise")
        # What is learnt on features takes its options from the task, not from what opens its backbone.
        known = anything or name in takes or kind.runs == "learn"
        require(known, f"{kind.name}: it declares {name}, which its `open` does not take")
        for other in JUDGES.every():
            alike = name not in options_of(other.options) or _type(kind, name) == _type(other, name)
            require(alike, f"{kind.name}: {name} is of another type in {other.name}. Call yours otherwise")


def _type(kind: JudgeKind, name: str) -> Any:
    declared = options_of(kind.options)[name][1].reads
    hint = get_type_hints(kind.options)[name]
    return declared or next((each for each in getattr(hint, "__args__", ()) if each is not type(None)), hint)


def tiny_reviews(count: int = 12) -> pl.DataFrame:
    """Make up reviews with the columns of an export: two readers, every verdict, some with a box."""
    rows = [
        {
            "image_id": f"{number // 4:04}_000.png",
            "finding": ("Effusion", "Mass", "Nodule")[number % 3],
            "reader": ("ann", "bob")[number % 2],
            "phase": PHASES[0],
            "round": 0,
            "repeat": 0,
            "verdict": VERDICTS[number % len(VERDICTS)],
            "saw_signal": 0,
            "box": "[[10, 20, 30.5, 40]]" if number % len(VERDICTS) == 0 else None,
            "at": f"2026-01-01T08:00:{number:02}.000+00:00",
            "external_id": f"read/{number}",
            "stands": 1,
        }
        for number in range(count)
    ]
    return pl.DataFrame(rows, schema=TABLE)


def tiny_signal() -> pl.DataFrame:
    """Make up two labels of one image, with the columns of a signal; nobody could judge the second."""
    findings = ("Effusion", "Mass")
    row = {"image_id": "0000_000.png", "says": "present", "p_present": 0.2, "trust": 0.2, "flag": "suspect",
           "reasons": ["timeline_against: absent after"], "review_rank": 1, "method": "judges-2"}  # fmt: skip
    rows = [{**row, "finding": findings[0]}, {"image_id": "0000_000.png", "says": "absent", "finding": findings[1]}]
    return pl.DataFrame(rows, schema=signal_schema(findings))


def check_export(kind: ExportKind, films: Films | None = None, reviews: pl.DataFrame | None = None) -> None:
    """Check a format: it writes files, changes nothing that it is handed, and gives back what it can read.

    A format that needs the files of the images is handed `films`, and `reviews` of these.
    """
    check_kind(kind)
    sent = tiny_reviews() if reviews is None else reviews
    known = films or Films(sizes=dict.fromkeys(sent["image_id"], (SIDE_PX, SIDE_PX)))
    before = sent.clone()
    written = kind.write(sent, known)
    require(isinstance(written, Written), f"{kind.name}: write gives {type(written).__name__}, not Written")
    require(sent.equals(before), f"{kind.name}: write changes the table that it is handed")
    files = written.files
    require(bool(files), f"{kind.name}: nothing is written")
    require(all(isinstance(content, bytes) for content in files.values()), f"{kind.name}: a file is not bytes")
    require("" not in files or len(files) == 1, f"{kind.name}: one file has no name, so there may be no other")
    require(not any("/" in name for name in files), f"{kind.name}: a name with a / would leave the folder")
    if kind.write_signal is not None:
        made = kind.write_signal(tiny_signal())
        fits = isinstance(made, Written) and bool(made.files)
        require(fits, f"{kind.name}: write_signal gives no files as Written")
    if "" in files and kind.content == "json":
        require(kind.is_ours(json.loads(files[""])), f"{kind.name}: is_ours does not know what write gives")
    if "" in files and kind.read is not None:
        _check_back(kind, kind.read(files[""], "a file"), sent)
    if "" not in files and kind.read_folder is not None:
        _check_back(kind, kind.read_folder(files, "a folder"), sent)


def _check_back(kind: ExportKind, found: Any, sent: pl.DataFrame) -> None:
    require(isinstance(found, Found), f"{kind.name}: read gives {type(found).__name__}, not Found")
    require(found.table.schema == KEPT, f"{kind.name}: read gives other columns than KEPT of bpals.reviews.exchange")
    require(not found.table.is_empty(), f"{kind.name}: nothing of what was written is read")
    columns = KEPT.names() if kind.whole else READ_BACK
    back = found.table.select(columns).sort("external_id")
    whole = not kind.whole or back.height == sent.height
    require(whole, f"{kind.name}: of {sent.height} reads {back.height} come back")
    wanted = sent.select(columns).filter(pl.col("external_id").is_in(back["external_id"].implode()))
    same = back.equals(wanted.sort("external_id"))
    require(same, f"{kind.name}: a read comes back otherwise than it was written")
