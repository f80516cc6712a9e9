"""The weights of a network: a file that somebody downloaded, pinned by its hash, read as names and numbers.

Nothing in the file is run, whatever it is called: what it is, its first bytes say (`torchfile.py`,
`safetensorsfile.py`). What is read is what was hashed.
"""

from __future__ import annotations

import codecs
import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bpals.errors import JudgeError
from bpals.judges.safetensorsfile import is_safetensors, read_safetensors
from bpals.judges.torchfile import AGAIN, Husk, Tensor, TorchFile, Unreadable, read_torch

LARGEST = 8 * 2**30
"""Bytes of a file, at most; a DenseNet-121 has 28 million, a ResNet-50 100."""
WRAPPED = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights")
"""Under which names people save the weights beside an epoch and an optimiser."""
STRANGERS: Mapping[bytes, str] = {
    b"\x89HDF": "HDF5, as Keras saves it. Convert it to ONNX and type onnx:FILE",
    b"<": f"a web page that was saved in the place of the file. {AGAIN}",
    b"version https://git-lfs": "a pointer to a file in Git LFS. Get the file itself with: git lfs pull",
}
"""How files begin that people name by mistake; no file of weights begins so."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Names and numbers, and where they are from."""

    path: Path
    sha256: str
    form: str
    """`safetensors`, `torch zip` or `torch pickle`."""
    arrays: Mapping[str, Array]
    said: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of a module that was saved whole, such as the names of its outputs."""


def read_content(path: Path, sha256: str = "") -> tuple[bytes, str]:
    """Read a file whole and hash it; one with another hash than it should have is refused, both named."""
    try:
        if path.stat().st_size > LARGEST:
            raise JudgeError(f"{path} has {path.stat().st_size:,} bytes; weights of a classifier have fewer")
        content = path.read_bytes()
    except OSError as error:
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Check the path") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 and found != sha256:
        raise JudgeError(
            f"{path} has the sha256 {found}, not {sha256}: it is another file, and nothing of it was loaded. "
            "Get the right one, or name the hash of this one after the @"
        )
    return content, found


def read_weights(path: Path, sha256: str = "") -> Weights:
    """Read the weights out of a file in any form that people save them in; running nothing, guessing nothing."""
    content, found = read_content(path, sha256)
    try:
        if is_safetensors(content):
            return Weights(path=path, sha256=found, form="safetensors", arrays=read_safetensors(content))
        _refuse_strangers(content)
        file = read_torch(content)
        arrays, said = _state(file)
    except Unreadable as why:
        raise JudgeError(f"{path} cannot be loaded: {why}") from None
    except struct.error:
        raise JudgeError(f"{path} cannot be loaded: it is cut off. {AGAIN}") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # a dict whose methods a pickle has covered
        raise JudgeError(f"{path} cannot be loaded: it is no torch file ({error}). {AGAIN}") from None
    return Weights(path=path, sha256=found, form=file.form, arrays=arrays, said=said)


def stranger(content: bytes) -> str:
    """Say what a file is that is no file of weights at all, and what to do; empty where its beginning does not tell."""
    begins = content[:64].removeprefix(codecs.BOM_UTF8).lstrip()
    known = (what for beginning, what in STRANGERS.items() if begins.startswith(beginning))
    return next(known, "" if content else f"empty. {AGAIN}")


def _refuse_strangers(content: bytes) -> None:
    if what := stranger(content):
        raise Unreadable(f"it is {what}")
    if content[257:262] == b"ustar":
        raise Unreadable(
            "it is a tar, as torch saved weights before 2017. Load it with that torch and save its state_dict() again"
        )


def _state(file: TorchFile) -> tuple[dict[str, Array], dict[str, Any]]:
    """Find the weights in what was saved: a state dict, one inside a checkpoint, or a whole module."""
    whole = file.whole
    for _ in range(3):
        if isinstance(whole, Husk) and "_modules" in whole.held:
            return {name: file.array(tensor) for name, tensor in _walk(whole)}, _said(whole)
        if not isinstance(whole, dict):
            break
        tensors = {name: tensor for name, value in whole.items() if (tensor := _tensor(value)) is not None}
        inner = next((whole[name] for name in WRAPPED if isinstance(whole.get(name), dict | Husk)), None)
        if inner is None:
            if tensors:
                return {str(name): file.array(tensor) for name, tensor in tensors.items()}, {}
            break
        whole = inner
    kind = "a dict of " + ", ".join(map(str, list(whole)[:5])) if isinstance(whole, dict) else type(whole).__name__
    raise Unreadable(f"it holds no weights, but {kind}. Save the state_dict() of the model")


def _tensor(value: Any) -> Tensor | None:
    """Take a tensor, or the one inside a Parameter of an old torch."""
    if isinstance(value, Husk) and value.given:
        value = value.given[0]
    return value if isinstance(value, Tensor) else None


def _walk(module: Husk) -> Iterator[tuple[str, Tensor]]:
    """Go through a module and the modules in it, as its state_dict() would."""
    open_modules: list[tuple[str, Husk]] = [("", module)]
    seen = set()
    while open_modules:
        prefix, husk = open_modules.pop()
        if id(husk) in seen:
            continue
        seen.add(id(husk))
        for part in ("_parameters", "_buffers"):
            for name, value in _items(husk, part):
                if (tensor := _tensor(value)) is not None:
                    yield f"{prefix}{name}", tensor
        inner = [(f"{prefix}{name}.", value) for name, value in _items(husk, "_modules") if isinstance(value, Husk)]
        open_modules += reversed(inner)


def _items(husk: Husk, part: str) -> list[tuple[Any, Any]]:
    held = husk.held.get(part)
    return list(held.items()) if isinstance(held, dict) else []


def _said(module: Husk) -> dict[str, Any]:
    """Take what a module says of itself in plain words: lists of texts."""
    lists = {name: value for name, value in module.held.items() if isinstance(value, list | tuple)}
    return {name: list(value) for name, value in lists.items() if value and all(isinstance(w, str) for w in value)}
