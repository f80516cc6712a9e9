"""Read verdicts from any table, as single reads or as one truth per pair of image and finding.

A table has one column per finding, or one row per finding with the columns `finding` and `verdict`. Audit, score, rate,
the reading list and the import of the reading room all read verdicts here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from bpals.errors import TruthError, UnknownName, UsageError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS, Group, Vocabulary, fold
from bpals.numeric import PAIR, majority
from bpals.store.tables import TableWords, open_table, read_columns
from bpals.text import several
from bpals.types import REVIEWS, SETTLED, TRUTH, Notice, Reference, Reviews

KINDS = ("four-findings", "all-findings", "boxes", "table")
SPLITS = ("val", "test", "all")
GROUPS = (NODULE_OR_MASS, AIRSPACE_OPACITY)
READ = [*PAIR, "reader"]
DEFINITE = ("absent", "present")
# Phases whose verdicts can vote. A reader who changes a locked verdict amends it: the amended one replaces it, and
# votes only if the reader had not been shown the label and the trust (`saw_signal` is 0).
VOTING = ("blind", "amended", "imported")

IMAGE_COLUMNS = ("image id", "image index", "image")
READER_COLUMNS = ("reader", "reader id")
SPLIT_COLUMNS = ("set id", "split", "set")
VERDICT_COLUMNS = ("verdict", "present")
INCLUSION = "inclusion"
LINE = "\0line"  # the column that says where a row stood; no header can be called so
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")  # what a folder is searched for
SHEET = ("image_id", "finding", "reader", "verdict")
ALIKE = 0.8  # a word so like a known one is taken for a slip of the pen

VERDICTS = pl.Schema(
    {
        "image_id": pl.String,
        "finding": pl.String,  # a finding of the vocabulary, or the name of a group
        "reader": pl.String,  # null if the row is the consensus of all readers
        "verdict": pl.String,  # present, absent, uncertain or unreadable
        "split": pl.String,  # val, test or another word of the file; null if it names none
        "inclusion": pl.Float64,  # sampling probability of the pair; null if unknown
    }
)
"""One row per verdict; a blank cell was not read and is no row."""

VERDICT_WORDS = "present, absent, uncertain or unreadable"
UNREAD = "unread"  # what a blank cell is read as: no verdict, and no row
# Whatever is written here has the four words; published files have others, and they are read as well.
READ_AS = (
    dict.fromkeys(("yes", "y", "1", "1.0", "true", "present", "positive"), "present")
    | dict.fromkeys(("no", "n", "0", "0.0", "false", "absent", "negative"), "absent")
    | dict.fromkeys(("hedge", "uncertain", "-1", "-1.0", "maybe"), "uncertain")
    | {"unreadable": "unreadable"}
    | dict.fromkeys(("", "na", "n/a", "nan", "null", "none"), UNREAD)
)
_SPLITS = {"validation": "val", "valid": "val", "": None}
_KEY = {"image_id": pl.String, "finding": pl.String, "inclusion": pl.Float64}
# By these columns an export of the reading room is recognised, and in it the adjudicated verdicts.
_EXPORT = {"finding", "verdict", "phase", "saw signal", "repeat", "stands", "external id"}
_EXPORTED_TRUTH = {"truth", "truth by", "truth round"}

UNPACKED = "{name} is cut off or damaged: gzip cannot unpack it. Download it again"
UNEVEN = (
    "{name}, line {line}: {fields} where the header has {width}; the file may be cut off. "
    "Repair that line, or download the file again"
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

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one file or folder of reads, or several


def counted(code: str, count: int, message: str) -> list[Notice]:
    """Return a notice if there is something to count."""
    return [Notice(code=code, count=count, message=message)] if count else []


@dataclass(frozen=True, slots=True)
class Sheet:
    """One file, every cell as text."""

    path: Path
    cells: pl.DataFrame  # columns under their folded names, and LINE
    titles: dict[str, str]  # folded name -> the header as written
    sha256: str

    def where(self, line: object) -> str:
        """Name the file and the line."""
        return f"{self.path}, {'row' if self.path.suffix == '.parquet' else 'line'} {line}"

    def column(self, names: Iterable[str]) -> str | None:
        """Return the first of these columns that the sheet has."""
        return next((name for name in names if name in self.titles), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns by which a file is recognised."""

    title: str
    columns: tuple[str, ...] = ()  # folded names; `a|b` is either
    readers: bool  # one row per reader, or one row for all readers

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return the columns that a file lacks to have this layout."""
        needed = ["|".join(IMAGE_COLUMNS), *self.columns, *(["|".join(READER_COLUMNS)] if self.readers else [])]
        return [each.split("|")[0] for each in needed if not set(each.split("|")) & set(names)]

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether a file with these columns has this layout."""
        return not self.lacks(names) and (self.readers or not set(READER_COLUMNS) & set(names))


