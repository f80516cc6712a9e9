"""Compare what two versions of bpals write: the commit before the house was rebuilt, and the one at hand.

make identity DATA=PATH                                            in a fresh clone: makes the base's environment too
python scripts/identity.py --base-python BASE/.venv/bin/python     with an environment that holds the base already
python scripts/identity.py --quick --only room                     the parts that need no data; one part

Each side runs the same public commands. One line per comparison: `same`, or `DIFFERS` with the first difference.
Tables are equal bit for bit in every column but `reasons`; there the codes are equal, and sentences differ by the
words of WORDS only, as do the strings of JSON. MASKED lists what no two runs of one version share. Exit code 1: some
comparison differs.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).resolve().parent.parent
BASE = "3a990ea"
EXTRAS = "review,vlm,postgres,sr,dicom"
DONE = "done.json"

Words = Sequence[tuple[str, str]]
WORDS: Words = (
    ("films", "images"),
    ("film", "image"),
    ("with the claim", "with the label"),
    ("claimed", "labelled"),
    ("the rest of the record", "the metadata"),
    ("the record alone", "the metadata alone"),
)
"""Words that changed on purpose, (before, after), in reasons and in the strings of JSON; keys and codes never change.

`{}` stands for anything, in the same order on both sides: ("of {} films {} are", "of {} images, {} are").
Both sides are rewritten by the list, from the top down, before they are compared.
"""


@dataclass(frozen=True, slots=True)
class Mask:
    """A field of which only a part is compared, or only whether it is there."""

    file: str
    """Which files, as a pattern of part/path."""
    field: str
    """A key of JSON or a column, wherever it is."""
    why: str
    but: str = "^$"
    """What of it is compared all the same: a pattern."""
    only: str = ""
    """Only values that begin so are masked; by default all."""

    def shown(self, value: Any) -> Any:
        """Return what is compared of a value."""
        if self.only and not str(value).startswith(self.only):
            return value
        found = re.search(self.but, value) if isinstance(value, str) else None
        return None if value is None else found[0] if found else "*"


MASKED = (
    # run.json, and what `audit --json` prints: the same record.
    *(
        Mask(f"*/{file}.json", field, why)
        for file in ("run", "audit")
        for field, why in (
            ("bpals", "which version ran"),
            ("commit", "which version ran"),
            ("dirty", "which version ran"),
            ("packages", "what is installed beside it"),
            ("seconds", "a clock"),
            ("files", "each file is compared by itself; signal.parquet and report.html hold prose"),
            ("version", "a hash of signal.parquet, whose reasons have other words"),
            ("sealed", "a hash of judgments/*.json, which has times in it and is compared by itself"),
            ("reason", "prose, beside the value that is compared"),
            ("message", "prose, beside the code that is compared"),
            ("words", "prose, beside the numbers that are compared"),
        )
    ),
    Mask("*/list.json", "missing", "the line that installs an extra names the folder of its environment"),
    *(Mask("*/compare.json", field, "which version ran") for field in ("bpals", "commit", "dirty", "packages")),
    *(
        Mask(f"{file}.json", field, "a clock; `limit`, requests at once, follows it")
        for file in ("*/judgments/*", "judges/*", "continued*/judge", "continued*/status*")
        for field in ("seconds", "elapsed_s", "p50_s", "p95_s", "pairs_per_s", "films_per_s", "latest", "limit")
    ),
    # The reading room: random ids are numbered while its answers are recorded.
    Mask("*/answers.json", "id", "of an error: random"),
    Mask("*/answers.json", "reader", "`Reader 1` or `Reader 2`, by the order of random ids", but="^Reader"),
    Mask("*/answers.json", "link", "random; and the port is any free one", but="/enter#"),
    *(Mask("*/answers.json", field, "a clock") for field in ("at", "locked", "began", "seen", "ends")),
    *(
        Mask(f"*/{file}.json", field, "a clock")
        for file in ("answers", "progress*")
        for field in ("hours", "median_s", "per_hour")
    ),
    Mask("room/log.json", "hash", "of entries with times and random ids"),
    Mask("continued*/log-after.json", "hash", "of entries with times and random ids"),
    # Exports of what was read or imported a moment ago; the parts `continued` export one ledger twice, unmasked.
    *(
        Mask(f"{part}/{file}", field, "a clock")
        for part in ("room", "exports")
        for file in ("reads.*", "coco.json", "fiftyone.json", "label-studio.json")
        for field in ("active_s", "wall_s", "at", "truth_at", "created_at", "lead_time")
    ),
    *(
        Mask(f"room/{file}", field, "a hash of signal.parquet, whose reasons have other words")
        for file, field in (
            ("reads.*", "signal"),
            ("fiftyone.json", "signal"),
            ("label-studio.json", "signal"),
            ("progress*", "version"),
        )
    ),
    Mask("room/answers.json", "version", "a hash of signal.parquet, whose reasons have other words", only="sha256:"),
    Mask("room/reads.*", "reading_id", "random"),
    Mask("room/*", "external_id", "begins with a random reading_id", but="/.*"),
    Mask("room/label-studio.json", "id", "a hash of external_id"),
    *(
        Mask("*.dcm", field, "when the report was written")
        for field in (
            "InstanceCreationDate",
            "InstanceCreationTime",
            "ContentDate",
            "ContentTime",
            "ContributionDateTime",
        )
    ),
    Mask("*.dcm", "TextValue", "where it is the time of the import", but=r"^(?!\d{4}-\d\d-\d\dT).*"),
)

NEW_KINDS = {"record"}
"""Kinds that `bpals judge list` shows since it reads the registry, which sorts them by name."""

Difference = str | None
"""The first difference, in one line; none where there is none."""


# ---------------------------------------------------------------- comparing


def words_of(text: str, words: Words = WORDS) -> str:
    """Rewrite a sentence by the listed words."""
    for pattern, after in _compiled(tuple(words)):
        text = pattern.sub(after, text)
    return text


@functools.cache
def _compiled(words: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    made = []
    for before, after in words:
        parts = [re.escape(part) for part in before.split("{}")]
        # A word is a whole word: `film` is not found in `filmed`.
        start, end = (r"(?<!\w)" if before[:1].isalnum() else ""), (r"(?!\w)" if before[-1:].isalnum() else "")
        first, *rest = after.replace("\\", r"\\").split("{}")
        filled = first + "".join(rf"\g<{number}>{part}" for number, part in enumerate(rest, start=1))
        made.append((re.compile(start + "(.+?)".join(parts) + end), filled))
    return tuple(made)


def compare_json(base: Any, new: Any, *, masks: Sequence[Mask] = (), words: Words = WORDS) -> Difference:
    """Compare two values of JSON: keys and their order, numbers, and strings up to the listed words."""
    return next(_json_differences(base, new, "", masks, words), None)


def _json_differences(base: Any, new: Any, at: str, masks: Sequence[Mask], words: Words) -> Iterator[str]:
    if isinstance(base, dict) and isinstance(new, dict):
        if list(base) != list(new):
            lost, more = [key for key in base if key not in new], [key for key in new if key not in base]
            changed = f"keys {lost} are gone, {more} are new" if lost or more else "the keys have another order"
            yield f"{at or '.'}: {changed}"
        for key in (key for key in base if key in new):
            mask = _mask_of(key, masks)
            one, other = (side[key] if mask is None else mask.shown(side[key]) for side in (base, new))
            yield from _json_differences(one, other, f"{at}.{key}", masks, words)
    elif isinstance(base, list) and isinstance(new, list):
        for place, (one, other) in enumerate(zip(base, new, strict=False)):
            yield from _json_differences(one, other, f"{at}[{place}]", masks, words)
        if len(base) != len(new):
            yield f"{at}: {len(base)} entries are now {len(new)}"
    elif isinstance(base, str) and isinstance(new, str):
        if base != new and words_of(base, words) != words_of(new, words):
            yield f"{at}: {_short(base)} is now {_short(new)}"
    elif type(base) is not type(new) or base != new:
        yield f"{at}: {_short(base)} is now {_short(new)}"


def _mask_of(field: str, masks: Sequence[Mask]) -> Mask | None:
    return next((mask for mask in masks if mask.field == field), None)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 160 else f"{text[:157]}..."


def compare_tables(
    base: pl.DataFrame,
    new: pl.DataFrame,
    *,
    masks: Sequence[Mask] = (),
    words: Words = WORDS,
) -> Difference:
    """Compare two tables bit for bit; `reasons` by their codes and up to the listed words."""
    if base.schema != new.schema:
        return f"columns: {_short(dict(base.schema))} are now {_short(dict(new.schema))}"
    if base.height != new.height:
        return f"{base.height} rows are now {new.height}"
    for name in base.columns:
        one, other = base[name], new[name]
        if name == "reasons" and one.dtype == pl.List(pl.String):
            if difference := compare_reasons(one, other, words=words):
                return difference
            continue
        if (mask := _mask_of(name, masks)) is not None:
            one, other = (pl.Series([mask.shown(value) for value in side], dtype=pl.String) for side in (one, other))
        if (row := _first_unequal(one, other)) is not None:
            return f"{name}, row {row}: {_short(_plain(one[row]))} is now {_short(_plain(other[row]))}"
    return None


def _plain(value: Any) -> Any:
    """Write a number with all its digits, and a list as a list."""
    return value.hex() if isinstance(value, float) else value.to_list() if isinstance(value, pl.Series) else value


def _first_unequal(base: pl.Series, new: pl.Series) -> int | None:
    """Give the first row in which two columns differ by a bit; -0.0 is not 0.0, and null is only null."""
    nulls = base.is_null() != new.is_null()
    if base.dtype.is_float():
        one, other = (column.fill_null(0).to_numpy().view(f"u{column.to_numpy().itemsize}") for column in (base, new))
        unequal = pl.Series(one != other) | nulls
    else:
        unequal = base.ne_missing(new)
    return unequal.arg_max() if unequal.any() else None


def compare_reasons(base: pl.Series, new: pl.Series, *, words: Words = WORDS) -> Difference:
    """Compare lists of `code: sentence`: equal in codes, and in sentences up to the listed words."""
    counts = _first_unequal(base.list.len(), new.list.len())
    if counts is not None:
        return f"reasons, row {counts}: {_short(_plain(base[counts]))} is now {_short(_plain(new[counts]))}"
    both = pl.DataFrame({"base": base, "new": new}).with_row_index("row").explode("base", "new").drop_nulls("base")
    # Rows in which something differs, each pair of texts once.
    pairs = both.filter(pl.col("base").ne_missing(pl.col("new"))).unique(["base", "new"], maintain_order=True)
    for row, one, other in pairs.iter_rows():
        code, other_code = (text.partition(":")[0] for text in (one or "", other or ""))
        if code != other_code:
            return f"reasons, row {row}: code {code} is now {other_code}"
        if words_of(one, words) != words_of(other, words):
            return f"reasons, row {row}: {_short(one)} is now {_short(other)}"
    return None


def compare_files(base: Path, new: Path, *, masks: Sequence[Mask] = ()) -> Difference:
    """Compare two files by what they hold; files with the same bytes are the same."""
    if base.read_bytes() == new.read_bytes():
        return None
    reader = READERS.get(base.suffix)
    if reader is None:
        return "its bytes differ"
    if base.suffix == ".parquet":
        return compare_tables(pl.read_parquet(base), pl.read_parquet(new), masks=masks)
    return compare_json(reader(base), reader(new), masks=masks)


def _csv(file: Path) -> Any:
    with file.open(encoding="utf-8", newline="") as text:
        return [{name: value or None for name, value in row.items()} for row in csv.DictReader(text)]


def _dicom(file: Path) -> Any:
    import pydicom

    return _named(pydicom.dcmread(file))


def _named(record: Any) -> dict[str, Any]:
    """Give a DICOM record by the names of its tags, so that a mask can name one."""
    return {
        tag.keyword or str(tag.tag): [_named(item) for item in tag.value] if tag.VR == "SQ" else str(tag.value)
        for tag in record
    }


def _json(file: Path) -> Any:
    read = json.loads(file.read_text(encoding="utf-8"))
    if file.name == "list.json":
        kinds = [row for row in read["kinds"] if row["kind"] not in NEW_KINDS]
        read["kinds"] = sorted(kinds, key=lambda row: str(row["kind"]))
    return read


READERS: dict[str, Callable[[Path], Any]] = {
    ".json": _json,
    ".csv": _csv,
    ".dcm": _dicom,
    ".parquet": pl.read_parquet,
}


def compare_folders(part: str, base: Path, new: Path) -> Iterator[tuple[str, Difference]]:
    """Compare every file of two folders: its name, and the first difference."""
    names = sorted({str(file.relative_to(side)) for side in (base, new) for file in side.rglob("*") if file.is_file()})
    for name in names:
        one, other = base / name, new / name
        masks = [mask for mask in MASKED if fnmatch(f"{part}/{name}", mask.file)]
        if one.exists() and other.exists():
            yield name, compare_files(one, other, masks=masks)
        else:
            yield name, "the new side does not write it" if one.exists() else "the base does not write it"


# ---------------------------------------------------------------- two sides


def checkout(commit: str, home: Path) -> Path:
    """Check a commit out of the history and install it as the Makefile does; give its interpreter."""
    folder = home / commit
    python = folder / ".venv" / "bin" / "python"
    if (folder / ".venv" / ".identity").exists():
        return python
    line = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    known = subprocess.run(line, cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        _run("git", "fetch", "--quiet", "origin", commit, cwd=ROOT)
    _run("git", "worktree", "prune", cwd=ROOT)
    if not (folder / "pyproject.toml").exists():
        _run("git", "worktree", "add", "--quiet", "--force", "--detach", str(folder), commit, cwd=ROOT)
    _run("make", "--no-print-directory", ".venv/.core", f"PYTHON={sys.executable}", cwd=folder)
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-c", "constraints.txt")
    _run(*pip, "--editable", f".[{EXTRAS}]", cwd=folder)
    (folder / ".venv" / ".identity").touch()
    return python


def _run(*line: str, cwd: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "VENV"}}
    if subprocess.run(line, cwd=cwd, env=environment, check=False).returncode:
        raise SystemExit(f"this failed: {' '.join(line)}")


def examples_of(commit: str, folder: Path, names: Iterable[str]) -> Path:
    """Write the examples as the base has them: both sides run on the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        line = ["git", "show", f"{commit}:examples/{name}"]
        (folder / name).write_bytes(subprocess.run(line, cwd=ROOT, check=True, capture_output=True).stdout)
    return folder


