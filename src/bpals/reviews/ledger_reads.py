"""A workspace's own reads: what was read in its reading room, in all studies, and what was imported there."""

from __future__ import annotations

import polars as pl
from sqlalchemy import Connection

from bpals.errors import WorkspaceError
from bpals.findings import Vocabulary
from bpals.reviews.verdicts import GROUPS
from bpals.store.files import sha256
from bpals.store.ledger.ledger import open_ledger
from bpals.store.ledger.verdicts import every_consensus, reviews
from bpals.store.workspace import Workspace
from bpals.text import several
from bpals.types import REVIEWS, SETTLED, Notice, Reviews

LEDGER = "ledger"  # the name under which a run names the reads of the ledger
ADJUDICATIONS = "adjudications"  # the name under which it names what was settled
VOTING = ("blind", "amended", "imported")

_PAIR = ["image_id", "finding"]


def voting(said: pl.DataFrame) -> pl.DataFrame:
    """Keep the reviews that vote, in the order in which they were written; `said` is what a desk gives."""
    own = said.filter("stands", pl.col("phase").is_in(VOTING), pl.col("saw_signal") == 0, pl.col("repeat") == 0)
    # a pair that was drawn twice keeps the chance of its first draw.
    first = pl.col("inclusion").drop_nulls().first().over(_PAIR)
    return own.sort("review_id").with_columns(inclusion=first)


def blind_reads(said: pl.DataFrame, vocabulary: Vocabulary, consensus: pl.DataFrame | None = None) -> Reviews:
    """Make single reads of the ledger's reviews: of findings and whole groups that the dataset audits.

    What is about another finding stays in the ledger, and is counted here. The reads are named by their hash.
    `consensus` is what a desk, or all of them, came to.
    """
    votes = voting(said)
    groups = tuple(group for group in GROUPS if set(group.members) <= set(vocabulary.findings))
    named = [*vocabulary.findings, *(group.name for group in groups)]
    audited = votes.filter(pl.col("finding").is_in(named))
    table = audited.select(REVIEWS.names()).cast(REVIEWS)
    spoken = set(table["finding"].unique())
    settled = pl.DataFrame(schema=SETTLED) if consensus is None else _settled(consensus, table)
    inputs = {LEDGER: sha256(table.write_csv().encode())}
    if settled.height:
        inputs[ADJUDICATIONS] = sha256(settled.write_csv().encode())
    return Reviews(
        table=table,
        groups=tuple(group for group in groups if group.name in spoken),
        inputs=inputs,
        notices=(*_unaudited(votes, named), *_twice(audited)),
        settled=settled,
    )


def _settled(consensus: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Keep the pairs that a person or a discussion settled to present or absent; the last study has the last word."""
    together = pl.col("by").is_not_null() | (pl.col("round") > 0)
    told = consensus.filter(together, pl.col("verdict").cast(pl.String).is_in(["present", "absent"]))
    pairs = told.select(*_PAIR, settled=(pl.col("verdict") == "present").cast(pl.Float64))
    last = pairs.unique(_PAIR, keep="last", maintain_order=True).sort(_PAIR)
    return last.join(reads, on=_PAIR, how="semi", maintain_order="left").cast(SETTLED)


def _unaudited(votes: pl.DataFrame, named: list[str]) -> list[Notice]:
    others = votes.filter(~pl.col("finding").is_in(named))
    return [
        Notice(
            code="unaudited",
            count=count,
            message=f"{several(count, 'read is', 'reads are')} about {finding}, which is not audited here",
        )
        for finding, count in others["finding"].value_counts().sort("finding").iter_rows()
    ]


def _twice(audited: pl.DataFrame) -> list[Notice]:
    """Count the pairs of which one reader says two things; both vote."""
    pair = ["image_id", "finding", "reader"]
    against = audited.group_by(pair).agg(pl.col("verdict").n_unique()).filter(pl.col("verdict") > 1).sort(pair)
    if against.is_empty():
        return []
    first = against.row(0, named=True)
    message = (
        f"{several(against.height, 'time')} one reader said two things about a pair (first: {first['image_id']}, "
        f"{first['finding']}, {first['reader']}); both reads vote"
    )
    return [Notice(code="reader_contradicts", count=against.height, message=message)]


def own_reads(home: Workspace, vocabulary: Vocabulary) -> Reviews:
    """Give the reads of the ledger that a workspace keeps; one that cannot be asked is an error, never no read."""
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
