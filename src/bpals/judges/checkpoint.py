"""`xrv:`, `chexnet:`, `densenet121:`, `resnet50:` and `onnx:`: a trained classifier as an image judge.

An image goes through the network once, and each finding that has an output gets its logit. A recipe says how the
image is framed and what the outputs mean. Weights are a file of the user's, or an address with the hash of the file;
nothing that was not named is fetched, and loading runs nothing.
"""

from __future__ import annotations

import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.errors import JudgeError, MissingExtra, UnknownName, UsageError
from bpals.findings import NIH, Vocabulary, fold
from bpals.judges.backbone import built_file
from bpals.judges.cards import commercial_use
from bpals.judges.function import EDGE
from bpals.judges.local_model import SAID, LocalOptions, device_for, import_torchvision, picture
from bpals.judges.weights import LARGEST, OnnxFile, Weights, fetch, read_weights
from bpals.registry import LOCAL, AskOptions, ImageOptions, JudgeKind, option
from bpals.text import several
from bpals.types import Film, JudgeCard, Question, Reply, Trained

VERSION = "1"
SHA256 = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
# Images at once on a GPU; on a CPU more than one gains about a tenth at most.
MANY = 32
FRAMINGS = ("crop, resize", "resize, crop", "stretch")
OUTPUTS = ("sigmoid", "softmax", "probability")
# Pixels along a side of the square that a network takes.
SIDES = range(32, 2049)
UNSAID = "Nobody says what it was trained on."
# How torchvision's DenseNet named its layers before 2018: `norm.1` for today's `norm1`.
OLD_NAME = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")
# Counts training steps, and is no part of an answer; old files have none.
COUNTER = "num_batches_tracked"

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(LocalOptions):
    """The options of a file of weights."""

    recipe: str | Path = option(
        "",
        "What a classifier's outputs mean and how it is shown a film.",
        metavar="NAME|FILE.toml",
        reads=str,
        panel=LOCAL,
    )
    """A TOML of your own, or the name of published weights: `nih` for `xrv:`."""


class Network(NamedTuple):
    """A network that is ready to run."""

    engine: str
    """What runs it, with its version."""
    run: Callable[[Floats], Floats]
    """Gives one row of numbers per image of `[n, channels, side, side]`."""
    module: Any = None
    """The network in torch, where it is one: examples/checkpoint_to_onnx.py writes it out."""


class CheckpointJudge:
    """A network with its recipe; it answers for the findings that it has an output for."""

    def __init__(self, network: Network, recipe: Recipe, card: JudgeCard, batch: int = 1) -> None:
        """Keep the parts."""
        self._network = network
        self._recipe = recipe
        self._places = {label: place for place, label in enumerate(recipe.labels) if label}
        self.card = card
        self.batch = batch
        """Images that go through the network at once."""

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
        """Answer the questions about one image."""
        return self.ask_batch([film], questions)[0]

    def ask_batch(self, films: Sequence[Film | None], questions: Sequence[Question]) -> list[Sequence[Reply]]:
        """Answer the questions about each of several images, which go through the network together."""
        started = time.perf_counter()
        inputs = [show(picture(film).getchannel("R"), self._recipe) for film in films if film is not None]
        logits = iter(self._logits(np.stack(inputs)) if inputs else ())
        rows = [None if film is None else next(logits) for film in films]
        each_s = (time.perf_counter() - started) / max(1, len(films) * len(questions))
        return [[self._reply(row, question, each_s) for question in questions] for row in rows]

    def _logits(self, inputs: Floats) -> Doubles:
        """Run the network on full batches, the last one filled up with zeros."""
        rows = []
        for start in range(0, len(inputs), self.batch):
            some = inputs[start : start + self.batch]
            # Full, because an engine rounds differently for another size: no answer may depend on its neighbours.
            filled = np.concatenate([some, np.zeros((self.batch - len(some), *some.shape[1:]), np.float32)])
            rows.append(self._network.run(filled)[: len(some)])
        return as_logits(np.concatenate(rows).astype(np.float64), self._recipe.output)

    def _reply(self, row: Doubles | None, question: Question, each_s: float) -> Reply:
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


