"""`bpals doctor`: what is installed, what is missing, what to type."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from bpals.cli.terminal import AS_JSON, Row, alone
from bpals.errors import SourceError, install_line
from bpals.sources import nih
from bpals.store.ledger import old_sqlite, unfit
from bpals.version import VERSION

CORE = ("numpy", "polars", "threadpoolctl", "typer", "rich", "jinja2", "pillow", "sqlalchemy")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ROOM_FOR_AN_AUDIT = 500_000_000
"""Bytes: the old output, the new one and the staging folder together."""


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of bpals: what it gives and which packages it needs."""

    name: str
    gives: str

    @property
    def packages(self) -> list[str]:
        """The packages that bpals' own metadata names for it."""
        marked = re.compile(rf"([\w-]+).*; extra == [\"']{self.name}[\"']")
        found = map(marked.fullmatch, importlib.metadata.requires("bpals") or ())
        # The extra dev takes the others in as bpals[peers,...].
        return [each[1] for each in found if each and each[1] != "bpals"]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package in self.packages if _version(package) is None]


EXTRAS = (
    Extra("peers", "cleanlab and scikit-learn as baselines in the scorecard"),
    Extra("dev", "what the tests and checks of bpals itself need"),
    Extra("site", "the documentation as a site: make site"),
    Extra("vlm", "openai: judges behind an endpoint"),
    Extra("torch", "hf: judges that run in this process"),
    Extra("dicom", "DICOM images"),
    Extra("xrv", "xrv:, chexnet:, densenet121:, resnet50: classifier checkpoints"),
    Extra("probe", "probe: and onnx: judges"),
    Extra("lite0", "the probe's default backbone: bpals probe build"),
    Extra("ocr", "text burnt into images: --ocr"),
    Extra("review", "the reading room: bpals review serve"),
    Extra("sr", "reviews as DICOM SR: bpals review export"),
    Extra("release", "not used yet: building a release"),
    Extra("ray", "judging on more than one machine: --engine ray"),
    Extra("postgres", "a ledger for a team: --ledger URL"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: str
    """`ok`, `missing` (you can do without) or `wrong` (an audit will not work)."""
    found: str
    next: str = ""
    """What to type, where something can be done."""


def doctor(*, as_json: AS_JSON = False) -> None:
    """Say what is installed, what is missing and what to type."""
    checks = list(_checks())
    extras = [_extra(extra) for extra in EXTRAS]
    broken = any(check.state == "wrong" for check in checks)
    if as_json:
        record = {"bpals": VERSION, "python": sys.version.split()[0], "ok": not broken}
        print(json.dumps({**record, "checks": [asdict(check) for check in checks], "extras": extras}, indent=1))
    else:
        for check in checks:
            _print_row(check.state, check.name, check.found, check.next)
        print("\nextras")
        for extra in extras:
            _print_row(extra["state"], extra["extra"], extra["gives"], extra["next"])
    if broken:
        raise typer.Exit(2)


def _checks() -> Iterator[Check]:
    yield Check(name="bpals", state="ok", found=VERSION)
    yield Check(name="python", state="ok", found=f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in CORE:
        version = _version(package)
        yield _check(package, version or "not installed", install_line(), well=version is not None)
    yield _embedded_record()
    yield _machine()
    yield _disk(Path.cwd())
    yield _sqlite(sqlite3.sqlite_version_info)
    yield _ledger_place(Path.cwd())
    yield _browser()


def _check(name: str, found: str, cure: str, *, well: bool, otherwise: str = "wrong") -> Check:
    return Check(name=name, state="ok" if well else otherwise, found=found, next="" if well else cure)


def _embedded_record(folder: Path | None = None) -> Check:
    """Read every file of the embedded record; the source refuses one whose hash is not the published one."""
    try:
        size = sum(len(nih.read_embedded(name, folder)) for name in nih.EMBEDDED)
    except SourceError as error:
        damage, _, cure = str(error).partition(" Type: ")
        return Check(name="embedded record", state="wrong", found=damage, next=cure)
    found = f"{len(nih.EMBEDDED)} files, {size / 1e6:.1f} MB, hashes as published"
    return Check(name="embedded record", state="ok", found=found)


def _machine() -> Check:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check(name="machine", state="ok", found=f"{os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    cure = "free some space, or name another folder with --workspace DIR"
    return _check("disk", f"{free / 1e9:.1f} GB free in {folder}", cure, well=free >= ROOM_FOR_AN_AUDIT)


def _sqlite(version: tuple[int, ...]) -> Check:
    """Say what to mind with this SQLite; the ledger is safe with any, because it has one writer."""
    written = ".".join(map(str, version))
    return Check(name="sqlite", state="ok", found=old_sqlite(version) or f"{written}, for the ledger of asked judges")


def _ledger_place(folder: Path, mounts: Path = Path("/proc/mounts")) -> Check:
    """Say whether a ledger may lie here; where the system does not tell, nothing is known against it."""
    why = unfit(folder, mounts.read_text(encoding="utf-8")) if mounts.exists() else None
    cure = "bpals judge run ... --workspace DIR (on a disk of this machine)"
    return _check("ledger", why or "this folder can hold one", cure, well=not why, otherwise="missing")


def _browser() -> Check:
    found = next((path for browser in BROWSERS if (path := shutil.which(browser))), None)
    words = found or "not found; only bpals' own browser tests use it"
    return _check("chromium", words, "sudo apt-get install chromium", well=found is not None, otherwise="missing")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extra(extra: Extra) -> Row:
    missing = extra.missing
    return {
        "extra": extra.name,
        "state": "missing" if missing else "ok",
        "gives": extra.gives,
        "missing": missing,
        "next": install_line(extra.name) if missing else "",
    }


def _print_row(state: str, name: str, found: str, type_next: str) -> None:
    """Print plain lines: a table would break the line to paste on a narrow terminal."""
    print(f"{state:8} {name:16} {found}")
    if type_next:
        print(f"{'':25} type: {type_next}")


app = alone(doctor, "bpals doctor --json")
