"""The comparisons of scripts/identity.py: a changed bit, code or unlisted word is found, a listed word is not."""

import json
import math

import polars as pl
import pytest

import identity
from identity import Mask, compare_files, compare_folders, compare_json, compare_tables, words_of

SIGNAL = pl.DataFrame(
    {
        "image_id": ["a.png", "b.png", "c.png"],
        "trust": [0.1, None, 0.0],
        "flag": pl.Series(["suspect", "trusted", "trusted"], dtype=pl.Enum(["suspect", "trusted"])),
        "reasons": [["alone: no other film of this patient", "low: trust .10"], [], ["low: trust .00"]],
    }
)
WORDS = [("film", "image"), ("of {} films {} are", "{} images, {} of them")]


def changed(column, row, value):
    """The signal with one cell changed."""
    cells = SIGNAL[column].to_list()
    cells[row] = value
    return SIGNAL.with_columns(pl.Series(column, cells, dtype=SIGNAL.schema[column]))


def test_the_same_table_is_the_same():
    """Two copies, nulls among them."""
    assert compare_tables(SIGNAL, SIGNAL.clone()) is None


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("trust", 0, math.nextafter(0.1, 1)),
        ("trust", 2, -0.0),
        ("trust", 1, 0.0),
        ("trust", 2, None),
        ("flag", 1, "suspect"),
        ("image_id", 2, "d.png"),
    ],
)
def test_a_changed_bit_is_found(column, row, value):
    """The last bit of a number, the sign of a zero, a null: each with its column and row."""
    assert compare_tables(SIGNAL, changed(column, row, value)).startswith(f"{column}, row {row}:")


def test_another_shape_is_found():
    """A row less, a column less, another type."""
    assert compare_tables(SIGNAL, SIGNAL.head(2)) == "3 rows are now 2"
    assert "columns" in compare_tables(SIGNAL, SIGNAL.drop("flag"))
    assert "columns" in compare_tables(SIGNAL, SIGNAL.with_columns(pl.col("trust").cast(pl.Float32)))


@pytest.mark.parametrize(
    ("row", "reasons", "found"),
    [
        (0, ["lonely: no other film of this patient", "low: trust .10"], "code alone is now lonely"),
        (0, ["alone: no other film of this patient"], "row 0"),
        (0, ["low: trust .10", "alone: no other film of this patient"], "code alone is now low"),
        (0, ["alone: no other picture of this patient", "low: trust .10"], "no other picture"),
        (2, ["low: trust .01"], "trust .01"),
        (1, ["low: trust .01"], "row 1"),
    ],
)
def test_a_changed_code_or_an_unlisted_word_is_found(row, reasons, found):
    """Codes, how many there are, their order; and any word or number that is not listed."""
    assert found in compare_tables(SIGNAL, changed("reasons", row, reasons), words=WORDS)


def test_a_listed_word_is_no_difference():
    """Only as a whole word; what `{}` stands for must be the same."""
    listed = changed("reasons", 0, ["alone: no other image of this patient", "low: trust .10"])
    assert compare_tables(SIGNAL, listed, words=WORDS) is None
    assert compare_tables(SIGNAL, listed, words=()) is not None
    assert words_of("a film, filmed", WORDS) == "a image, filmed"
    assert words_of("of 25 films 3 are odd", WORDS) == "25 images, 3 of them odd"


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ({"n": 1, "says": "the image", "at": "later"}, None),
        ({"n": 2, "says": "the film", "at": "now"}, ".n: 1 is now 2"),
        ({"n": 1.0, "says": "the film", "at": "now"}, ".n: 1 is now 1.0"),
        ({"n": True, "says": "the film", "at": "now"}, ".n: 1 is now true"),
        ({"n": 1, "says": "the picture", "at": "now"}, '.says: "the film" is now "the picture"'),
        ({"n": 1, "says": "the film", "at": None}, '.at: "*" is now null'),
        ({"n": 1, "says": "the film"}, ".: keys ['at'] are gone, [] are new"),
        ({"n": 1, "at": "now", "says": "the film"}, ".: the keys have another order"),
    ],
)
def test_json_is_compared_up_to_listed_words_and_masked_fields(new, found):
    """Keys and numbers exactly; a masked field only by whether it is there."""
    base = {"n": 1, "says": "the film", "at": "now"}
    assert compare_json(base, new, masks=[Mask("*", "at", "a clock")], words=WORDS) == found


def test_a_mask_may_leave_a_part_to_be_compared():
    """What follows the random part of an id is compared."""
    mask = Mask("*", "external_id", "random at first", but="/.*")
    base, other = pl.DataFrame({"external_id": ["x7/blind"]}), pl.DataFrame({"external_id": ["q3/blind"]})
    assert compare_tables(base, other, masks=[mask]) is None
    assert compare_tables(base, pl.DataFrame({"external_id": ["q3/second"]}), masks=[mask]) is not None
    assert compare_json({"external_id": "x7/blind"}, {"external_id": "q3/second"}, masks=[mask]) is not None


def test_folders_are_compared_file_by_file(tmp_path, monkeypatch):
    """A file that one side lacks is a difference; each file gets the masks of its own name."""
    monkeypatch.setattr(identity, "MASKED", (Mask("part/run.json", "seconds", "a clock"),))
    for side, seconds in (("base", 1), ("new", 2)):
        (tmp_path / side).mkdir()
        for name in ("run.json", "other.json"):
            (tmp_path / side / name).write_text(json.dumps({"seconds": seconds}))
        (tmp_path / side / "reads.csv").write_text(f"image_id,verdict\na.png,{'present' if seconds == 1 else ''}\n")
    (tmp_path / "new" / "more.json").write_text("{}")
    found = dict(compare_folders("part", tmp_path / "base", tmp_path / "new"))
    assert found == {
        "more.json": "the base does not write it",
        "other.json": ".seconds: 1 is now 2",
        "reads.csv": '[0].verdict: "present" is now null',
        "run.json": None,
    }


def test_a_file_of_no_known_kind_is_compared_by_its_bytes(tmp_path):
    """Nothing is the same because nobody can read it."""
    one, other = tmp_path / "a.bin", tmp_path / "b.bin"
    one.write_bytes(b"\0")
    other.write_bytes(b"\1")
    assert compare_files(one, other) == "its bytes differ"