FOUR = Layout(
    title="the four findings", columns=("pneumothorax", "airspace opacity", "nodule or mass|nodule/mass"), readers=False
)
FOURTEEN = Layout(title="the 14 findings", columns=tuple(map(fold, NIH.findings)), readers=False)
FOURTEEN_BY_READER = Layout(title="the 14 findings by reader", columns=FOURTEEN.columns, readers=True)
BY_READER = Layout(title="verdicts by reader", readers=True)


@dataclass(frozen=True, slots=True)
class _Request:
    """Where a path was typed, and which of its rows are wanted by which option."""

    typed: str
    split: str
    option: str

    def rows_of(self, sheets: list[Sheet]) -> list[Sheet]:
        """Keep the rows of the wanted split; a file that names no split has only `all`."""
        if self.split == "all":
            return sheets
        kept = [replace(sheet, cells=sheet.cells.filter(_split(sheet) == self.split)) for sheet in sheets]
        if all(sheet.cells.is_empty() for sheet in kept):
            named = sorted({word for sheet in sheets for word in sheet.cells.select(_split(sheet)).to_series() if word})
            has = f"there is {', '.join(named)}" if named else "there is no column 'Set Id'"
            raise TruthError(f"{sheets[0].path} has no row of the split {self.split!r}: {has}. Type: {self.option} all")
        return [sheet for sheet in kept if not sheet.cells.is_empty()]


@dataclass(slots=True)
class _Labels:
    """Verdicts of one path on their way to reads or to a reference, with what was noticed."""

    path: Path
    sheets: list[Sheet]
    table: pl.DataFrame
    notices: list[Notice] = field(default_factory=list)

    @property
    def inputs(self) -> dict[str, str]:
        """Name and hash of each file read."""
        return {sheet.path.name: sheet.sha256 for sheet in self.sheets}

    def count(self, code: str, count: int, one: str, many: str) -> None:
        """Note what was seen, if it was; in words for one, and for many."""
        self.notices += counted(code, count, f"{self.path}: {several(count, one, many)}")

    def keep_one_per_reader(self) -> None:
        """Keep one verdict per reader and pair; every row must name its reader."""
        if self.table["reader"].is_null().any() or (self.table["reader"] == "").any():
            raise TruthError(f"{self.path}: some rows name no reader. Fill in the reader, or remove those rows")
        self.table, notices = _one_per_reader(self.table, str(self.path))
        self.notices += notices