def main() -> None:
    """Run the parts on both sides and print one line per comparison."""
    from identity_runs import EXAMPLES, PARTS, chosen

    given = _arguments(list(PARTS))
    home = ROOT / ".cache" / "identity"
    base_python = given.base_python or checkout(given.base, home)
    new_python = checkout(given.new, home) if given.new else given.new_python
    names = chosen(given.only, quick=given.quick, data=given.data is not None)
    for name in sorted(set(given.only or PARTS) - set(names)) if not given.quick else ():
        print(f"skipped  {name}: it needs --data")
    with tempfile.TemporaryDirectory(prefix="bpals-identity-") as scratch:
        keep = (given.keep or Path(scratch)).resolve()
        examples = examples_of(given.base, keep / "examples", EXAMPLES)
        common = {"examples": examples, "data": given.data}
        found = []
        for name in names:
            base = {"name": "base", "python": base_python.absolute(), "folder": keep / "base" / name, **common}
            new = {"name": "new", "python": new_python.absolute(), "folder": keep / given.name / name, **common}
            for file, difference in run_both(PARTS[name], base, None if given.base_only else new, given.base):
                found.append(difference)
                what = "same   " if difference is None else "DIFFERS"
                print(f"{what}  {name}{file}{f': {difference}' if difference else ''}", flush=True)
    differing = sum(difference is not None for difference in found)
    print(f"{len(found)} comparisons, {differing} differ")
    sys.exit(1 if differing else 0)


