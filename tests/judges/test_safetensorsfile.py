"""A safetensors file is read as its own package reads it, and one whose header lies is refused."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bpals.errors import JudgeError
from bpals.judges.weights import read_weights


def written(path, header, body=b"", length=None):
    """A file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def tensor(start, end, shape=(2,), kind="F32"):
    """What a header says of a tensor."""
    return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


def test_every_kind_of_number_is_read_as_it_was_saved(tmp_path):
    """Floats, halves, brain floats, doubles, whole numbers and truth values, with words about the file."""
    base = torch.arange(6.0).reshape(2, 3)
    saved = {
        "a": base,
        "half": base.half(),
        "brain": base.bfloat16(),
        "double": base.double(),
        "whole": base.long(),
        "truth": base > 2,
        "single": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
    }
    path = tmp_path / "w.safetensors"
    save_file(saved, path, metadata={"format": "pt"})
    read = read_weights(path)
    assert read.form == "safetensors"
    assert read.arrays.keys() == saved.keys()
    for name, each in saved.items():
        assert read.arrays[name].shape == tuple(each.shape)
        assert np.array_equal(read.arrays[name], each.float().numpy()), name


M03 = {
    "huge header": (b"{}", b"", 2**40),
    "header beyond the file": (b"{}", b"", 3),
    "overlapping": ({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12), None),
    "the same place twice": ({"a": tensor(0, 8), "b": tensor(0, 8)}, bytes(8), None),
    "a gap": ({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20), None),
    "truncated": ({"a": tensor(0, 8)}, bytes(7), None),
    "more than it says": ({"a": tensor(0, 8)}, bytes(9), None),
    "before the beginning": ({"a": tensor(-8, 0)}, bytes(8), None),
    "other shape": ({"a": tensor(0, 8, (3,))}, bytes(8), None),
    "negative shape": ({"a": tensor(0, 8, (-2,))}, bytes(8), None),
    "a shape of truth values": ({"a": tensor(0, 4, (True,))}, bytes(4), None),
    "enormous shape": ({"a": tensor(0, 8, (2**40, 2**40))}, bytes(8), None),
    "unknown kind": ({"a": tensor(0, 8, kind="F8_E4M3")}, bytes(8), None),
    "no place": ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), None),
    "no object": (b'{"a": 3}', b"", None),
    "no JSON": (b"{,}", b"", None),
    "no UTF-8": (b"{\xff}", b"", None),
    "a deep JSON": (b'{"a":' + b"[" * 100_000, b"", None),
}


@pytest.mark.parametrize(("header", "body", "length"), M03.values(), ids=M03)
def test_m03_a_safetensors_file_whose_header_lies_is_refused(tmp_path, header, body, length):
    """M03: huge header, overlapping offsets, truncated, and all that is near them; in one line."""
    path = written(tmp_path / "w.safetensors", header, body, length)
    with pytest.raises(JudgeError, match=r"w\.safetensors .*: ") as refused:
        read_weights(path)
    assert "\n" not in str(refused.value)


def test_a_file_without_a_tensor_holds_no_weights(tmp_path):
    """It is whole, and empty: what is missing is said by who looks for it."""
    assert read_weights(written(tmp_path / "w.safetensors", b"{}")).arrays == {}
