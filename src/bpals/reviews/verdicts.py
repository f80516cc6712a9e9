"""What readers wrote, one row a verdict: from a sheet with a column a finding, or with a row a finding."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from bpals.errors import TruthError, UnknownName, UsageError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS, Group, Vocabulary, fold
from bpals.numeric import majority
from bpals.store.tables import TableWords, open_table, read_columns
from bpals.text import several
from bpals.types import REVIEWS, SETTLED, TRUTH, Notice, Reference, Reviews

SHEET = ("image_id", "finding", "reader", "verdict")
ENDING = ".key.csv"
_PAIR = ["image_id", "finding"]
_KEY = {"image_id": pl.String, "finding": pl.String, "inclusion": pl.Float64}


def key_of(sheet: Path) -> Path:
    """Name the key that belongs to a sheet: `list.csv` has `list.key.csv`."""
    return sheet.with_name(sheet.stem + ENDING)


def write_sheet(listed: pl.DataFrame, sheet: Path) -> Path:
    """Write a reading list as a sheet to be filled in, and its key beside it; give the key's path."""
    key = key_of(sheet)
    for file in (sheet, key):
        if file.exists():
            raise UsageError(
                f"{file} is there already, and somebody may have filled it in. Name another with --out FILE"
            )
    blank = listed.select(*_PAIR).with_columns(reader=pl.lit(None, pl.String), verdict=pl.lit(None, pl.String))
    try:
        listed.write_csv(key)
        blank.select(SHEET).write_csv(sheet)
    except OSError as error:
        raise UsageError(f"{sheet} cannot be written: {error.strerror}. Name another with --out FILE") from None
    return key


def with_inclusion(reads: pl.DataFrame, sheet: Path) -> pl.DataFrame:
    """Fill in the chances of REVIEWS from the key beside their sheet, if any; what a row says itself stands."""
    file = key_of(sheet)
    if not file.is_file():
        return reads
    try:
        key = pl.read_csv(file, columns=list(_KEY), schema_overrides=_KEY).unique(_PAIR)
    except (pl.exceptions.PolarsError, OSError):
        raise TruthError(
            f"{file} is not the key of a reading list: it needs {', '.join(_KEY)}. Move it away, or bring back the key"
        ) from None
    filled = reads.join(key.rename({"inclusion": "drawn"}), on=_PAIR, how="left", maintain_order="left")
    return filled.with_columns(inclusion=pl.coalesce("inclusion", "drawn")).select(reads.columns)


SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""What a folder is searched for."""

LINE = "\0line"
"""The column that says where a row stood; no header can be called so."""

UNPACKED = "{name} is cut off or damaged: gzip cannot unpack it. Download it again"
UNEVEN = (
    "{name}, line {line}: {fields} where the header has {width}; the file may be cut off. "
    "Mend that line, or download the file again"
)
HALF = "{name} is no whole Parquet file. Download it again"

SHEET_WORDS = TableWords(
    error=TruthError,
    folder="{name} cannot be read: Is a directory. Check the path",
    gzip_cut=UNPACKED,
    gzip_damaged=UNPACKED,
    not_utf8=(
        "{name}, line {line}: byte {byte} is not UTF-8. "
        "Type: iconv -f latin1 -t utf-8 {name} > utf8.csv, and name that file"
    ),
    empty="{name} is empty. Download it again, or name another file",
    no_rows="{name} has a header and no row. Fill it in, or name another file",
    cut_row=UNEVEN,
    uneven_row=UNEVEN,
    doubled="{name}, line 1: the column {column!r} stands twice. Rename or remove one of them",
    parquet_cut=HALF,
    parquet_damaged=HALF,
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """One file, every cell as text."""

    path: Path
    cells: pl.DataFrame
    """Columns under their folded names, and LINE."""
    titles: dict[str, str]
    """Folded name -> the header as written."""
    sha256: str

    def where(self, line: object) -> str:
        """Name the file and the line."""
        return f"{self.path}, {'row' if self.path.suffix == '.parquet' else 'line'} {line}"


def sheet_columns(path: Path) -> list[str]:
    """Read the folded column names alone, to recognise a file; what cannot be read has none."""
    try:
        return [fold(name) for name in read_columns(path, words=SHEET_WORDS)]
    except TruthError:
        return []


def candidates(path: Path) -> list[Path]:
    """Give the files that a path may mean: itself, or the tables in the folder."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(SUFFIXES))
    return [path]


