"""A backbone in an ONNX file of a few kilobytes, written by hand: the means of 4 x 4 fields of a film."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIDE_PX = 32
GRID = 4
WIDTH = GRID * GRID
FLOAT, UINT8, INT64 = 1, 2, 7
"""Types, as ONNX numbers them."""


def write(path: Path, *, weights: np.ndarray | None = None, kind: int = UINT8) -> Path:
    """Write the network films -> Cast -> Reshape -> MatMul -> features."""
    matrix = fields() if weights is None else weights.astype(np.float32)
    pixels = np.array([-1, SIDE_PX * SIDE_PX], dtype=np.int64)
    shape = [None, SIDE_PX, SIDE_PX] if kind == UINT8 else [None, 1, SIDE_PX, SIDE_PX]
    graph = b"".join(
        [
            _part(
                1, _node("Cast", ["films"], ["float"], _part(5, _text(1, "to") + _number(3, FLOAT) + _number(20, 2)))
            ),
            _part(1, _node("Reshape", ["float", "pixels"], ["rows"])),
            _part(1, _node("MatMul", ["rows", "weights"], ["features"])),
            _text(2, "tiny"),
            _part(5, _tensor("pixels", INT64, pixels)),
            _part(5, _tensor("weights", FLOAT, matrix)),
            _part(11, _value("films", kind, shape)),
            _part(12, _value("features", FLOAT, [None, matrix.shape[1]])),
        ]
    )
    path.write_bytes(_number(1, 8) + _part(7, graph) + _part(8, _text(1, "") + _number(2, 17)))
    return path


def fields() -> np.ndarray:
    """Weigh the pixels of a film into the means of its fields."""
    side = SIDE_PX // GRID
    place = np.arange(SIDE_PX) // side
    field = (place[:, None] * GRID + place[None, :]).reshape(-1)
    return (np.eye(WIDTH, dtype=np.float32) / side**2)[field]


def _node(kind: str, takes: list[str], gives: list[str], attribute: bytes = b"") -> bytes:
    words = [*(_text(1, name) for name in takes), *(_text(2, name) for name in gives), _text(4, kind)]
    return b"".join(words) + attribute


def _tensor(name: str, kind: int, values: np.ndarray) -> bytes:
    sizes = b"".join(_number(1, side) for side in values.shape)
    return sizes + _number(2, kind) + _text(8, name) + _part(9, np.ascontiguousarray(values).tobytes())


def _value(name: str, kind: int, shape: list[int | None]) -> bytes:
    sides = b"".join(_part(1, _text(2, "n") if side is None else _number(1, side)) for side in shape)
    return _text(1, name) + _part(2, _part(1, _number(1, kind) + _part(2, sides)))


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode())


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])
