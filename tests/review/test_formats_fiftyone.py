"""FiftyOne's samples give back the fields that the docs list."""

import json

import pytest
from hypothesis import given, settings

from bpals.errors import TruthError
from bpals.reviews import fiftyone
from bpals.reviews.exchange import Films
from world import review_tables

SENT = review_tables.reviews()


def test_every_listed_field_comes_back():
    """All columns of a review."""
    written = fiftyone.write(SENT, Films(sizes={"a.png": (1024, 768)}))
    assert review_tables.same(fiftyone.read(written.files[""], "x.json").table, SENT, fiftyone.GIVEN_BACK)


@settings(max_examples=30, deadline=None)
@given(rows=review_tables.ROWS)
def test_any_text_comes_back(rows):
    """Whatever a note, a reader or a film is called."""
    sent = review_tables.of_rows(rows)
    assert review_tables.same(fiftyone.read(fiftyone.write(sent, Films()).files[""], "x").table, sent)


def test_a_sample_is_of_fiftyones_classes():
    """A field a verdict, confidence from 0 to 1, boxes relative to the film."""
    written = fiftyone.write(SENT, Films(sizes={"a.png": (1024, 768)}))
    sample = json.loads(written.files[""])["samples"][0]
    assert sample["filepath"] == "a.png"
    assert sample["present"]["_cls"] == "Classifications"
    said = sample["absent"]["classifications"][0]
    assert (said["_cls"], said["label"], said["confidence"]) == ("Classification", "Nodule or mass", 0.04)
    box = sample["boxes"]["detections"][0]
    assert box["bounding_box"] == pytest.approx([1.5 / 1024, 2 / 768, 30.25 / 1024, 0.3 / 768])
    assert [(notice.code, notice.count) for notice in written.notices] == [("unsized", 4)]


@pytest.mark.parametrize("whole", [[], {"samples": 3}, {"samples": [{"present": {"classifications": [{}]}}]}])
def test_what_are_no_samples_is_refused(whole):
    """In one line."""
    with pytest.raises(TruthError, match=r"x\.json"):
        fiftyone.read(json.dumps(whole).encode(), "x.json")
