"""Fine-tuning: a backbone with one output per finding, trained on targets of other patients, one network per fold.

    images -> frozen early stages, computed once and kept -> trained stages -> one number per finding

Every random draw follows from the seed, the fold and the number of the step. So a training that is killed goes on from
its last checkpoint, and on a CPU ends with the same bits as one that was not.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges.backbone import CENTRE, SCALE, SHA256, lite0_network, open_timm_network
from bpals.judges.local_model import UNLOADABLE, device_for, find_model, first_line, import_package, mend_torchvision
from bpals.text import several

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Say = Callable[[str], None]

VERSION = "1"
# Blocks of Lite0 that stay as they are: the first three of seven stages, half of the arithmetic of an image.
FROZEN_BLOCKS = 5
# Pixels that an image is shifted by at most, along each axis, and how much its contrast and brightness vary. No image
# is mirrored: which side is left must stay known.
SHIFT, CONTRAST, BRIGHTNESS = 8, 0.1, 0.1
WARM_UP = 0.1
# Seconds between two checkpoints within an epoch: what a kill costs at most.
CHECKPOINT_S = 60.0
# Of ten training patients one is held out, to stop early.
HELD_OUT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a network is trained: all that could change its weights beside the data."""

    side_px: int = 160
    epochs: int = 4
    batch: int = 32
    rate: float = 3e-4
    decay: float = 1e-2
    patience: int = 1
    """Epochs without a lower loss on held-out patients after which it stops."""
    seed: int = 0
    augment: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if min(self.epochs, self.batch, self.patience) < 1 or self.side_px < 32 or not self.rate > 0:
            raise UsageError("epochs, batch and patience are 1 or more, side 32 px or more, and the rate is above 0")


class Trainable(NamedTuple):
    """A network in two parts, in torch."""

    name: str
    sha256: str
    """Of the weights that training starts from."""
    frozen: Any
    """Turns grey images from 0 to 255, `[n, 1, side, side]`, into what the trained part takes."""
    trained: Any
    """Gives one logit per finding."""
    maps: bool
    """Whether the frozen part computes maps worth keeping; else pixels are kept."""


class Maps(Protocol):
    """What the frozen part made of images."""

    image_ids: list[str]

    def take(self, places: Ints) -> npt.NDArray[np.float16]:
        """Give the rows at these places."""


def open_trainable(named: str, revision: str, outputs: int, seed: int = 0) -> Trainable:
    """Open a backbone that can be trained: `lite0`, `timm:NAME` or `hf:FOLDER`, with new outputs."""
    torch = import_package("torch", named)
    torch.manual_seed(seed)
    library, _, model = named.partition(":")
    if named in {"", "lite0"}:
        return _lite0(torch, outputs)
    if library == "timm" and model:
        network, identity, _ = open_timm_network(model, revision)
        network.reset_classifier(outputs)
        prepare = _prepare(torch, identity["mean"], identity["deviation"])
        return Trainable(str(identity["model"]), str(identity["weights"]), prepare, network, maps=False)
    if library == "hf" and model:
        return _hf(torch, model, revision, outputs)
    raise UnknownName.of("backbone to train", named, ("lite0", "timm:NAME", "hf:FOLDER"))


