"""How a file that is no table is refused: the error of whoever reads it, and its words."""

from __future__ import annotations

from dataclasses import dataclass

from bpals.errors import BpalsError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWords:
    """One line a trouble; whoever reads expert labels or scores says a few of them in words of its own."""

    error: type[BpalsError]
    where: str = ""
    """What stands after `Check the path`: where it was typed."""
    folder: str = "{name} is a folder, not a file. Name the file in it"
    too_large: str = "{name} holds more than {most:,} bytes. Keep only the columns that are needed"
    gzip_cut: str = "{name} is cut off: its gzip stream ends in the middle. Get it again"
    gzip_damaged: str = "{name} is damaged: its gzip stream does not check. Get it again"
    not_utf8: str = (
        "{name} line {line} is not UTF-8 (byte {byte}). "
        "If it is Latin-1, type: iconv -f LATIN1 -t UTF-8 {name} > utf8.csv"
    )
    empty: str = "{name} is empty. Give a table with a header line and a row a film"
    no_rows: str = "{name} has {head} but no rows. Give a table with a row a film"
    cut_row: str = (
        "{name} line {line} has {fields} where the header has {width}: "
        "the file is cut off in its last line. Get it again"
    )
    uneven_row: str = (
        "{name} line {line} has {fields} where the header has {width}. "
        "Mend that line: a field that holds {separator!r} belongs in double quotes"
    )
    stray_quote: str = (
        "{name} line {line} has a stray double quote. Put the whole field in double quotes and double those inside"
    )
    open_quote: str = "{name} line {line} opens a double quote that never closes. Close it, or get the file again"
    doubled: str = "{name} line 1: the column {column!r} stands twice. Rename or remove one of them"
    parquet_cut: str = "{name} is cut off: this Parquet file has no end. Get it again"
    parquet_damaged: str = "{name} is a damaged Parquet file ({reason}). Get it again"

    def refusal(self, template: str, **what: object) -> BpalsError:
        """Fill one of the lines in; give the error to raise."""
        return self.error(template.format(**what))
