"""The weights of a network: fetched by address and hash, read as names and numbers, or opened as an ONNX file.

Nothing in a file of weights is run, whatever its name: its first bytes say what it is (`torchfile.py` reads it). What
is read is what was hashed.
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
from bpals.judges.address import quoted
from bpals.judges.torchfile import AGAIN, Placeholder, Tensor, Unreadable, is_safetensors, read_safetensors, read_torch
from bpals.optional import import_silent
from bpals.store.files import sync_folder

HERE = ("127.0.0.1", "localhost", "::1")
PIECE = 1 << 20
# How long a server may send nothing.
SILENT_S = 60.0
# Bytes of a file, at most; a DenseNet-121 has 28 million, a ResNet-50 100.
LARGEST = 8 * 2**30
# The keys under which people save the weights beside an epoch and an optimiser.
WRAPPED = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights")
# How files begin that people name by mistake -> what they are and what to do.
NOT_WEIGHTS: Mapping[bytes, str] = {
    b"\x89HDF": "HDF5, as Keras saves it. Convert it to ONNX and type onnx:FILE",
    b"<": f"a web page that was saved in the place of the file. {AGAIN}",
    b"version https://git-lfs": "a pointer to a file in Git LFS. Get the file itself with: git lfs pull",
}
# The level of onnxruntime's log at which it writes nothing: errors come as exceptions.
QUIET = 4

Array = npt.NDArray[Any]


def fetch(url: str, sha256: str, folder: Path, *, largest: int) -> Path:
    """Give the file of that hash: from the folder if it is there, else downloaded into it, whole or not at all."""
    _check(url)
    folder /= sha256[:16]
    # Named as its address does, in letters that any disk takes.
    target = folder / (re.sub(r"[^A-Za-z0-9._-]+", "_", urlsplit(url).path.rpartition("/")[2])[-150:] or "weights")
    if target.is_file():
        with target.open("rb") as kept:
            if hashlib.file_digest(kept, "sha256").hexdigest() == sha256:
                return target  # else it is damaged, and fetched again
    part = folder / f".{target.name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            found = _copy(url, file, largest)
            file.flush()
            os.fsync(file.fileno())
        if found != sha256:
            raise JudgeError(
                f"{quoted(url)} gives a file with the sha256 {found}, not {sha256}: it is another file, "
                "and was not kept"
            )
        part.replace(target)
        sync_folder(folder)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise JudgeError(f"{quoted(url)} cannot be downloaded to {folder}: {reason}. Try again") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _copy(url: str, file: IO[bytes], largest: int) -> str:
    """Copy what a server sends into a file, piece by piece, and give its hash."""
    digest, size = hashlib.sha256(), 0
    opener = urllib.request.build_opener(_CheckedRedirects)
    with closing(opener.open(url, timeout=SILENT_S)) as response:
        promised = response.headers.get("Content-Length")
        while piece := response.read(PIECE):
            size += len(piece)
            if size > largest:
                raise JudgeError(f"{quoted(url)} sends more than {largest:,} bytes; weights of a classifier have fewer")
            digest.update(piece)
            file.write(piece)
    if promised is not None and promised.isdecimal() and int(promised) != size:
        raise JudgeError(f"{quoted(url)} broke off after {size:,} of {int(promised):,} bytes. Try again")
    return digest.hexdigest()


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, behind which weights often lie, only to an address that a user may name."""

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
        raise JudgeError(f"{quoted(url)} is not downloaded from: weights come by https://HOST/FILE, without a password")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Names and numbers, and where they are from."""

    path: Path
    sha256: str
    form: str
    """`safetensors`, `torch zip` or `torch pickle`."""
    arrays: Mapping[str, Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Lists of texts in a module that was saved whole, such as the names of its outputs."""


def read_content(path: Path, sha256: str = "") -> tuple[bytes, str]:
    """Read a file whole and hash it; one with another hash than it should have is refused, both named."""
    try:
        if path.stat().st_size > LARGEST:
            raise JudgeError(f"{path} has {path.stat().st_size:,} bytes; weights of a classifier have fewer")
        content = path.read_bytes()
    except OSError as error:
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Check the path") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 and found != sha256.removeprefix("sha256:"):
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
        form, arrays, attributes = _read_torch_state(content)
    except Unreadable as why:
        raise JudgeError(f"{path} cannot be loaded: {why}") from None
    except struct.error:
        raise JudgeError(f"{path} cannot be loaded: it is cut off. {AGAIN}") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # a dict whose methods a pickle has covered
        raise JudgeError(f"{path} cannot be loaded: it is no torch file ({error}). {AGAIN}") from None
    return Weights(path=path, sha256=found, form=form, arrays=arrays, attributes=attributes)


def not_weights(content: bytes) -> str:
    """Name a file that is no file of weights at all, and what to do; empty where its beginning does not tell."""
    begins = content[:64].removeprefix(codecs.BOM_UTF8).lstrip()
    known = (what for beginning, what in NOT_WEIGHTS.items() if begins.startswith(beginning))
    return next(known, "" if content else f"empty. {AGAIN}")


