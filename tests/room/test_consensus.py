"""What the reads come to: the tables that everything after the room is made of."""

import polars as pl

from bpals.store.ledger.review_rows import CONSENSUS, REVIEW_COLUMNS, digest, store
from bpals.store.ledger.schema import REVIEW
from world import desks


def test_reviews_have_every_column_of_the_table_and_stands(open_desk):
    """What is stored can be had, and an empty study gives an empty table of the same shape."""
    desk, ann = open_desk("ann")
    assert desk.reviews().schema == REVIEW_COLUMNS
    assert REVIEW_COLUMNS.names() == [*REVIEW.c.keys(), "stands"]
    assert desk.consensus().schema == CONSENSUS
    desks.read(desk, ann)
    assert desk.reviews().schema == REVIEW_COLUMNS


def test_a_pair_counts_its_readers_by_what_they_say(open_desk):
    """Three readers of one film: how many say what, and with which chance it was drawn."""
    desk, *readers = open_desk(*"abc", cases=1, readers_per_case=3, reveal=True)
    for reader, said in zip(readers, (["Mass"], ["Mass", "Nodule"], []), strict=True):
        desks.read(desk, reader, desks.says(*said))
    rows = desk.consensus().select("finding", "verdict", "how", "readers", "present", "absent", "inclusion").rows()
    assert rows == [
        ("Mass", "present", "majority", 3, 2, 1, 0.25),
        ("Nodule", "absent", "majority", 3, 1, 2, 0.25),
        ("Pneumothorax", "absent", "consensus", 3, 0, 3, 0.25),
    ]


def test_a_case_that_is_half_read_has_no_consensus(open_desk):
    """One of two readers is no verdict yet."""
    desk, ann = open_desk("ann", reveal=True)
    desks.read(desk, ann)
    assert desk.consensus().height == 0


def test_reviews_from_a_file_stand_beside_those_of_the_room(open_desk, shared_ledger):
    """What was brought in has no reading; it stands, whoever read it elsewhere."""
    desk, ann = open_desk("ann")
    desks.read(desk, ann)
    row = {
        "study_id": desk.study_id, "image_id": "film-9", "finding": "Fracture", "reader": "elsewhere",
        "phase": "imported", "round": 0, "repeat": 0, "verdict": "uncertain", "saw_signal": 0,
        "source": "reads.csv sha256:0", "external_id": f"of {desk.study.name}", "at": "2020-01-01T00:00:00+00:00",
    }  # fmt: skip
    shared_ledger.change(lambda connection: store(connection, REVIEW, [row]))
    brought = desk.reviews().filter(pl.col("phase") == "imported")
    assert brought.select("finding", "verdict", "stands").rows() == [("Fracture", "uncertain", True)]


def test_a_digest_is_that_of_what_either_database_gives_back(open_desk, shared_ledger):
    """Whole numbers in columns of seconds, and seconds of whole numbers, are the same before and after."""
    desk, ann = open_desk("ann")
    desks.read(desk, ann, desks.says("Mass", confidence={"Mass": 7}))
    row = desk.reviews().row(0, named=True)
    stored = [kept for kept in desks.rows(shared_ledger, REVIEW) if kept.review_id == row["review_id"]]
    kept = dict(stored[0]._mapping)
    assert digest(REVIEW, kept) == digest(REVIEW, kept | {"active_s": kept["active_s"], "confidence": 7.0})
    assert digest(REVIEW, kept) != digest(REVIEW, kept | {"confidence": 8})
