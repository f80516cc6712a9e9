"""Devices: present, absent or unknown, from judges that were asked about the film."""

import numpy as np
import polars as pl
import pytest

from bpals.signal.devices import Asked, read_devices
from bpals.signal.trust import estimate
from bpals.testing import check_signal, tiny_dataset
from bpals.types import FILM_ANSWERS
from world.words import mentions

IMAGES = pl.DataFrame({"image_id": ["a", "b", "c", "d"]})


def asked(p_present, *, judge="eye", topic="devices", outcome="answered", offsets=None):
    """What a judge says of the films a, b, c: null where it was not asked."""
    rows = [(film, topic, outcome, p, None, None, None) for film, p in zip("abc", p_present, strict=True)]
    table = pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row").drop_nulls("p_present")
    return Asked(judge=judge, answers=table, offsets=offsets or {})


def states(*judges):
    """The words for the films a, b, c and d."""
    return read_devices(IMAGES, judges).column.to_list()


def test_above_one_half_is_present_below_absent_and_silence_unknown():
    """A film that nobody was asked about is never called free of devices."""
    assert states(asked([0.8, 0.2, None])) == ["present", "absent", "unknown", "unknown"]
    assert states() == ["unknown"] * 4


def test_what_a_judge_says_without_a_film_is_taken_off():
    """A judge that says yes to everything at .9 sees devices only where it says more than that."""
    lean = 2.2  # the logit of .9
    corrected = ["present", "absent", "absent", "unknown"]
    assert states(asked([0.95, 0.85, 0.5], offsets={"devices": [lean, -lean]})) == corrected
    assert states(asked([0.95, 0.85, 0.5], offsets={"devices": [lean, None]})) == corrected
    assert states(asked([0.95, 0.85, 0.5], offsets={"Mass": [9, -9]})) == ["present", "present", "absent", "unknown"]


def test_an_acquiescent_judge_is_not_corrected_twice():
    """Yes to both polarities cancels: what is left without a film is half the difference of the two."""
    assert states(asked([0.6, 0.4, 0.5], offsets={"devices": [3.0, 3.0]}))[:2] == ["present", "absent"]


def test_several_judges_are_averaged_by_their_evidence():
    """The surer one prevails, and those who see devices are named."""
    found = read_devices(IMAGES, [asked([0.9, 0.6, 0.6]), asked([0.6, 0.1, 0.7], judge="other")])
    assert found.column.to_list() == ["present", "absent", "present", "unknown"]
    seen = [words and mentions(words, "devices:", "eye and other") for words in found.seen_by]
    assert seen == [True, None, True, None]
    alone = read_devices(IMAGES, [asked([0.99, None, None]), asked([0.4, None, None], judge="other")])
    assert mentions(alone.seen_by[0], "devices: eye sees")


@pytest.mark.parametrize("outcome", ["abstained", "refused", "unparsed", "unsupported", "failed"])
def test_a_failure_is_not_an_absence(outcome):
    """Nor is an answer about another topic."""
    assert states(asked([0.2, 0.2, 0.2], outcome=outcome)) == ["unknown"] * 4
    assert states(asked([0.2, 0.2, 0.2], topic="quality")) == ["unknown"] * 4


def test_the_column_and_the_reason_reach_every_claim_of_the_film(judged, panel, seen):
    """And they change no trust."""
    dataset = tiny_dataset()
    films = dataset.images["image_id"]
    rows = [(film, "devices", "answered", p, None, None, None) for film, p in zip(films[:2], (0.9, 0.1), strict=True)]
    told = Asked(judge="eye", answers=pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row"), offsets={})
    with_it = estimate(dataset, judged(dataset), panel=panel(dataset, seen(dataset), asked=[told])).table
    without = estimate(dataset, judged(dataset), panel=panel(dataset, seen(dataset))).table
    check_signal(with_it, dataset.claims)
    by_film = dict(with_it.group_by("image_id").agg(pl.col("devices").unique()).iter_rows())
    unasked = {film: ["unknown"] for film in films[2:]}
    assert by_film == {films[0]: ["present"], films[1]: ["absent"], **unasked}
    said = with_it.select(pl.col("image_id"), pl.col("reasons").list.join("|").str.contains("devices: eye sees"))
    assert said.filter("reasons")["image_id"].unique().to_list() == [films[0]]
    changed = [name for name in with_it.columns if not with_it[name].equals(without[name])]
    assert changed == ["reasons", "devices"]
    assert np.array_equal(with_it["trust"].to_numpy(), without["trust"].to_numpy(), equal_nan=True)
