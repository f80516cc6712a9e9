"""Label Studio's JSON gives back what went out, and takes what was changed or made there."""

import json

import polars as pl
import pytest
from hypothesis import given, settings

from bpals.errors import TruthError
from bpals.reviews import labelstudio
from bpals.reviews.exchange import Films
from world import review_tables

SENT = review_tables.reviews()
FILMS = Films(sizes={"a.png": (1024, 768), "b.png": (512, 512)})


def tasks_of(reviews, films=FILMS):
    """What is written, as Python has it."""
    return json.loads(labelstudio.write(reviews, films).files[""])


def read(tasks):
    """Read tasks back."""
    return labelstudio.read(json.dumps(tasks).encode(), "x.json")


def test_every_column_comes_back():
    """Boxes too, which Label Studio has in per cent."""
    assert review_tables.same(read(tasks_of(SENT)).table, SENT)
    assert review_tables.same(read(tasks_of(SENT, Films())).table, SENT)


@settings(max_examples=30, deadline=None)
@given(rows=review_tables.ROWS)
def test_any_text_comes_back(rows):
    """Whatever a note, a reader or a film is called."""
    sent = review_tables.of_rows(rows)
    assert review_tables.same(read(tasks_of(sent)).table, sent)


def test_it_is_what_label_studio_takes():
    """A task a film, an annotation a reading; a choice a finding, and rectangles in per cent."""
    task = tasks_of(SENT)[0]
    assert task["data"]["image"] == "a.png"
    results = [each for annotation in task["annotations"] for each in annotation["result"]]
    choice = next(each for each in results if each["type"] == "choices")
    assert (choice["from_name"], choice["to_name"], choice["value"]) == ("Mass", "image", {"choices": ["present"]})
    rectangle = next(each for each in results if each["type"] == "rectanglelabels")
    assert rectangle["value"]["x"] == 100 * 1.5 / 1024
    assert rectangle["value"]["height"] == pytest.approx(100 * 0.3 / 768)
    assert rectangle["value"]["rectanglelabels"] == ["Mass"]


def test_boxes_of_films_without_a_size_are_counted():
    """They are kept, and not drawn."""
    (notice,) = labelstudio.write(SENT, Films()).notices
    assert notice.count == SENT["box"].drop_nulls().len()


def test_a_changed_choice_is_a_new_read():
    """The old one stays, the new one is by whoever changed it."""
    tasks = tasks_of(SENT.head(1))
    annotation = tasks[0]["annotations"][0]
    annotation["result"][0]["value"]["choices"] = ["absent"]
    annotation |= {"completed_by": {"email": "eve@example.org"}, "updated_at": "2026-12-01T00:00:00Z"}
    (row,) = read(tasks).table.rows(named=True)
    assert (row["verdict"], row["reader"], row["at"]) == ("absent", "eve@example.org", "2026-12-01T00:00:00Z")
    assert row["external_id"] != SENT["external_id"][0]
    assert read(tasks).table["external_id"][0] == row["external_id"]


def test_a_moved_rectangle_is_a_new_read():
    """And one that was removed leaves a read without a box."""
    tasks = tasks_of(SENT.head(1))
    result = tasks[0]["annotations"][0]["result"]
    result[1]["value"]["x"] += 10
    (row,) = read(tasks).table.rows(named=True)
    assert json.loads(row["box"])[0][0] == pytest.approx(1.5 + 102.4)
    del result[1]
    (row,) = read(tasks).table.rows(named=True)
    assert row["box"] is None
    assert row["external_id"] != SENT["external_id"][0]


def made_there():
    """An annotation as Label Studio exports one that a reader made from nothing."""
    place = {"x": 25, "y": 50, "width": 10, "height": 20, "rotation": 0, "rectanglelabels": ["Nodule"]}
    results = [
        {"from_name": "Mass", "to_name": "image", "type": "choices", "value": {"choices": ["absent"]}, "id": "p"},
        {"from_name": "quality", "to_name": "image", "type": "choices", "value": {"choices": ["limited"]}, "id": "q"},
        {"from_name": "note", "to_name": "image", "type": "textarea", "value": {"text": ["rotated"]}, "id": "r"},
        {"from_name": "boxes", "type": "rectanglelabels", "value": place, "original_width": 200,
         "original_height": 100, "id": "s"},
    ]  # fmt: skip
    annotation = {"id": 9, "unique_id": "u9", "completed_by": 3, "result": results, "lead_time": 4.5,
                  "created_at": "2026-01-01T00:00:00Z", "was_cancelled": False}  # fmt: skip
    skipped = {"id": 10, "completed_by": 4, "result": [], "was_cancelled": True}
    return [{"id": 1, "data": {"image": "/data/upload/1/0a1b2c3d-a.png"}, "annotations": [annotation, skipped]}]


def test_what_was_made_there_is_read():
    """A choice is a verdict, a rectangle alone is a presence, and a skipped annotation is counted."""
    found = read(made_there())
    rows = {row["finding"]: row for row in found.table.iter_rows(named=True)}
    assert rows["Mass"]["verdict"] == "absent"
    assert rows["Nodule"] | {"verdict": "present", "box": "[[50.0, 50.0, 20.0, 20.0]]"} == rows["Nodule"]
    assert {(row["reader"], row["note"], row["quality"], row["wall_s"]) for row in rows.values()} == {
        ("3", "rotated", "limited", 4.5)
    }
    assert len(set(found.table["external_id"])) == 2
    assert [(notice.code, notice.count) for notice in found.notices] == [("skipped", 1)]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"a": 1}, "no list of Label Studio's tasks"),
        ([{"data": {"image": "a"}, "annotations": [{"result": [
            {"type": "choices", "from_name": "Mass", "value": {"choices": ["present", "absent"]}}]}]}],
         r"task 1: 'Mass' has 2 choices"),
        ([{"data": {"image": "a"}, "annotations": [{"result": [{"type": "rectanglelabels", "value": {
            "rectanglelabels": ["Mass"], "x": 1}}]}]}], "no place or no original_width"),
    ],
)  # fmt: skip
def test_what_is_none_of_it_is_refused(tasks, message):
    """In one line."""
    with pytest.raises(TruthError, match=message):
        read(tasks)


def test_a_cut_off_file_is_refused_with_its_line():
    """As a download that ended early."""
    content = labelstudio.write(SENT, FILMS).files[""][:2000]
    with pytest.raises(TruthError, match=r"x\.json line \d+ .*JSON"):
        labelstudio.read(content, "x.json")


def test_an_empty_list_holds_no_read():
    """And is no error here: the caller says what it means."""
    assert read([]).table.is_empty()
    assert isinstance(read([]).table, pl.DataFrame)
