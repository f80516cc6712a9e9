"""Weights as people have saved them: by torch of today and of 2017, wrapped, renamed, and with code in them."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bpals.judges.local_model import import_torchvision

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def network(architecture: str, *, channels: int = 3, outputs: int = 14, seed: int = 0):
    """A torchvision network with random weights, its running means and deviations too."""
    torch.manual_seed(seed)
    module = getattr(import_torchvision().models, architecture)(weights=None, num_classes=outputs)
    if channels != 3:
        # DenseNet's first layer is called features.conv0, ResNet's conv1.
        where, name = (module.features, "conv0") if architecture == "densenet121" else (module, "conv1")
        setattr(where, name, torch.nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False))
    for name, value in module.named_buffers():
        if name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2)
    return module.eval()


class Global(NamedTuple):
    """A name that a pickle wants looked up."""

    module: str
    name: str


class Call(NamedTuple):
    """A call that a pickle wants made."""

    what: object
    given: tuple[object, ...]


class Outside(NamedTuple):
    """Something that lies outside the pickle: a storage."""

    key: tuple[object, ...]


def opcodes(value: object) -> bytes:
    """Pickle as Python 2 did, with text as bytes; a Global, a Call and an Outside as torch 0.2 wrote them."""
    return WRITTEN[type(value)](value)


def _each(values) -> bytes:
    return b"(" + b"".join(map(opcodes, values))


WRITTEN = {
    Global: lambda value: f"c{value.module}\n{value.name}\n".encode(),
    Call: lambda value: opcodes(value.what) + _each(value.given) + b"tR",
    Outside: lambda value: _each(value.key) + b"tQ",
    type(None): lambda _: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: lambda value: b"J" + struct.pack("<i", value),
    float: lambda value: b"G" + struct.pack(">d", value),
    str: lambda value: b"U" + bytes([len(value)]) + value.encode(),
    tuple: lambda value: _each(value) + b"t",
    list: lambda value: b"]" + _each(value) + b"e",
    dict: lambda value: b"}" + _each(part for item in value.items() for part in item) + b"u",
}


def write_2017(path: Path, arrays: dict[str, np.ndarray], **beside: object) -> Path:
    """Write a checkpoint as torch 0.2 did under Python 2, from a GPU: `state_dict`, and what else stands beside it."""
    state = Call(
        Global("collections", "OrderedDict"), ([[name, _tensor(name, each)] for name, each in arrays.items()],)
    )
    body = b"\x80\x02" + opcodes({"state_dict": state, **beside}) + b"."
    system = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    with path.open("wb") as file:
        for part in (MAGIC, PROTOCOL, system):
            pickle.dump(part, file, protocol=2)
        file.write(body)
        pickle.dump(list(arrays), file, protocol=2)
        for each in arrays.values():
            file.write(struct.pack("<q", each.size) + each.astype("<f4").tobytes())
    return path


def _tensor(key: str, array: np.ndarray) -> Call:
    strides = tuple(step // array.itemsize for step in array.strides)
    storage = Outside(("storage", Global("torch.cuda", "FloatStorage"), key, "cuda:0", array.size, None))
    return Call(Global("torch._utils", "_rebuild_tensor"), (storage, 0, array.shape, strides))


def as_2017(arrays: dict[str, np.ndarray], prefix: str = "module.densenet121.") -> dict[str, np.ndarray]:
    """Rename today's weights as a CheXNet of 2017 has them: `norm.1`, a Sequential head, no counters."""
    renamed = {}
    for name, array in arrays.items():
        if name.endswith("num_batches_tracked"):
            continue
        old = name
        for layer in ("norm1", "norm2", "conv1", "conv2"):
            if "denselayer" in name:
                old = old.replace(f".{layer}.", f".{layer[:-1]}.{layer[-1]}.")
        renamed[prefix + old.replace("classifier.", "classifier.0.")] = array
    return renamed


def numbers(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """The state dict of a module as arrays."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


class Marks:
    """What an attacker saves: unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        """Choose the file."""
        self.marker = marker

    def __reduce__(self):
        """Make it."""
        return os.system, (f"touch {self.marker}",)


def write_payload(path: Path, marker: Path, form: str) -> Path:
    """Save weights that run code when they are unpickled, in one of the forms that torch reads."""
    weights = collections.OrderedDict({"classifier.weight": torch.zeros(2, 2), "classifier.bias": Marks(marker)})
    if form == "pickle":
        path.write_bytes(pickle.dumps(Marks(marker)))
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=form == "torch zip")
    return path
