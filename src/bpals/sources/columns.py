"""The cells of a table become images, one row each, and codes: what each row says of each audited finding."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import SourceError, UnknownName
from bpals.findings import fold
from bpals.sources import ABSENT, PRESENT, SILENT, UNCERTAIN, Codes
from bpals.sources.mapping import ColumnMap, Labels
from bpals.store.tables import LIST_SEPARATOR, RawTable
from bpals.types import IMAGES, Notice

Bools = npt.NDArray[np.bool_]

NOTHING = ("", "nan", "none", "null", "na", "n/a", "unknown")  # what tables write where they know nothing
TEXTS = ("image", "patient", "study", "view", "sex")
SEXES = {"m": "M", "male": "M", "f": "F", "female": "F"}
OLDEST = 120
AGE = r"^0*(\d+(?:\.\d+)?)\s*([YMWD]?)$"  # in years, or as DICOM writes it: 058Y, 013M, 006W, 011D
YEARS = {"": 1.0, "Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}

CODE = {"present": PRESENT, "absent": ABSENT, "uncertain": UNCERTAIN, "silent": SILENT}
# When one image has two states of a finding, the last of these counts.
WEAKEST_FIRST = (SILENT, ABSENT, UNCERTAIN, PRESENT)
BRACKETED = r"""'[^']*'|"[^"]*"|[^,\[\]'"\s][^,\[\]'"]*"""  # a word of a bracketed list: quoted either way, or bare
ALIKE = 0.9  # how like a finding a word must be, from 0 to 1, to be taken for a typing error
MOST_COMPARED = 2_000  # words compared with the findings, the commonest first: free text has no end of them


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


def read_films(raw: RawTable, mapping: ColumnMap) -> tuple[pl.DataFrame, list[Notice]]:
    """Give each row of the table its image (patient, time, view, age), and count what is odd about them."""
    cells, notices = _find_cells(raw, mapping)
    _refuse_formulas(raw, cells)
    if (row := raw.first(_is_nothing(cells["image"]))) is not None:
        raise SourceError(f"{raw.place(row)} has no image id. Fill it in or delete the line")
    columns = {role: cells[role].set(_is_nothing(cells[role]), None) for role in TEXTS if role in cells}
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
        # The birthday is not known, so that the age is a whole number of years.
        age = (columns["date"].dt.year() - columns["birth"]).cast(pl.Float64)
        impossible = ((age < 0) | (age > OLDEST)).fill_null(value=False)
        columns["age"] = age.set(impossible, None)
        message = f"Years of birth that give no age between 0 and {OLDEST}, read as unknown"
        notices += raw.notice("age_impossible", impossible, message)
    if "patient" in columns:
        notices += raw.notice("patient_missing", columns["patient"].is_null(), "Rows without a patient")
    return _assemble(columns, raw.frame.height), notices


def _find_cells(raw: RawTable, mapping: ColumnMap) -> tuple[dict[str, pl.Series], list[Notice]]:
    """Take each role's text from its column, or from the group of the pattern."""
    cells = {}
    for role, columns in mapping.films.items():
        filled = [pl.when(pl.col(c) != "").then(pl.col(c)) for c in columns if c in raw.frame.columns]
        cells[role] = raw.frame.select(pl.coalesce(filled)).to_series().fill_null("")
    if mapping.pattern is None:
        return cells, []
    hidden = raw.frame[mapping.pattern.column]
    unmatched = ~hidden.str.contains(mapping.pattern.regex)
    where = f"[pattern] regex of {mapping.origin}"
    row = raw.first(unmatched)
    if row is not None and (unmatched.all() or "image" in mapping.pattern.groups):
        raise SourceError(f"{raw.place(row)}: {hidden[row][:80]!r} does not match the {where}. {mapping.mend}")
    found = hidden.str.extract_groups(mapping.pattern.regex)
    for group in mapping.pattern.groups:
        cells[group] = found.struct.field(group).fill_null("").str.strip_chars()
    message = f"Rows that do not match the {where}, so that {', '.join(mapping.pattern.groups)} are unknown"
    return cells, raw.notice("pattern_unmatched", unmatched, message)


def _refuse_formulas(raw: RawTable, cells: dict[str, pl.Series]) -> None:
    """Refuse a cell that starts like a spreadsheet formula: damage, and a danger to whoever opens an export."""
    for role in TEXTS:
        if role in cells and (row := raw.first(cells[role].str.contains(r"^[=@+]|[\x00-\x1f]"))) is not None:
            value = cells[role][row][:40]
            raise SourceError(
                f"{raw.place(row)}: the {role} is {value!r}, a formula or control character. Mend that line"
            )


