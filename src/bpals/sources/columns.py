"""Columns of a table become films: one row each, with the columns of IMAGES."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import SourceError, UnknownName
from bpals.findings import fold
from bpals.sources import ABSENT, PRESENT, SILENT, UNCERTAIN, Codes
from bpals.sources.mapping import ColumnMap, Labels
from bpals.store.tables import LIST_SEPARATOR, RawTable
from bpals.types import IMAGES, Notice

CODE = {"present": PRESENT, "absent": ABSENT, "uncertain": UNCERTAIN, "silent": SILENT}
WEAKEST_FIRST = (SILENT, ABSENT, UNCERTAIN, PRESENT)
"""When one film says two things of a finding, the last of these counts."""


def combine_readers(codes: Codes, films: npt.NDArray[np.int64], *, rule: str) -> Codes:
    """Make one claim of several readers; `films` gives the film of each row of codes, in ascending order.

    Only readers who are not silent count, and if nobody marks the finding and nobody is uncertain it is absent.
    majority: present if more than half mark it. any: present if one marks it. all: present if every one marks it.
    Anything in between is uncertain.
    """
    starts = np.flatnonzero(np.diff(films, prepend=-1))
    present, uncertain, silent = (
        np.add.reduceat((codes == code).astype(np.int64), starts, axis=0) for code in (PRESENT, UNCERTAIN, SILENT)
    )
    readers = np.diff(np.append(starts, films.size))[:, None]
    spoken = readers - silent
    needed = {"majority": 2 * present > spoken, "any": present > 0, "all": present == spoken}[rule]
    combined = np.full(present.shape, UNCERTAIN, np.uint8)
    combined[(present == 0) & (uncertain == 0)] = ABSENT
    combined[needed & (present > 0)] = PRESENT
    combined[spoken == 0] = SILENT
    return combined


ALIKE = 0.9
"""How like a finding a word must be, from 0 to 1, to be taken for a typing error."""

MOST_COMPARED = 2_000
"""Words that are compared with the findings at most, the commonest first: free text has no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """Who says which words, and on which films."""

    words: pl.DataFrame
    """speaker, word, state: one row a word, in the order of the file."""
    rows: pl.DataFrame
    """speaker, film: one row a row of the table."""
    speakers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of each finding, which labels were only counted, and what was odd."""

    codes: Codes
    unaudited: Mapping[str, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)


def hear(speech: Speech, raw: RawTable, mapping: ColumnMap) -> Said:
    """Give each speaker's code for each finding."""
    labels = mapping.labels
    words = speech.words.join(_make_lexicon(speech.words["word"].unique(), labels), on="word", how="left")
    others = words.filter(pl.col("meaning") == "other", pl.col("state") == PRESENT)
    if labels.others == "refuse" and not others.is_empty():
        raise _unknown_label(speech, raw, mapping, others)
    unaudited = _count_others(speech, others)
    said = {m: _speakers_with(speech, words, m) for m in ("no_finding", "silent_if", "finding", "other")}
    default = np.full(speech.speakers, CODE[labels.unlisted], np.uint8)
    wordless = ~(said["no_finding"] | said["silent_if"] | said["finding"] | said["other"])
    default[wordless] = CODE[labels.blank]
    default[said["silent_if"]] = SILENT
    default[said["no_finding"]] = ABSENT
    codes = np.repeat(default[:, None], len(labels.audited), axis=1)
    named = words.filter(pl.col("meaning") == "finding").explode("findings").select("speaker", "findings", "state")
    for state in WEAKEST_FIRST:
        some = named.filter(pl.col("state") == state)
        codes[some["speaker"].to_numpy(), some["findings"].to_numpy()] = state
    _check_names(named, list(unaudited), mapping)
    contradicts = said["no_finding"] & (codes == PRESENT).any(axis=1)
    notices = [
        *count_contradictions(raw, _films_of(speech, contradicts), labels),
        *_count_silences(speech, raw, labels, unread=said["silent_if"] & ~said["no_finding"], wordless=wordless),
        *_count_disagreements(speech, raw, named),
        *_count_near_misses(unaudited, labels),
    ]
    return Said(codes=codes, unaudited=unaudited, notices=notices)


def count_contradictions(raw: RawTable, films: pl.Series, labels: Labels) -> list[Notice]:
    """Count the films that say `no finding` and a finding; the finding is claimed present."""
    word = " / ".join(labels.no_finding)
    return raw.notice("contradiction", films, f"Films that say {word!r} and a finding, which is claimed present")