def _arguments(parts: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, metavar="COMMIT", help=f"the version before; by default {BASE}")
    parser.add_argument("--new", metavar="COMMIT", help="the version after; by default the one of --new-python")
    parser.add_argument("--base-python", type=Path, help="an interpreter that has the base; without it, --make")
    parser.add_argument("--new-python", type=Path, default=Path(sys.executable), help="by default this one")
    parser.add_argument("--make", action="store_true", help="check out and install what has no interpreter yet")
    parser.add_argument("--data", type=Path, help="the folder with expert/ and predictions/, for the NIH audits")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what a side wrote, and use what the base wrote")
    parser.add_argument("--only", action="append", default=[], choices=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--quick", action="store_true", help="only the parts on small data")
    parser.add_argument("--base-only", action="store_true", help="run the base, keep it, compare nothing")
    parser.add_argument("--name", default="new", help="what the new side's folder in --keep is called")
    given = parser.parse_args()
    if not given.base_python and not given.make:
        parser.error("where is the base? Name its --base-python, or --make")
    if given.data is not None and not (given.data / "expert").is_dir():
        parser.error(f"{given.data} has no folder expert. Type: make identity DATA=PATH, or ARGS=--quick")
    return given


def run_both(part: Any, base: Any, new: Any, commit: str) -> Iterator[tuple[str, Difference]]:
    """Run one part on both sides, the base only where nothing is kept of it, and compare."""
    from identity_runs import Failed, Side

    old = base["folder"]
    try:
        if not _is_kept(old, part.recipe, commit):
            run_part(part.run, Side(**base))
            (old / DONE).write_text(json.dumps({"recipe": part.recipe, "commit": commit}))
        if new is None:
            return
        run_part(part.run, Side(**new, old=old if part.goes_on else None))
    except Failed as failure:
        yield "", str(failure)
        return
    for file, difference in compare_folders(old.name, old / "out", new["folder"] / "out"):
        yield f"/{file}", difference


def _is_kept(folder: Path, recipe: int, commit: str) -> bool:
    done = folder / DONE
    return done.exists() and json.loads(done.read_text()) == {"recipe": recipe, "commit": commit}


def run_part(run: Callable[[Any], None], side: Any) -> None:
    """Run one part on one side, and leave only what is compared or gone on with."""
    began = time.monotonic()
    side.begin()
    run(side)
    for entry in side.folder.iterdir():
        if entry.name in {"out", "old", "old.sql", "old.csv", "kept.toml", "room.log"}:
            continue
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    print(f"ran      {side.folder.name} on {side.name} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
