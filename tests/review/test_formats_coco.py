"""COCO holds the boxes, and gives back the fields that it lists."""

import json

import polars as pl
import pytest

from bpals.errors import TruthError
from bpals.reviews import coco
from bpals.reviews.exchange import Films
from world import review_tables

SENT = review_tables.reviews()
BOXED = SENT.filter(pl.col("box").is_not_null())


def test_the_listed_fields_come_back():
    """Of every read that has a box, several boxes included."""
    written = coco.write(SENT, Films(sizes={"a.png": (1024, 768)}))
    assert review_tables.same(coco.read(written.files[""], "x.json").table, BOXED, coco.GIVEN_BACK)
    assert [(notice.code, notice.count) for notice in written.notices] == [("unboxed", SENT.height - BOXED.height)]


def test_it_is_what_coco_is():
    """Pixels, areas, and ids that resolve."""
    whole = json.loads(coco.write(SENT, Films(sizes={"a.png": (1024, 768)})).files[""])
    first = whole["annotations"][0]
    assert first["bbox"] == [1.5, 2, 30.25, 0.1 + 0.2]
    assert first["area"] == pytest.approx(30.25 * 0.3)
    image = next(each for each in whole["images"] if each["id"] == first["image_id"])
    assert image == {"id": image["id"], "file_name": "a.png", "width": 1024, "height": 768}
    assert first["category_id"] in {each["id"] for each in whole["categories"]}
    assert len({each["id"] for each in whole["annotations"]}) == len(whole["annotations"])


def test_boxes_of_another_tool_are_presences():
    """With no reader, which the command then asks for."""
    whole = {
        "images": [{"id": 5, "file_name": "a.png"}],
        "categories": [{"id": 2, "name": "Mass"}],
        "annotations": [{"id": 1, "image_id": 5, "category_id": 2, "bbox": [1, 2, 3, 4]}],
    }
    (row,) = coco.read(json.dumps(whole).encode(), "x.json").table.rows(named=True)
    assert (row["image_id"], row["finding"], row["verdict"], row["reader"]) == ("a.png", "Mass", "present", None)
    assert row["box"] == "[[1, 2, 3, 4]]"


@pytest.mark.parametrize("whole", [[], {"images": []}, {"images": [], "categories": [], "annotations": [{"id": 1}]}])
def test_what_is_no_coco_is_refused(whole):
    """In one line."""
    with pytest.raises(TruthError, match=r"x\.json"):
        coco.read(json.dumps(whole).encode(), "x.json")
