"""Film checks in the signal: a column, and reasons; null where nobody looked."""

import polars as pl
import pytest

from bpals.signal.filmchecks import WORDS, read_checks, unchecked
from bpals.signal.trust import estimate
from bpals.testing import check_signal, tiny_dataset
from bpals.types import FILM_CHECKS

IMAGES = pl.DataFrame({"image_id": ["a", "b", "c"]})


def films(**rows):
    """What was found out about films: each film's own values, the rest null."""
    listed = [dict.fromkeys(FILM_CHECKS) | {"image_id": name} | its for name, its in rows.items()]
    return pl.DataFrame(listed, schema=FILM_CHECKS)


def told(checks, film=0):
    """The sentences about one film."""
    return [said[film] for said in checks.told if said[film] is not None]


def test_a_film_that_nobody_looked_at_is_not_called_sound():
    """Null is not known; an empty list is nothing odd."""
    checks = read_checks(IMAGES, films(b={"checks": []}, a={"checks": ["blank"]}, stranger={"checks": ["blank"]}))
    assert checks.column.to_list() == [["blank"], [], None]
    assert unchecked(IMAGES).to_list() == [None, None, None]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"checks": ["turned"], "turned": 90},
            "film_turned: the film lies on its side, turned 90 degrees anticlockwise",
        ),
        (
            {"checks": ["turned"], "turned": 180},
            "film_turned: the film stands on its head, turned 180 degrees anticlockwise",
        ),
        (
            {"checks": ["near_duplicate"], "near_duplicate_of": "z", "same_patient": False},
            "film_near_duplicate: the film is the same exposure as z, of another patient",
        ),
        (
            {"checks": ["near_duplicate"], "near_duplicate_of": "z", "same_patient": True},
            "film_near_duplicate: the film is the same exposure as z, of the same patient",
        ),
        ({"checks": ["view"], "view": "PA"}, "film_view: recorded as PA, the film looks AP"),
        (
            {"checks": ["view"], "view": "PA", "view_marked": "AP", "markers": ["PORTABLE"]},
            "film_view: recorded as PA, the film is marked PORTABLE",
        ),
    ],
)
def test_a_check_says_what_it_found(row, sentence):
    """The number, the other film or the marker stands in the sentence."""
    assert told(read_checks(IMAGES, films(a=row))) == [sentence]


def test_every_check_has_a_sentence_and_several_may_speak_of_one_film():
    """No check that fires is left without words."""
    row = {"turned": 90, "near_duplicate_of": "z", "same_patient": True, "view": "PA", "unlike": 1.9}
    sentences = told(read_checks(IMAGES, films(a=row | {"checks": list(WORDS)})))
    assert [sentence.partition(":")[0] for sentence in sentences] == [f"film_{check}" for check in WORDS]


def test_checks_change_a_column_and_reasons_and_nothing_else(panel, judged):
    """Trust, flags and the order of reading are what they were."""
    dataset = tiny_dataset()
    film = dataset.images["image_id"][0]
    checks = read_checks(dataset.images, films(**{film: {"checks": ["inverted", "lateral"]}}))
    plain = estimate(dataset, judged(dataset), panel=panel(dataset)).table
    noted = estimate(dataset, judged(dataset), panel=panel(dataset, checks=checks)).table
    check_signal(noted, dataset.claims)
    assert [name for name in plain.columns if not plain[name].equals(noted[name])] == ["reasons", "film_checks"]
    its = noted.filter(pl.col("image_id") == film)
    assert its["film_checks"].to_list() == [["inverted", "lateral"]] * its.height
    assert all(reasons[-2].startswith("film_inverted: ") for reasons in its["reasons"])
    assert noted.filter(pl.col("image_id") != film)["film_checks"].is_null().all()
