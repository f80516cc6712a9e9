"""The majority of single reads."""

import polars as pl

from bpals.signal.majority import majority


def reads(*rows):
    """Reviews of pairs: film, finding, verdict."""
    return pl.DataFrame(rows, schema=["image_id", "finding", "verdict"], orient="row")


def test_every_definite_read_has_one_vote():
    """A hedge and an unreadable film have none."""
    told = majority(
        reads(*[("a", "Mass", word) for word in ("present", "absent", "present", "uncertain", "unreadable")])
    )
    assert told.to_dicts() == [
        {"image_id": "a", "finding": "Mass", "present": True, "yes": 2, "no": 1, "hedged": 1, "unreadable": 1,
         "tied": False}
    ]  # fmt: skip


def test_a_tie_is_not_present():
    """Nor is a pair of which nobody was sure."""
    told = majority(reads(("a", "Mass", "present"), ("a", "Mass", "absent"), ("b", "Mass", "uncertain")))
    assert told.select("image_id", "present", "tied").rows() == [("a", False, True), ("b", False, True)]


def test_a_pair_is_a_film_and_a_finding():
    """Groups and findings that are not audited are findings like others, and the order is that of the reads."""
    told = majority(reads(("b", "Fracture", "present"), ("a", "Nodule or mass", "present"), ("b", "Mass", "absent")))
    assert told.select("image_id", "finding", "present").rows() == [
        ("b", "Fracture", True),
        ("a", "Nodule or mass", True),
        ("b", "Mass", False),
    ]
    assert majority(told.clear().with_columns(verdict=pl.lit(""))).is_empty()