def read_sheet(path: Path, typed: str = "") -> Sheet:
    """Read a CSV, TSV or Parquet file, packed with gzip or not; a bad one is refused in one line.

    `typed` says where its path was typed: `--reviews`, or `--reference KIND=`.
    """
    where = f" after {typed}" if typed else ""
    file = open_table(path, words=replace(SHEET_WORDS, where=where, folder=SHEET_WORDS.folder + where))
    raw = file.whole()
    lines = np.arange(1, raw.frame.height + 1) if raw.lines is None else raw.lines
    titles = {fold(name): name for name in raw.frame.columns}
    cells = raw.frame.rename({name: folded for folded, name in titles.items()})
    return Sheet(path, cells.with_columns(pl.Series(LINE, lines, dtype=pl.UInt32)), titles, file.sha256)


IMAGE_COLUMNS = ("image id", "image index", "image")
READER_COLUMNS = ("reader", "reader id")
SPLIT_COLUMNS = ("set id", "split", "set")
VERDICT_COLUMNS = ("verdict", "present")
INCLUSION = "inclusion"

VERDICTS = pl.Schema(
    {
        "image_id": pl.String,
        "finding": pl.String,  # a finding of the vocabulary, or the name of a group
        "reader": pl.String,  # null where the file speaks for all readers at once
        "verdict": pl.String,  # present, absent, uncertain or unreadable
        "split": pl.String,  # val, test or another word of the file; null where it names none
        "inclusion": pl.Float64,  # chance with which the pair was drawn to be read; null where nobody knows
    }
)
"""One row a verdict; a blank cell was not read and is no row."""

VERDICT_WORDS = "present, absent, uncertain or unreadable (YES, NO and HEDGE are taken too)"
"""What may be written for a verdict, as people are told."""
_WORDS = (
    dict.fromkeys(("yes", "y", "1", "1.0", "true", "present", "positive"), "present")
    | dict.fromkeys(("no", "n", "0", "0.0", "false", "absent", "negative"), "absent")
    | dict.fromkeys(("hedge", "uncertain", "-1", "-1.0", "maybe"), "uncertain")
    | {"unreadable": "unreadable"}
    | dict.fromkeys(("", "na", "n/a", "nan", "null", "none"), "unread")
)
_SPLITS = {"validation": "val", "valid": "val", "": None}


def column(sheet: Sheet, names: Iterable[str]) -> str | None:
    """Give the first of these columns that the sheet has."""
    return next((name for name in names if name in sheet.titles), None)


def spellings(vocabulary: Vocabulary, groups: Iterable[Group]) -> dict[str, str]:
    """Every folded spelling of a finding, or of a group whose members are all audited -> its name."""
    whole = [group for group in groups if set(group.members) <= set(vocabulary.findings)]
    named = {fold(group.name): group.name for group in whole}
    slashed = {fold(group.name.replace(" or ", "/")): group.name for group in whole}
    return slashed | named | vocabulary.spellings


def of_split(chosen: list[Sheet], split: str, option: str = "--split") -> list[Sheet]:
    """Keep the rows of one split, which an option names; a file that names none has only `all`."""
    if split == "all":
        return chosen
    kept = [replace(sheet, cells=sheet.cells.filter(_split(sheet) == split)) for sheet in chosen]
    if all(sheet.cells.is_empty() for sheet in kept):
        named = sorted({word for sheet in chosen for word in sheet.cells.select(_split(sheet)).to_series() if word})
        has = f"there is {', '.join(named)}" if named else "there is no column 'Set Id'"
        raise TruthError(f"{chosen[0].path} has no row of the split {split!r}: {has}. Type: {option} all")
    return [sheet for sheet in kept if not sheet.cells.is_empty()]


def wide(sheet: Sheet, findings: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with a column a finding: `findings` says which column means which."""
    long = _keyed(sheet).hstack(sheet.cells.select(list(findings)))
    melted = long.unpivot(
        list(findings),
        index=["image_id", "reader", "split", INCLUSION, LINE],
        variable_name="finding",
        value_name="word",
    )
    return _spoken(sheet, melted.with_columns(pl.col("finding").replace_strict(dict(findings))))


def long(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with a row a finding: columns `finding`, and `verdict` or `present`."""
    spoken = column(sheet, VERDICT_COLUMNS)
    if spoken is None:
        raise TruthError(
            f"{sheet.path} has a column 'finding' but none called 'verdict' or 'present'. Rename the column of verdicts"
        )
    rows = _keyed(sheet).hstack(sheet.cells.select(finding="finding", word=spoken))
    for word, line in rows.group_by("finding", maintain_order=True).agg(pl.col(LINE).first()).iter_rows():
        if fold(word) not in known:
            raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=sheet.where(line))
    names = {word: known[fold(word)] for word in rows["finding"].unique()}
    return _spoken(sheet, rows.with_columns(pl.col("finding").replace_strict(names, return_dtype=pl.String)))


