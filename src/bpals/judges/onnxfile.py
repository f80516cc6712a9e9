"""An ONNX file: its hash, what goes in and comes out, and onnxruntime to run it on one thread."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.weights import stranger
from bpals.telemetry import import_silent

QUIET = 4
"""The level of onnxruntime's log at which it says nothing: what is wrong comes as an exception."""

Array = npt.NDArray[Any]


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
