"""The reading list of a workspace: what `bpals review next` gives, in one call.

listed = next_reviews("audit", n=50)        the next 50 pairs to read: most by value, a share at random, unmarked
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bpals.score import references
from bpals.scoring import vocabulary_of
from bpals.signal import queue
from bpals.signal.queue import Draw
from bpals.signal.value import Worth
from bpals.types import Notice, Reviews
from bpals.workspace import Workspace

COLUMNS = ("image_id", "finding", "says", "trust", "trust_low", "trust_high", "method")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingList:
    """The next pairs to read, and what was noticed on the way."""

    table: pl.DataFrame
    """READING_LIST: `image_id, finding, value, inclusion, drawn`, in the order of reading."""
    notices: tuple[Notice, ...] = ()


def next_reviews(
    workspace: str | os.PathLike[str] = "audit",
    *,
    n: int = 50,
    findings: Sequence[str] | None = None,
    reviews: str | os.PathLike[str] | None = None,
    worth: Worth | None = None,
    draw: Draw | None = None,
) -> pl.DataFrame:
    """Draw the next pairs of a finished audit that an expert should read, in the order of reading.

    `findings` restricts it; `reviews` is a file of reads: what was read is not offered again. `worth` says what an
    error of a finding is worth and how long a read takes, `draw` how much is drawn at random. Show a reader `image_id`
    and `finding` only, and keep `inclusion` with the read.
    """
    return reading_list(workspace, n=n, findings=findings, reviews=reviews, worth=worth, draw=draw).table


def reading_list(
    workspace: str | os.PathLike[str] = "audit",
    *,
    n: int = 50,
    findings: Sequence[str] | None = None,
    reviews: str | os.PathLike[str] | None = None,
    worth: Worth | None = None,
    draw: Draw | None = None,
) -> ReadingList:
    """Do the same, and say what was noticed."""
    audit = Workspace(workspace).open()
    signal, images = audit.table("signal.parquet", *COLUMNS), audit.table("images.parquet", "image_id", "patient_id")
    vocabulary = vocabulary_of(signal)
    read: Reviews | None = None
    if reviews is not None:
        read = references.of_films(references.load_reads(Path(reviews), vocabulary=vocabulary), images)
    if findings is not None:
        named = vocabulary.resolve(findings, where="--findings")
        signal = signal.filter(pl.col("finding").is_in(named))
    listed = queue.next_reviews(signal, images, n=n, reviews=read, worth=worth, draw=draw)
    notices = read.notices if read else ()
    if listed.height < n:
        message = f"{listed.height:,} pairs are left to read, not {n:,}: one a patient, unless --all-films is given"
        notices = (*notices, Notice(code="few_left", count=listed.height, message=message))
    return ReadingList(table=listed, notices=notices)