def unaudited(sheet: Sheet, known: Mapping[str, str]) -> list[Notice]:
    """Count the columns of verdicts that no audited finding answers to; a slip of the pen is refused."""
    notices = []
    for name, title in sheet.titles.items():
        words = sheet.cells[name].str.to_lowercase()
        if (
            name in known
            or name in (*IMAGE_COLUMNS, *READER_COLUMNS, INCLUSION)
            or not set(words.unique()) <= set(_WORDS)
        ):
            continue
        if difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise UnknownName.of("finding", title, list(dict.fromkeys(known.values())), where=sheet.where(1))
        present = sum(_WORDS[word] == "present" for word in words)
        left = several(present, "presence was", "presences were")
        message = f"{sheet.path}: {title!r} is not audited; its {left} left out"
        notices.append(Notice(code="unaudited", count=present, message=message))
    return notices


def outside(sheet: Sheet, known: Mapping[str, str]) -> dict[str, str]:
    """Give the columns of verdicts that no audited finding answers to, folded name -> title; a slip is refused."""
    found = {}
    for name, title in sheet.titles.items():
        said = {_WORDS.get(word, "") for word in sheet.cells[name].str.to_lowercase().unique()}
        if name in known or name in (*IMAGE_COLUMNS, *READER_COLUMNS, INCLUSION) or "" in said or said == {"unread"}:
            continue
        if difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise UnknownName.of("finding", title, list(dict.fromkeys(known.values())), where=sheet.where(1))
        found[name] = title
    return found


def _keyed(sheet: Sheet) -> pl.DataFrame:
    """Give image, reader, split and line of each row."""
    image, reader = column(sheet, IMAGE_COLUMNS), column(sheet, READER_COLUMNS)
    if image is None:
        raise TruthError(
            f"{sheet.path} has no image column; it has {', '.join(sheet.titles.values())}. Call one of them image_id"
        )
    nameless = sheet.cells.filter(pl.col(image) == "")
    if not nameless.is_empty():
        raise TruthError(f"{sheet.where(nameless[LINE][0])}: no image id. Fill it in, or remove the row")
    return sheet.cells.select(
        pl.col(image).alias("image_id"),
        (pl.col(reader) if reader else pl.lit(None, pl.String)).alias("reader"),
        _split(sheet).alias("split"),
        LINE,
    ).hstack([_inclusion(sheet)])


def _inclusion(sheet: Sheet) -> pl.Series:
    """Read each row's chance of having been drawn; a blank is unknown, and what is no chance is refused."""
    if INCLUSION not in sheet.titles:
        return pl.Series(INCLUSION, [None] * sheet.cells.height, dtype=pl.Float64)
    words = sheet.cells[INCLUSION]
    chance = words.cast(pl.Float64, strict=False)
    wrong = sheet.cells.filter(
        (words != "") & ~(chance.is_between(0, 1, closed="right") & chance.is_not_nan()).fill_null(value=False)
    )
    if not wrong.is_empty():
        raise TruthError(
            f"{sheet.where(wrong[LINE][0])}: {wrong[INCLUSION][0]!r} under 'inclusion' is no chance of being drawn. "
            "Write a number above 0 and at most 1, or leave it blank where nobody knows"
        )
    return chance.alias(INCLUSION)


def _split(sheet: Sheet) -> pl.Expr:
    """Read the split off its column, else off the file's name, as in `..._test_labels.csv`."""
    if name := column(sheet, SPLIT_COLUMNS):
        return pl.col(name).str.to_lowercase().replace(_SPLITS)
    words = {_SPLITS.get(word, word) for word in re.split(r"[^a-z]+", sheet.path.name.lower())} & {"val", "test"}
    return pl.lit(words.pop() if len(words) == 1 else None, pl.String)


