"""DenseNet-121 and ResNet-50: weights under any of the names that people saved them with, put into torchvision's.

The network is built without numbers, so that none can be left over from chance: each one comes from the file, or the
file is refused with the name and the two shapes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.torchvisionops import import_torchvision
from bpals.judges.weights import Weights
from bpals.plural import several

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

OLD_NAME = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")
"""How torchvision's DenseNet named its layers before 2018: `norm.1` for what is `norm1` now."""
COUNTER = "num_batches_tracked"
"""Counts training steps, and is no part of an answer; old files have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is peculiar to one network."""

    name: str
    stem: str
    """Its first layer, which takes the channels of a film."""
    head: str
    """Its last layer, which gives a number a label."""
    mark: str
    """A weight by which the network is recognised inside a file."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "densenet121": Architecture(
        name="densenet121",
        stem="features.conv0",
        head="classifier",
        mark="features.denseblock1.denselayer1.conv1.weight",
    ),
    "resnet50": Architecture(name="resnet50", stem="conv1", head="fc", mark="layer1.0.conv1.weight"),
}


class TorchNetwork:
    """A network in memory, on its device."""

    def __init__(self, module: Any, device: str) -> None:
        """Take a module that is ready."""
        self._torch = import_module("torch")
        self.module = module.to(device).eval()
        self._device = device
        versions = (self._torch.__version__, import_torchvision().__version__)
        self.engine = "torch {} / torchvision {}".format(*versions)

    def run(self, films: Floats) -> Floats:
        """Give a row of numbers for each film `[n, channels, side, side]`, on one thread unless the user set another.

        Two threads on two busy cores were measured ten times slower than one; films are many, and so are processes.
        """
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        try:
            with self._torch.inference_mode():
                said = self.module(self._torch.from_numpy(films).to(self._device))
        finally:
            self._torch.set_num_threads(before)
        return np.asarray(said.cpu().numpy(), dtype=np.float32)


def open_network(weights: Weights, architecture: str, *, channels: int, outputs: int, device: str) -> TorchNetwork:
    """Put weights into their network, or refuse them: each missing or strange one is named."""
    plan = ARCHITECTURES[architecture]
    torch, module = _empty(plan, channels, outputs)
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    filled = {name: torch.tensor(0) for name in wanted if name.endswith(COUNTER)}
    for name, array in _checked(weights, plan, wanted, outputs).items():
        filled[name] = torch.from_numpy(np.array(array, dtype=np.float32))
    module.load_state_dict(filled, strict=True, assign=True)
    return TorchNetwork(module, device)


def _empty(plan: Architecture, channels: int, outputs: int) -> tuple[Any, Any]:
    """Build a network that has shapes and no numbers."""
    try:
        torch, models = import_module("torch"), import_torchvision().models
    except ModuleNotFoundError:
        raise MissingExtra.of(f"{plan.name}:", "xrv") from None
    with torch.device("meta"):
        module = getattr(models, plan.name)(weights=None, num_classes=outputs)
        stem = module.get_submodule(plan.stem)
        if stem.in_channels != channels:
            parent, _, name = plan.stem.rpartition(".")
            sides = {"kernel_size": stem.kernel_size, "stride": stem.stride, "padding": stem.padding}
            narrow = torch.nn.Conv2d(channels, stem.out_channels, bias=False, **sides)
            setattr(module.get_submodule(parent), name, narrow)
    return torch, module


def _checked(
    weights: Weights, plan: Architecture, wanted: Mapping[str, tuple[int, ...]], outputs: int
) -> dict[str, Array]:
    """Give exactly the weights that the network wants, under its names."""
    own = _own(weights, plan)
    needed = {name: shape for name, shape in wanted.items() if not name.endswith(COUNTER)}
    head = own.get(f"{plan.head}.weight")
    if head is not None and head.ndim == 2 and len(head) != outputs:
        raise JudgeError(
            f"{weights.path}: its last layer, {plan.head}.weight, has the shape {head.shape}: "
            f"{several(len(head), 'output')}, where {several(outputs, 'label is', 'labels are')} named. Name its "
            "labels, in its order: --recipe FILE.toml (docs/checkpoints.md)"
        )
    for name, shape in needed.items():
        if name not in own:
            raise JudgeError(
                f"{weights.path}: {name} {shape} is missing; it is no whole {plan.name}. Get it again, or name "
                "the network that it is of"
            )
        if own[name].shape != shape:
            raise JudgeError(
                f"{weights.path}: {name} has the shape {own[name].shape}, and {shape} is wanted. "
                "Name the kind of network that it is of, or its channels: --recipe FILE.toml"
            )
        if not np.isfinite(own[name]).all():
            raise JudgeError(f"{weights.path}: {name} holds values that are no numbers. Get it again")
    if strange := [name for name in own if name not in needed and not name.endswith((COUNTER, "op_threshs"))]:
        raise JudgeError(
            f"{weights.path}: {strange[0]} {own[strange[0]].shape} has no place in a {plan.name}, nor have "
            f"{len(strange) - 1} more. Name the kind of network that it is of"
        )
    return {name: own[name] for name in needed}


def _own(weights: Weights, plan: Architecture) -> dict[str, Array]:
    """Give the network's weights under today's names: what a wrapper put before them or after the head is taken off."""
    modern = {OLD_NAME.sub(r"\1\2.", name): array for name, array in weights.arrays.items()}
    prefix = _prefix(modern, weights, plan)
    own = {name.removeprefix(prefix): array for name, array in modern.items() if name.startswith(prefix)}
    heads = [name for name in own if re.fullmatch(rf"{plan.head}(\.\d+)+\.weight", name)]
    if len(heads) == 1:  # the head is in a Sequential with a Sigmoid or a Dropout, which have no weights
        inner = heads[0].removesuffix(".weight")
        own = {re.sub(rf"^{re.escape(inner)}\.", f"{plan.head}.", name): array for name, array in own.items()}
    return own


def _prefix(modern: Mapping[str, Array], weights: Weights, plan: Architecture) -> str:
    """Find what stands before the names of the network: `module.` of DataParallel, `module.densenet121.` of CheXNet."""
    found = [name.removesuffix(plan.mark) for name in modern if f".{name}".endswith(f".{plan.mark}")]
    if len(found) > 1:
        both = " and ".join(repr(prefix) for prefix in found[:2])
        raise JudgeError(f"{weights.path} holds the network twice, under {both}. Save the one that you mean alone")
    if found:
        return found[0]
    others = [
        other.name for other in ARCHITECTURES.values() if any(f".{name}".endswith(f".{other.mark}") for name in modern)
    ]
    hint = f"It looks like a {others[0]}: type {others[0]}:FILE" if others else "Name the network that it is of"
    named = ", ".join(list(modern)[:3]) or "none"
    raise JudgeError(f"{weights.path} holds no {plan.name}: {plan.mark} is missing. Its names: {named}. {hint}")
