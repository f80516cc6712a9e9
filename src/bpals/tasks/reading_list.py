"""The reading list of a workspace: what `bpals review next` gives, and what a reading room is filled with.

listed = next_reviews("audit", n=50)        the next 50 pairs to read: most by value, a share at random, unmarked
cases = draw_cases("audit", study, reads)   the films of a study, in the order of reading, with the chance of each
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from bpals.reviews import verdicts
from bpals.reviews.verdicts import Files, load_many
from bpals.room.desk.study import Study
from bpals.signal import queue
from bpals.signal.queue import Draw
from bpals.signal.value import Worth
from bpals.store.workspace import Workspace
from bpals.tasks.score import vocabulary_of
from bpals.text import several
from bpals.types import Notice, Reviews

CASES = pl.Schema(
    {
        "image_id": pl.String(),
        "patient_id": pl.String(),
        "finding": pl.String(),  # for which the film was drawn
        "how": pl.String(),  # value or random; never shown to a reader
        "inclusion": pl.Float64(),  # chance of the film, or of the pair where only what was drawn is asked
    }
)
"""What a reading room is to read: films, in the order of reading."""

COLUMNS = ("image_id", "finding", "says", "trust", "trust_low", "trust_high", "method", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingList:
    """The next pairs to read, and what was noticed on the way."""

    table: pl.DataFrame  # READING_LIST: `image_id, finding, value, inclusion, drawn`, in the order of reading
    notices: tuple[Notice, ...] = ()


def next_reviews(
    workspace: str | os.PathLike[str] = "audit",
    *,
    n: int = 50,
    findings: Sequence[str] | None = None,
    reviews: Files | None = None,
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
    reviews: Files | None = None,
    worth: Worth | None = None,
    draw: Draw | None = None,
) -> ReadingList:
    """Do the same, and say what was noticed."""
    audit = Workspace(workspace).open()
    signal, images = audit.table("signal.parquet", *COLUMNS), audit.table("images.parquet", "image_id", "patient_id")
    vocabulary = vocabulary_of(signal)
    read: Reviews | None = None
    if reviews is not None:
        read = verdicts.keep_known_images(load_many(reviews, vocabulary=vocabulary), images)
    if findings is not None:
        named = vocabulary.resolve(findings, where="--findings")
        signal = signal.filter(pl.col("finding").is_in(named))
    listed = queue.next_reviews(signal, images, n=n, reviews=read, worth=worth, draw=draw)
    notices = read.notices if read else ()
    if listed.height < n:
        left = several(listed.height, "pair is", "pairs are")
        message = f"{left} left to read, not {n:,}: one per patient, unless --all-films is given"
        notices = (*notices, Notice(code="few_left", count=listed.height, message=message))
    return ReadingList(table=listed, notices=notices)


def draw_cases(
    workspace: str | os.PathLike[str],
    study: Study,
    reviews: Reviews | None = None,
    *,
    films: Collection[str] | None = None,
    without: Collection[str] = (),
) -> pl.DataFrame:
    """Draw the films of a study, `queue_size` at most: CASES in the order of reading, most by value, a share at random.

    `reviews` are the reads that there are: what was read is not offered again. `films` names those that can be shown,
    where not all can; `without` those that somebody holds now. They are drawn batch by batch, one film per patient in
    each, and each with its chance to be in that batch.
    """
    audit = Workspace(workspace).open()
    images = audit.table("images.parquet", "image_id", "patient_id")
    signal = audit.table("signal.parquet", *COLUMNS).filter(pl.col("finding").is_in(list(study.findings)))
    shown = images["image_id"] if films is None else pl.Series(list(films), dtype=pl.String)
    shown = shown.filter(~shown.is_in(list(without)))
    how = Draw(
        random_share=study.random_share,
        # Another draw after other reads, the same one after the same.
        seed=study.seed * 1_000_003 + (0 if reviews is None else reviews.table.height),
        whole_films=study.asks == "all",
        batch=study.batch,
    )
    listed = queue.next_reviews(signal, images, n=study.queue_size, reviews=reviews, only=shown, draw=how)
    named = listed.join(images, on="image_id", how="left", maintain_order="left")
    return named.rename({"drawn": "how"}).select(CASES.names()).cast(CASES)