def _lite0(torch: Any, outputs: int) -> Trainable:
    net = lite0_network()

    class Early(torch.nn.Module):  # type: ignore[misc]  # torch is an extra, and untyped here
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.swish = net._conv_stem, net._bn0, net._swish  # noqa: SLF001
            self.blocks = torch.nn.ModuleList(list(net._blocks)[:FROZEN_BLOCKS])  # noqa: SLF001

        def forward(self, films: Any) -> Any:
            x = self.swish(self.norm(self.stem((films - CENTRE) / SCALE)))
            for block in self.blocks:
                x = block(x)
            return x

    class Late(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(list(net._blocks)[FROZEN_BLOCKS:])  # noqa: SLF001
            self.head, self.norm, self.swish = net._conv_head, net._bn1, net._swish  # noqa: SLF001
            self.dropout, self.outputs = torch.nn.Dropout(0.2), torch.nn.Linear(1280, outputs)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.outputs(self.dropout(self.swish(self.norm(self.head(x))).mean((2, 3))))

    return Trainable("lite0", SHA256, Early().eval(), Late(), maps=True)


def _hf(torch: Any, model: str, revision: str, outputs: int) -> Trainable:
    """Open a vision model of transformers; a layer over the mean of its tokens gives the outputs."""
    origin = find_model(model, revision)
    transformers = import_package("transformers", model)
    try:
        mend_torchvision()
        processor = transformers.AutoImageProcessor.from_pretrained(origin.path, local_files_only=True)
        network = transformers.AutoModel.from_pretrained(origin.path, local_files_only=True, use_safetensors=True)
    except UNLOADABLE as error:
        raise JudgeError(f"hf:{model} cannot be loaded as a vision model: {first_line(error)}") from None

    class Tokens(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network, self.outputs = network, torch.nn.Linear(int(network.config.hidden_size), outputs)

        def forward(self, x: Any) -> Any:
            return self.outputs(self.network(pixel_values=x).last_hidden_state.mean(1))

    prepare = _prepare(torch, processor.image_mean, processor.image_std)
    return Trainable(origin.model.rsplit("/", 1)[-1], origin.revision, prepare, Tokens(), maps=False)


def _prepare(torch: Any, mean: Sequence[float], deviation: Sequence[float]) -> Any:
    """Make the layer that scales grey images for a network of three channels; it is kept in the exported file."""

    class Prepare(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, values in (("mean", mean), ("deviation", deviation)):
                self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32).reshape(1, -1, 1, 1))

        def forward(self, films: Any) -> Any:
            return (films / 255 - self.mean) / self.deviation

    return Prepare().eval()


def open_maps(named: str, revision: str, side_px: int) -> Callable[[Grey], Floats]:
    """Open what a worker computes of an image once: the maps of the frozen part, or the pixels themselves."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    network = open_trainable(named, revision, outputs=1)

    def run(film: Grey) -> Floats:
        if film.shape != (side_px, side_px):
            raise JudgeError(f"an image of {film.shape} pixels came where {side_px} were asked for")
        if not network.maps:
            return film.astype(np.float32).reshape(-1)
        with torch.no_grad():
            made = network.frozen(torch.from_numpy(film.astype(np.float32))[None, None])
        return np.asarray(made.numpy().reshape(-1))

    return run


def maps_shape(network: Trainable, side_px: int) -> tuple[int, ...]:
    """Give the shape of what is kept of an image."""
    if not network.maps:
        return (1, side_px, side_px)
    torch = import_module("torch")
    with torch.no_grad():
        return tuple(network.frozen(torch.zeros(1, 1, side_px, side_px)).shape[1:])


def is_held_out(patients: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mark the training patients that early stopping is measured on, by a hash of their id."""
    known = {name: _number("held out", name) % HELD_OUT == 0 for name in set(patients)}
    return np.array([known[name] for name in patients], dtype=np.bool_)


def _number(*words: object) -> int:
    return int(hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()[:12], 16)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the training of one fold is; what a checkpoint holds beside weights."""

    epoch: int = 0
    step: int = 0
    """Of the epoch."""
    best: float = math.inf
    best_epoch: int = -1
    losses: list[float]
    """On held-out patients, epoch by epoch."""
    stopped: bool = False


class FoldTraining:
    """Trains the network of one fold."""

    def __init__(  # noqa: PLR0913  one per thing that a training needs
        self,
        network: Trainable,
        schedule: Schedule,
        *,
        fold: int,
        maps: Maps,
        shape: tuple[int, ...],
        device: str = "cpu",
        load: Callable[[], bytes | None] = lambda: None,
        save: Callable[[bytes], None] = lambda _content: None,
        say: Say = lambda _sentence: None,
        watch: Callable[[Progress, int], None] = lambda _progress, _steps: None,
    ) -> None:
        """Take the parts; `load` and `save` read and write the checkpoint, `watch` is called after each step."""
        self._torch = import_module("torch")
        self._device = device_for(device, self._torch)
        self._network, self._schedule, self._fold = network, schedule, fold
        self._maps, self._shape = maps, shape
        self._load, self._save, self._say, self._watch = load, save, say, watch
        self._module = network.trained.to(self._device)
        self._frozen = network.frozen.to(self._device)
        self._best: dict[str, Any] = {}
        self._micro = schedule.batch
        self.progress = Progress(losses=[])

    def train(self, rows: Ints, held_out: Ints, targets: Floats) -> None:
        """Train on the images at `rows`, until no epoch lowers the loss at `held_out`; the best weights stay.

        `targets` has one row per image of the maps; NaN is not trained on.
        """
        torch, schedule = self._torch, self._schedule
        with _deterministic(torch, self._device):
            optimizer = torch.optim.AdamW(self._module.parameters(), lr=schedule.rate, weight_decay=schedule.decay)
            self._start(targets[rows])
            self._resume(optimizer)
            steps = max(1, len(rows) // schedule.batch)
            saved_s = time.monotonic()
            while self.progress.epoch < schedule.epochs and not self.progress.stopped:
                order = self._draw("order").permutation(len(rows))
                while self.progress.step < steps:
                    start = self.progress.step * schedule.batch
                    self._step(optimizer, rows[order[start : start + schedule.batch]], targets, steps)
                    self.progress.step += 1
                    self._watch(self.progress, steps)
                    if time.monotonic() - saved_s > CHECKPOINT_S:
                        self._checkpoint(optimizer)
                        saved_s = time.monotonic()
                self._end_epoch(self.loss(held_out, targets))
                self._checkpoint(optimizer)
        if self._best:
            self._module.load_state_dict(self._best)

    def _start(self, targets: Floats) -> None:
        """Begin at how common each finding is: else the first steps only learn that."""
        torch = self._torch
        known = np.isfinite(targets)
        rate = (np.nansum(targets, axis=0) + 0.5) / (known.sum(axis=0) + 1)
        last = [each for each in self._module.modules() if isinstance(each, torch.nn.Linear)][-1]
        with torch.no_grad():
            last.bias.copy_(torch.from_numpy(np.log(rate / (1 - rate)).astype(np.float32)))

    def _draw(self, *words: object) -> np.random.Generator:
        return np.random.default_rng(_number(self._schedule.seed, self._fold, self.progress.epoch, *words))

    def _step(self, optimizer: Any, rows: Ints, targets: Floats, steps: int) -> None:
        """Take one step; where a GPU is full, in smaller pieces with the same gradient."""
        torch = self._torch
        self._training_mode()
        done = self.progress.epoch * steps + self.progress.step
        for group in optimizer.param_groups:
            group["lr"] = self._schedule.rate * _one_cycle(done / (self._schedule.epochs * steps))
        while True:
            optimizer.zero_grad()
            torch.manual_seed(_number(self._schedule.seed, self._fold, done))
            try:
                for start in range(0, len(rows), self._micro):
                    piece = rows[start : start + self._micro]
                    self._backward(piece, targets, len(piece) / len(rows))
                break
            except torch.OutOfMemoryError:
                if self._micro == 1:
                    raise JudgeError("one image alone does not fit on the device. Type: --side 128") from None
                self._micro //= 2
                self._say(f"the device is out of memory: {several(self._micro, 'image')} at once from here on")
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        optimizer.step()

    def _backward(self, rows: Ints, targets: Floats, share: float) -> None:
        torch = self._torch
        inputs = self._inputs(rows, augment=self._schedule.augment)
        # bfloat16 has the range of float32: gradients do not vanish, and need no scaling.
        with torch.autocast(self._device.partition(":")[0], torch.bfloat16, enabled=self._device != "cpu"):
            each = self._losses(self._module(inputs), targets[rows])
        if not bool(torch.isfinite(each).all()):
            first = self._maps.image_ids[int(rows[int((~torch.isfinite(each)).nonzero()[0])])]
            raise JudgeError(
                f"the loss is no number at epoch {self.progress.epoch + 1}, step {self.progress.step + 1}, fold "
                f"{self._fold}, first for {first}. The last checkpoint is kept; train with a smaller --rate"
            )
        (each.mean() * share).backward()

    def _losses(self, logits: Any, targets: Floats) -> Any:
        """Give the log loss of each image over the findings that it has a target for."""
        torch = self._torch
        aims = torch.from_numpy(targets).to(logits.device)
        known = torch.isfinite(aims)
        every = torch.nn.functional.binary_cross_entropy_with_logits(
            logits.float(), torch.where(known, aims, 0), reduction="none"
        )
        return (every * known).sum(1) / known.sum(1).clamp(min=1)

    def _inputs(self, rows: Ints, *, augment: bool) -> Any:
        """Read what is kept of images; pixels are shifted, and brighter or darker, and go through the scaling."""
        torch = self._torch
        kept = torch.from_numpy(self._maps.take(rows).astype(np.float32)).reshape(-1, *self._shape).to(self._device)
        draw = self._draw("augment", self.progress.step, int(rows[0]))
        if augment:
            # A map of a stage is a small picture: it is shifted by as many of its own places.
            places = SHIFT * self._shape[-1] // self._schedule.side_px
            down, right = (int(each) for each in draw.integers(-places, places + 1, 2))
            kept = torch.roll(kept, (down, right), (2, 3)) if down or right else kept
        if self._network.maps:
            return kept
        if augment:
            contrast, brightness = 1 + CONTRAST * draw.normal(), 255 * BRIGHTNESS * draw.normal()
            kept = (kept * contrast + brightness).clamp(0, 255)
        with torch.no_grad():
            return self._frozen(kept)

    def _training_mode(self) -> None:
        """Train all but the statistics of batch norms: those of a small batch would only be noise."""
        self._module.train()
        for each in self._module.modules():
            if "BatchNorm" in type(each).__name__:
                each.eval()

    def _end_epoch(self, loss: float) -> None:
        progress = self.progress
        progress.losses.append(loss)
        progress.epoch, progress.step = progress.epoch + 1, 0
        if loss < progress.best:
            progress.best, progress.best_epoch = loss, progress.epoch
            self._best = {name: value.detach().clone() for name, value in self._module.state_dict().items()}
        # Without anybody held out there is nothing to stop by: all epochs are trained, and the last one stays.
        progress.stopped = math.isfinite(loss) and progress.epoch - progress.best_epoch >= self._schedule.patience
        self._say(f"fold {self._fold}, epoch {progress.epoch}: loss on held-out patients {loss:.4f}")

    def loss(self, rows: Ints, targets: Floats) -> float:
        """Give the mean loss on images, without training; infinite without any image."""
        torch, total = self._torch, 0.0
        self._module.eval()
        with torch.no_grad():
            for start in range(0, len(rows), self._schedule.batch):
                some = rows[start : start + self._schedule.batch]
                total += float(self._losses(self._module(self._inputs(some, augment=False)), targets[some]).sum())
        return total / len(rows) if len(rows) else math.inf

    def logits(self, rows: Ints) -> Floats:
        """Answer for images, one row each."""
        torch = self._torch
        self._module.eval()
        with torch.no_grad(), _deterministic(torch, self._device):
            # One at a time: engines round differently by batch size.
            each = (self._module(self._inputs(np.array([row]), augment=False)) for row in rows)
            made = [logits.float().cpu().numpy() for logits in each]
        return np.concatenate(made) if made else np.zeros((0, 0), np.float32)

    def _checkpoint(self, optimizer: Any) -> None:
        """Write weights, the best ones so far, the optimizer and how far it is."""
        state = {
            "weights": self._module.state_dict(),
            "best": self._best,
            "optimizer": optimizer.state_dict(),
            "progress": {name: getattr(self.progress, name) for name in Progress.__dataclass_fields__},
        }
        stream = io.BytesIO()
        self._torch.save(state, stream)
        self._save(stream.getvalue())

    def _resume(self, optimizer: Any) -> None:
        content = self._load()
        if content is None:
            return
        try:
            state = self._torch.load(io.BytesIO(content), weights_only=True, map_location=self._device)
        except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
            self._say(f"the checkpoint of fold {self._fold} is damaged: the fold is trained from its start")
            return
        self._module.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        self._best, self.progress = state["best"], Progress(**state["progress"])


def _one_cycle(share: float) -> float:
    """Give the rate's factor: a short rise, then a cosine to nothing."""
    return min(1.0, (share + 1e-3) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * share))


@contextmanager
def _deterministic(torch: Any, device: str) -> Iterator[None]:
    """On a CPU, let torch use one order of additions: one thread, and no algorithm that varies."""
    if device != "cpu":
        yield
        return
    threads, before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)


def whole_network(network: Trainable) -> Any:
    """Join both parts into one: grey images scaled from 0 to 1, `[n, 1, side, side]`, to logits, for export."""
    torch = import_module("torch")

    class Whole(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.trained = network.frozen, network.trained

        def forward(self, films: Any) -> Any:
            return self.trained(self.frozen(films * 255))

    return Whole().cpu().eval()
