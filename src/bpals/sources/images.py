"""Columns of a table become films: one row each, with the columns of IMAGES."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from bpals.errors import SourceError, UnknownName
from bpals.sources.mapping import ColumnMap
from bpals.tablefile import RawTable
from bpals.types import IMAGES, Notice

NOTHING = ("", "nan", "none", "null", "na", "n/a", "unknown")
"""What tables write where they know nothing, in small letters."""

TEXTS = ("image", "patient", "study", "view", "sex")
SEXES = {"m": "M", "male": "M", "f": "F", "female": "F"}
OLDEST = 120
AGE = r"^0*(\d+(?:\.\d+)?)\s*([YMWD]?)$"
"""An age in years, or as DICOM writes it: 058Y, 013M, 006W, 011D."""

YEARS = {"": 1.0, "Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """One row a row of the table, with what is odd about them."""

    frame: pl.DataFrame
    notices: list[Notice]


def choose_columns(header: list[str], wanted: tuple[str, ...], *, role: str, where: str, mend: str) -> list[str]:
    """Find the columns a mapping names; at least one of several must be there, and none twice."""
    chosen = [column for column in wanted if column in header]
    for column in chosen:
        if header.count(column) > 1:
            raise SourceError(f"{where} has the column {column!r} {header.count(column)} times. Keep one of them")
    if not chosen:
        # A table may have thousands of columns: name the nearest and the first of them.
        near = difflib.get_close_matches(wanted[0], header, n=1)
        known = dict.fromkeys(name[:60] for name in [*near, *header[:20]] if name)
        missing = UnknownName.of("column", wanted[0], known, where=f"{where}, wanted for {role}")
        raise SourceError(f"{missing} {mend}")
    return chosen


def read_films(raw: RawTable, mapping: ColumnMap) -> Films:
    """Give each row of the table its film: who, when, which view, how old."""
    cells, notices = _find_cells(raw, mapping)
    _refuse_formulas(raw, cells)
    if (row := raw.first(_is_nothing(cells["image"]))) is not None:
        raise SourceError(f"{raw.place(row)} has no image id. Fill it in or delete the line")
    columns: dict[str, pl.Series] = {role: _text(cells[role]) for role in TEXTS if role in cells}
    for code, role, read in (
        ("order_unreadable", "order", _read_whole),
        ("date_unreadable", "date", lambda dates: _read_date(dates, mapping.date_format)),
        ("age_impossible", "age", _read_age),
        ("birth_unreadable", "birth", _read_positive),
        ("size_unreadable", "width", _read_positive),
        ("size_unreadable", "height", _read_positive),
    ):
        if role in cells:
            columns[role], odd = _read_all(raw, cells[role], read, role=role, code=code, mend=mapping.mend)
            notices += odd
    if "birth" in columns:
        columns["age"], odd = _age_at(raw, columns["date"], columns["birth"])
        notices += odd
    if "patient" in columns:
        notices += raw.notice("patient_missing", columns["patient"].is_null(), "Rows without a patient")
    return Films(frame=_assemble(columns, raw.frame.height), notices=notices)


def _find_cells(raw: RawTable, mapping: ColumnMap) -> tuple[dict[str, pl.Series], list[Notice]]:
    """Take each role's text from its column, or from the group of the pattern."""
    cells = {
        role: raw.frame.select(
            pl.coalesce(pl.when(pl.col(c) != "").then(pl.col(c)) for c in columns if c in raw.frame.columns)
        )
        .to_series()
        .fill_null("")
        for role, columns in mapping.films.items()
    }
    if mapping.pattern is None:
        return cells, []
    found = raw.frame[mapping.pattern.column].str.extract_groups(mapping.pattern.regex)
    unmatched = ~raw.frame[mapping.pattern.column].str.contains(mapping.pattern.regex)
    where = f"[pattern] regex of {mapping.origin}"
    row = raw.first(unmatched)
    if row is not None and (unmatched.all() or "image" in mapping.pattern.groups):
        value = raw.frame[mapping.pattern.column][row]
        raise SourceError(f"{raw.place(row)}: {value[:80]!r} does not match the {where}. {mapping.mend}")
    for group in mapping.pattern.groups:
        cells[group] = found.struct.field(group).fill_null("").str.strip_chars()
    message = f"Rows that do not match the {where}, so that {', '.join(mapping.pattern.groups)} are unknown"
    return cells, raw.notice("pattern_unmatched", unmatched, message)


def _refuse_formulas(raw: RawTable, cells: dict[str, pl.Series]) -> None:
    """A cell that starts like a spreadsheet formula is damage, and a danger to whoever opens an export."""
    for role in TEXTS:
        if role not in cells:
            continue
        row = raw.first(cells[role].str.contains(r"^[=@+]|[\x00-\x1f]"))
        if row is not None:
            value = cells[role][row][:40]
            raise SourceError(
                f"{raw.place(row)}: the {role} is {value!r}, a formula or control character. Mend that line"
            )


