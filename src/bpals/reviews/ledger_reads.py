"""The reads in a workspace's own ledger: those of its reading room, in all studies, and those imported there."""

from __future__ import annotations

import polars as pl
from sqlalchemy import Connection

from bpals.errors import WorkspaceError
from bpals.findings import Vocabulary
from bpals.numeric import PAIR
from bpals.reviews.verdicts import DEFINITE, GROUPS, READ, VOTING, counted
from bpals.store.files import sha256
from bpals.store.ledger.ledger import open_ledger
from bpals.store.ledger.review_rows import every_consensus, reviews
from bpals.store.workspace import Workspace
from bpals.text import several
from bpals.types import REVIEWS, SETTLED, Notice, Reviews

LEDGER = "ledger"  # under this name a run names the reads of the ledger
ADJUDICATIONS = "adjudications"  # and under this one what was settled


def own_reads(home: Workspace, vocabulary: Vocabulary) -> Reviews:
    """Give the reads of the ledger that a workspace keeps; one that cannot be opened is an error, never no read."""
    try:
        with open_ledger(home, readonly=True) as ledger:
            return ledger.look(lambda connection: reads_of(connection, vocabulary))
    except WorkspaceError as error:
        raise WorkspaceError(
            f"{error}. Or leave out what was read here: bpals audit --no-reviews --workspace {home.path}"
        ) from None


def reads_of(connection: Connection, vocabulary: Vocabulary) -> Reviews:
    """Give the reads of all studies and files in a ledger."""
    return blind_reads(reviews(connection), vocabulary, every_consensus(connection))


def blind_reads(table: pl.DataFrame, vocabulary: Vocabulary, consensus: pl.DataFrame | None = None) -> Reviews:
    """Make single reads of the ledger's reviews: of findings and whole groups that the dataset audits.

    Reviews of other findings stay in the ledger, and are counted here. The reads are named by their hash. `consensus`
    is what the readers of one study, or of all, came to.
    """
    votes = voting(table)
    groups = tuple(group for group in GROUPS if set(group.members) <= set(vocabulary.findings))
    named = [*vocabulary.findings, *(group.name for group in groups)]
    audited = votes.filter(pl.col("finding").is_in(named))
    reads = audited.select(REVIEWS.names()).cast(REVIEWS)
    read = set(reads["finding"].unique())
    settled = pl.DataFrame(schema=SETTLED) if consensus is None else _settled(consensus, reads)
    # A run names its inputs by their hash, and for the ledger that is the hash of what it used of it.
    inputs = {LEDGER: sha256(reads.write_csv().encode())}
    if settled.height:
        inputs[ADJUDICATIONS] = sha256(settled.write_csv().encode())
    return Reviews(
        table=reads,
        groups=tuple(group for group in groups if group.name in read),
        inputs=inputs,
        notices=(*_unaudited(votes, named), *_contradictions(audited)),
        settled=settled,
    )


def voting(table: pl.DataFrame) -> pl.DataFrame:
    """Keep the reviews that vote, in the order in which they were written; the table is what the ledger gives."""
    own = table.filter("stands", pl.col("phase").is_in(VOTING), pl.col("saw_signal") == 0, pl.col("repeat") == 0)
    # A pair that was drawn twice keeps the chance of its first draw.
    first = pl.col("inclusion").drop_nulls().first().over(PAIR)
    return own.sort("review_id").with_columns(inclusion=first)


def _settled(consensus: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Keep the pairs that a person or a discussion settled to present or absent; the last study has the last word."""
    together = pl.col("by").is_not_null() | (pl.col("round") > 0)
    definite = consensus.filter(together, pl.col("verdict").cast(pl.String).is_in(DEFINITE))
    pairs = definite.select(*PAIR, settled=(pl.col("verdict") == "present").cast(pl.Float64))
    last = pairs.unique(PAIR, keep="last", maintain_order=True).sort(PAIR)
    return last.join(reads, on=PAIR, how="semi", maintain_order="left").cast(SETTLED)


def _unaudited(votes: pl.DataFrame, named: list[str]) -> list[Notice]:
    others = votes.filter(~pl.col("finding").is_in(named))["finding"].value_counts().sort("finding")
    return [
        Notice(
            code="unaudited",
            count=count,
            message=f"{several(count, 'read is', 'reads are')} about {finding}, which is not audited here",
        )
        for finding, count in others.iter_rows()
    ]


def _contradictions(audited: pl.DataFrame) -> list[Notice]:
    """Count the pairs on which one reader gave two verdicts; both vote."""
    against = audited.group_by(READ).agg(pl.col("verdict").n_unique()).filter(pl.col("verdict") > 1).sort(READ)
    first = ", ".join(against.select(READ).row(0)) if against.height else ""
    times = several(against.height, "time")
    message = f"{times} one reader said two things about a pair (first: {first}); both reads vote"
    return counted("reader_contradicts", against.height, message)
