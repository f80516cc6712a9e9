"""F24: a damaged or strange file of any format is refused in our own words, and never ends in a traceback."""

import contextlib
import gzip
import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import BpalsError, TruthError
from bpals.reviews import coco, exchange, fiftyone, flat, labelstudio
from bpals.reviews.exchange import Films
from world import review_tables

SIZES = Films(sizes={"a.png": (1024, 768), "b.png": (512, 512), "c.png": (9, 9)})
SENT = review_tables.reviews(8)
WHOLE = {module: json.loads(module.write(SENT, SIZES).files[""]) for module in (labelstudio, coco, fiftyone)}
STRANGE = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.just([]) | st.just({}) | st.just([[1]])
)


def places(value, path=()):
    """Every place inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def damaged(value, path, strange, *, gone):
    """The same value with something else, or nothing, at one place."""
    if not path:
        return strange
    copy = dict(value) if isinstance(value, dict) else list(value)
    if gone and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = damaged(copy[path[0]], path[1:], strange, gone=gone)
    return copy


@pytest.mark.parametrize("module", WHOLE, ids=lambda module: module.__name__.rpartition(".")[2])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_f24_a_json_with_something_strange_in_it(module, data):
    """F24: it is read, or refused as what it is."""
    whole = WHOLE[module]
    path = data.draw(st.sampled_from(list(places(whole))))
    content = json.dumps(damaged(whole, path, data.draw(STRANGE), gone=data.draw(st.booleans()))).encode()
    with contextlib.suppress(BpalsError):
        exchange.checked(module.read(content, "x.json").table, "x.json", "ann")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_f24_a_csv_with_something_strange_in_it(data):
    """F24: cut off, or with other bytes somewhere."""
    content = bytearray(flat.write_csv(SENT, Films()).files[""])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=5))
    with contextlib.suppress(BpalsError):
        exchange.checked(flat.read_csv(bytes(content), "x.csv").table, "x.csv", "ann")


@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b", b"\x1f\x8bcut", gzip.compress(b"image_id,finding\n", mtime=0)[:-6]],
    ids=["two-bytes", "other-bytes", "cut-off"],
)
def test_a_damaged_compressed_table_is_one_sentence(content):
    """Cut off, or something else behind the first two bytes."""
    with pytest.raises(TruthError, match="damaged"):
        flat.read_csv(content, "x.csv.gz")


def test_other_words_of_a_verdict_are_read_in_every_format():
    """A page of another tool may offer Yes and No; what is no verdict is refused as it was written."""
    tasks = [
        {
            "data": {"image_id": "a.png"},
            "annotations": [
                {
                    "id": number,
                    "completed_by": 7,
                    "result": [{"type": "choices", "from_name": "Mass", "value": {"choices": [word]}}],
                }
                for number, word in enumerate(("Yes", "NO", "Hedge", "maybe", "unreadable", "present"))
            ],
        }
    ]
    found = labelstudio.read(json.dumps(tasks).encode(), "x.json").table
    read = exchange.checked(found, "x.json", None)
    assert read["verdict"].to_list() == ["present", "absent", "uncertain", "uncertain", "unreadable", "present"]
    for word in ("Perhaps", "na"):
        with pytest.raises(TruthError, match=f"{word!r} is no verdict. Write present"):
            exchange.checked(found.with_columns(verdict=pl.lit(word)), "x.json", None)