def _spoken(sheet: Sheet, rows: pl.DataFrame) -> pl.DataFrame:
    """Turn words into verdicts; an unknown word is refused where it stands."""
    said = rows.with_columns(verdict=pl.col("word").str.to_lowercase().replace_strict(_WORDS, default=None))
    strange = said.filter(pl.col("verdict").is_null()).sort(LINE)
    if not strange.is_empty():
        first = strange.row(0, named=True)
        raise TruthError(
            f"{sheet.where(first[LINE])}: {first['word']!r} under {first['finding']!r} is no verdict. "
            f"Write {VERDICT_WORDS}, or leave the cell blank where nobody read"
        )
    return said.filter(pl.col("verdict") != "unread").select(VERDICTS.names()).cast(VERDICTS)


VOTING = ("blind", "amended", "imported")
_MARKS = {"finding", "verdict", "phase", "saw signal", "repeat", "stands", "external id"}
_TRUTH = {"truth", "truth by", "truth round"}


def voting(sheet: Sheet) -> Sheet:
    """Keep the rows of an export that vote; any other sheet is as it is."""
    if not sheet.titles.keys() >= _MARKS:
        return sheet
    blind = pl.col("phase").is_in(VOTING) & (pl.col("saw signal") == "0")
    return replace(sheet, cells=sheet.cells.filter(blind & (pl.col("repeat") == "0") & (pl.col("stands") == "1")))


