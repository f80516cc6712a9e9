"""A backbone: a frozen network that makes numbers of a film, and how one is named.

lite0            EfficientNet-Lite0, made once on this machine by `bpals probe build`; run by onnxruntime
FILE.onnx        a network of your own: one image in, numbers out
timm:NAME        a model of timm                (extra `torch`, and timm)
hf:MODEL         a vision model of transformers (extra `torch`)

A backbone is never trained here, and has never seen a label of the dataset.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges.onnxfile import OnnxFile
from bpals.judges.torchbackbone import flat, open_hf, open_timm

DEFAULT = "lite0"
FAMILIES = {"timm": open_timm, "hf": open_hf}
SIDE_PX = 224
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
"""How the grey of a film, from 0 to 1, is centred and scaled for networks that were trained on ImageNet."""

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Backbone(Protocol):
    """A frozen network."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def sha256(self) -> str:
        """The hash of everything that could change a number: two with the same one see the same."""
        ...

    @property
    def engine(self) -> str:
        """What runs it, with its version."""
        ...

    @property
    def side_px(self) -> int:
        """The side of the square that it is shown."""
        ...

    @property
    def width(self) -> int:
        """How many numbers it makes of a film."""
        ...

    def look(self, films: Grey) -> Floats:
        """Make a row of numbers of each film, `[n, side_px, side_px]`; no film changes what is made of another."""
        ...


class OnnxBackbone:
    """A backbone in an ONNX file: uint8 `[n, side, side]`, or float `[n, 1 or 3, side, side]` scaled for ImageNet."""

    def __init__(self, path: str | Path, *, name: str = "", sha256: str = "") -> None:
        """Open the file and see what it takes and gives."""
        self._file = OnnxFile(path, sha256)
        self.name = name or Path(path).stem
        self.sha256 = self._file.sha256
        self.engine = self._file.engine
        self._input, self._kind, self._channels, self.side_px = self._entrance()
        self._output = next(iter(self._file.outputs))
        # Shapes in a file may be words; what comes out of one film cannot be.
        self.width = int(self.look(np.zeros((1, self.side_px, self.side_px), np.uint8)).shape[1])

    def look(self, films: Grey) -> Floats:
        """Make a row of numbers of each film; where the network gives a map or tokens, their mean."""
        return np.concatenate([self._one(film[None]) for film in films])

    def _one(self, film: Grey) -> Floats:
        shown: Any = film if self._kind == "tensor(uint8)" else scaled(film, self._channels)
        made = self._file.run({self._input: shown}, self._output)
        return flat(made, str(self._file.path))

    def _entrance(self) -> tuple[str, str, int, int]:
        inputs = self._file.inputs
        if len(inputs) == 1:
            ((name, (kind, shape)),) = inputs.items()
            sides = [side if isinstance(side, int) else SIDE_PX for side in shape[-2:]]
            square = len(set(sides)) == 1 and sides[0] > 0
            if kind == "tensor(uint8)" and len(shape) == 3 and square:
                return name, kind, 1, sides[0]
            if kind == "tensor(float)" and len(shape) == 4 and square and shape[1] in (1, 3):
                return name, kind, shape[1], sides[0]
        raise JudgeError(
            f"{self._file.path} takes {inputs}: a backbone takes one input, uint8 [n, side, side] or "
            "float [n, 1 or 3, side, side]. Export it so"
        )


def scaled(films: Grey, channels: int) -> Floats:
    """Scale grey films as networks trained on ImageNet expect it: `[n, channels, side, side]`."""
    grey = films[:, None].astype(np.float32) / 255
    mean, deviation = (MEAN, DEVIATION) if channels == len(MEAN) else (MEAN.mean(keepdims=True), DEVIATION[1:2])
    return np.ascontiguousarray((grey - mean[:, None, None]) / deviation[:, None, None], dtype=np.float32)


def built_file() -> Path:
    """Say where `bpals probe build` puts the default backbone."""
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "bpals" / f"{DEFAULT}.onnx"


def open_backbone(named: str = "", revision: str = "") -> Backbone:
    """Open a backbone by its name or file; `revision` is the sha256 of a file, or the commit of a model."""
    named = named or DEFAULT
    family, _, model = named.partition(":")
    if named == DEFAULT:
        path = built_file()
        if not path.exists():
            raise UsageError(f"the backbone {DEFAULT} is not on this machine yet ({path}). Type: bpals probe build")
        return OnnxBackbone(path, name=DEFAULT, sha256=revision)
    if named.lower().endswith(".onnx"):
        return OnnxBackbone(named, sha256=revision)
    if family in FAMILIES and model:
        return FAMILIES[family](model, revision)
    raise UnknownName.of("backbone", named, (DEFAULT, "FILE.onnx", *(f"{each}:MODEL" for each in FAMILIES)))


def open_eye(named: str = "", revision: str = "") -> Callable[[Grey], Floats]:
    """Open a backbone to look at one film at a time: what a worker calls."""
    backbone = open_backbone(named, revision)
    return lambda film: backbone.look(film[None])[0]
