"""A workspace's own reads: what was read in its reading room, in all studies, and what was imported there."""

from __future__ import annotations

from sqlalchemy import Connection

from bpals.blindreads import blind_reads
from bpals.errors import WorkspaceError
from bpals.findings import Vocabulary
from bpals.review.desk.consensus import every_consensus, reviews
from bpals.types import Reviews
from bpals.workspace import Workspace
from bpals.workspaceledger import open_ledger


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