def _is_nothing(cells: pl.Series) -> pl.Series:
    return cells.str.to_lowercase().is_in(NOTHING)


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
    value = cells[row][:80]
    if odd.sum() == given.sum() and odd.sum() > 1:
        raise SourceError(
            f"{raw.place(row)}: the {role} is {value!r}, and no other row has one that can be read. {mend}"
        )
    return values, raw.notice(code, odd, f"Values of {role} such as {value!r} that cannot be, read as unknown")


def _read_whole(cells: pl.Series) -> pl.Series:
    return cells.str.replace(r"\.0*$", "").cast(pl.Int64, strict=False)


def _read_positive(cells: pl.Series) -> pl.Series:
    number = _read_whole(cells)
    return number.set(number <= 0, None)


def _read_age(cells: pl.Series) -> pl.Series:
    text = cells.str.to_uppercase()
    unit = text.str.extract(AGE, 2).replace_strict(YEARS, default=None, return_dtype=pl.Float64)
    years = text.str.extract(AGE, 1).cast(pl.Float64, strict=False) * unit
    return years.set(years > OLDEST, None)


def _read_date(cells: pl.Series, given: str | None) -> pl.Series:
    formats = (given,) if given else ("%Y%m%d", "%Y-%m-%d", "%Y/%m/%d")
    text = cells if given else cells.str.replace(r"\.0$", "").str.slice(0, 10)
    frame = pl.DataFrame({"date": text})
    return frame.select(pl.coalesce(pl.col("date").str.to_date(f, strict=False) for f in formats)).to_series()


def _assemble(columns: dict[str, pl.Series], height: int) -> pl.DataFrame:
    if "sex" in columns:
        sexes = columns["sex"].str.to_lowercase().replace_strict(SEXES, default=None, return_dtype=pl.String)
        columns["sex"] = sexes.fill_null(columns["sex"])
    named = {
        "image_id": columns["image"],
        "patient_id": columns.get("patient"),
        "study_id": columns.get("study"),
        "follow_up": columns["date"].dt.epoch("d") if "date" in columns else columns.get("order"),
        "view": columns.get("view"),
        "age": columns.get("age"),
        "sex": columns.get("sex"),
        "width_px": columns.get("width"),
        "height_px": columns.get("height"),
    }
    unknown = pl.repeat(None, height, eager=True)
    return pl.DataFrame({name: unknown if values is None else values for name, values in named.items()}).cast(IMAGES)


def check_orders(raw: RawTable, images: pl.DataFrame, rows: pl.Series) -> list[Notice]:
    """Count the images whose patient stands in two orders: one number for several studies, or number against age."""
    films = images.with_columns(row=rows).drop_nulls(["patient_id", "follow_up"])
    key = ["patient_id", "follow_up"]
    apart = pl.len() if films["study_id"].null_count() else pl.col("study_id").n_unique()
    tied = films.filter(apart.over(key) > 1)["row"]
    timed = films.drop_nulls("age").sort([*key, "age"])
    falls = timed.filter((pl.col("age").diff() < 0).over("patient_id"))["row"]
    tied_words = "Films that share patient and order number with another, read as taken at one time"
    falls_words = "Films that come later in their patient's order at a lower age, the order being kept"
    return [
        *raw.notice("order_tied", pl.Series(_marked(raw.frame.height, tied)), tied_words),
        *raw.notice("order_against_age", pl.Series(_marked(raw.frame.height, falls)), falls_words),
    ]


