"""The evidence: every film's own rows, and the patient's films in time order."""

import polars as pl
import pytest

import shape
from bpals.room.room import Evidence
from bpals.types import FLAG


@pytest.fixture
def tables():
    """Two patients and a film of nobody; one judge that answered, in another order, and one that failed."""
    films = ["b2", "a1", "b1", "x"]
    signal = pl.DataFrame(
        {
            "image_id": [film for film in films for _ in range(2)],
            "finding": ["Edema", "Mass"] * 4,
            "says": ["present", "absent"] * 4,
            "p_present": [0.1 * number for number in range(8)],
            "trust": [0.1 * number for number in range(8)],
            "trust_low": [0.0] * 8,
            "trust_high": [1.0] * 8,
            "flag": ["suspect"] * 8,
            "reasons": [["timeline_against: never before"], []] * 4,
        }
    )
    answered = signal.select("image_id", "finding", "p_present").reverse()
    answered = answered.with_columns(judge=pl.lit("one"), outcome=pl.lit("answered"))
    failed = pl.DataFrame(
        {"image_id": ["a1"], "finding": ["Mass"], "judge": ["two"], "outcome": ["failed"], "p_present": [None]},
        schema_overrides={"p_present": pl.Float64},
    )
    images = pl.DataFrame(
        {"image_id": films, "patient_id": ["B", "A", "B", None], "follow_up": [7, 0, 3, None], "view": ["PA"] * 4}
    )
    return {"version": "v1", "signal": signal, "judgments": [answered, failed], "images": images}


def test_a_film_is_revealed_with_its_own_rows_and_the_judges_words(tables):
    """Not a row of a neighbour; a failed judge is shown as one that failed, without a number."""
    revealed = Evidence(**tables).reveal("a1")
    assert revealed.version == "v1"
    assert [pair.finding for pair in revealed.pairs] == ["Edema", "Mass"]
    mass = revealed.pairs[1]
    assert (mass.says, round(mass.p_present, 1), mass.reasons) == ("absent", 0.3, ())
    assert [(said.judge, said.outcome) for said in mass.judges] == [("one", "answered"), ("two", "failed")]
    assert round(mass.judges[0].p_present, 1) == 0.3
    assert mass.judges[1].p_present is None


def test_rows_that_lie_apart_are_found_together(tables):
    """A table that is not ordered by film gives the same pages."""
    apart = tables["signal"].sort("finding", maintain_order=True)
    shuffled = Evidence(**tables | {"signal": apart})
    for film in tables["images"]["image_id"]:
        assert shuffled.reveal(film) == Evidence(**tables).reveal(film)


def test_the_patients_films_come_in_time_order(tables):
    """The film itself is among them; a film of nobody, or one that nobody knows, stands alone."""
    evidence = Evidence(**tables)
    assert [(film.image_id, film.when) for film in evidence.others("b2")] == [
        ("b1", "follow-up 3"),
        ("b2", "follow-up 7"),
    ]
    assert [film.image_id for film in evidence.others("x")] == ["x"]
    assert [film.image_id for film in evidence.others("nobody")] == ["nobody"]


def test_a_film_without_claims_reveals_nothing(tables):
    """It is no error: the dataset is silent about it."""
    assert Evidence(**tables).reveal("nobody").pairs == ()


def test_every_flag_has_words_after_the_lock():
    """A flag that the page does not know would be shown as it is written in the table."""
    page = (shape.SRC / "bpals" / "room" / "web" / "static" / "reveal.js").read_text(encoding="utf-8")
    words = page.split("const FLAGS = {")[1].split("}")[0]
    assert not [flag for flag in FLAG.categories if f"{flag}: " not in words]
