"""The skeleton of a CSV text: where its records, fields and lines are.

Polars reads a CSV fast but leaves a malformed one undefined: a short record is filled up, an unclosed quote eats the
rest. So the skeleton is checked first, in one pass over the bytes, and every record knows its line.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.plural import several
from bpals.tablewords import TableWords

QUOTE, NEWLINE, RETURN = b'"'[0], b"\n"[0], b"\r"[0]

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The records of a CSV text, blank lines among them; every array has one entry a record."""

    start: Places
    end: Places
    fields: Places
    line: Places
    filled: npt.NDArray[np.bool_]
    """False for a blank line."""


class CsvText:
    """A CSV text whose header is read and whose records are known to be whole."""

    def __init__(self, content: bytes, *, name: str, separator: str, words: TableWords) -> None:
        """Find the records; a text that is no CSV is refused with the line where it breaks."""
        self.name = name
        self._content = content
        self._separator = separator
        self._words = words
        self._skeleton = find_skeleton(content, name=name, separator=separator, words=words)
        self._head = self._find_header()
        self.header = self._read_header()
        self._check_widths()

    @property
    def lines(self) -> Places:
        """The line of each row in the file; the header is line 1."""
        return self._rows(self._skeleton.line)

    def read(self, places: list[int]) -> pl.DataFrame:
        """Give the fields at these places of every row as text; each column is called by its place."""
        bones = self._skeleton
        width = int(bones.fields[self._head + 1 :].max())
        unreadable = self._words.error(f"{self.name} cannot be read: its rows cannot be told apart. Get the file again")
        try:
            frame = pl.read_csv(
                self._content[int(bones.start[self._head + 1]) :],
                has_header=False,
                separator=self._separator,
                schema={str(place): pl.String for place in range(width)},
                empty_string_is_null=False,
                columns=[place for place in places if place < width],
                missing_columns="insert",
            )
        except pl.exceptions.PolarsError:
            raise unreadable from None
        if frame.height != bones.start.size - self._head - 1:
            raise unreadable
        filled = frame.filter(pl.Series(bones.filled[self._head + 1 :])).fill_null("")
        return filled.select(pl.col(str(p)) if p < width else pl.lit("").alias(str(p)) for p in places)

    def _find_header(self) -> int:
        filled = np.flatnonzero(self._skeleton.filled)
        if filled.size == 0:
            raise self._words.refusal(self._words.empty, name=self.name)
        if filled.size == 1:
            raise self._words.refusal(self._words.no_rows, name=self.name, head="a header line")
        return int(filled[0])

    def _read_header(self) -> list[str]:
        start, end = int(self._skeleton.start[self._head]), int(self._skeleton.end[self._head])
        columns = split_header(self._content[start:end], self._separator, name=self.name, words=self._words)
        return _spelled_out(columns) if self._rows(self._skeleton.fields)[0] > len(columns) else columns

    def _check_widths(self) -> None:
        """Refuse records with more or fewer fields than the header; nameless columns at its end may be missing."""
        named = max((place + 1 for place, column in enumerate(self.header) if column), default=0)
        fields = self._rows(self._skeleton.fields)
        wrong = np.flatnonzero((fields < named) | (fields > len(self.header)))
        if wrong.size == 0:
            return
        row, words = int(wrong[0]), self._words
        raise words.refusal(
            words.cut_row if row == fields.size - 1 and fields[row] < named else words.uneven_row,
            name=self.name,
            line=self.lines[row],
            fields=several(int(fields[row]), "field"),
            width=len(self.header),
            separator=self._separator,
        )

    def _rows(self, values: Places) -> Places:
        after = slice(self._head + 1, None)
        return values[after][self._skeleton.filled[after]]


def split_header(line: bytes, separator: str, *, name: str, words: TableWords) -> list[str]:
    """Give the names of the columns out of the header's line."""
    try:
        columns = next(csv.reader([line.decode("utf-8")], delimiter=separator), [])
    except csv.Error as error:
        raise words.error(f"{name} line 1 is no header: {error}. Give a table with a header line") from None
    return [column.strip() for column in columns]


def _spelled_out(header: list[str]) -> list[str]:
    """Take `OriginalImage[Width,Height]` apart: NIH's rows have a value for each word in the brackets."""
    return [piece.strip() for name in header for piece in (name.split(",") if "[" in name else [name])]


def find_skeleton(content: bytes, *, name: str, separator: str, words: TableWords) -> Skeleton:
    """Find every record of a CSV text; a separator or line break inside double quotes is none."""
    # A line break on either side, so that every byte has neighbours: padded[i] stands before text[i].
    padded = np.frombuffer(b"\n%b\n" % content, np.uint8)
    text = padded[1:-1]
    structural = np.zeros(256, bool)
    structural[[QUOTE, NEWLINE, ord(separator)]] = True
    marks = np.flatnonzero(structural[text])
    kinds = text[marks]
    inside = (np.cumsum(kinds == QUOTE) & 1).astype(bool)
    newlines = marks[kinds == NEWLINE]
    if trouble := _find_quote_trouble(padded, marks, inside, separator=ord(separator), words=words):
        place, template = trouble
        raise words.refusal(template, name=name, line=np.searchsorted(newlines, place) + 1)
    end = marks[(kinds == NEWLINE) & ~inside]
    if text.size and not content.endswith(b"\n"):
        end = np.append(end, text.size)
    start = np.concatenate([np.zeros(1, np.int64), end[:-1] + 1])[: end.size]
    between = marks[(kinds == ord(separator)) & ~inside]
    ends_in_return = (end > start) & (padded[end] == RETURN)
    fields = np.searchsorted(between, end) - np.searchsorted(between, start) + 1
    end = end - ends_in_return
    filled = end > start
    # A line of blanks alone is a blank line.
    for row in np.flatnonzero(filled & (fields == 1)):
        filled[row] = bool(content[start[row] : end[row]].strip())
    return Skeleton(start=start, end=end, fields=fields, line=np.searchsorted(newlines, start) + 1, filled=filled)


def _find_quote_trouble(
    padded: npt.NDArray[np.uint8],
    marks: Places,
    inside: npt.NDArray[np.bool_],
    *,
    separator: int,
    words: TableWords,
) -> tuple[int, str] | None:
    """Find the first double quote that stands in the middle of a field, or the one that never closes; and its words."""
    is_quote = padded[marks + 1] == QUOTE
    quotes, opens = marks[is_quote], inside[is_quote]
    if quotes.size == 0:
        return None
    neighbour = np.where(opens, padded[quotes], padded[quotes + 2])
    line_end = (neighbour == RETURN) & (padded[np.minimum(quotes + 3, padded.size - 1)] == NEWLINE)
    apart = np.isin(neighbour, np.array([separator, NEWLINE, QUOTE], np.uint8)) | (~opens & line_end)
    stray = quotes[~apart]
    if stray.size:
        return int(stray[0]), words.stray_quote
    if opens[-1]:
        return int(quotes[-1]), words.open_quote
    return None