def as_logits(outputs: Doubles, output: str) -> Doubles:
    """Turn the outputs of a network into log odds, one column per label."""
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
    open_file = _open_onnx if kind == "onnx" else _open_torch
    network, recipe, found, settings = open_file(kind, path, sha256, chosen)
    licence = chosen.licence or recipe.licence
    # The makers of `xrv` publish thresholds that they move to .5; here its sigmoid is taken as it is.
    calibration = {"op_threshs": "not applied"} if kind == "xrv" else {}
    card = JudgeCard(
        judge=re.sub(r"[^a-z0-9._-]+", "-", recipe.name.lower()).strip("-._") or kind,
        kind="image",
        version=VERSION,
        model=f"{kind}:{path.name}",
        revision=f"sha256:{found}",
        engine=network.engine,
        preparation={"input": recipe.input},
        settings={**settings, "labels": list(recipe.labels), "output": recipe.output} | calibration,
        polarities=("present",),
        trained_on_target=chosen.trained_on_target or recipe.trained_on_target,
        evidence=chosen.evidence or (SAID if chosen.trained_on_target else recipe.evidence),
        licence=licence,
        commercial_use=commercial_use(licence),
    )
    return CheckpointJudge(network, recipe, card, int(str(settings["batch"])))


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


# A network, its recipe, the sha256 of its file, and the settings for its card.
Opened = tuple[Network, "Recipe", str, dict[str, object]]


def _open_torch(kind: str, path: Path, sha256: str, chosen: CheckpointOptions) -> Opened:
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        raise MissingExtra.of(f"{kind}:", "xrv") from None
    weights = read_weights(path, sha256)
    recipe = find_recipe(kind, path.name, chosen.recipe, weights.attributes)
    device = device_for(chosen.device, torch)
    network = open_network(
        weights, recipe.architecture, channels=recipe.channels, outputs=len(recipe.labels), device=device
    )
    placed = {"architecture": recipe.architecture, "device": device.partition(":")[0], "dtype": "float32"}
    return network, recipe, weights.sha256, {**placed, "batch": chosen.batch or (1 if device == "cpu" else MANY)}