def _make_lexicon(words: pl.Series, labels: Labels) -> pl.DataFrame:
    """Say what each spelling means; case, blanks, `_` and `-` do not matter."""
    findings: dict[str, list[int]] = {}
    for place, finding in enumerate(labels.audited):
        for spelling in labels.spellings_of(finding):
            findings.setdefault(fold(spelling), []).append(place)
    meanings = {"": "blank"} | dict.fromkeys(findings, "finding")
    meanings |= {fold(word): "no_finding" for word in labels.no_finding}
    meanings |= {fold(word): "silent_if" for word in labels.silent_if}
    folded = [fold(word) for word in words]
    return pl.DataFrame(
        {
            "word": words,
            "meaning": [meanings.get(word, "other") for word in folded],
            "folded": folded,
            "findings": pl.Series([sorted(set(findings.get(word, []))) for word in folded], dtype=pl.List(pl.UInt32)),
        }
    )


def _speakers_with(speech: Speech, words: pl.DataFrame, meaning: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the speakers who say a word of this meaning; a word of the record that is denied is not said."""
    said = pl.col("meaning") == meaning
    if meaning in ("no_finding", "silent_if"):
        said &= pl.col("state") == PRESENT
    marked = np.zeros(speech.speakers, bool)
    marked[words.filter(said)["speaker"].to_numpy()] = True
    return marked


def _films_of(speech: Speech, speakers: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pl.Series:
    """Mark one row, the first, for each film of these speakers."""
    rows = speech.rows.with_columns(said=pl.Series(speakers).gather(speech.rows["speaker"])).with_row_index("row")
    first = rows.filter("said").unique("film", keep="first")["row"].to_numpy()
    marked = np.zeros(speech.rows.height, bool)
    marked[first] = True
    return pl.Series(marked)


def _unknown_label(speech: Speech, raw: RawTable, mapping: ColumnMap, others: pl.DataFrame) -> SourceError:
    rows = speech.rows.with_row_index("row").join(others, on="speaker", how="inner").sort("row", maintain_order=True)
    word, row = rows["word"][0], rows["row"][0]
    known = [*mapping.labels.audited, *mapping.labels.no_finding]
    return SourceError(str(UnknownName.of("finding", word[:80], known, where=raw.place(row))))


def _count_others(speech: Speech, others: pl.DataFrame) -> dict[str, int]:
    """Count the films that carry each label that is not audited, the commonest first."""
    films = speech.rows.unique().join(others.select("speaker", "folded").unique(), on="speaker")
    counts = films.unique(["film", "folded"]).group_by("folded").len()
    spelled = others.group_by("folded").agg(pl.col("word").sort().first())
    counted = counts.join(spelled, on="folded").sort(["len", "word"], descending=[True, False])
    return dict(zip(counted["word"].to_list(), counted["len"].to_list(), strict=True))


def _check_names(named: pl.DataFrame, others: list[str], mapping: ColumnMap) -> None:
    """Refuse an audited finding that no row names while a label much like it is there: it would be absent all over."""
    seen = set(named["findings"].unique().to_list())
    for place, finding in enumerate(mapping.labels.audited):
        if place in seen:
            continue
        near = difflib.get_close_matches(fold(finding), [fold(w) for w in others[:MOST_COMPARED]], n=1, cutoff=ALIKE)
        if near:
            meant = next(word for word in others if fold(word) == near[0])
            raise SourceError(
                f"{mapping.origin}: [labels] audited has {finding!r}, which no row names. Did you mean {meant!r}? "
                f"If both are right, list it under [aliases]"
            )


def _count_silences(
    speech: Speech,
    raw: RawTable,
    labels: Labels,
    *,
    unread: np.ndarray[tuple[int], np.dtype[np.bool_]],
    wordless: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[Notice]:
    words = " or ".join(repr(word) for word in labels.silent_if)
    return [
        *raw.notice(
            "unread",
            _films_of(speech, unread),
            f"Films that say {words} and are silent about every finding they do not name",
        ),
        *raw.notice("unlabelled", _films_of(speech, wordless), f"Films without a label, read as {labels.blank}"),
    ]


def _count_disagreements(speech: Speech, raw: RawTable, named: pl.DataFrame) -> list[Notice]:
    """Count the readers who say two things of one finding; the strongest counts."""
    twice = named.group_by("speaker", "findings").agg(pl.col("state").n_unique()).filter(pl.col("state") > 1)
    speakers = np.zeros(speech.speakers, bool)
    speakers[twice["speaker"].to_numpy()] = True
    message = "Films with a reader who says two things of one finding (present counts, then uncertain, then absent)"
    return raw.notice("reader_contradiction", _films_of(speech, speakers), message)


def _count_near_misses(unaudited: Mapping[str, int], labels: Labels) -> list[Notice]:
    """Count labels that look like a misspelt finding; they are not audited."""
    spellings = [fold(word) for finding in labels.audited for word in labels.spellings_of(finding)]
    misses = [
        (word, near[0])
        for word in list(unaudited)[:MOST_COMPARED]
        if (near := difflib.get_close_matches(fold(word), spellings, n=1, cutoff=ALIKE))
    ]
    if not misses:
        return []
    films = sum(unaudited[word] for word, _ in misses)
    pairs = ", ".join(f"{word!r} (like {near!r})" for word, near in misses[:3])
    message = f"Films with a label that looks like a finding, not audited unless [aliases] lists it, {pairs}: {films:,}"
    return [Notice(code="misspelt", count=films, message=message)]


BRACKETED = r"""'[^']*'|"[^"]*"|[^,\[\]'"\s][^,\[\]'"]*"""
"""A word of a bracketed list: quoted either way, or bare."""


def read_columns(raw: RawTable, mapping: ColumnMap) -> Said:
    """Read one column a finding; of several columns for one finding the strongest word counts."""
    labels = mapping.labels
    codes = np.full((raw.frame.height, len(labels.audited)), SILENT, np.uint8)
    for place, finding in enumerate(labels.audited):
        columns = [column for column in labels.spellings_of(finding) if column in raw.frame.columns]
        said = [_read_states(raw, column, mapping) for column in columns]
        for state in WEAKEST_FIRST:
            for states in said:
                codes[states == state, place] = state
    contradicts = np.zeros(raw.frame.height, bool)
    for column in labels.no_finding:
        nothing = _read_states(raw, column, mapping) == PRESENT
        contradicts |= nothing & (codes == PRESENT).any(axis=1)
        codes[nothing[:, None] & (codes == SILENT)] = ABSENT
    counted = {column: int((_read_states(raw, column, mapping) == PRESENT).sum()) for column in labels.unaudited}
    return Said(codes=codes, unaudited=counted, notices=count_contradictions(raw, pl.Series(contradicts), labels))


def read_lists(raw: RawTable, mapping: ColumnMap) -> Said:
    """Read a list of labels in one cell a film; equal cells are read once."""
    labels = mapping.labels
    cells = raw.frame[labels.column]
    kinds = cells.unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(kinds), dtype=np.uint32))
    kind_of = cells.replace_strict(kinds, numbers, return_dtype=pl.UInt32)
    films = pl.Series(np.arange(len(cells), dtype=np.uint32))
    speech = Speech(
        words=_split(kinds, labels, is_list=labels.column in raw.lists),
        rows=pl.DataFrame({"speaker": kind_of, "film": films}),
        speakers=len(kinds),
    )
    said = hear(speech, raw, mapping)
    return Said(codes=said.codes[kind_of.to_numpy()], unaudited=said.unaudited, notices=said.notices)


def read_long(raw: RawTable, mapping: ColumnMap, film_of: pl.Series) -> Said:
    """Read one row a film, reader and finding; repeated rows of a reader are boxes."""
    labels = mapping.labels
    height = raw.frame.height
    reader = raw.frame[labels.reader] if labels.reader else pl.repeat("", height, dtype=pl.String, eager=True)
    if labels.reader and (row := raw.first(reader == "")) is not None:
        raise SourceError(f"{raw.place(row)} names no reader in {labels.reader!r}. Fill it in or delete the line")
    who = pl.DataFrame({"film": film_of, "reader": reader})
    readers = who.unique(maintain_order=True).sort("film", maintain_order=True).with_row_index("speaker")
    rows = who.join(readers, on=["film", "reader"], how="left", maintain_order="left").select("speaker", "film")
    states = _read_states(raw, labels.value, mapping) if labels.value else np.full(height, PRESENT, np.uint8)
    words = pl.DataFrame({"speaker": rows["speaker"], "word": raw.frame[labels.finding], "state": states})
    said = hear(Speech(words=words, rows=rows, speakers=readers.height), raw, mapping)
    codes = combine_readers(said.codes, readers["film"].to_numpy().astype(np.int64), rule=labels.readers)
    return Said(codes=codes, unaudited=said.unaudited, notices=said.notices)


def _read_states(raw: RawTable, column: str, mapping: ColumnMap) -> Codes:
    """Give the code of each cell of a column; a value that the mapping does not name is refused."""
    cells = raw.frame[column].str.to_lowercase().str.replace(r"^(-?\d+)\.0+$", "${1}")
    codes = {value: CODE[state] for value, state in mapping.labels.values.items()}
    states = cells.replace_strict(codes, default=None, return_dtype=pl.UInt8)
    row = raw.first(states.is_null())
    if row is not None:
        value = raw.frame[column][row][:80]
        raise SourceError(
            f"{raw.place(row)}, column {column!r}, holds {value!r}, which [values] does not name. {mapping.mend}"
        )
    return states.to_numpy()


def _split(cells: pl.Series, labels: Labels, *, is_list: bool) -> pl.DataFrame:
    """Take each list apart into words, one row each; a list without words has one blank word."""
    text = pl.col("cell")
    if is_list:
        words = text.str.split(LIST_SEPARATOR)
    elif labels.delimiter:
        words = text.str.split(labels.delimiter)
    else:
        words = text.str.extract_all(BRACKETED)
    frame = pl.DataFrame({"cell": cells}).with_row_index("speaker").select("speaker", word=words).explode("word")
    return frame.with_columns(
        pl.col("word").fill_null("").str.strip_chars(" \t'\""), pl.lit(PRESENT, pl.UInt8).alias("state")
    )


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