def _is_nothing(cells: pl.Series) -> pl.Series:
    return cells.str.to_lowercase().is_in(NOTHING)


def _text(cells: pl.Series) -> pl.Series:
    return cells.set(_is_nothing(cells), None)


def _read_all(
    raw: RawTable, cells: pl.Series, read: Callable[[pl.Series], pl.Series], *, role: str, code: str, mend: str
) -> tuple[pl.Series, list[Notice]]:
    """Read a column; cells that cannot be read are unknown and counted, a column of nothing else is refused."""
    given = ~_is_nothing(cells)
    values = read(cells)
    odd = given & values.is_null()
    row = raw.first(odd)
    if row is None:
        return values, []
    if odd.sum() == given.sum() and odd.sum() > 1:
        raise SourceError(
            f"{raw.place(row)}: the {role} is {cells[row][:80]!r}, and no other row has one that can be read. {mend}"
        )
    return values, raw.notice(
        code, odd, f"Values of {role} such as {cells[row][:80]!r} that cannot be, read as unknown"
    )


def _read_whole(cells: pl.Series) -> pl.Series:
    return cells.str.replace(r"\.0*$", "").cast(pl.Int64, strict=False)


def _read_positive(cells: pl.Series) -> pl.Series:
    number = _read_whole(cells)
    return number.set(number <= 0, None)


def _read_age(cells: pl.Series) -> pl.Series:
    parts = pl.DataFrame({"cell": cells.str.to_uppercase()}).select(
        pl.col("cell").str.extract(AGE, 1).cast(pl.Float64, strict=False).alias("number"),
        pl.col("cell").str.extract(AGE, 2).alias("unit"),
    )
    years = parts["number"] * parts["unit"].replace_strict(YEARS, default=None, return_dtype=pl.Float64)
    return years.set(years > OLDEST, None)


def _read_sex(cells: pl.Series) -> pl.Series:
    known = cells.str.to_lowercase().replace_strict(SEXES, default=None, return_dtype=pl.String)
    return known.fill_null(cells)


def _read_date(cells: pl.Series, given: str | None) -> pl.Series:
    formats = (given,) if given else ("%Y%m%d", "%Y-%m-%d", "%Y/%m/%d")
    text = cells if given else cells.str.replace(r"\.0$", "").str.slice(0, 10)
    frame = pl.DataFrame({"date": text})
    return frame.select(pl.coalesce(pl.col("date").str.to_date(f, strict=False) for f in formats)).to_series()


def _age_at(raw: RawTable, date: pl.Series, birth: pl.Series) -> tuple[pl.Series, list[Notice]]:
    """Years between the birth year and the film's date; the birthday is not known, so it is a whole number."""
    age = (date.dt.year() - birth).cast(pl.Float64)
    odd = ((age < 0) | (age > OLDEST)).fill_null(value=False)
    message = f"Years of birth that give no age between 0 and {OLDEST}, read as unknown"
    return age.set(odd, None), raw.notice("age_impossible", odd, message)


def _assemble(columns: dict[str, pl.Series], height: int) -> pl.DataFrame:
    named = {
        "image_id": columns["image"],
        "patient_id": columns.get("patient"),
        "study_id": columns.get("study"),
        "follow_up": columns["date"].dt.epoch("d") if "date" in columns else columns.get("order"),
        "view": columns.get("view"),
        "age": columns.get("age"),
        "sex": _read_sex(columns["sex"]) if "sex" in columns else None,
        "width_px": columns.get("width"),
        "height_px": columns.get("height"),
    }
    return pl.DataFrame(
        {name: pl.repeat(None, height, eager=True) if values is None else values for name, values in named.items()},
    ).cast(IMAGES)


def check_orders(raw: RawTable, images: pl.DataFrame, rows: pl.Series) -> list[Notice]:
    """Count the films whose patient stands in two orders: one number for several studies, or number against age."""
    films = images.with_columns(row=rows).drop_nulls(["patient_id", "follow_up"])
    key = ["patient_id", "follow_up"]
    apart = pl.len() if films["study_id"].null_count() else pl.col("study_id").n_unique()
    tied = films.filter(apart.over(key) > 1)
    timed = films.drop_nulls("age").sort([*key, "age"])
    falls = timed.filter((pl.col("age").diff() < 0).over("patient_id"))
    return [
        *_count_films(
            raw, tied, "order_tied", "Films that share patient and order number with another, read as taken at one time"
        ),
        *_count_films(
            raw,
            falls,
            "order_against_age",
            "Films that come later in their patient's order at a lower age, the order being kept",
        ),
    ]


def _count_films(raw: RawTable, films: pl.DataFrame, code: str, message: str) -> list[Notice]:
    marked = np.zeros(raw.frame.height, bool)
    marked[films["row"].to_numpy()] = True
    return raw.notice(code, pl.Series(marked), message)
