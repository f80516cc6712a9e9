"""The sealed checks of films: whole, or not there, or an error."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bpals.errors import WorkspaceError
from bpals.store.workspace import RECORD, TABLE, open_films, seal_films, summary
from bpals.types import FILM_CHECKS
from world.words import mentions

FILMS = pl.DataFrame(
    [dict.fromkeys(FILM_CHECKS) | {"image_id": "a", "checks": ["turned"], "turned": 90}], schema=FILM_CHECKS
)
TOLD = {"key": "k", "films": 1, "fired": {"blank": 0, "turned": 1}}


def test_what_was_sealed_is_what_is_opened(tmp_path):
    """The table and the record; a workspace without them has none."""
    assert open_films(tmp_path) is None
    seal_films(tmp_path, FILMS, TOLD)
    opened = open_films(tmp_path)
    assert_frame_equal(opened.table, FILMS)
    assert {name: opened.record[name] for name in TOLD} == TOLD
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([TABLE, RECORD])


@pytest.mark.parametrize("damage", ["changed", "no table", "no json", "another format", "another schema"])
def test_what_is_not_whole_is_an_error(damage, tmp_path):
    """Never left out in silence; the line says what to type."""
    seal_films(tmp_path, FILMS.drop("unlike") if damage == "another schema" else FILMS, TOLD)
    record = json.loads((tmp_path / RECORD).read_text())
    if damage == "changed":
        FILMS.clear().write_parquet(tmp_path / TABLE)
    elif damage == "no table":
        (tmp_path / TABLE).unlink()
    elif damage == "no json":
        (tmp_path / RECORD).write_text("{")
    elif damage == "another format":
        (tmp_path / RECORD).write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(WorkspaceError, match="Run the probe again"):
        open_films(tmp_path)


def test_a_table_without_a_record_was_never_sealed(tmp_path):
    """A run that was killed between the two: there is nothing yet."""
    FILMS.write_parquet(tmp_path / TABLE)
    assert open_films(tmp_path) is None


def test_the_summary_counts_what_is_odd():
    """In one line, without the checks that found nothing."""
    assert mentions(summary(TOLD), "1 film", "1 turned")
    assert "nothing odd was found" in summary(TOLD | {"fired": {"turned": 0}})


def test_the_summary_says_first_what_was_not_looked_for_or_read():
    """Films that were not checked are no part of the count, and a check that was not made found nothing odd."""
    record = TOLD | {"films": 103, "checked": 100, "fired": {"turned": 0}, "not_looked_for": ["inverted", "turned"]}
    assert mentions(summary(record), "100 films", "3 more", "not for inverted, turned", "nothing odd")


def test_the_summary_tells_films_from_pairs():
    """Two films are one pair."""
    record = TOLD | {"fired": {"near_duplicate": 8}, "near_duplicate_pairs": 4, "pairs_of_two_patients": 3}
    assert mentions(summary(record), "8 near duplicate", "4 pairs, 3")
