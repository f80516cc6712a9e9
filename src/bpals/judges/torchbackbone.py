"""Backbones that torch runs: any vision model of transformers or timm, frozen, without its head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, UsageError, install_line
from bpals.judges.modelfolder import find_model, first_line, import_package
from bpals.judges.torchvisionops import mend_torchvision
from bpals.judges.transformer import quiet
from bpals.plural import several

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
