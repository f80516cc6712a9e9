"""Controls: the four inputs with nothing to see, and what is made of the answers to them."""

import io

import numpy as np
import polars as pl
import pytest
from PIL import Image

from bpals.judges import selftest


def pixels(film):
    """The pixels of a film."""
    return np.asarray(Image.open(io.BytesIO(film.png)))


def replies(*rows):
    """A table of replies to controls."""
    return pl.DataFrame(rows, schema=["control", "subject", "polarity", "logit"], orient="row")


def test_there_are_four_controls_in_the_size_of_the_films():
    """No film, black, a mean chest, noise; all grey and of the prepared size."""
    made = dict(selftest.control_images(64))
    assert list(made) == ["none", "black", "mean", "noise"]
    assert made["none"] is None
    for film in (made["black"], made["mean"], made["noise"]):
        assert (film.width_px, film.height_px) == (64, 64)
        assert pixels(film).shape == (64, 64)
        assert pixels(film).dtype == np.uint8
    assert len({film.sha256 for film in made.values() if film}) == 3


def test_the_controls_are_the_same_every_time_and_differ_by_size():
    """A control that was asked once is known by its hash and never asked again."""
    assert selftest.control_images(32) == selftest.control_images(32)
    assert {film.sha256 for _, film in selftest.control_images(32) if film}.isdisjoint(
        film.sha256 for _, film in selftest.control_images(33) if film
    )


def test_each_control_is_what_its_name_says():
    """Black is black, noise has no neighbourhood, the mean chest is smooth with dark lungs beside a bright middle."""
    made = {name: pixels(film).astype(float) for name, film in selftest.control_images(128) if film}
    assert made["black"].max() == 0
    assert np.abs(np.diff(made["noise"], axis=1)).mean() > 60
    chest = made["mean"]
    assert np.abs(np.diff(chest, axis=1)).max() < 12
    assert chest[58, 38] < chest[70, 66] - 60
    assert chest[58, 90] < chest[70, 66] - 60


def test_an_offset_is_the_mean_over_the_controls_that_answered():
    """A refusal or a judge that takes no text alone leaves its place empty, and is no zero."""
    said = replies(
        ("none", "Mass", "present", None), ("none", "Mass", "absent", 1.0),
        ("black", "Mass", "present", 2.0), ("black", "Mass", "absent", 3.0),
        ("noise", "Mass", "present", 4.0), ("noise", "Mass", "absent", None),
        ("none", "devices", "present", None), ("none", "devices", "absent", None),
    )  # fmt: skip
    assert selftest.offsets(said) == {"Mass": [3.0, 2.0], "devices": [None, None]}


def test_a_judge_asked_in_one_polarity_has_one_offset():
    """What was not asked has no offset."""
    assert selftest.offsets(replies(("black", "Mass", "present", 2.0))) == {"Mass": [2.0, None]}


def test_the_spread_is_how_far_the_controls_are_apart():
    """Evidence is half the difference of the polarities; the spread needs two controls answered in both."""
    said = replies(
        ("none", "Mass", "present", 1.0), ("none", "Mass", "absent", 1.0),
        ("black", "Mass", "present", 2.0), ("black", "Mass", "absent", -2.0),
        ("noise", "Mass", "present", -9.0), ("noise", "Mass", "absent", None),
        ("none", "Hernia", "present", 1.0), ("none", "Hernia", "absent", 1.0),
    )  # fmt: skip
    assert selftest.spread(said) == {"Mass": pytest.approx(2.0), "Hernia": None}


def test_no_replies_give_no_offsets():
    """An empty table is no error."""
    nothing = replies().cast({"logit": pl.Float64})
    assert selftest.offsets(nothing) == {}
    assert selftest.spread(nothing) == {}
