"""Expert labels, read from the user's disk: KIND=PATH to a truth for each pair.

four-findings   Pneumothorax, Nodule or mass, Airspace opacity, adjudicated (Majkowska et al. 2019)
all-findings    the 14 findings of NIH, one row an image or one row a reader
boxes           NIH's own boxes: presences only
table           any table, one row a pair or one column a finding
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from bpals.errors import TruthError, UnknownName, UsageError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS, Group, Vocabulary, fold
from bpals.plural import several
from bpals.score import exported, keys, sheets, verdicts
from bpals.score.sheets import Sheet
from bpals.types import REVIEWS, TRUTH, Notice, Reference, Reviews

KINDS = ("four-findings", "all-findings", "boxes", "table")
SPLITS = ("val", "test", "all")
GROUPS = (NODULE_OR_MASS, AIRSPACE_OPACITY)

_PAIR = ["image_id", "finding"]
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
        needed = ["|".join(verdicts.IMAGE_COLUMNS), *self.columns]
        if self.readers:
            needed.append("|".join(verdicts.READER_COLUMNS))
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
        return verdicts.of_split(chosen, self.split, self.option)


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
        return _settled(kind, _spoken(path, _recognised(path, FOUR, place), vocabulary))
    by_reader = min_readers is not None or (_fitting(path, FOURTEEN_READ) and not _fitting(path, FOURTEEN))
    said = _spoken(path, _recognised(path, FOURTEEN_READ if by_reader else FOURTEEN, place), vocabulary)
    return _voted(kind, said, min_readers) if by_reader else _settled(kind, said)


def load_reads(path: str | Path, *, vocabulary: Vocabulary, split: str = "all", option: str = "--reviews") -> Reviews:
    """Read files with one row a read: a column a finding, or the columns `finding` and `verdict`."""
    where = Path(path).expanduser()
    place = _place(option, option, split)
    chosen = _recognised(where, READ, place)
    votes = [exported.voting(sheet) for sheet in chosen]
    said = _spoken(where, votes, vocabulary)
    silent = sum(sheet.cells.height for sheet in chosen) - sum(sheet.cells.height for sheet in votes)
    said.count(
        "no_votes",
        silent,
        "row is a second read, a round, a repeat or was replaced, and does not vote",
        "rows are second reads, rounds, repeats or were replaced, and do not vote",
    )
    known = verdicts.spellings(vocabulary, GROUPS)
    settled = pl.concat([exported.settled(sheet, known) for sheet in chosen])
    _one_verdict_a_reader(said)
    if said.table.is_empty():
        raise TruthError(f"{where} holds no read. Write {verdicts.WORDS}; or name another file")
    read = said.table.select(REVIEWS.names()).cast(REVIEWS)
    table = keys.with_inclusion(read, where)
    keyed = read["inclusion"].null_count() - table["inclusion"].null_count()
    key = f"chance of being drawn from the key of the file, {keys.key_of(where)}"
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
        chosen = [sheets.read(file, place.typed) for file in _fitting(path, layout)]
        if not chosen:
            seen = ", ".join(file.name for file in sheets.candidates(path)) or "no table"
            needs = ", ".join(layout.lacks([]))
            raise TruthError(f"{path} has no file with {layout.title} ({needs}); it has {seen}. Name the file itself")
        return place.rows_of(chosen)
    sheet = sheets.read(path, place.typed)
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
    return [file for file in sheets.candidates(path) if layout.fits(sheets.columns(file))]


def _by_reader(names: Sequence[str]) -> bool:
    return bool(set(verdicts.READER_COLUMNS) & set(names))


def _else(path: Path, layout: Layout, place: _Place) -> str:
    if layout is READ:
        return f"Name another file after {place.typed}, or add the column"
    return f"Name another file, or type: {place.typed.replace('KIND', 'table')}{path}"


def _spoken(path: Path, chosen: list[Sheet], vocabulary: Vocabulary) -> _Said:
    """Read sheets with a row a finding where they have a column `finding`, else with a column a finding."""
    known = verdicts.spellings(vocabulary, GROUPS)
    order = [*vocabulary.findings, *(group.name for group in GROUPS)]
    said = _Said(path, chosen, pl.DataFrame(schema=verdicts.VERDICTS), [])
    for sheet in chosen:
        if "finding" in sheet.titles:
            said.table = said.table.vstack(verdicts.long(sheet, known))
            continue
        columns = sorted(known.keys() & sheet.titles.keys(), key=lambda name: order.index(known[name]))
        findings = {name: known[name] for name in columns}
        said.notices += verdicts.unaudited(sheet, known)
        if not findings:
            raise TruthError(
                f"{sheet.path}, line 1: no column is an audited finding ({', '.join(sheet.titles.values())}). "
                f"Name a column after one of {', '.join(vocabulary.findings)}"
            )
        said.table = said.table.vstack(verdicts.wide(sheet, findings))
    return said


def _table(path: Path, vocabulary: Vocabulary, place: _Place) -> _Said:
    """Read any table: one row a pair where it has a column `finding`, else one column a finding."""
    if path.is_dir():
        raise TruthError(f"{path} is a folder. Name a file in it after {place.typed}: table={path}/FILE.csv")
    (sheet,) = place.rows_of([sheets.read(path, place.typed)])
    return _spoken(path, [sheet], vocabulary)


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
    votes = (
        _certain(said)
        .group_by(_PAIR, maintain_order=True)
        .agg((pl.col("verdict") == "present").sum().alias("yes"), pl.len().alias("reads"), pl.col("split").first())
    )
    if min_readers is None:
        tied = votes.filter(pl.col("yes") * 2 == pl.col("reads"))
        first = _first(tied)
        said.count(
            "ties",
            tied.height,
            f"pair splits the readers evenly and was left out{first}",
            f"pairs split the readers evenly and were left out{first}",
        )
        settled = votes.filter(pl.col("yes") * 2 != pl.col("reads"))
        return _reference(kind, said, settled.with_columns(present=pl.col("yes") * 2 > pl.col("reads")))
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
