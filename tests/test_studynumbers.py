"""The numbers of a study, from small tables whose answer is plain."""

import polars as pl
import pytest

from bpals.room.desk.study import Study
from bpals.tasks.study_progress import confirmed_errors, errors_found, needed_reads, settled_claims, within_readers

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


RATE = {"rate": 0.1, "low": 0.02, "high": 0.3, "read": 12, "films": 12, "unread_share": 0.0}


def told_rate(claims=40, **more):
    """The row of Mass, of which a rate like RATE is known."""
    said = pl.DataFrame({"image_id": [str(n) for n in range(claims)], "finding": "Mass", "says": "absent"})
    settled = said.head(1).with_columns(truth=pl.lit("present"), wrong=pl.lit(value=True))
    return confirmed_errors(settled, said, {"Mass": RATE | more})[0]


@pytest.mark.parametrize(
    ("more", "enough"),
    [
        ({}, True),
        ({"films": 10}, True),
        ({"films": 9}, False),
        ({"high": 0.51}, True),
        ({"high": 0.53}, False),
        ({"rate": None, "low": None, "high": None}, False),
        ({"claims": 5, "films": 5, "low": 0.2, "high": 0.2}, True),
    ],
)
def test_a_rate_of_few_films_or_a_wide_interval_says_nothing(more, enough):
    """Ten films and half of the scale; who has read all of five films knows their rate."""
    assert told_rate(**more)["enough"] is enough


def test_a_finding_without_a_rate_says_nothing():
    """There is no figure that could be shown."""
    said = rows("a", says=["absent"])
    settled = said.with_columns(truth=pl.lit("present"), wrong=pl.lit(value=True))
    (row,) = confirmed_errors(settled, said, {})
    assert (row["rate"], row["films"], row["enough"]) == (None, None, False)


def reread(films, alike=1.0):
    """Reviews by one reader who read films twice, of as many patients, all alike on the first share; and the images."""
    names = [f"f{n}" for n in range(films)]
    first = ["present" if n % 2 else "absent" for n in range(films)]
    second = [word if n < alike * films else "absent" for n, word in enumerate(first)]
    common = {"finding": "Mass", "reader": "ann", "stands": True, "phase": "blind", "saw_signal": 0}
    tables = [
        pl.DataFrame({"image_id": names, "verdict": said, "repeat": again}).with_columns(
            **{name: pl.lit(value) for name, value in common.items()}
        )
        for again, said in enumerate((first, second))
    ]
    return pl.concat(tables), pl.DataFrame({"image_id": names, "patient_id": names})


def test_agreement_of_few_patients_has_no_interval():
    """Nine repeats are too few, ten are told with their ends."""
    (few,) = within_readers(*reread(9, alike=0.6))
    (many,) = within_readers(*reread(10, alike=0.6))
    assert (few["patients"], few["enough"], few["agreement_low"], few["kappa_high"]) == (9, False, None, None)
    assert (many["patients"], many["enough"]) == (10, True)
    assert many["agreement_low"] < many["agreement"] < many["agreement_high"]


def test_an_interval_without_width_is_none():
    """Where every draw is the same, such as at full agreement, nothing is known of its ends."""
    (row,) = within_readers(*reread(20))
    assert (row["agreement"], row["agreement_low"], row["agreement_high"], row["enough"]) == (1.0, None, None, True)


def test_many_films_of_one_patient_are_one_draw():
    """Intervals are drawn over patients."""
    reviews, images = reread(20, alike=0.6)
    (row,) = within_readers(reviews, images.with_columns(patient_id=pl.lit("one")))
    assert (row["n"], row["patients"], row["enough"]) == (20, 1, False)


def found(**more):
    """The curve of three settled pairs, two of them wrong, and one that is open."""
    names = ["a", "b", "c", "d"]
    reviews = rows(*names, verdict=["present"] * 4).with_columns(
        reading_id="image_id", reader=pl.lit("ann"), phase=pl.lit("blind"), stands=pl.lit(value=True),
        saw_signal=pl.lit(0), repeat=pl.lit(0), review_id=pl.int_range(pl.len()), inclusion=pl.lit(None, pl.Float64),
    )  # fmt: skip
    settled = rows(*names, wrong=[True, True, False, None])
    return errors_found(reviews, settled, [told_rate(**more)])


def test_the_band_of_the_curve_is_the_interval_of_the_table():
    """As many pairs as are settled, at the rate of the last row and at its two ends."""
    last = found()[-1]
    assert (last["reads"], last["found"], last["pairs"]) == (4, 2, 3)
    assert [last[name] for name in ("random", "random_low", "random_high")] == pytest.approx([0.3, 0.06, 0.9])


def test_a_rate_that_says_nothing_gives_no_band():
    """Two films at random are no ground for a line."""
    assert {row["random"] for row in found(films=2)} == {None}


def test_without_a_stopping_rule_nothing_is_needed():
    """No target was named, so no number of readings leads to it."""
    study = Study(name="free", findings=("Mass",))
    assert set(needed_reads([told_rate()], {"Mass"}, study, 12).values()) == {None}


def test_what_a_number_of_readings_still_takes():
    """The rest, and never less than none."""
    study = Study(name="some", findings=("Mass",), stop_reads=20)
    assert needed_reads([told_rate()], {"Mass"}, study, 12)["more_readings"] == 8
    assert needed_reads([told_rate()], {"Mass"}, study, 25)["more_readings"] == 0


def test_a_width_is_not_reached_while_a_finding_has_no_rate():
    """A finding that nobody has read yet is least known, although others are known well."""
    study = Study(name="close", findings=("Mass", "Hernia"), stop_width=0.4)
    known = needed_reads([told_rate()], {"Mass"}, study, 12)
    assert (known["finding"], known["widest"]) == ("Mass", pytest.approx(0.28))
    unread = needed_reads([told_rate()], {"Mass", "Hernia"}, study, 12)
    assert (unread["finding"], unread["widest"], unread["more_readings"]) == ("Hernia", 1.0, None)