def settled_in_export(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Give what people settled after they saw each other's opinions, as SETTLED; `known` names the findings."""
    image = column(sheet, IMAGE_COLUMNS)
    if image is None or not sheet.titles.keys() >= _MARKS | _TRUTH:
        return pl.DataFrame(schema=SETTLED)
    together = (pl.col("truth by") != "") | ~pl.col("truth round").is_in(["", "0"])
    told = sheet.cells.filter(together, pl.col("truth").is_in(["present", "absent"]))
    names = {word: known.get(fold(word)) for word in told["finding"].unique()}
    pairs = told.select(
        image_id=image,
        finding=pl.col("finding").replace_strict(names, return_dtype=pl.String),
        settled=(pl.col("truth") == "present").cast(pl.Float64),
    )
    return pairs.drop_nulls().unique(["image_id", "finding"], keep="last", maintain_order=True).cast(SETTLED)


KINDS = ("four-findings", "all-findings", "boxes", "table")
SPLITS = ("val", "test", "all")
GROUPS = (NODULE_OR_MASS, AIRSPACE_OPACITY)
_READ = [*_PAIR, "reader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns by which a file is recognised."""

    title: str
    columns: tuple[str, ...] = ()
    """Folded names; `a|b` is either."""
    readers: bool
    """One row a reader, or one row for all readers."""

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Give the columns that a file would need to be one of these."""
        needed = ["|".join(IMAGE_COLUMNS), *self.columns]
        if self.readers:
            needed.append("|".join(READER_COLUMNS))
        return [each.split("|")[0] for each in needed if not set(each.split("|")) & set(names)]

    def fits(self, names: Sequence[str]) -> bool:
        """Say whether a file with these columns is one of these."""
        return not self.lacks(names) and (self.readers or not _by_reader(names))


FOUR = Layout(
    title="the four findings", columns=("pneumothorax", "airspace opacity", "nodule or mass|nodule/mass"), readers=False
)
FOURTEEN = Layout(title="the 14 findings", columns=tuple(map(fold, NIH.findings)), readers=False)
FOURTEEN_READ = Layout(title="the 14 findings by reader", columns=FOURTEEN.columns, readers=True)
READ = Layout(title="verdicts by reader", readers=True)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a path was typed, and which of its rows were asked for by which option."""

    typed: str
    split: str
    option: str

    def rows_of(self, chosen: list[Sheet]) -> list[Sheet]:
        """Keep the rows that were asked for."""
        return of_split(chosen, self.split, self.option)


@dataclass(slots=True)
class _Said:
    """Verdicts on their way to a reference, with what was noticed."""

    path: Path
    sheets: list[Sheet]
    table: pl.DataFrame
    notices: list[Notice]

    @property
    def inputs(self) -> dict[str, str]:
        """Name and hash of each file read."""
        return {sheet.path.name: sheet.sha256 for sheet in self.sheets}

    def count(self, code: str, count: int, one: str, many: str) -> None:
        """Note something that was read on from, if it was there; what is said of one, and of many."""
        if count:
            self.notices.append(Notice(code=code, count=count, message=f"{self.path}: {several(count, one, many)}"))


def parse(spec: str, option: str = "--reference") -> tuple[str, Path | None]:
    """Take the KIND=PATH of an option apart; `boxes` may stand alone, and `table:PATH` is `table=PATH`."""
    kind, mark, path = spec.partition(":" if spec.startswith("table:") else "=")
    if kind not in KINDS:
        if Path(spec).suffix.lower() in (".csv", ".gz", ".tsv", ".parquet") and not mark:
            raise UsageError(f"{spec} is a file, not a reference: its kind is missing. Type: {option} table={spec}")
        raise UnknownName.of("kind of reference", kind, KINDS, where=option)
    if not path:
        if kind == "boxes" and not mark:
            return kind, None
        raise UsageError(f"the reference {spec!r} names no file. Type: {option} {kind}=PATH")
    return kind, Path(path).expanduser()


def load(
    spec: str,
    *,
    vocabulary: Vocabulary,
    split: str = "all",
    boxes: pl.DataFrame | None = None,
    min_readers: int | None = None,
    option: str = "--reference",
) -> Reference:
    """Read the expert labels of a spec, which an option named; boxes are handed in, by who knows where they are."""
    kind, path = parse(spec, option)
    place = _place(option, f"{option} KIND=", split)
    if min_readers is not None and min_readers < 1:
        raise UsageError(f"{min_readers} readers cannot agree. Type: --min-readers 1, or more")
    if kind == "boxes" or path is None:
        return _boxed(boxes, vocabulary)
    if kind == "table":
        return _settled(kind, _table(path, vocabulary, place))
    if kind == "four-findings":
        return _settled(kind, _labels_of(path, _recognised(path, FOUR, place), vocabulary))
    by_reader = min_readers is not None or (_fitting(path, FOURTEEN_READ) and not _fitting(path, FOURTEEN))
    said = _labels_of(path, _recognised(path, FOURTEEN_READ if by_reader else FOURTEEN, place), vocabulary)
    return _voted(kind, said, min_readers) if by_reader else _settled(kind, said)


def load_reads(path: str | Path, *, vocabulary: Vocabulary, split: str = "all", option: str = "--reviews") -> Reviews:
    """Read files with one row a read: a column a finding, or the columns `finding` and `verdict`."""
    where = Path(path).expanduser()
    place = _place(option, option, split)
    chosen = _recognised(where, READ, place)
    votes = [voting(sheet) for sheet in chosen]
    said = _labels_of(where, votes, vocabulary)
    silent = sum(sheet.cells.height for sheet in chosen) - sum(sheet.cells.height for sheet in votes)
    said.count(
        "no_votes",
        silent,
        "row is a second read, a round, a repeat or was replaced, and does not vote",
        "rows are second reads, rounds, repeats or were replaced, and do not vote",
    )
    known = spellings(vocabulary, GROUPS)
    settled = pl.concat([settled_in_export(sheet, known) for sheet in chosen])
    _one_verdict_a_reader(said)
    if said.table.is_empty():
        raise TruthError(f"{where} holds no read. Write {VERDICT_WORDS}; or name another file")
    read = said.table.select(REVIEWS.names()).cast(REVIEWS)
    table = with_inclusion(read, where)
    keyed = read["inclusion"].null_count() - table["inclusion"].null_count()
    key = f"chance of being drawn from the key of the file, {key_of(where)}"
    said.count("key_used", keyed, f"read got its {key}", f"reads got their {key}")
    return Reviews(
        table=table,
        groups=_groups_of(table),
        inputs=said.inputs,
        notices=tuple(said.notices),
        settled=settled.unique(["image_id", "finding"], keep="last", maintain_order=True),
    )


def of_films(reviews: Reviews, images: pl.DataFrame) -> Reviews:
    """Keep the reads of films that are here; the others are counted, and none at all is refused."""
    here = reviews.table.join(images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    names = ", ".join(reviews.inputs)
    if here.is_empty():
        first = reviews.table["image_id"][0]
        raise TruthError(
            f"{names}: no read is about a film of this dataset (first: {first}). Name another file of reads"
        )
    return replace(reviews, table=here, notices=(*reviews.notices, *unknown_films(names, reviews.table, images)))


def unknown_films(name: str, pairs: pl.DataFrame, images: pl.DataFrame) -> list[Notice]:
    """Count what experts say of films that the dataset does not have."""
    missing = pairs.join(images.select("image_id"), on="image_id", how="anti", maintain_order="left")
    if missing.is_empty():
        return []
    films = missing["image_id"].n_unique()
    verdict = several(missing.height, "verdict is", "verdicts are")
    those = several(films, "film that is", "films that are")
    message = f"{name}: {verdict} about {those} not in this dataset (first: {missing['image_id'][0]}): left out"
    return [Notice(code="unknown_images", count=missing.height, message=message)]


def _place(option: str, typed: str, split: str) -> _Place:
    """Say where a path was typed; an audit has an option of its own for the rows of each of its files."""
    picks = "--split" if option in ("--reference", "--readers") else f"{option}-split"
    if split not in SPLITS:
        raise UnknownName.of("split", split, SPLITS, where=picks)
    return _Place(typed, split, picks)


def _recognised(path: Path, layout: Layout, place: _Place) -> list[Sheet]:
    """Read the file, or those files of the folder, that have this layout and rows of this split."""
    if path.is_dir():
        chosen = [read_sheet(file, place.typed) for file in _fitting(path, layout)]
        if not chosen:
            seen = ", ".join(file.name for file in candidates(path)) or "no table"
            needs = ", ".join(layout.lacks([]))
            raise TruthError(f"{path} has no file with {layout.title} ({needs}); it has {seen}. Name the file itself")
        return place.rows_of(chosen)
    sheet = read_sheet(path, place.typed)
    if lacking := layout.lacks(list(sheet.titles)):
        raise TruthError(
            f"{path}, line 1: no column {', '.join(map(repr, lacking))}, so these are not {layout.title}. "
            f"{_else(path, layout, place)}"
        )
    if not layout.fits(list(sheet.titles)):
        reads = "bpals score --readers" if place.option == "--split" else "bpals audit --reviews"
        raise TruthError(f"{path} has one row a reader, not one an image. Type: {reads} {path}")
    return place.rows_of([sheet])


def _fitting(path: Path, layout: Layout) -> list[Path]:
    """Give the files of this layout without reading them whole."""
    return [file for file in candidates(path) if layout.fits(sheet_columns(file))]


def _by_reader(names: Sequence[str]) -> bool:
    return bool(set(READER_COLUMNS) & set(names))


def _else(path: Path, layout: Layout, place: _Place) -> str:
    if layout is READ:
        return f"Name another file after {place.typed}, or add the column"
    return f"Name another file, or type: {place.typed.replace('KIND', 'table')}{path}"


def _labels_of(path: Path, chosen: list[Sheet], vocabulary: Vocabulary) -> _Said:
    """Read sheets with a row a finding where they have a column `finding`, else with a column a finding."""
    known = spellings(vocabulary, GROUPS)
    order = [*vocabulary.findings, *(group.name for group in GROUPS)]
    said = _Said(path, chosen, pl.DataFrame(schema=VERDICTS), [])
    for sheet in chosen:
        if "finding" in sheet.titles:
            said.table = said.table.vstack(long(sheet, known))
            continue
        columns = sorted(known.keys() & sheet.titles.keys(), key=lambda name: order.index(known[name]))
        findings = {name: known[name] for name in columns}
        said.notices += unaudited(sheet, known)
        if not findings:
            raise TruthError(
                f"{sheet.path}, line 1: no column is an audited finding ({', '.join(sheet.titles.values())}). "
                f"Name a column after one of {', '.join(vocabulary.findings)}"
            )
        said.table = said.table.vstack(wide(sheet, findings))
    return said


def _table(path: Path, vocabulary: Vocabulary, place: _Place) -> _Said:
    """Read any table: one row a pair where it has a column `finding`, else one column a finding."""
    if path.is_dir():
        raise TruthError(f"{path} is a folder. Name a file in it after {place.typed}: table={path}/FILE.csv")
    (sheet,) = place.rows_of([read_sheet(path, place.typed)])
    return _labels_of(path, [sheet], vocabulary)


def _settled(kind: str, said: _Said) -> Reference:
    """Make one truth of each pair from rows that speak for all readers."""
    if said.table["reader"].is_not_null().any():
        return _voted(kind, said, None)
    rows = _certain(said)
    pairs = rows.group_by(_PAIR, maintain_order=True).agg(
        (pl.col("verdict") == "present").first().alias("present"),
        pl.col("split").first(),
        pl.len().alias("rows"),
        pl.col("verdict").n_unique().alias("verdicts"),
    )
    agreeing = (pl.col("rows") > 1) & (pl.col("verdicts") == 1)
    said.count(
        "duplicates",
        pairs.filter(agreeing).height,
        "pair stands more than once, always the same; it counts once",
        "pairs stand more than once and agree; each counts once",
    )
    against = pairs.filter(pl.col("verdicts") > 1)
    first = _first(against)
    said.count(
        "contradictions",
        against.height,
        f"pair contradicts itself and was left out{first}",
        f"pairs contradict themselves and were left out{first}",
    )
    return _reference(kind, said, pairs.filter(pl.col("verdicts") == 1))


def _voted(kind: str, said: _Said, min_readers: int | None) -> Reference:
    """Make one truth of each pair from its readers: the majority, or present if at least K say so."""
    _one_verdict_a_reader(said)
    votes = majority(_certain(said), "split").with_columns(reads=pl.col("yes") + pl.col("no"))
    if min_readers is None:
        tied = votes.filter("tied")
        first = _first(tied)
        said.count(
            "ties",
            tied.height,
            f"pair splits the readers evenly and was left out{first}",
            f"pairs split the readers evenly and were left out{first}",
        )
        return _reference(kind, said, votes.filter(~pl.col("tied")))
    few = votes.filter(pl.col("reads") < min_readers)
    if few.height == votes.height:
        most = max(votes["reads"])
        raise TruthError(
            f"{said.path}: no pair has {min_readers} readers; the most is {most}. Type: --min-readers {most}"
        )
    fewer = f"fewer than {min_readers} readers and"
    said.count("few_readers", few.height, f"pair has {fewer} was left out", f"pairs have {fewer} were left out")
    enough = votes.filter(pl.col("reads") >= min_readers)
    return _reference(kind, said, enough.with_columns(present=pl.col("yes") >= min_readers))


def _certain(said: _Said) -> pl.DataFrame:
    for verdict in ("uncertain", "unreadable"):
        count = said.table.filter(pl.col("verdict") == verdict).height
        one, many = f"{verdict} verdict was left out", f"{verdict} verdicts were left out"
        said.count(f"{verdict}_verdicts", count, one, many)
    return said.table.filter(pl.col("verdict").is_in(["present", "absent"]))


def _one_verdict_a_reader(said: _Said) -> None:
    """Keep one verdict a reader and pair; a reader who says two things about a pair is left out there."""
    if said.table["reader"].is_null().any() or (said.table["reader"] == "").any():
        raise TruthError(f"{said.path}: some rows name no reader. Fill in the reader, or remove those rows")
    pairs = said.table.group_by(_READ).agg(pl.len().alias("rows"), pl.col("verdict").n_unique().alias("verdicts"))
    against = pairs.filter(pl.col("verdicts") > 1).sort(_READ)
    two = f"one reader said two things about a pair; that reader was left out there{_first(against)}"
    said.count("reader_contradicts", against.height, f"time {two}", f"times {two}")
    again = pairs.filter((pl.col("rows") > 1) & (pl.col("verdicts") == 1))
    same = "one reader said the same about a pair again; it counts once"
    said.count("reader_repeats", again.height, f"time {same}", f"times {same}")
    said.table = said.table.join(against, on=_READ, how="anti").unique(_READ, keep="first", maintain_order=True)


def _first(pairs: pl.DataFrame) -> str:
    return f" (first: {pairs['image_id'][0]}, {pairs['finding'][0]})" if pairs.height else ""


def _reference(kind: str, said: _Said, pairs: pl.DataFrame) -> Reference:
    if pairs.is_empty():
        raise TruthError(
            f"{said.path} holds no verdict that could be used. Write present or absent (YES and NO are taken too); or "
            "name another file"
        )
    if pairs["present"].all():
        those = several(pairs.height, "pair is", "pairs are all")
        raise TruthError(
            f"{said.path} has no negatives: its {those} present, so a missed finding could not "
            "be told from a right absence. Add the pairs that were read as absent"
        )
    truth = pairs.select(TRUTH.names()).cast(TRUTH)
    groups = _groups_of(truth)
    return Reference(kind=kind, truth=truth, groups=groups, inputs=said.inputs, notices=tuple(said.notices))


def _groups_of(pairs: pl.DataFrame) -> tuple[Group, ...]:
    named = set(pairs["finding"].unique())
    return tuple(group for group in GROUPS if group.name in named)


def _boxed(boxes: pl.DataFrame | None, vocabulary: Vocabulary) -> Reference:
    """Make confirmed presences of the boxes, one a pair."""
    if boxes is None:
        raise UsageError("the reference 'boxes' needs the boxes themselves. Type: bpals score --reference boxes")
    names = {word: vocabulary.resolve([word], where="boxes")[0] for word in boxes["finding"].cast(pl.String).unique()}
    truth = boxes.select(
        pl.col("image_id").cast(pl.String),
        pl.col("finding").cast(pl.String).replace_strict(names, return_dtype=pl.String),
        pl.lit(True).alias("present"),
        pl.lit(None, pl.String).alias("split"),
    )
    return Reference(kind="boxes", truth=truth.unique(_PAIR, maintain_order=True), positives_only=True)


Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One file or folder of reads, or several."""


def load_many(given: Files, *, vocabulary: Vocabulary, split: str = "all") -> Reviews:
    """Read one file of reads, or several as if they were one; a file that is named twice is refused."""
    files = [Path(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]
    if len({file.resolve() for file in files}) < len(files):
        names = ", ".join(map(str, files))
        raise UsageError(f"--reviews names a file twice ({names}). Name each file of reads once")
    parts = [load_reads(file, vocabulary=vocabulary, split=split) for file in files]
    return parts[0] if len(parts) == 1 else _together(files, parts)


def as_typed(given: Files | None) -> str | list[str] | None:
    """Write down which files were given, as the record of a run keeps it."""
    if given is None or isinstance(given, str | os.PathLike):
        return None if given is None else os.fspath(given)
    return [os.fspath(each) for each in given]


def _together(files: Sequence[Path], parts: Sequence[Reviews]) -> Reviews:
    whole = pl.concat([part.table for part in parts])
    said = whole.group_by(_READ).agg(rows=pl.len(), verdicts=pl.col("verdict").n_unique())
    against = said.filter(pl.col("verdicts") > 1).sort(_READ)
    again = said.filter((pl.col("rows") > 1) & (pl.col("verdicts") == 1))
    notices = [notice for part in parts for notice in part.notices]
    names = " and ".join(file.name for file in files)
    for code, found, words in (
        ("reader_contradicts", against, "said two things about a pair; that reader was left out there"),
        ("reader_repeats", again, "said the same about a pair again; it counts once"),
    ):
        if found.height:
            message = f"{names}: {several(found.height, 'time')} one reader {words}"
            first = f" (first: {found['image_id'][0]}, {found['finding'][0]})" if found is against else ""
            notices.append(Notice(code=code, count=found.height, message=message + first))
    table = whole.join(against, on=_READ, how="anti", maintain_order="left")
    # Where one file knows the chance of a pair and another does not, the one that knows comes first.
    known = table.sort(pl.col("inclusion").is_null(), maintain_order=True)
    groups = tuple(dict.fromkeys(group for part in parts for group in part.groups))
    return Reviews(
        table=known.unique(_READ, keep="first", maintain_order=True),
        groups=groups,
        inputs=_inputs(files, parts),
        notices=tuple(notices),
        settled=pl.concat([part.settled for part in parts]).unique(_PAIR, keep="last", maintain_order=True),
    )


def _inputs(files: Sequence[Path], parts: Sequence[Reviews]) -> dict[str, str]:
    """Name every file with its hash; two files of one name are told apart by their folders."""
    names = [name for part in parts for name in part.inputs]
    return {
        (name if names.count(name) == 1 else str(file)): digest
        for file, part in zip(files, parts, strict=True)
        for name, digest in part.inputs.items()
    }


ALIKE = 0.8
"""A word so like a known one is taken for a slip of the pen."""


def every_read(path: Path, *, vocabulary: Vocabulary, groups: Iterable[Group]) -> pl.DataFrame:
    """Read a sheet with one row a read as `verdicts.VERDICTS`; a reader that it does not name is null."""
    sheet = read_sheet(path, "bpals review import")
    known = spellings(vocabulary, groups)
    reads = _long(sheet, known) if "finding" in sheet.titles else _wide(sheet, known)
    if reads.is_empty():
        raise TruthError(f"{path} holds no read. Fill in {VERDICT_WORDS}, or name another file")
    return with_inclusion(reads, path)


def _wide(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    columns = {name: known[name] for name in sheet.titles if name in known} | outside(sheet, known)
    if not columns:
        raise TruthError(
            f"{sheet.path}, line 1: no column holds verdicts ({', '.join(sheet.titles.values())}). "
            "Give it a column a finding, or the columns 'finding' and 'verdict'"
        )
    return wide(sheet, columns)


def _long(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    words = sheet.cells["finding"].unique(maintain_order=True)
    return long(sheet, dict(known) | {fold(word): named(word, known, str(sheet.path)) for word in words})


def named(word: str, known: Mapping[str, str], where: str) -> str:
    """Name a finding as the vocabulary does; one outside of it keeps its name, and a slip of the pen is refused."""
    folded = fold(word)
    if folded in known:
        return known[folded]
    if difflib.get_close_matches(folded, known, n=1, cutoff=ALIKE):
        raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=where)
    return word
