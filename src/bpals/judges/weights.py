"""The weights of a network: a file that somebody downloaded, pinned by its hash, read as names and numbers.

Nothing in the file is run, whatever it is called: what it is, its first bytes say (`torchfile.py`,
`safetensorsfile.py`). What is read is what was hashed.
"""

from __future__ import annotations

import codecs
import hashlib
import http.client
import os
import re
import struct
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.address import shown
from bpals.judges.torchfile import (
    AGAIN,
    Husk,
    Tensor,
    TorchFile,
    Unreadable,
    is_safetensors,
    read_safetensors,
    read_torch,
)
from bpals.optional import import_silent
from bpals.store.files import sync_folder

HERE = ("127.0.0.1", "localhost", "::1")
PIECE = 1 << 20
SILENT_S = 60.0
"""How long a server may say nothing."""


def fetch(url: str, sha256: str, folder: Path, *, largest: int) -> Path:
    """Give the file of that hash: from the folder if it is there, else downloaded into it, whole or not at all."""
    _check(url)
    folder /= sha256[:16]
    target = folder / file_name(url)
    if _holds(target, sha256):
        return target
    part = folder / f".{target.name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            found = _copy(url, file, largest)
            file.flush()
            os.fsync(file.fileno())
        if found != sha256:
            raise JudgeError(
                f"{shown(url)} gives a file with the sha256 {found}, not {sha256}: it is another file, and was not kept"
            )
        part.replace(target)
        sync_folder(folder)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise JudgeError(f"{shown(url)} cannot be downloaded to {folder}: {reason}. Try again") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def file_name(url: str) -> str:
    """Name a file as its address does, in letters that any disk takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", urlsplit(url).path.rpartition("/")[2])[-150:] or "weights"


def _holds(path: Path, sha256: str) -> bool:
    """Say whether a file is there and is the one that is meant; a damaged one is fetched again."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _copy(url: str, file: IO[bytes], largest: int) -> str:
    """Copy what a server sends into a file, piece by piece, and give its hash."""
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_Careful)
    with closing(opener.open(url, timeout=SILENT_S)) as answer:
        promised = answer.headers.get("Content-Length")
        while piece := answer.read(PIECE):
            size += len(piece)
            if size > largest:
                raise JudgeError(f"{shown(url)} sends more than {largest:,} bytes; weights of a classifier have fewer")
            digest.update(piece)
            file.write(piece)
    if promised is not None and promised.isdecimal() and int(promised) != size:
        raise JudgeError(f"{shown(url)} broke off after {size:,} of {int(promised):,} bytes. Try again")
    return digest.hexdigest()


class _Careful(urllib.request.HTTPRedirectHandler):
    """Follows a server elsewhere only where a user might have pointed: weights often lie behind a redirect."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check(url: str) -> None:
    """Refuse what is neither https nor this machine, and names or passwords in an address."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in HERE
    if not (parts.scheme == "https" or local) or not parts.hostname or "@" in parts.netloc:
        raise JudgeError(f"{shown(url)} is not downloaded from: weights come by https://HOST/FILE, without a password")


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


QUIET = 4
"""The level of onnxruntime's log at which it says nothing: what is wrong comes as an exception."""


class OnnxFile:
    """A network in a file. What is run is what was hashed: nothing outside the file is read."""

    def __init__(self, path: str | Path, sha256: str = "") -> None:
        """Open the file; one with another hash than it should have, or that cannot be run, is refused."""
        self.path = Path(path)
        content = _read(self.path)
        self.sha256 = hashlib.sha256(content).hexdigest()
        if sha256 and sha256.removeprefix("sha256:") != self.sha256:
            raise JudgeError(
                f"{self.path} has the sha256 {self.sha256}, not {sha256}: it is another file. "
                "Get the right one, or name the hash of this one after the @"
            )
        runtime = _runtime()
        self.engine = f"onnxruntime {runtime.__version__}"
        self._faults = _faults(runtime)
        try:
            self._session = runtime.InferenceSession(content, _options(runtime), providers=["CPUExecutionProvider"])
        except self._faults as error:
            why = f"it is {what}" if (what := stranger(content)) else _line(error)
            raise JudgeError(f"{self.path} is no ONNX file that onnxruntime can run: {why}") from None
        self.inputs: dict[str, tuple[str, list[Any]]] = {
            node.name: (node.type, list(node.shape)) for node in self._session.get_inputs()
        }
        """Name of each input -> its type, such as `tensor(float)`, and its shape; a word in it may be any number."""
        self.outputs: dict[str, list[Any]] = {node.name: list(node.shape) for node in self._session.get_outputs()}
        """Name of each output -> its shape."""

    def run(self, given: Mapping[str, Array], wanted: str) -> npt.NDArray[np.float32]:
        """Run the network and give one of its outputs."""
        try:
            (made,) = self._session.run([wanted], dict(given))
        except self._faults as error:
            raise JudgeError(f"{self.path} cannot be run on a film: {_line(error)}") from None
        return np.asarray(made, dtype=np.float32)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Check the path") from None


def _runtime() -> Any:
    try:
        return import_silent("onnxruntime")
    except ImportError:
        raise MissingExtra.of("An ONNX file", "probe") from None


def _options(runtime: Any) -> Any:
    """One thread, which does not spin while it waits: two spinning ones on busy cores are slower than one."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = QUIET
    return options


def _faults(runtime: Any) -> tuple[type[Exception], ...]:
    """List what onnxruntime raises: a dozen kinds without a common name."""
    raised = runtime.capi.onnxruntime_pybind11_state
    kinds = (getattr(raised, name) for name in dir(raised))
    own = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
    return (*own, RuntimeError, ValueError)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
