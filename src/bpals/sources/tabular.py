"""Any multi-label dataset in a table, read through a mapping."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from bpals.errors import SourceError, UnknownName, UsageError
from bpals.findings import NIH, fold
from bpals.registry import SourceKind, option
from bpals.sources import PRESENT, SILENT, make_claims
from bpals.sources.columns import Coded, check_orders, choose_columns, read_columns, read_films, read_lists, read_long
from bpals.sources.mapping import SHIPPED, ColumnMap, load_mapping, open_table
from bpals.store.tables import RawTable, TableFile
from bpals.types import Dataset, Notice

# NIH's header is `Bbox [x,y,w,h]`, which falls apart at its commas.
BOX_COLUMNS = {"x": "Bbox [x", "y": "y", "width": "w", "height": "h]"}
BOX_SPELLINGS = {"infiltrate": "Infiltration"}


def load(path: str | Path, mapping: str | Path) -> Dataset:
    """Read a CSV, CSV.gz or Parquet table; the mapping is a TOML file or the name of a shipped one."""
    column_map = load_mapping(mapping)
    file = open_table(path, separator=column_map.separator)
    raw, notices = _drop_blank_rows(file.read(_find_columns(file, column_map)))
    films, odd = read_films(raw, column_map)
    notices += odd
    if column_map.labels.layout == "long":
        rows, film_of = _gather_films(raw, films)
        coded = read_long(raw, column_map, film_of)
    else:
        raw, films, repeats = _drop_repeated_rows(raw, films)
        notices += repeats
        rows = pl.Series(np.arange(raw.frame.height, dtype=np.uint32))
        coded = read_columns(raw, column_map) if column_map.labels.layout == "columns" else read_lists(raw, column_map)
    images = films[rows]
    if "order" in column_map.roles:
        notices += check_orders(raw, images, rows)
    notices += [*coded.notices, *_count_unclaimed(coded, column_map, file.name)]
    return Dataset(
        name=column_map.name,
        title=column_map.title,
        vocabulary=column_map.vocabulary,
        images=images,
        claims=make_claims(images["image_id"], coded.codes, column_map.vocabulary),
        attribution=column_map.attribution,
        inputs={Path(path).name: file.sha256, Path(column_map.origin).name: column_map.sha256},
        unaudited=coded.unaudited,
        notices=tuple(notices),
    )


def _find_columns(file: TableFile, mapping: ColumnMap) -> list[str]:
    """Find every column that the mapping names in the header of the file."""
    labels = mapping.labels
    wanted = [(f"[columns] {role}", columns) for role, columns in mapping.films.items()]
    if mapping.pattern:
        wanted.append(("[pattern] column", (mapping.pattern.column,)))
    if labels.layout == "columns":
        wanted += [("[labels] audited", labels.spellings_of(finding)) for finding in labels.audited]
        wanted += [("[labels] no_finding", (column,)) for column in labels.no_finding]
        wanted += [("[labels] unaudited", (column,)) for column in labels.unaudited]
    for key in ("column", "finding", "reader", "value"):
        if column := getattr(labels, key):
            wanted.append((f"[labels] {key}", (column,)))
    _check_separator(file, mapping)
    chosen = [
        column
        for role, columns in wanted
        for column in choose_columns(file.header, columns, role=role, where=file.name, mend=mapping.mend)
    ]
    return list(dict.fromkeys(chosen))


def _check_separator(file: TableFile, mapping: ColumnMap) -> None:
    """Say so where the whole header is one column that another separator would take apart."""
    if len(file.header) > 1:
        return
    for separator in ";\t|,":
        if separator != mapping.separator and separator in file.header[0]:
            raise SourceError(
                f"{file.name} line 1 is separated by {separator!r}, not by {mapping.separator!r}. "
                f"Write separator = {separator!r} in your mapping, or convert the file"
            )


def _drop_blank_rows(raw: RawTable) -> tuple[RawTable, list[Notice]]:
    blank = raw.frame.select(pl.all_horizontal(pl.all() == "")).to_series()
    if blank.all():
        raise SourceError(f"{raw.name} has only blank rows in the columns {raw.frame.columns}. Give one row per image")
    notices = raw.notice("blank_rows", blank, "Blank rows, left out")
    return (raw.filter(~blank), notices) if notices else (raw, [])


def _drop_repeated_rows(raw: RawTable, films: pl.DataFrame) -> tuple[RawTable, pl.DataFrame, list[Notice]]:
    """Keep one of rows that are alike in every column that is read; rows of one image that differ are refused."""
    if films["image_id"].n_unique() == films.height:
        return raw, films, []
    alike = raw.frame.select(~pl.struct(pl.all()).is_first_distinct()).to_series()
    _refuse_repeats(raw, films.with_row_index("row").filter(~alike))
    notices = raw.notice("repeated_rows", alike, "Rows that repeat another in every column that is read, left out")
    return raw.filter(~alike), films.filter(~alike), notices


def _refuse_repeats(raw: RawTable, films: pl.DataFrame) -> None:
    repeated = films.filter(~pl.col("image_id").is_first_distinct())
    if not repeated.is_empty():
        image, row = repeated.select("image_id", "row").row(0)
        earlier = films.filter(pl.col("image_id") == image)["row"][0]
        raise SourceError(
            f"{raw.place(row)} says something else of the image {image!r} than {raw.place(earlier)}. "
            'Keep one row per image, or use layout = "long" for several readers'
        )


def _gather_films(raw: RawTable, films: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Give the first row of each image, and the image of each row; rows of one image must agree on it."""
    distinct = films.with_row_index("row").unique(list(films.columns), keep="first", maintain_order=True)
    _refuse_repeats(raw, distinct)
    numbered = distinct.select("image_id", "row").with_row_index("film")
    film_of = films.select("image_id").join(numbered, on="image_id", how="left", maintain_order="left")["film"]
    return distinct["row"], film_of


