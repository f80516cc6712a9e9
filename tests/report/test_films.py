"""The films themselves in the report: counted, with examples, where somebody looked."""

import dataclasses

import polars as pl
import pytest

from bpals.report.page import EXAMPLES, NAMES, odd_films, render
from bpals.signal.observations import CHECK_WORDS

LISTS = pl.List(pl.String)


def looked(signal, checks):
    """The signal after somebody looked at every film; `checks` are a list for each of the first films."""
    films = signal["image_id"].unique(maintain_order=True)
    fired = {film: checks[place] if place < len(checks) else [] for place, film in enumerate(films)}
    reasons = [[f"film_{check}: what it says" for check in fired[film]] for film in signal["image_id"]]
    column = pl.Series("film_checks", [fired[film] for film in signal["image_id"]], dtype=LISTS)
    return signal.with_columns(column, pl.Series("reasons", reasons, dtype=LISTS))


def test_nobody_looked_and_nothing_is_said(page):
    """Null is not a sound film."""
    assert odd_films(page.signal) is None
    assert "The images themselves" not in render(page)


def test_odd_films_are_counted_once_each_with_examples(page):
    """A film has a row in each claim, and is one film."""
    signal = looked(page.signal, [["turned", "unlike"], ["turned"], [], ["turned"], ["turned"], ["turned"]])
    found = odd_films(signal)
    assert found["checked"] == len(page.dataset.images)
    assert found["odd"] == 5
    assert [(name, count) for name, count, _ in found["rows"]] == [("Turned", 5), ("Unlike the others", 1)]
    assert found["rows"][0][2].count("what it says") == EXAMPLES
    text = render(dataclasses.replace(page, signal=signal))
    assert "The images themselves" in text
    assert signal["image_id"][0] in text


def test_sound_films_are_said_to_be_sound(page):
    """A part of the page without a table."""
    found = odd_films(looked(page.signal, []))
    assert (found["odd"], found["rows"]) == (0, [])


@pytest.mark.parametrize("check", CHECK_WORDS)
def test_every_check_has_a_name_on_the_page(check):
    """None is left out of the table."""
    assert check in NAMES