def load_many(given: Files, *, vocabulary: Vocabulary, split: str = "all") -> Reviews:
    """Read one file of reads, or several as if they were one; a file that is named twice is refused."""
    files = [Path(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]
    if len({file.resolve() for file in files}) < len(files):
        names = ", ".join(map(str, files))
        raise UsageError(f"--reviews names a file twice ({names}). Name each file of reads once")
    parts = [load_reads(file, vocabulary=vocabulary, split=split) for file in files]
    return parts[0] if len(parts) == 1 else _together(files, parts)


def load_reads(path: str | Path, *, vocabulary: Vocabulary, split: str = "all", option: str = "--reviews") -> Reviews:
    """Read files with one row per read: one column per finding, or the columns `finding` and `verdict`."""
    where = Path(path).expanduser()
    sheets = _recognised(where, BY_READER, _request(option, option, split))
    votes = [voting(sheet) for sheet in sheets]
    labels = _labels_of(where, votes, vocabulary)
    every, voted = (sum(sheet.cells.height for sheet in some) for some in (sheets, votes))
    labels.count(
        "no_votes",
        every - voted,
        "row is a second read, a round, a repeat or was replaced, and does not vote",
        "rows are second reads, rounds, repeats or were replaced, and do not vote",
    )
    labels.keep_one_per_reader()
    if labels.table.is_empty():
        raise TruthError(f"{where} holds no read. Write {VERDICT_WORDS}; or name another file")
    read = labels.table.select(REVIEWS.names()).cast(REVIEWS)
    table = with_inclusion(read, where)
    keyed = read["inclusion"].null_count() - table["inclusion"].null_count()
    key = f"chance of being drawn from the key of the file, {key_of(where)}"
    labels.count("key_used", keyed, f"read got its {key}", f"reads got their {key}")
    known = spellings(vocabulary, GROUPS)
    settled = pl.concat([adjudicated_in_export(sheet, known) for sheet in sheets])
    return Reviews(
        table=table,
        groups=_groups_of(table),
        inputs=labels.inputs,
        notices=tuple(labels.notices),
        settled=settled.unique(PAIR, keep="last", maintain_order=True),
    )


def every_read(path: Path, *, vocabulary: Vocabulary, groups: Iterable[Group]) -> pl.DataFrame:
    """Read a sheet with one row per read as VERDICTS, findings that are not audited included.

    A reader that the sheet does not name is null.
    """
    sheet = read_sheet(path, "bpals review import")
    known = spellings(vocabulary, groups)
    if "finding" in sheet.titles:
        words = sheet.cells["finding"].unique(maintain_order=True)
        reads = _long(sheet, known | {fold(word): named(word, known, str(sheet.path)) for word in words})
    else:
        columns = {name: known[name] for name in sheet.titles if name in known} | _other_columns(sheet, known)
        if not columns:
            raise TruthError(
                f"{sheet.path}, line 1: no column holds verdicts ({', '.join(sheet.titles.values())}). "
                "Give it one column per finding, or the columns 'finding' and 'verdict'"
            )
        reads = _wide(sheet, columns)
    if reads.is_empty():
        raise TruthError(f"{path} holds no read. Fill in {VERDICT_WORDS}, or name another file")
    return with_inclusion(reads, path)


def load(
    spec: str,
    *,
    vocabulary: Vocabulary,
    split: str = "all",
    boxes: pl.DataFrame | None = None,
    min_readers: int | None = None,
    option: str = "--reference",
) -> Reference:
    """Read the expert labels of a KIND=PATH; the caller, who knows where they are, hands in the boxes."""
    kind, path = parse(spec, option)
    request = _request(option, f"{option} KIND=", split)
    if min_readers is not None and min_readers < 1:
        raise UsageError(f"{min_readers} readers cannot agree. Type: --min-readers 1, or more")
    if kind == "boxes" or path is None:
        return _boxed(boxes, vocabulary)
    if kind == "table":
        if path.is_dir():
            raise TruthError(f"{path} is a folder. Name a file in it after {request.typed}: table={path}/FILE.csv")
        sheets = request.rows_of([read_sheet(path, request.typed)])
        return _consensus(kind, _labels_of(path, sheets, vocabulary))
    if kind == "four-findings":
        return _consensus(kind, _labels_of(path, _recognised(path, FOUR, request), vocabulary))
    by_reader = min_readers is not None or bool(_fitting(path, FOURTEEN_BY_READER) and not _fitting(path, FOURTEEN))
    layout = FOURTEEN_BY_READER if by_reader else FOURTEEN
    labels = _labels_of(path, _recognised(path, layout, request), vocabulary)
    return _voted(kind, labels, min_readers) if by_reader else _consensus(kind, labels)


def parse(spec: str, option: str = "--reference") -> tuple[str, Path | None]:
    """Split the KIND=PATH of an option; `boxes` needs no path, and `table:PATH` is `table=PATH`."""
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


def keep_known_images(reviews: Reviews, images: pl.DataFrame) -> Reviews:
    """Keep the reads of images that the dataset has; the others are counted, and none at all is refused."""
    here = reviews.table.join(images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    names = ", ".join(reviews.inputs)
    if here.is_empty():
        first = reviews.table["image_id"][0]
        raise TruthError(
            f"{names}: no read is about a film of this dataset (first: {first}). Name another file of reads"
        )
    return replace(reviews, table=here, notices=(*reviews.notices, *unknown_films(names, reviews.table, images)))


def unknown_films(name: str, pairs: pl.DataFrame, images: pl.DataFrame) -> list[Notice]:
    """Count the verdicts about images that the dataset does not have."""
    missing = pairs.join(images.select("image_id"), on="image_id", how="anti", maintain_order="left")
    if missing.is_empty():
        return []
    verdict = several(missing.height, "verdict is", "verdicts are")
    those = several(missing["image_id"].n_unique(), "film that is", "films that are")
    message = f"{name}: {verdict} about {those} not in this dataset (first: {missing['image_id'][0]}): left out"
    return counted("unknown_images", missing.height, message)


def spellings(vocabulary: Vocabulary, groups: Iterable[Group]) -> dict[str, str]:
    """Every folded spelling of a finding, or of a group whose members are all audited -> its name."""
    whole = [group for group in groups if set(group.members) <= set(vocabulary.findings)]
    by_name = {fold(group.name): group.name for group in whole}
    slashed = {fold(group.name.replace(" or ", "/")): group.name for group in whole}
    return slashed | by_name | vocabulary.spellings


def named(word: str, known: Mapping[str, str], where: str) -> str:
    """Name a finding as the vocabulary does; one outside of it keeps its name, and a slip of the pen is refused."""
    if fold(word) in known:
        return known[fold(word)]
    _refuse_slip(word, known, where)
    return word


def key_of(sheet: Path) -> Path:
    """Return the path of a sheet's sampling-probability file, its key: `list.csv` has `list.key.csv`."""
    return sheet.with_name(f"{sheet.stem}.key.csv")


def write_sheet(listed: pl.DataFrame, sheet: Path) -> Path:
    """Write a reading list as a sheet to be filled in; return the path of its sampling-probability file."""
    key = key_of(sheet)
    for file in (sheet, key):
        if file.exists():
            raise UsageError(
                f"{file} is there already, and somebody may have filled it in. Name another with --out FILE"
            )
    blank = listed.select(*PAIR).with_columns(reader=pl.lit(None, pl.String), verdict=pl.lit(None, pl.String))
    try:
        listed.write_csv(key)
        blank.select(SHEET).write_csv(sheet)
    except OSError as error:
        raise UsageError(f"{sheet} cannot be written: {error.strerror}. Name another with --out FILE") from None
    return key


def with_inclusion(reads: pl.DataFrame, sheet: Path) -> pl.DataFrame:
    """Fill in sampling probabilities from the file beside the sheet, if any; one in the row itself is kept."""
    file = key_of(sheet)
    if not file.is_file():
        return reads
    try:
        key = pl.read_csv(file, columns=list(_KEY), schema_overrides=_KEY).unique(PAIR)
    except (pl.exceptions.PolarsError, OSError):
        raise TruthError(
            f"{file} is not the key of a reading list: it needs {', '.join(_KEY)}. Move it away, or bring back the key"
        ) from None
    filled = reads.join(key.rename({"inclusion": "drawn"}), on=PAIR, how="left", maintain_order="left")
    return filled.with_columns(inclusion=pl.coalesce("inclusion", "drawn")).select(reads.columns)


def voting(sheet: Sheet) -> Sheet:
    """Keep the rows of an export that vote; any other sheet is as it is."""
    if not sheet.titles.keys() >= _EXPORT:
        return sheet
    blind = pl.col("phase").is_in(VOTING) & (pl.col("saw signal") == "0")
    return replace(sheet, cells=sheet.cells.filter(blind & (pl.col("repeat") == "0") & (pl.col("stands") == "1")))


def adjudicated_in_export(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Return verdicts that people settled after they saw each other's, as SETTLED; `known` names the findings."""
    image = sheet.column(IMAGE_COLUMNS)
    if image is None or not sheet.titles.keys() >= _EXPORT | _EXPORTED_TRUTH:
        return pl.DataFrame(schema=SETTLED)
    together = (pl.col("truth by") != "") | ~pl.col("truth round").is_in(["", "0"])
    settled = sheet.cells.filter(together, pl.col("truth").is_in(DEFINITE))
    names = {word: known.get(fold(word)) for word in settled["finding"].unique()}
    pairs = settled.select(
        image_id=image,
        finding=pl.col("finding").replace_strict(names, return_dtype=pl.String),
        settled=(pl.col("truth") == "present").cast(pl.Float64),
    )
    return pairs.drop_nulls().unique(PAIR, keep="last", maintain_order=True).cast(SETTLED)


def sheet_columns(path: Path) -> list[str]:
    """Read the folded column names alone, to recognise a file; what cannot be read has none."""
    try:
        return [fold(name) for name in read_columns(path, words=SHEET_WORDS)]
    except TruthError:
        return []


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


def _request(option: str, typed: str, split: str) -> _Request:
    # An audit has one option per file for the rows that it wants; a scorecard has one for all.
    picks = "--split" if option in ("--reference", "--readers") else f"{option}-split"
    if split not in SPLITS:
        raise UnknownName.of("split", split, SPLITS, where=picks)
    return _Request(typed, split, picks)


def _recognised(path: Path, layout: Layout, request: _Request) -> list[Sheet]:
    """Read the file, or those files of the folder, that have this layout and rows of this split."""
    if path.is_dir():
        sheets = [read_sheet(file, request.typed) for file in _fitting(path, layout)]
        if not sheets:
            seen = ", ".join(file.name for file in _candidates(path)) or "no table"
            needs = ", ".join(layout.lacks([]))
            raise TruthError(f"{path} has no file with {layout.title} ({needs}); it has {seen}. Name the file itself")
        return request.rows_of(sheets)
    sheet = read_sheet(path, request.typed)
    if lacking := layout.lacks(list(sheet.titles)):
        other = f"Name another file, or type: {request.typed.replace('KIND', 'table')}{path}"
        if layout is BY_READER:
            other = f"Name another file after {request.typed}, or add the column"
        raise TruthError(
            f"{path}, line 1: no column {', '.join(map(repr, lacking))}, so these are not {layout.title}. {other}"
        )
    if not layout.fits(list(sheet.titles)):
        reads = "bpals score --readers" if request.option == "--split" else "bpals audit --reviews"
        raise TruthError(f"{path} has one row per reader, not one per image. Type: {reads} {path}")
    return request.rows_of([sheet])


def _fitting(path: Path, layout: Layout) -> list[Path]:
    """Return the files of this layout without reading them whole."""
    return [file for file in _candidates(path) if layout.fits(sheet_columns(file))]


def _candidates(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(SUFFIXES))
    return [path]


def _labels_of(path: Path, sheets: list[Sheet], vocabulary: Vocabulary) -> _Labels:
    """Read the verdicts of sheets on audited findings; columns about other findings are counted."""
    known = spellings(vocabulary, GROUPS)
    order = [*vocabulary.findings, *(group.name for group in GROUPS)]
    labels = _Labels(path, sheets, pl.DataFrame(schema=VERDICTS))
    for sheet in sheets:
        if "finding" in sheet.titles:
            labels.table = labels.table.vstack(_long(sheet, known))
            continue
        columns = sorted(known.keys() & sheet.titles.keys(), key=lambda name: order.index(known[name]))
        for name, title in _other_columns(sheet, known, blank=True).items():
            present = sum(READ_AS[word] == "present" for word in sheet.cells[name].str.to_lowercase())
            left = several(present, "presence was", "presences were")
            message = f"{sheet.path}: {title!r} is not audited; its {left} left out"
            labels.notices.append(Notice(code="unaudited", count=present, message=message))
        if not columns:
            raise TruthError(
                f"{sheet.path}, line 1: no column is an audited finding ({', '.join(sheet.titles.values())}). "
                f"Name a column after one of {', '.join(vocabulary.findings)}"
            )
        labels.table = labels.table.vstack(_wide(sheet, {name: known[name] for name in columns}))
    return labels


def _other_columns(sheet: Sheet, known: Mapping[str, str], *, blank: bool = False) -> dict[str, str]:
    """Return the columns of verdicts that are no audited finding, folded name -> title; a slip is refused.

    With `blank`, columns in which nobody wrote anything are among them.
    """
    found = {}
    for name, title in sheet.titles.items():
        verdicts = {READ_AS.get(word, "") for word in sheet.cells[name].str.to_lowercase().unique()}
        if name in known or name in (*IMAGE_COLUMNS, *READER_COLUMNS, INCLUSION) or "" in verdicts:
            continue
        if blank or verdicts != {UNREAD}:
            _refuse_slip(title, known, sheet.where(1))
            found[name] = title
    return found


def _refuse_slip(word: str, known: Mapping[str, str], where: str) -> None:
    if difflib.get_close_matches(fold(word), known, n=1, cutoff=ALIKE):
        raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=where)


def _wide(sheet: Sheet, findings: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with one column per finding: `findings` says which column means which."""
    keyed = _keyed(sheet)
    cells = keyed.hstack(sheet.cells.select(list(findings)))
    melted = cells.unpivot(list(findings), index=keyed.columns, variable_name="finding", value_name="word")
    return _as_verdicts(sheet, melted.with_columns(pl.col("finding").replace_strict(dict(findings))))


def _long(sheet: Sheet, known: Mapping[str, str]) -> pl.DataFrame:
    """Read a sheet with one row per finding: columns `finding`, and `verdict` or `present`."""
    verdict = sheet.column(VERDICT_COLUMNS)
    if verdict is None:
        raise TruthError(
            f"{sheet.path} has a column 'finding' but none called 'verdict' or 'present'. Rename the column of verdicts"
        )
    rows = _keyed(sheet).hstack(sheet.cells.select(finding="finding", word=verdict))
    for word, line in rows.group_by("finding", maintain_order=True).agg(pl.col(LINE).first()).iter_rows():
        if fold(word) not in known:
            raise UnknownName.of("finding", word, list(dict.fromkeys(known.values())), where=sheet.where(line))
    names = {word: known[fold(word)] for word in rows["finding"].unique()}
    return _as_verdicts(sheet, rows.with_columns(pl.col("finding").replace_strict(names, return_dtype=pl.String)))


def _keyed(sheet: Sheet) -> pl.DataFrame:
    """Return image, reader, split, line and sampling probability of each row."""
    image, reader = sheet.column(IMAGE_COLUMNS), sheet.column(READER_COLUMNS)
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
    if name := sheet.column(SPLIT_COLUMNS):
        return pl.col(name).str.to_lowercase().replace(_SPLITS)
    words = {_SPLITS.get(word, word) for word in re.split(r"[^a-z]+", sheet.path.name.lower())} & {"val", "test"}
    return pl.lit(words.pop() if len(words) == 1 else None, pl.String)


def _as_verdicts(sheet: Sheet, rows: pl.DataFrame) -> pl.DataFrame:
    """Turn words into verdicts; an unknown word is refused with its line."""
    read = rows.with_columns(verdict=pl.col("word").str.to_lowercase().replace_strict(READ_AS, default=None))
    strange = read.filter(pl.col("verdict").is_null()).sort(LINE)
    if not strange.is_empty():
        first = strange.row(0, named=True)
        raise TruthError(
            f"{sheet.where(first[LINE])}: {first['word']!r} under {first['finding']!r} is no verdict. "
            f"Write {VERDICT_WORDS}, or leave the cell blank where nobody read"
        )
    return read.filter(pl.col("verdict") != UNREAD).select(VERDICTS.names()).cast(VERDICTS)


def _one_per_reader(reads: pl.DataFrame, name: str) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep one verdict per reader and pair; who gives two different ones is left out of that pair."""
    again = reads.group_by(READ).agg(rows=pl.len(), verdicts=pl.col("verdict").n_unique())
    against = again.filter(pl.col("verdicts") > 1).sort(READ)
    same = again.filter((pl.col("rows") > 1) & (pl.col("verdicts") == 1)).height
    two = f"one reader said two things about a pair; that reader was left out there{_first(against)}"
    notices = [
        *counted("reader_contradicts", against.height, f"{name}: {several(against.height, 'time')} {two}"),
        *counted(
            "reader_repeats",
            same,
            f"{name}: {several(same, 'time')} one reader said the same about a pair again; it counts once",
        ),
    ]
    kept = reads.join(against, on=READ, how="anti", maintain_order="left")
    return kept.unique(READ, keep="first", maintain_order=True), notices


def _together(files: Sequence[Path], parts: Sequence[Reviews]) -> Reviews:
    # Where one file knows the chance of a pair and another does not, the one that knows comes first.
    whole = pl.concat([part.table for part in parts]).sort(pl.col("inclusion").is_null(), maintain_order=True)
    table, notices = _one_per_reader(whole, " and ".join(file.name for file in files))
    names = [name for part in parts for name in part.inputs]
    return Reviews(
        table=table,
        groups=tuple(dict.fromkeys(group for part in parts for group in part.groups)),
        # Two files of one name are told apart by their folders.
        inputs={
            (name if names.count(name) == 1 else str(file)): digest
            for file, part in zip(files, parts, strict=True)
            for name, digest in part.inputs.items()
        },
        notices=(*(notice for part in parts for notice in part.notices), *notices),
        settled=pl.concat([part.settled for part in parts]).unique(PAIR, keep="last", maintain_order=True),
    )


def _consensus(kind: str, labels: _Labels) -> Reference:
    """Make one truth of each pair from rows that hold the consensus of all readers."""
    if labels.table["reader"].is_not_null().any():
        return _voted(kind, labels, None)
    by_pair = _definite(labels).group_by(PAIR, maintain_order=True)
    present = (pl.col("verdict") == "present").first()
    pairs = by_pair.agg(pl.col("split").first(), present=present, rows=pl.len(), verdicts=pl.col("verdict").n_unique())
    labels.count(
        "duplicates",
        pairs.filter((pl.col("rows") > 1) & (pl.col("verdicts") == 1)).height,
        "pair stands more than once, always the same; it counts once",
        "pairs stand more than once and agree; each counts once",
    )
    against = pairs.filter(pl.col("verdicts") > 1)
    labels.count(
        "contradictions",
        against.height,
        f"pair contradicts itself and was left out{_first(against)}",
        f"pairs contradict themselves and were left out{_first(against)}",
    )
    return _reference(kind, labels, pairs.filter(pl.col("verdicts") == 1))


def _voted(kind: str, labels: _Labels, min_readers: int | None) -> Reference:
    """Make one truth of each pair from its readers: the majority, or present if at least K say so."""
    labels.keep_one_per_reader()
    votes = majority(_definite(labels), "split").with_columns(reads=pl.col("yes") + pl.col("no"))
    if min_readers is None:
        tied = votes.filter("tied")
        labels.count(
            "ties",
            tied.height,
            f"pair splits the readers evenly and was left out{_first(tied)}",
            f"pairs split the readers evenly and were left out{_first(tied)}",
        )
        return _reference(kind, labels, votes.filter(~pl.col("tied")), votes.select(*PAIR, "yes", "no"))
    few = votes.filter(pl.col("reads") < min_readers)
    if few.height == votes.height:
        most = max(votes["reads"])
        raise TruthError(
            f"{labels.path}: no pair has {min_readers} readers; the most is {most}. Type: --min-readers {most}"
        )
    fewer = f"fewer than {min_readers} readers and"
    labels.count("few_readers", few.height, f"pair has {fewer} was left out", f"pairs have {fewer} were left out")
    enough = votes.filter(pl.col("reads") >= min_readers)
    return _reference(kind, labels, enough.with_columns(present=pl.col("yes") >= min_readers))


def _definite(labels: _Labels) -> pl.DataFrame:
    for verdict in ("uncertain", "unreadable"):
        count = labels.table.filter(pl.col("verdict") == verdict).height
        one, many = f"{verdict} verdict was left out", f"{verdict} verdicts were left out"
        labels.count(f"{verdict}_verdicts", count, one, many)
    return labels.table.filter(pl.col("verdict").is_in(DEFINITE))


def _first(pairs: pl.DataFrame) -> str:
    return f" (first: {pairs['image_id'][0]}, {pairs['finding'][0]})" if pairs.height else ""


def _reference(kind: str, labels: _Labels, pairs: pl.DataFrame, votes: pl.DataFrame | None = None) -> Reference:
    if pairs.is_empty():
        raise TruthError(
            f"{labels.path} holds no verdict that could be used. Write present or absent, or name another file"
        )
    if pairs["present"].all():
        those = several(pairs.height, "pair is", "pairs are all")
        raise TruthError(
            f"{labels.path} has no negatives: its {those} present, so a missed finding could not "
            "be told from a right absence. Add the pairs that were read as absent"
        )
    truth = pairs.select(TRUTH.names()).cast(TRUTH)
    return Reference(
        kind=kind,
        truth=truth,
        groups=_groups_of(truth),
        inputs=labels.inputs,
        notices=tuple(labels.notices),
        votes=votes,
    )


def _groups_of(pairs: pl.DataFrame) -> tuple[Group, ...]:
    findings = set(pairs["finding"].unique())
    return tuple(group for group in GROUPS if group.name in findings)


def _boxed(boxes: pl.DataFrame | None, vocabulary: Vocabulary) -> Reference:
    """Make confirmed presences of the boxes, one per pair."""
    if boxes is None:
        raise UsageError("the reference 'boxes' needs the boxes themselves. Type: bpals score --reference boxes")
    names = {word: vocabulary.resolve([word], where="boxes")[0] for word in boxes["finding"].cast(pl.String).unique()}
    truth = boxes.select(
        pl.col("image_id").cast(pl.String),
        pl.col("finding").cast(pl.String).replace_strict(names, return_dtype=pl.String),
        pl.lit(True).alias("present"),
        pl.lit(None, pl.String).alias("split"),
    )
    return Reference(kind="boxes", truth=truth.unique(PAIR, maintain_order=True), positives_only=True)