def _open_onnx(kind: str, path: Path, sha256: str, chosen: CheckpointOptions) -> Opened:
    """Open an ONNX file: images go in by its first input, one number per label comes out by its first output."""
    if chosen.device not in {"auto", "cpu"}:
        raise UsageError(f"onnx:{path.name} runs on the CPU, not on {chosen.device}. Leave --device out")
    recipe = find_recipe(kind, path.name, chosen.recipe)
    file = OnnxFile(path, sha256)
    entrance, (number, shape) = next(iter(file.inputs.items()))
    output = next(iter(file.outputs))
    wanted = [recipe.channels, recipe.side_px, recipe.side_px]
    fixed_batch, *fixed = (place if isinstance(place, int) else None for place in shape)
    fits = len(fixed) == len(wanted) and all(a in {None, b} for a, b in zip(fixed, wanted, strict=True))
    if number != "tensor(float)" or len(file.inputs) != 1 or not fits:
        raise JudgeError(
            f"{file.path} takes {entrance} {number} {shape}, and its recipe shows it floats of {wanted}. "
            "Name its channels and side_px: --recipe FILE.toml"
        )
    network = Network(engine=file.engine, run=lambda images: file.run({entrance: images}, output))
    # Tried on zeros, so that an output that does not fit is refused before a run.
    tried = network.run(np.zeros((fixed_batch or 1, *wanted), np.float32))
    if tried.shape[1:] != (len(recipe.labels),):
        labels = several(len(recipe.labels), "label is", "labels are")
        raise JudgeError(
            f"{file.path} gives {output} of the shape {tried.shape}, and {labels} "
            "named. Name its labels, in its order: --recipe FILE.toml (docs/checkpoints.md)"
        )
    return network, recipe, file.sha256, {"device": "cpu", "batch": fixed_batch or chosen.batch or 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything beside the weights that changes an answer; checkpoints.toml explains each key."""

    name: str
    """Which recipe: `xrv-nih`, `chexnet`."""
    architecture: str
    labels: tuple[str, ...] = ()
    channels: int = 3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    framing: str = "resize, crop"
    resize_px: int = 0
    side_px: int = 224
    output: str = "sigmoid"
    trained_on_target: Trained = "unknown"
    evidence: str = UNSAID
    licence: str = "unknown"

    @property
    def input(self) -> dict[str, object]:
        """How an image is prepared, for the card."""
        names = ("channels", "mean", "std", "framing", "side_px")
        resized = {"resize_px": self.resize_px} if self.framing == "resize, crop" else {}
        return {name: getattr(self, name) for name in names} | resized | {"filter": "bilinear"}

    def outputs(self, vocabulary: Vocabulary) -> dict[str, str]:
        """Give finding -> label; labels of findings that the vocabulary has not are left out."""
        meant: dict[str, str] = {}
        for label in filter(None, self.labels):
            words = [label, *(alias for alias, finding in NIH.aliases.items() if fold(finding) == fold(label))]
            known = [vocabulary.spellings[fold(word)] for word in words if fold(word) in vocabulary.spellings]
            for finding in known[:1]:
                if finding in meant:
                    raise UsageError(
                        f"recipe {self.name}: {meant[finding]!r} and {label!r} both mean {finding}. "
                        "Leave one of them empty in labels"
                    )
                meant[finding] = label
        return meant


KEYS = tuple(Recipe.__dataclass_fields__)


def find_recipe(kind: str, file: str, wanted: str | Path = "", attributes: Mapping[str, Any] | None = None) -> Recipe:
    """Find the recipe of a file: by its kind and its name, or the one that is wanted, a name or a TOML of the user's.

    `attributes` are those of a module that was saved whole: its own names of its outputs come before ours.
    """
    text = resources.files("bpals.judges").joinpath("checkpoints.toml").read_text(encoding="utf-8")
    shipped = tomllib.loads(text)[kind]
    known = shipped.pop("weights", [])
    names = [each["name"] for each in known]
    if names and not Path(wanted).suffix and str(wanted) not in {"", *names}:
        raise UnknownName.of("recipe", str(wanted), [*names, "FILE.toml"], where=kind)
    own = _recipe_file(Path(wanted)) if wanted and str(wanted) not in names else {}
    words = set(re.split(r"[^a-z0-9_]+", Path(file).stem.lower()))
    # Published weights are recognised by the words in their file's name: all of a set, and none of another's.
    named = words & {word for each in known for some in each["words"] for word in some}
    by_words = (str(each["name"]) for each in known if any(named == set(some) for some in each["words"]))
    chosen = str(wanted) if wanted in names else next(by_words, "")
    facts: dict[str, Any] = next((each for each in known if each["name"] == chosen), {})
    untrained = facts.get("untrained", [])
    labels = ["" if label in untrained else label for label in shipped.get("labels", [])]
    listed = next((value for name in ("pathologies", "targets") if (value := (attributes or {}).get(name))), labels)
    base = {key: value for key, value in {**shipped, **facts, "labels": listed}.items() if key in KEYS}
    recipe = Recipe(**_tuples(base | {"name": f"{kind}-{chosen}" if chosen else kind}))
    if known and not chosen and {"nih", "all"} & words:
        recipe = replace(recipe, trained_on_target="yes", evidence=f"Its name, {file}, says so.")
    return _checked_recipe(replace(recipe, **_tuples({"name": Path(file).stem, **own})) if own else recipe, str(wanted))


def _tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


def _recipe_file(path: Path) -> dict[str, Any]:
    """Read a recipe of the user's own."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--recipe {path} cannot be read: {error.strerror}. Check the path") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--recipe {path} is no TOML: {error}. Mend that line") from None
    for key, value in facts.items():
        if key not in KEYS:
            raise UnknownName.of("key of a recipe", key, KEYS, where=str(path))
        if not isinstance(value, TYPES[key]) or isinstance(value, bool):
            raise UsageError(f"--recipe {path}: {key} = {value!r} cannot be. Compare it with docs/checkpoints.md")
    if facts.get("trained_on_target", "unknown") != "unknown" and not facts.get("evidence"):
        raise JudgeError(f'{path}: trained_on_target is said, and not how you know. Add: evidence = "..."')
    return facts


TYPES: Mapping[str, type] = {
    **dict.fromkeys(KEYS, str),
    **dict.fromkeys(("labels", "mean", "std"), list),
    **dict.fromkeys(("channels", "resize_px", "side_px"), int),
}


def _checked_recipe(recipe: Recipe, where: str) -> Recipe:
    """Refuse a recipe that no network can be run by."""
    place = f"--recipe {where}" if where else recipe.name
    for kind, name, known in (
        ("framing", recipe.framing, FRAMINGS),
        ("output", recipe.output, OUTPUTS),
        ("trained_on_target", recipe.trained_on_target, get_args(Trained)),
    ):
        if name not in known:
            raise UnknownName.of(kind, name, known, where=place)
    if not recipe.labels:
        raise UsageError(f"{place}: what its outputs mean is not said. Type --recipe FILE.toml with labels = [...]")
    if not all(isinstance(label, str) for label in recipe.labels):
        raise UsageError(f"{place}: labels are texts, in the order of the outputs; an untrained one is empty")
    numbers = (*recipe.mean, *recipe.std)
    if not all(isinstance(number, int | float) for number in numbers) or 0 in recipe.std:
        raise UsageError(f"{place}: mean and std are numbers a channel, and no std is 0")
    if recipe.channels not in {1, 3} or {len(recipe.mean), len(recipe.std)} != {recipe.channels}:
        raise UsageError(f"{place}: {recipe.channels} channels need as many mean and std: 1 or 3 of each")
    least = recipe.side_px if recipe.framing == "resize, crop" else 0
    if recipe.side_px not in SIDES or recipe.resize_px < least:
        raise UsageError(f"{place}: side_px is {SIDES[0]} to {SIDES[-1]}, and resize_px is not less")
    return recipe


def show(image: Image.Image, recipe: Recipe) -> Floats:
    """Give the numbers of a grey image, `[channels, side, side]`; three channels are the same grey, each scaled."""
    grey = np.asarray(frame(image, recipe), dtype=np.float32) / 255
    mean, std = (np.array(numbers, dtype=np.float32)[:, None, None] for numbers in (recipe.mean, recipe.std))
    return np.ascontiguousarray((grey[None] - mean) / std, dtype=np.float32)


def frame(image: Image.Image, recipe: Recipe) -> Image.Image:
    """Cut the square that a network takes out of an image; a smaller image is enlarged."""
    side = (recipe.side_px, recipe.side_px)
    width, height = image.size
    if recipe.framing == "stretch":
        return image.resize(side, Image.Resampling.BILINEAR)
    if recipe.framing == "crop, resize":
        square = min(width, height)
        left, top = width // 2 - square // 2, height // 2 - square // 2
        middle = image.crop((left, top, left + square, top + square))
        # TorchXRayVision scales before it resizes: greys between two greys are kept.
        return middle.convert("F").resize(side, Image.Resampling.BILINEAR)
    shorter = min(width, height)
    wide, high = (recipe.resize_px * each // shorter for each in (width, height))
    left, top = round((wide - recipe.side_px) / 2), round((high - recipe.side_px) / 2)
    whole = image.resize((wide, high), Image.Resampling.BILINEAR)
    return whole.crop((left, top, left + recipe.side_px, top + recipe.side_px))


class Architecture(NamedTuple):
    """What is peculiar to one network."""

    name: str
    stem: str
    """Its first layer, which takes the channels of an image."""
    head: str
    """Its last layer, which gives one number per label."""
    mark: str
    """A weight by which the network is recognised inside a file."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "densenet121": Architecture(
        "densenet121", "features.conv0", "classifier", "features.denseblock1.denselayer1.conv1.weight"
    ),
    "resnet50": Architecture("resnet50", "conv1", "fc", "layer1.0.conv1.weight"),
}


def open_network(weights: Weights, architecture: str, *, channels: int, outputs: int, device: str) -> Network:
    """Put weights into their network, or refuse them: each missing or unexpected one is named."""
    plan = ARCHITECTURES[architecture]
    try:
        torch, models = import_module("torch"), import_torchvision().models
    except ModuleNotFoundError:
        raise MissingExtra.of(f"{plan.name}:", "xrv") from None
    with torch.device("meta"):  # shapes without numbers: the file brings those
        module = getattr(models, plan.name)(weights=None, num_classes=outputs)
        stem = module.get_submodule(plan.stem)
        if stem.in_channels != channels:
            parent, _, name = plan.stem.rpartition(".")
            sides = {"kernel_size": stem.kernel_size, "stride": stem.stride, "padding": stem.padding}
            narrow = torch.nn.Conv2d(channels, stem.out_channels, bias=False, **sides)
            setattr(module.get_submodule(parent), name, narrow)
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    filled = {name: torch.tensor(0) for name in wanted if name.endswith(COUNTER)}
    for name, array in _matched_weights(weights, plan, wanted, outputs).items():
        filled[name] = torch.from_numpy(np.array(array, dtype=np.float32))
    module.load_state_dict(filled, strict=True, assign=True)
    module.to(device).eval()

    def run(images: Floats) -> Floats:
        # One thread unless the user set another: two on two busy cores were measured ten times slower than one, and
        # images are many, and so are processes.
        before = torch.get_num_threads()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        try:
            with torch.inference_mode():
                outputs = module(torch.from_numpy(images).to(device))
        finally:
            torch.set_num_threads(before)
        return np.asarray(outputs.cpu().numpy(), dtype=np.float32)

    engine = f"torch {torch.__version__} / torchvision {import_torchvision().__version__}"
    return Network(engine=engine, run=run, module=module)


def _matched_weights(
    weights: Weights, plan: Architecture, wanted: Mapping[str, tuple[int, ...]], outputs: int
) -> dict[str, Array]:
    """Give exactly the weights that the network wants, under its names."""
    own = _renamed_weights(weights, plan)
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
    if unexpected := [name for name in own if name not in needed and not name.endswith((COUNTER, "op_threshs"))]:
        raise JudgeError(
            f"{weights.path}: {unexpected[0]} {own[unexpected[0]].shape} has no place in a {plan.name}, nor have "
            f"{len(unexpected) - 1} more. Name the kind of network that it is of"
        )
    return {name: own[name] for name in needed}


def _renamed_weights(weights: Weights, plan: Architecture) -> dict[str, Array]:
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


def _kind(name: str, summary: str, *, extra: str = "xrv", endings: tuple[str, ...] = ()) -> JudgeKind:
    return JudgeKind(
        name=name,
        form=f"{name}:FILE[@SHA256]",
        summary=summary,
        open=partial(open_checkpoint, name),
        extra=extra,
        packages=("torch", "torchvision") if extra == "xrv" else ("onnxruntime",),
        options=CheckpointOptions,
        takes=(ImageOptions, AskOptions),
        names_file=True,
        endings=endings,
        page="checkpoints.md",
    )


XRV = _kind("xrv", "weights of TorchXRayVision: DenseNet-121 of 18 targets")
CHEXNET = _kind("chexnet", "a CheXNet checkpoint: DenseNet-121 of NIH's 14 findings, also saved by an old torch")
DENSENET121 = _kind("densenet121", "a DenseNet-121 of your own, as torchvision has it")
RESNET50 = _kind("resnet50", "a ResNet-50 of your own, as torchvision has it")
ONNX = _kind(
    "onnx",
    "any classifier as ONNX, with a recipe of its labels (--recipe FILE.toml); no torch",
    extra="probe",
    endings=(".onnx",),
)