def _read_torch_state(content: bytes) -> tuple[str, dict[str, Array], dict[str, Any]]:
    """Find form, weights and texts in what torch saved: a state dict, one inside a checkpoint, or a whole module."""
    if what := not_weights(content):
        raise Unreadable(f"it is {what}")
    if content[257:262] == b"ustar":
        raise Unreadable(
            "it is a tar, as torch saved weights before 2017. Load it with that torch and save its state_dict() again"
        )
    file = read_torch(content)
    whole = file.whole
    for _ in range(3):
        if isinstance(whole, Placeholder) and "_modules" in whole.attributes:
            lists = {
                name: value for name, value in whole.attributes.items() if value and isinstance(value, list | tuple)
            }
            texts = {name: list(value) for name, value in lists.items() if all(isinstance(word, str) for word in value)}
            return file.form, {name: file.array(tensor) for name, tensor in _walk(whole)}, texts
        if not isinstance(whole, dict):
            break
        tensors = {name: tensor for name, value in whole.items() if (tensor := _tensor(value)) is not None}
        inner = next((whole[name] for name in WRAPPED if isinstance(whole.get(name), dict | Placeholder)), None)
        if inner is None:
            if tensors:
                return file.form, {str(name): file.array(tensor) for name, tensor in tensors.items()}, {}
            break
        whole = inner
    kind = "a dict of " + ", ".join(map(str, list(whole)[:5])) if isinstance(whole, dict) else type(whole).__name__
    raise Unreadable(f"it holds no weights, but {kind}. Save the state_dict() of the model")


def _tensor(value: Any) -> Tensor | None:
    """Take a tensor, or the one inside a Parameter of an old torch."""
    if isinstance(value, Placeholder) and value.arguments:
        value = value.arguments[0]
    return value if isinstance(value, Tensor) else None


def _walk(module: Placeholder) -> Iterator[tuple[str, Tensor]]:
    """Go through a module and the modules in it, as its state_dict() would."""
    pending, seen = [("", module)], set()
    while pending:
        prefix, each = pending.pop()
        # A pickle may hold a module inside itself.
        if id(each) in seen:
            continue
        seen.add(id(each))
        for part in ("_parameters", "_buffers"):
            for name, value in _items(each, part):
                if (tensor := _tensor(value)) is not None:
                    yield f"{prefix}{name}", tensor
        inner = [(f"{prefix}{name}.", value) for name, value in _items(each, "_modules")]
        pending += reversed([(name, value) for name, value in inner if isinstance(value, Placeholder)])


def _items(module: Placeholder, part: str) -> list[tuple[Any, Any]]:
    held = module.attributes.get(part)
    return list(held.items()) if isinstance(held, dict) else []


class OnnxFile:
    """A network in a file. What is run is what was hashed: nothing outside the file is read."""

    def __init__(self, path: str | Path, sha256: str = "") -> None:
        """Open the file; one with another hash than it should have, or that cannot be run, is refused."""
        self.path = Path(path)
        content, self.sha256 = read_content(self.path, sha256)
        try:
            runtime = import_silent("onnxruntime")
        except ImportError:
            raise MissingExtra.of("An ONNX file", "probe") from None
        self.engine = f"onnxruntime {runtime.__version__}"
        self._faults = _faults(runtime)
        options = runtime.SessionOptions()
        # One thread that does not spin while it waits: two spinning ones on busy cores were slower.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = QUIET
        try:
            self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except self._faults as error:
            why = f"it is {what}" if (what := not_weights(content)) else _line(error)
            raise JudgeError(f"{self.path} is no ONNX file that onnxruntime can run: {why}") from None
        self.inputs: dict[str, tuple[str, list[Any]]] = {
            node.name: (node.type, list(node.shape)) for node in self._session.get_inputs()
        }
        """Name of each input -> its type, such as `tensor(float)`, and its shape; a word in it may be any number."""
        self.outputs: dict[str, list[Any]] = {node.name: list(node.shape) for node in self._session.get_outputs()}
        """Name of each output -> its shape."""

    def run(self, inputs: Mapping[str, Array], output: str) -> npt.NDArray[np.float32]:
        """Run the network and give one of its outputs."""
        try:
            (made,) = self._session.run([output], dict(inputs))
        except self._faults as error:
            raise JudgeError(f"{self.path} cannot be run on a film: {_line(error)}") from None
        return np.asarray(made, dtype=np.float32)


def _faults(runtime: Any) -> tuple[type[Exception], ...]:
    """List what onnxruntime raises: a dozen kinds without a common base."""
    raised = runtime.capi.onnxruntime_pybind11_state
    kinds = (getattr(raised, name) for name in dir(raised))
    own = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
    return (*own, RuntimeError, ValueError)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