def _count_unclaimed(coded: Coded, mapping: ColumnMap, name: str) -> list[Notice]:
    """Count the findings that are present on no image: there is nothing to learn them from."""
    if (coded.codes == SILENT).all():
        raise SourceError(f"{name} makes no claim: every audited finding is silent on every film. {mapping.mend}")
    never = ~(coded.codes == PRESENT).any(axis=0)
    names = [finding for finding, unseen in zip(mapping.labels.audited, never, strict=True) if unseen]
    if not names:
        return []
    message = f"Audited findings that are present on no film, {', '.join(names)}: {len(names)}"
    return [Notice(code="never_present", count=len(names), message=message)]


def load_nih_boxes(path: str | Path) -> pl.DataFrame:
    """Read NIH's BBox_List_2017.csv: one row per box, in pixels of its 1,024 px images."""
    mend = "Give NIH's own BBox_List_2017.csv"
    file = open_table(path)
    wanted = ["Image Index", "Finding Label", *BOX_COLUMNS.values()]
    for column in wanted:
        choose_columns(file.header, (column,), role="the boxes", where=file.name, mend=mend)
    raw = file.read(wanted)
    return pl.DataFrame(
        {
            "image_id": raw.frame["Image Index"],
            "finding": _read_findings(raw),
            **{name: _read_pixels(raw, column) for name, column in BOX_COLUMNS.items()},
        }
    )


def _read_findings(raw: RawTable) -> pl.Series:
    words, known = raw.frame["Finding Label"], NIH.spellings | BOX_SPELLINGS
    found = words.replace_strict({word: known.get(fold(word)) for word in words.unique()}, return_dtype=pl.String)
    if (row := raw.first(found.is_null())) is not None:
        raise SourceError(str(UnknownName.of("finding", words[row][:80], NIH.findings, where=raw.place(row))))
    return found.cast(NIH.enum)


def _read_pixels(raw: RawTable, column: str) -> pl.Series:
    pixels = raw.frame[column].cast(pl.Float64, strict=False)
    if (row := raw.first(~(pixels.is_finite() & (pixels >= 0)).fill_null(value=False))) is not None:
        found = raw.frame[column][row][:80]
        raise SourceError(f"{raw.place(row)}, column {column!r}, holds {found!r}, which is no pixel. Mend that line")
    return pixels


@dataclass(frozen=True, kw_only=True)
class MappingOptions:
    """The options of `table:`."""

    mapping: str = option("", f"How to read a table: a file, or {', '.join(SHIPPED)}.", metavar="FILE.toml|NAME")


def load_named(target: str, *, mapping: str = "") -> Dataset:
    """Read the table that `table:FILE` names; it needs a mapping."""
    if not target or not mapping:
        raise UsageError(
            f"--source table:{target} needs a file and a mapping. "
            f"Type: bpals audit --source table:FILE --mapping FILE.toml (or {', '.join(SHIPPED)})"
        )
    return load(target, mapping)


SOURCE = SourceKind(
    name="table",
    form="table:FILE",
    summary="any multi-label dataset in a table, read through a mapping",
    load=load_named,
    options=MappingOptions,
    page="sources.md",
)
