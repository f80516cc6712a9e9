"""F24: a damaged or strange file of any format is refused in our own words, and never ends in a traceback."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import BpalsError
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
