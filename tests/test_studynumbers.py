"""The numbers of a study, from small tables whose answer is plain."""

import polars as pl

from bpals.studynumbers import settled_claims

PAIR = {"image_id": pl.String, "finding": pl.String}


def rows(*pairs, **columns):
    """A table of pairs of Mass, with columns beside them."""
    return pl.DataFrame({"image_id": list(pairs), "finding": ["Mass"] * len(pairs), **columns})


def test_a_pair_of_the_room_is_open_until_its_study_settles_it():
    """With two readers wanted: one has read a, both agree on b, they differ about c; d was read elsewhere."""
    reads = rows("a", "b", "b", "c", "c", "d", verdict=["present", "present", "present", "present", "absent", "absent"])
    reviews = rows("a", "b", "b", "c", "c", "d", reading_id=["1", "2", "3", "4", "5", None])
    consensus = rows("b", "c", verdict=["present", None])
    claims = rows("a", "b", "c", "d", says=["absent"] * 4)
    settled = settled_claims(reads, reviews, consensus, claims)
    assert dict(settled.select("image_id", "wrong").iter_rows()) == {"a": None, "b": True, "c": None, "d": False}