def _marked(count: int, places: pl.Series) -> Bools:
    marked = np.zeros(count, bool)
    marked[places.to_numpy()] = True
    return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A code per image and finding, which labels were only counted, and what was odd."""

    codes: Codes
    unaudited: Mapping[str, int]
    notices: list[Notice]


def read_columns(raw: RawTable, mapping: ColumnMap) -> Coded:
    """Read one column per finding; of several columns for one finding the strongest state counts."""
    labels = mapping.labels
    codes = np.full((raw.frame.height, len(labels.audited)), SILENT, np.uint8)
    for place, finding in enumerate(labels.audited):
        columns = [column for column in labels.spellings_of(finding) if column in raw.frame.columns]
        found = [_read_states(raw, column, mapping) for column in columns]
        for state in WEAKEST_FIRST:
            for states in found:
                codes[states == state, place] = state
    contradicts = np.zeros(raw.frame.height, bool)
    for column in labels.no_finding:
        nothing = _read_states(raw, column, mapping) == PRESENT
        contradicts |= nothing & (codes == PRESENT).any(axis=1)
        codes[nothing[:, None] & (codes == SILENT)] = ABSENT
    counted = {column: int((_read_states(raw, column, mapping) == PRESENT).sum()) for column in labels.unaudited}
    return Coded(codes=codes, unaudited=counted, notices=_count_contradictions(raw, pl.Series(contradicts), labels))


def read_lists(raw: RawTable, mapping: ColumnMap) -> Coded:
    """Read a list of labels in one cell per image; equal cells are read once."""
    labels = mapping.labels
    cells = raw.frame[labels.column]
    kinds = cells.unique(maintain_order=True)
    kind_of = cells.replace_strict(kinds, pl.Series(np.arange(len(kinds), dtype=np.uint32)), return_dtype=pl.UInt32)
    words = _split(kinds, labels, is_list=labels.column in raw.lists)
    rows = pl.DataFrame({"statement": kind_of, "film": np.arange(len(cells), dtype=np.uint32)})
    coded = _code(_Statements(words=words, rows=rows, count=len(kinds)), raw, mapping)
    return replace(coded, codes=coded.codes[kind_of.to_numpy()])


def read_long(raw: RawTable, mapping: ColumnMap, film_of: pl.Series) -> Coded:
    """Read one row per image, reader and finding; repeated rows of a reader are boxes."""
    labels = mapping.labels
    height = raw.frame.height
    reader = raw.frame[labels.reader] if labels.reader else pl.repeat("", height, dtype=pl.String, eager=True)
    if labels.reader and (row := raw.first(reader == "")) is not None:
        raise SourceError(f"{raw.place(row)} names no reader in {labels.reader!r}. Fill it in or delete the line")
    who = pl.DataFrame({"film": film_of, "reader": reader})
    readers = who.unique(maintain_order=True).sort("film", maintain_order=True).with_row_index("statement")
    rows = who.join(readers, on=["film", "reader"], how="left", maintain_order="left").select("statement", "film")
    states = _read_states(raw, labels.value, mapping) if labels.value else np.full(height, PRESENT, np.uint8)
    words = pl.DataFrame({"statement": rows["statement"], "word": raw.frame[labels.finding], "state": states})
    coded = _code(_Statements(words=words, rows=rows, count=readers.height), raw, mapping)
    films = readers["film"].to_numpy().astype(np.int64)
    return replace(coded, codes=combine_readers(coded.codes, films, rule=labels.readers))


def combine_readers(codes: Codes, films: npt.NDArray[np.int64], *, rule: str) -> Codes:
    """Make one label of several readers; `films` gives the image of each row of codes, in ascending order.

    Only readers who are not silent count, and if nobody marks the finding and nobody is uncertain it is absent.
    majority: present if more than half mark it. any: present if one marks it. all: present if every one marks it.
    Anything in between is uncertain.
    """
    starts = np.flatnonzero(np.diff(films, prepend=-1))
    present, uncertain, silent = (
        np.add.reduceat((codes == code).astype(np.int64), starts, axis=0) for code in (PRESENT, UNCERTAIN, SILENT)
    )
    spoken = np.diff(np.append(starts, films.size))[:, None] - silent
    needed = {"majority": 2 * present > spoken, "any": present > 0, "all": present == spoken}[rule]
    combined = np.full(present.shape, UNCERTAIN, np.uint8)
    combined[(present == 0) & (uncertain == 0)] = ABSENT
    combined[needed & (present > 0)] = PRESENT
    combined[spoken == 0] = SILENT
    return combined


def _read_states(raw: RawTable, column: str, mapping: ColumnMap) -> Codes:
    """Give the code of each cell of a column; a value that the mapping does not name is refused."""
    cells = raw.frame[column].str.to_lowercase().str.replace(r"^(-?\d+)\.0+$", "${1}")
    codes = {value: CODE[state] for value, state in mapping.labels.values.items()}
    states = cells.replace_strict(codes, default=None, return_dtype=pl.UInt8)
    if (row := raw.first(states.is_null())) is not None:
        value = raw.frame[column][row][:80]
        raise SourceError(
            f"{raw.place(row)}, column {column!r}, holds {value!r}, which [values] does not name. {mapping.mend}"
        )
    return states.to_numpy()


def _split(cells: pl.Series, labels: Labels, *, is_list: bool) -> pl.DataFrame:
    """Take each list apart into words, one row each; a list without words has one blank word."""
    text = pl.col("cell")
    if is_list or labels.delimiter:
        words = text.str.split(LIST_SEPARATOR if is_list else labels.delimiter)
    else:
        words = text.str.extract_all(BRACKETED)
    frame = pl.DataFrame({"cell": cells}).with_row_index("statement").select("statement", word=words).explode("word")
    return frame.with_columns(
        pl.col("word").fill_null("").str.strip_chars(" \t'\""), pl.lit(PRESENT, pl.UInt8).alias("state")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statements:
    """The words of each cell that differs from the others, or of each reader of an image."""

    words: pl.DataFrame  # statement, word, state: one row per word, in the order of the file
    rows: pl.DataFrame  # statement, film: one row per row of the table
    count: int

    def films_of(self, chosen: Bools) -> pl.Series:
        """Mark one row, the first, for each image of the chosen statements."""
        rows = self.rows.with_columns(chosen=pl.Series(chosen).gather(self.rows["statement"])).with_row_index("row")
        return pl.Series(_marked(self.rows.height, rows.filter("chosen").unique("film", keep="first")["row"]))


def _code(statements: _Statements, raw: RawTable, mapping: ColumnMap) -> Coded:
    """Give the code of each statement for each finding."""
    labels = mapping.labels
    words = statements.words.join(_make_lexicon(statements.words["word"].unique(), labels), on="word", how="left")
    named_present = pl.col("state") == PRESENT
    others = words.filter(pl.col("meaning") == "other", named_present)
    if labels.others == "refuse" and not others.is_empty():
        raise _unknown_label(statements, raw, mapping, others)
    unaudited = _count_others(statements, others)

    def with_word(meaning: str, *rules: pl.Expr) -> Bools:
        return _marked(statements.count, words.filter(pl.col("meaning") == meaning, *rules)["statement"])

    # A `no finding` that is denied says nothing.
    healthy, unread = with_word("no_finding", named_present), with_word("silent_if", named_present)
    wordless = ~(healthy | unread | with_word("finding") | with_word("other"))
    default = np.full(statements.count, CODE[labels.unlisted], np.uint8)
    default[wordless] = CODE[labels.blank]
    default[unread] = SILENT
    default[healthy] = ABSENT
    codes = np.repeat(default[:, None], len(labels.audited), axis=1)
    named = words.filter(pl.col("meaning") == "finding").explode("findings").select("statement", "findings", "state")
    for state in WEAKEST_FIRST:
        some = named.filter(pl.col("state") == state)
        codes[some["statement"].to_numpy(), some["findings"].to_numpy()] = state
    _check_names(named, list(unaudited), mapping)
    states = named.group_by("statement", "findings").agg(pl.col("state").n_unique())
    twice = _marked(statements.count, states.filter(pl.col("state") > 1)["statement"])
    silent_words = " or ".join(repr(word) for word in labels.silent_if)
    unread_words = f"Films that say {silent_words} and are silent about every finding they do not name"
    twice_words = "Films with a reader who says two things of one finding (present counts, then uncertain, then absent)"
    notices = [
        *_count_contradictions(raw, statements.films_of(healthy & (codes == PRESENT).any(axis=1)), labels),
        *raw.notice("unread", statements.films_of(unread & ~healthy), unread_words),
        *raw.notice("unlabelled", statements.films_of(wordless), f"Films without a label, read as {labels.blank}"),
        *raw.notice("reader_contradiction", statements.films_of(twice), twice_words),
        *_count_near_misses(unaudited, labels),
    ]
    return Coded(codes=codes, unaudited=unaudited, notices=notices)


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


def _unknown_label(statements: _Statements, raw: RawTable, mapping: ColumnMap, others: pl.DataFrame) -> SourceError:
    rows = statements.rows.with_row_index("row").join(others, on="statement", how="inner")
    word, row = rows.sort("row", maintain_order=True).select("word", "row").row(0)
    known = [*mapping.labels.audited, *mapping.labels.no_finding]
    return SourceError(str(UnknownName.of("finding", word[:80], known, where=raw.place(row))))


def _count_others(statements: _Statements, others: pl.DataFrame) -> dict[str, int]:
    """Count the images that carry each label that is not audited, the commonest first."""
    films = statements.rows.unique().join(others.select("statement", "folded").unique(), on="statement")
    counts = films.unique(["film", "folded"]).group_by("folded").len()
    spelled = others.group_by("folded").agg(pl.col("word").sort().first())
    counted = counts.join(spelled, on="folded").sort(["len", "word"], descending=[True, False])
    return dict(counted.select("word", "len").iter_rows())


def _check_names(named: pl.DataFrame, others: list[str], mapping: ColumnMap) -> None:
    """Refuse an audited finding that no row names while a label much like it is there: it would be absent all over."""
    seen = set(named["findings"].unique().to_list())
    folded = [fold(word) for word in others[:MOST_COMPARED]]
    for place, finding in enumerate(mapping.labels.audited):
        if place not in seen and (near := difflib.get_close_matches(fold(finding), folded, n=1, cutoff=ALIKE)):
            meant = others[folded.index(near[0])]
            raise SourceError(
                f"{mapping.origin}: [labels] audited has {finding!r}, which no row names. Did you mean {meant!r}? "
                f"If both are right, list it under [aliases]"
            )


def _count_contradictions(raw: RawTable, films: pl.Series, labels: Labels) -> list[Notice]:
    """Count the images that say `no finding` and a finding; the finding is labelled present."""
    word = " / ".join(labels.no_finding)
    return raw.notice("contradiction", films, f"Films that say {word!r} and a finding, which is claimed present")


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
