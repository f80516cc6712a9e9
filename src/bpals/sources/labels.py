"""Cells of a table become codes: what each film says of each finding."""

from __future__ import annotations

import numpy as np
import polars as pl

from bpals.errors import SourceError
from bpals.sources.claims import ABSENT, CODE, PRESENT, SILENT, WEAKEST_FIRST, Codes, combine_readers
from bpals.sources.mapping import ColumnMap, Labels
from bpals.sources.speech import Said, Speech, count_contradictions, hear
from bpals.tablefile import LIST_SEPARATOR, RawTable

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
