"""Fine-tune a judge on the dataset's own images: `bpals judge train`.

    train_judge(Plan(backbone="lite0", targets="signal"), images="images")

One network per fold of patients, each trained on the other folds; its answers about its own fold are out of sample.
What the frozen stages make of an image is cached (`store/features.py`); `training/<judge>/` has checkpoints, weights
and exports. Kill it when you like: the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UnknownName, UsageError
from bpals.images.stream import FeatureSpec
from bpals.judges import fine_tuning
from bpals.judges.fine_tuning import FoldTraining, Schedule, Trainable, is_held_out, maps_shape, open_maps
from bpals.judges.fine_tuning import Progress as Trained
from bpals.judges.linear_probe import LABELS, SIGNAL, ProbeJudge, without_patients
from bpals.judges.record import DECIMALS, fold_of, state_matrix
from bpals.judges.runner.progress import Snapshot
from bpals.numeric import patients, sigmoid
from bpals.store.features import FeatureCache, StoredFeatures
from bpals.store.files import only_one_in, replace_file, sha256, writable
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import dataset_of, load_source
from bpals.tasks.image_access import images_path, open_images, open_manifest
from bpals.tasks.image_checks import Say
from bpals.tasks.judge import JudgeRun, Order, judge_name, refuse_taken_name, summarise
from bpals.tasks.nested_targets import kept_targets, tables_hash
from bpals.tasks.probe import ProbeRun, Watch, extract_features, failed_answers
from bpals.text import several
from bpals.types import KIND, OUTCOME, Dataset, JudgeCard, answers_schema

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FOLDER = "training"
ENGINE = "fine-tuned"
EXTRACTOR = f"{open_maps.__module__}:{open_maps.__qualname__}"
# Images with targets below which a network would learn them by heart.
LEAST_IMAGES = 200
OPSET = 17
NO_DEVICE = "It is no medical device, and must not be used on patients."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained, beside the images."""

    backbone: str = "lite0"
    revision: str = ""
    targets: str = SIGNAL
    folds: int = 5
    only_fold: int | None = None
    """Train this fold alone, as one of several machines; a run without it collects the answers of all."""
    device: str = "auto"
    licence: str = "unknown"
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.targets not in (LABELS, SIGNAL):
            raise UnknownName.of("kind of target", self.targets, (LABELS, SIGNAL), where="--targets")
        if self.folds < 2 or self.only_fold not in {None, *range(self.folds)}:
            raise UsageError(f"--folds is 2 or more, and --fold one of 0 to {self.folds - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Everything that one run works with."""

    home: Workspace
    plan: Plan
    judge: str
    network: Callable[[], Trainable]
    """Opens the network anew: every fold starts from the same weights."""
    weights: str
    """The hash of those weights."""
    features: StoredFeatures
    dataset: Dataset
    watch: Watch
    say: Say

    @property
    def folder(self) -> Path:
        return self.home.path / FOLDER / self.judge


def train_judge(
    plan: Plan | None = None,
    *,
    images: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = "audit",
    order: Order | None = None,
    watch: Watch = lambda _snapshot: None,
    say: Say = lambda _sentence: None,
) -> JudgeRun:
    """Train one network per fold, resumably, and write their out-of-fold answers into the workspace."""
    home, plan, order = Workspace(workspace), plan or Plan(), order or Order()
    manifest = open_manifest(home, order.source, order.mapping)
    findings = manifest.vocabulary.findings
    first = fine_tuning.open_trainable(plan.backbone, plan.revision, len(findings), plan.schedule.seed)
    name = order.name or judge_name(f"trained-{first.name}" + ("" if plan.targets == LABELS else f"-{plan.targets}"))
    refuse_taken_name(home, name, ENGINE)
    found = open_images(home, manifest, images_path(home, images), order.preparation, require_all=order.require_all)
    for notice in found.index.notices:
        say(notice.message)
    side, shape = plan.schedule.side_px, maps_shape(first, plan.schedule.side_px)
    stem = f"{first.name}-{'maps' if first.maps else 'pixels'}-{side}"
    key = hashlib.sha256(f"{stem} {first.sha256 if first.maps else ''} {fine_tuning.VERSION}".encode()).hexdigest()
    cache = FeatureCache(home.path, stem, key, int(np.prod(shape)))
    probing = ProbeRun(
        home=home, manifest=manifest, cache=cache, judge=ProbeJudge(name=name), spec=name, watch=watch, say=say
    )
    given = {"named": plan.backbone, "revision": plan.revision, "side_px": side}
    tally, notices = extract_features(
        probing, found, FeatureSpec(side_px=side, extractor=EXTRACTOR, given=given), order
    )
    dataset = load_source(*dataset_of(home))
    drawn = found.draw(order.limit_images, order.seed)
    wanted = dataset.images.filter(pl.col("image_id").is_in(drawn))
    training = _Training(
        home=home,
        plan=plan,
        judge=name,
        network=lambda: fine_tuning.open_trainable(plan.backbone, plan.revision, len(findings), plan.schedule.seed),
        weights=first.sha256,
        features=cache.features(wanted["image_id"].to_list()),
        dataset=dataset,
        watch=watch,
        say=say,
    )
    no_patient = without_patients(dataset.images)
    card = _card(training, first, by_patient=not no_patient)
    empty = pl.DataFrame(schema=answers_schema(dataset.vocabulary))
    if tally.state == "interrupted":
        return replace(summarise(card, "interrupted", empty, None, notices), looked=(tally.films_done, len(drawn)))
    answers = _train_folds(training, shape)
    if answers is None:
        return summarise(card, "done", empty, None, [*found.index.notices, *notices, *no_patient])
    whole = pl.concat([answers, failed_answers(probing, wanted.select("image_id"))])
    path = home.write_judge(name, card.as_dict(), whole, None, {"dataset": dataset.name, "state": "done"})
    say(f"the networks are in {training.folder}, as safetensors and ONNX. {NO_DEVICE}")
    return summarise(card, "done", whole, path, [*found.index.notices, *notices, *no_patient])


def _card(training: _Training, network: Trainable, *, by_patient: bool) -> JudgeCard:
    plan = training.plan
    torch = import_module("torch")
    fitted = "the dataset's own labels" if plan.targets == LABELS else "targets of audits without the judged patients"
    return JudgeCard(
        judge=training.judge,
        kind="image",
        version=fine_tuning.VERSION,
        model=network.name,
        revision=f"sha256:{network.sha256.removeprefix('sha256:')}",
        engine=ENGINE,
        preparation={"side_px": plan.schedule.side_px, "shape": "square", "interpolation": "lanczos", "rule": 1},
        settings={
            "torch": str(torch.__version__),
            "targets": plan.targets,
            "folds": plan.folds,
            "frozen": network.maps,
            "images": len(training.features.image_ids),
            **asdict(plan.schedule),
        },
        polarities=("present",),
        trained_on_target="yes",
        held_out=by_patient,
        evidence=f"Fine-tuned on {fitted}, cross-fitted by {'patient' if by_patient else 'image'}: it never sees the "
        f"label it judges. {NO_DEVICE}",
        licence=plan.licence,
    )


def _targets(training: _Training) -> Floats:
    """Give one matrix of targets per fold, for the images with features; NaN for the images of the fold itself."""
    plan, dataset = training.plan, training.dataset
    if plan.targets == SIGNAL:
        said = training.say
        every = kept_targets(training.home, dataset, plan.folds, say=said, progress=_share(training, "making targets"))
    else:
        states = state_matrix(dataset.images, dataset.claims, dataset.vocabulary)
        states = np.where(np.isin(states, (0, 1)), states, np.nan).astype(np.float32)
        fold = fold_of(patients(dataset.images).to_numpy().astype(np.str_), plan.folds)
        every = np.stack([np.where((fold == each)[:, None], np.nan, states) for each in range(plan.folds)])
    seen = pl.DataFrame({"image_id": training.features.image_ids})
    place = seen.join(dataset.images.with_row_index("place"), on="image_id", how="left", maintain_order="left")
    return np.ascontiguousarray(every[:, place["place"].to_numpy()])


def _share(training: _Training, stage: str) -> Callable[[float], None]:
    return lambda share: training.watch(Snapshot(stage=f"{stage}, {share:.0%} done"))


def _train_folds(training: _Training, shape: tuple[int, ...]) -> pl.DataFrame | None:
    """Train every fold that has no answers yet; None where only one fold was asked for."""
    plan, dataset, ids = training.plan, training.dataset, training.features.image_ids
    if len(ids) < LEAST_IMAGES:
        raise UsageError(
            f"{several(len(ids), 'image')} can be trained on; at least {LEAST_IMAGES} are needed. "
            "Name the folder with the images: --images PATH"
        )
    targets = _targets(training)
    films = pl.DataFrame({"image_id": ids}).join(dataset.images, on="image_id", how="left", maintain_order="left")
    names = patients(films).to_numpy().astype(np.str_)
    fold, held_out = fold_of(names, plan.folds), is_held_out(names.tolist())
    key = _key(training)
    logits = np.full((len(ids), targets.shape[2]), np.nan, dtype=np.float32)
    for number in range(plan.folds) if plan.only_fold is None else [plan.only_fold]:
        here = np.flatnonzero(fold == number)
        if not len(here):
            continue
        kept = training.folder / f"fold-{number}-{key}.npy"
        # By fold, because several machines may train one each.
        with only_one_in(training.folder / f"fold-{number}", f"another run is training fold {number}"):
            if not kept.exists():
                others = (fold != number) & np.isfinite(targets[number]).any(axis=1)
                rows, held = np.flatnonzero(others & ~held_out), np.flatnonzero(others & held_out)
                made = _train_fold(training, number, key, shape, (rows, held, here), targets[number])
                _keep_array(kept, made)
                # A gigabyte for a large network. Only now, because a kill before the answers are kept would need it.
                (training.folder / _checkpoint(number, key)).unlink(missing_ok=True)
        logits[here] = np.load(kept, allow_pickle=False)
    if plan.only_fold is not None:
        training.say(f"fold {plan.only_fold} is trained. When all are: the same command without --fold")
        return None
    return _answers(training, ids, logits, np.asarray(np.isfinite(targets).any(axis=(0, 1))))


def _checkpoint(number: int, key: str) -> str:
    return f"fold-{number}-{key}.checkpoint"


def _key(training: _Training) -> str:
    """Hash all that could change the weights of a fold: another order, label or image starts anew."""
    plan = training.plan
    words = json.dumps({**asdict(plan), "only_fold": None, "device": "", "licence": ""}, sort_keys=True)
    films = hashlib.sha256("\n".join(training.features.image_ids).encode()).hexdigest()
    whole = "\n".join((fine_tuning.VERSION, words, training.weights, tables_hash(training.dataset), films))
    return sha256(whole.encode()).removeprefix("sha256:")[:16]


def _train_fold(
    training: _Training,
    number: int,
    key: str,
    shape: tuple[int, ...],
    parts: tuple[Ints, Ints, Ints],
    targets: Floats,
) -> Floats:
    """Train one fold from its checkpoint on, write its weights, and answer for its images."""
    plan, network, checkpoint = training.plan, training.network(), _checkpoint(number, key)
    rows, held, here = parts
    path = training.folder / checkpoint

    def save(content: bytes) -> None:
        with writable(training.folder):
            replace_file(training.folder, checkpoint, content)

    def show(progress: Trained, steps: int) -> None:
        done = (progress.epoch * steps + progress.step) / (plan.schedule.epochs * steps)
        training.watch(Snapshot(stage=f"training fold {number}, {done:.0%} done"))

    fold_training = FoldTraining(
        network,
        plan.schedule,
        fold=number,
        maps=training.features,
        shape=shape,
        device=plan.device,
        load=lambda: path.read_bytes() if path.exists() else None,
        save=save,
        say=training.say,
        watch=show,
    )
    fold_training.train(rows, held, targets)
    made = fold_training.logits(here)
    # The networks in the folder are always those of the answers: what another order left of this fold goes first.
    for other in training.folder.glob(f"fold-{number}-*"):
        if key not in other.name:
            other.unlink()
    _export(training, network, number)
    return made


def _keep_array(path: Path, values: Floats) -> None:
    with writable(path.parent):
        part = path.with_name(f".{path.name}.part.npy")
        np.save(part, values, allow_pickle=False)
        part.replace(path)


def _export(training: _Training, network: Trainable, number: int) -> None:
    """Write the network of a fold as safetensors, as ONNX, and the recipe that `onnx:` needs."""
    torch = import_module("torch")
    save_file = import_module("safetensors.torch").save_file
    whole, side, stem = fine_tuning.whole_network(network), training.plan.schedule.side_px, f"fold-{number}"
    with writable(training.folder):
        state = {name: value.contiguous() for name, value in whole.state_dict().items()}
        save_file(state, training.folder / f"{stem}.safetensors", metadata={"note": NO_DEVICE})
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that this is the old exporter: the new one needs more packages
            torch.onnx.export(
                whole,
                (torch.zeros(1, 1, side, side),),
                str(training.folder / f"{stem}.onnx"),
                input_names=["films"],
                output_names=["logits"],
                dynamic_axes={"films": {0: "n"}, "logits": {0: "n"}},
                opset_version=OPSET,
                dynamo=False,
            )
        recipe = {
            "name": f"{training.judge}-{stem}",
            "labels": list(training.dataset.vocabulary.findings),
            "channels": 1,
            "mean": [0.0],
            "std": [1.0],
            "framing": "stretch",
            "side_px": side,
            "output": "sigmoid",
            "trained_on_target": "yes",
            "evidence": f"Trained on all patients of {training.dataset.name} but those of fold {number}. {NO_DEVICE}",
            "licence": training.plan.licence,
        }
        text = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in recipe.items())
        (training.folder / f"{stem}.toml").write_text(text + "\n", encoding="utf-8")


def _answers(training: _Training, ids: list[str], logits: Floats, taught: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """Lay out the answers as the table of a judge; a finding without any target is unsupported."""
    vocabulary = training.dataset.vocabulary
    count = len(vocabulary.findings)
    p = np.round(sigmoid(logits.astype(np.float64)), DECIMALS)
    p[:, ~taught] = np.nan
    table = pl.DataFrame(
        {
            "image_id": np.repeat(ids, count),
            "finding": pl.Series(list(vocabulary.findings) * len(ids), dtype=vocabulary.enum),
            "p_present": pl.Series(p.reshape(-1)).fill_nan(None),
        }
    )
    known = pl.col("p_present").is_not_null()
    table = table.with_columns(
        judge=pl.lit(training.judge),
        kind=pl.lit("image", dtype=KIND),
        outcome=pl.when(known).then(pl.lit("answered")).otherwise(pl.lit("unsupported")).cast(OUTCOME),
        why=pl.when(~known).then(pl.lit("no image has a target for it")),
    )
    return table.select(
        pl.col(name).cast(dtype) if name in table.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in answers_schema(vocabulary).items()
    )
