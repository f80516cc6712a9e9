"""`xrv:`, `chexnet:`, `densenet121:`, `resnet50:` and `onnx:`: a trained classifier as an image judge.

A film goes through the network once, and each finding that has an output gets its logit. Weights are a file of the
user's, or an address with the hash of what lies there; nothing that was not named is fetched, and loading runs nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, MissingExtra, UnknownName, UsageError
from bpals.findings import Vocabulary
from bpals.judges.architectures import open_network
from bpals.judges.backbone import built_file
from bpals.judges.download import fetch
from bpals.judges.framing import show
from bpals.judges.licence import commercial_use
from bpals.judges.onnxfile import OnnxFile
from bpals.judges.plain import EDGE
from bpals.judges.recipe import Recipe, find_recipe
from bpals.judges.transformer import DEVICES, SAID, device_for, picture
from bpals.judges.weights import LARGEST, read_weights
from bpals.plural import several
from bpals.types import Film, JudgeCard, Question, Reply, Trained

VERSION = "1"
SHA256 = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
MANY = 32
"""Films at once on a GPU; on a CPU more than one gains about a tenth at most."""

Floats = npt.NDArray[np.float32]


class Network(Protocol):
    """What makes numbers of films."""

    engine: str
    """What runs it, with its version."""

    def run(self, films: Floats) -> Floats:
        """Give a row of numbers for each film `[n, channels, side, side]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """How a checkpoint is run, and what you know about it that its name does not say."""

    recipe: str | Path = ""
    """A TOML of your own, or the name of published weights: `nih` for `xrv:`."""
    device: str = "auto"
    """`auto` takes a GPU where there is one; else `cpu`, `cuda`, `cuda:1`, `mps`. ONNX runs on the CPU."""
    batch: int | None = None
    """Films that go through the network at once; by default one on a CPU and 32 on a GPU."""
    licence: str = ""
    trained_on_target: Trained | None = None
    """Whether it was trained on the labels it judges; None leaves it to what its name says."""
    evidence: str = ""
    cache: Path | None = None
    """Where downloaded weights are kept; by default in the user's cache."""

    def __post_init__(self) -> None:
        """Refuse what no network can be run with."""
        if self.device.partition(":")[0] not in DEVICES:
            raise UnknownName.of("device", self.device, DEVICES)
        if self.trained_on_target is not None and self.trained_on_target not in get_args(Trained):
            raise UnknownName.of("trained_on_target", self.trained_on_target, get_args(Trained))
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch is {self.batch}; at least 1 is wanted")


class CheckpointJudge:
    """A network with its recipe, asked about findings that it has an output for."""

    def __init__(self, network: Network, recipe: Recipe, card: JudgeCard, batch: int = 1) -> None:
        """Hold what is ready."""
        self._network = network
        self._recipe = recipe
        self._places = {label: place for place, label in enumerate(recipe.labels) if label}
        self.card = card
        self.batch = batch
        """Films that go through the network at once."""

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """Ask about every finding; the text of a question is the network's own label, empty where it has none."""
        meant = self._recipe.outputs(vocabulary)
        if not meant:
            named = ", ".join(label for label in self._recipe.labels if label)
            raise JudgeError(
                f"{self.card.judge} knows none of the findings of {vocabulary.name}: its labels are {named}. "
                "Name them as the dataset does: --recipe FILE.toml"
            )
        return tuple(Question(subject=finding, text=meant.get(finding, "")) for finding in vocabulary.findings)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one film."""
        return self.ask_batch([film], questions)[0]

    def ask_batch(self, films: Sequence[Film | None], questions: Sequence[Question]) -> list[Sequence[Reply]]:
        """Answer the questions about each of several films, which go through the network together."""
        started = time.perf_counter()
        shown = [show(picture(film).getchannel("R"), self._recipe) for film in films if film is not None]
        answers = iter(self._logits(np.stack(shown)) if shown else ())
        said = [None if film is None else next(answers) for film in films]
        each_s = (time.perf_counter() - started) / max(1, len(films) * len(questions))
        return [[self._reply(row, question, each_s) for question in questions] for row in said]

    def _logits(self, shown: Floats) -> npt.NDArray[np.float64]:
        """Run the network on full batches: filled up with nothing, so that no answer depends on how many were asked."""
        rows = []
        for start in range(0, len(shown), self.batch):
            some = shown[start : start + self.batch]
            filled = np.concatenate([some, np.zeros((self.batch - len(some), *some.shape[1:]), np.float32)])
            rows.append(self._network.run(filled)[: len(some)])
        return as_logits(np.concatenate(rows).astype(np.float64), self._recipe.output)

    def _reply(self, row: npt.NDArray[np.float64] | None, question: Question, each_s: float) -> Reply:
        why = ""
        if row is None:
            why = "a classifier cannot be asked without a film"
        elif question.about != "finding" or question.polarity != "present":
            why = "it is asked whether a finding is present, and nothing else"
        elif question.text not in self._places:
            why = f"it has no trained output for {question.subject}"
        if why or row is None:
            return Reply(outcome="unsupported", method="score", why=why)
        value = float(row[self._places[question.text]])
        if not math.isfinite(value):
            raise FloatingPointError(f"the network gave no finite number for {question.text}")
        return Reply(outcome="answered", logit=value, method="score", latency_s=each_s)


def as_logits(outputs: npt.NDArray[np.float64], output: str) -> npt.NDArray[np.float64]:
    """Turn what a network gives into log odds, a column a label."""
    if output == "sigmoid":
        return outputs
    if output == "softmax":
        lifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        outputs = lifted / lifted.sum(axis=1, keepdims=True)
    elif not ((outputs >= 0) & (outputs <= 1)).all():
        raise ValueError("the network gives numbers that are no probabilities; its recipe says output = 'probability'")
    inside = np.clip(outputs, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def open_checkpoint(kind: str, target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open the weights in a file, or behind an address and a hash; the options are the fields of CheckpointOptions."""
    chosen = CheckpointOptions(**options)
    path, sha256 = _locate(kind, target, revision, chosen.cache)
    return _open_onnx(path, sha256, chosen) if kind == "onnx" else _open_torch(kind, path, sha256, chosen)


def open_xrv(target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open weights of TorchXRayVision."""
    return open_checkpoint("xrv", target, revision, **options)


def open_chexnet(target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open a CheXNet."""
    return open_checkpoint("chexnet", target, revision, **options)


def open_densenet121(target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open a DenseNet-121 of the user's."""
    return open_checkpoint("densenet121", target, revision, **options)


def open_resnet50(target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open a ResNet-50 of the user's."""
    return open_checkpoint("resnet50", target, revision, **options)


def open_onnx(target: str, revision: str = "", **options: Any) -> CheckpointJudge:
    """Open a classifier as ONNX."""
    return open_checkpoint("onnx", target, revision, **options)


def _locate(kind: str, target: str, revision: str, cache: Path | None) -> tuple[Path, str]:
    """Give the file that is meant, and the hash that it must have if one was named."""
    whole = f"{target}@{revision}" if revision else target
    pinned = SHA256.fullmatch(revision)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", target):
        if not pinned:
            raise UsageError(
                f"{kind}:{whole}: what is downloaded is pinned by its hash, and none is given. Take it from where you "
                f"trust it, and type {kind}:{target}@SHA256"
            )
        folder = cache or built_file().parent / "weights"
        return fetch(target, pinned[1].lower(), folder, largest=LARGEST), pinned[1].lower()
    if Path(whole).expanduser().is_file():  # an @ in the name of a file
        return Path(whole).expanduser(), ""
    if revision and not pinned:
        raise UsageError(f"{kind}:{whole}: {revision!r} is no sha256, 64 hex digits. Leave it out, or mend it")
    path = Path(target).expanduser()
    if not path.is_file():
        raise JudgeError(f"{kind}:{target}: there is no such file. Name a file of weights, or https://...@SHA256")
    return path, pinned[1].lower() if pinned else ""


def _open_torch(kind: str, path: Path, sha256: str, chosen: CheckpointOptions) -> CheckpointJudge:
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        raise MissingExtra.of(f"{kind}:", "xrv") from None
    weights = read_weights(path, sha256)
    recipe = find_recipe(kind, path.name, chosen.recipe, weights.said)
    device = device_for(chosen.device, torch)
    network = open_network(
        weights, recipe.architecture, channels=recipe.channels, outputs=len(recipe.labels), device=device
    )
    batch = chosen.batch or (1 if device == "cpu" else MANY)
    placed = {"architecture": recipe.architecture, "device": device.partition(":")[0], "dtype": "float32"}
    return _judge(network, recipe, (kind, path, weights.sha256), chosen, {**placed, "batch": batch})


def _open_onnx(path: Path, sha256: str, chosen: CheckpointOptions) -> CheckpointJudge:
    if chosen.device not in {"auto", "cpu"}:
        raise UsageError(f"onnx:{path.name} runs on the CPU, not on {chosen.device}. Leave --device out")
    recipe = find_recipe("onnx", path.name, chosen.recipe)
    network = _OnnxNetwork(OnnxFile(path, sha256), recipe)
    batch = network.fixed_batch or chosen.batch or 1
    return _judge(network, recipe, ("onnx", path, network.sha256), chosen, {"device": "cpu", "batch": batch})


class _OnnxNetwork:
    """A network in an ONNX file: films in by its first input, a number a label out by its first output."""

    def __init__(self, file: OnnxFile, recipe: Recipe) -> None:
        """Try the network on nothing, so that what does not fit is said before a run."""
        self._file = file
        self.engine = file.engine
        self.sha256 = file.sha256
        self._input, (kind, shape) = next(iter(file.inputs.items()))
        self._output = next(iter(file.outputs))
        wanted = [recipe.channels, recipe.side_px, recipe.side_px]
        many, *fixed = (place if isinstance(place, int) else None for place in shape)
        fits = len(fixed) == len(wanted) and all(a in {None, b} for a, b in zip(fixed, wanted, strict=True))
        if kind != "tensor(float)" or len(file.inputs) != 1 or not fits:
            raise JudgeError(
                f"{file.path} takes {self._input} {kind} {shape}, and its recipe shows it floats of {wanted}. "
                "Name its channels and side_px: --recipe FILE.toml"
            )
        self.fixed_batch = many or 0
        """How many films it takes at once, where the file says so."""
        tried = self.run(np.zeros((self.fixed_batch or 1, *wanted), np.float32))
        if tried.shape[1:] != (len(recipe.labels),):
            labels = several(len(recipe.labels), "label is", "labels are")
            raise JudgeError(
                f"{file.path} gives {self._output} of the shape {tried.shape}, and {labels} "
                "named. Name its labels, in its order: --recipe FILE.toml (docs/checkpoints.md)"
            )

    def run(self, films: Floats) -> Floats:
        """Give a row of numbers for each film."""
        return self._file.run({self._input: films}, self._output)


def _judge(
    network: Network,
    recipe: Recipe,
    origin: tuple[str, Path, str],
    chosen: CheckpointOptions,
    placed: Mapping[str, object],
) -> CheckpointJudge:
    """Write the card: what you pass wins over what is known."""
    kind, path, sha256 = origin
    licence = chosen.licence or recipe.licence
    trained = chosen.trained_on_target or recipe.trained_on_target
    # The makers of `xrv` publish thresholds that they move to .5; here its sigmoid is taken as it is.
    calibration = {"op_threshs": "not applied"} if kind == "xrv" else {}
    card = JudgeCard(
        judge=re.sub(r"[^a-z0-9._-]+", "-", recipe.name.lower()).strip("-._") or kind,
        kind="image",
        version=VERSION,
        model=f"{kind}:{path.name}",
        revision=f"sha256:{sha256}",
        engine=network.engine,
        preparation={"input": recipe.input},
        settings={**placed, "labels": list(recipe.labels), "output": recipe.output} | calibration,
        polarities=("present",),
        trained_on_target=trained,
        evidence=chosen.evidence or (SAID if chosen.trained_on_target else recipe.evidence),
        licence=licence,
        commercial_use=commercial_use(licence),
    )
    return CheckpointJudge(network, recipe, card, int(str(placed["batch"])))
