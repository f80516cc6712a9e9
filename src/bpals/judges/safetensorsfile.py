"""A safetensors file: a JSON of names, shapes and places, then the numbers; each place is checked before it is read."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bpals.judges.torchfile import AGAIN, Unreadable

LARGEST_HEADER = 100_000_000
"""Bytes: the format's own limit."""

NUMBERS: Mapping[str, str] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}
"""What the format calls a kind of number -> what numpy calls it; a BF16 is the upper half of a float."""

Array = npt.NDArray[Any]


class _Place(NamedTuple):
    """Where a tensor lies."""

    start: int
    end: int
    name: str
    kind: str
    shape: tuple[int, ...]


def is_safetensors(content: bytes) -> bool:
    """Tell the format by its beginning: the length of a header that begins with a brace."""
    return content[8:9] == b"{"


def read_safetensors(content: bytes) -> dict[str, Array]:
    """Read every tensor, or raise Unreadable."""
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(LARGEST_HEADER, len(content) - 8):
        raise Unreadable(f"its header should have {length:,} bytes, and the whole file has {len(content):,}. {AGAIN}")
    body = memoryview(content)[8 + length :]
    places = sorted(_places(content[8 : 8 + length]))
    _check_cover(places, len(body))
    return {place.name: _array(place, body) for place in places}


def _places(header: bytes) -> list[_Place]:
    try:
        written = json.loads(header)
        del written["__metadata__"]
    except KeyError:
        pass
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"its header is no JSON object ({error})") from None
    try:
        return [_place(name, facts) for name, facts in written.items()]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Unreadable(f"its header does not say where its tensors lie ({error!r})") from None


def _place(name: str, facts: Mapping[str, Any]) -> _Place:
    start, end = facts["data_offsets"]
    shape, kind = tuple(facts["shape"]), facts["dtype"]
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise Unreadable(f"{name} has a shape {shape} or a place [{start}, {end}] that is none")
    if kind not in NUMBERS:
        raise Unreadable(f"{name} is of the kind {kind}; known are {', '.join(NUMBERS)}")
    if end - start != math.prod(shape) * np.dtype(NUMBERS[kind]).itemsize:
        raise Unreadable(f"{name} has the shape {shape} in {kind}, and {end - start:,} bytes")
    return _Place(start, end, name, kind, shape)


def _check_cover(places: list[_Place], size: int) -> None:
    """Refuse tensors that overlap, leave gaps, or end elsewhere than the file."""
    reached = 0
    for place in places:
        if place.start != reached:
            what = "overlaps the tensor before it" if place.start < reached else "leaves a gap before it"
            raise Unreadable(f"{place.name} begins at byte {place.start:,} and not at {reached:,}: it {what}")
        reached = place.end
    if reached != size:
        what = "is cut off" if reached > size else "goes on after its last tensor"
        raise Unreadable(f"its tensors have {reached:,} bytes, and {size:,} are there: it {what}. {AGAIN}")


def _array(place: _Place, body: memoryview) -> Array:
    numbers: Array = np.frombuffer(body[place.start : place.end], NUMBERS[place.kind])
    if place.kind == "BF16":
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    return numbers.reshape(place.shape)
