"""What should a model be trained on? A linear model on frozen features, the same images, six kinds of target.

    python benchmarks/training_study.py --images FOLDER --expert FOLDER            about ten minutes on one core
    python benchmarks/training_study.py --images FOLDER --expert FOLDER --write    and put it into docs/training.md

Every image is answered by a model fitted on other patients: five folds, and each fold's targets come from an audit
without its patients. No expert label is in a target. A seed draws eight tenths of the training patients to fit on, and
one to choose penalties: each arm and finding takes the one with the least squared error to its own targets. Figures
are means over seeds. What one seed gave is kept in `--workspace`, so that a killed run goes on. Scored against
radiologists: the 840 adjudicated test images, and the 14-finding images, which lie inside those. Intervals are paired,
over draws of whole patients. The exit code is 1 unless soft targets are above labels beyond the interval on both sets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

import bpals
from bpals.findings import AIRSPACE_OPACITY, NODULE_OR_MASS, Group
from bpals.judges.backbone import open_backbone
from bpals.judges.record import fold_of, state_matrix
from bpals.metrics import Curve
from bpals.numeric import patients
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.sources import nih
from bpals.store.features import FeatureCache
from bpals.store.workspace import Workspace
from bpals.tasks.nested_targets import kept_targets
from bpals.tasks.probe import run_probe
from bpals.types import Dataset
from section import Section

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "training.md"
OPENING, CLOSING = "<!-- printed by benchmarks/training_study.py --write -->", "<!-- end of study -->"
LABELS, SMOOTHED, PRUNED = "labels", "labels, smoothed", "labels, cleanlab's issues left out"
WEIGHTED, HALF, SOFT = "labels, weighted by trust", "half label, half soft target", "soft targets"
ARMS = (LABELS, SMOOTHED, PRUNED, WEIGHTED, HALF, SOFT)
GROUPS = (Group(name="Pneumothorax", members=("Pneumothorax",)), NODULE_OR_MASS, AIRSPACE_OPACITY)
PENALTIES = (3.0, 12.0, 48.0)
"""Times the number of features."""
FOLDS, SMOOTHING, LEAST_PRESENT, DRAWS = 5, 0.1, 20, 1000
MOST_STEPS, ENOUGH = 60, 1e-4
"""Of the conjugate gradients, and the share of the first residual at which they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The images with pixels: one row each."""

    dataset: Dataset
    image_ids: list[str]
    features: Floats
    labels: Floats
    soft: Floats
    """One matrix per fold."""
    fold: Ints
    patient: npt.NDArray[np.str_]


class Arm(NamedTuple):
    """What is fitted: a target and a weight per image and finding."""

    target: Floats
    weight: Floats


def load(images: Path, workspace: Path) -> Data:
    """Read features, labels and nested targets; what is not there yet is made."""
    dataset, home, backbone = nih.load(), Workspace(workspace), open_backbone()
    if "probe-lite0" not in home.judge_names():
        run_probe(images=images, workspace=workspace)
    cache = FeatureCache(workspace, backbone.name, backbone.sha256, backbone.width)
    stored = cache.features(dataset.images["image_id"].to_list())
    films = dataset.images.with_row_index("row").filter(pl.col("image_id").is_in(stored.image_ids))
    row = films["row"].to_numpy()
    features = stored.rows(0, len(stored.image_ids)).astype(np.float32)
    spread = features.std(axis=0)
    names = patients(dataset.images).to_numpy().astype(np.str_)[row]
    return Data(
        dataset=dataset,
        image_ids=stored.image_ids,
        features=(features - features.mean(axis=0)) / np.where(spread > 1e-6, spread, 1),
        labels=state_matrix(dataset.images, dataset.claims, dataset.vocabulary)[row],
        soft=kept_targets(home, dataset, FOLDS, say=print)[:, row],
        fold=fold_of(names, FOLDS),
        patient=names,
    )


def arms(data: Data, fold: int, on_labels: Doubles) -> dict[str, Arm]:
    """Make what each arm is fitted to, for the answers about one fold; `on_labels` is what a model on labels said."""
    labels, soft = data.labels, np.nan_to_num(data.soft[fold])
    every = np.ones_like(labels)
    issues = np.zeros(labels.shape, dtype=bool)
    for finding in range(labels.shape[1]):
        p = np.clip(on_labels[:, finding], 1e-6, 1 - 1e-6)
        both = np.stack([1 - p, p], axis=1)
        issues[bpals.find_label_issues(labels[:, finding].astype(int), both), finding] = True
    trust = np.where(labels == 1, soft, 1 - soft)
    return {
        LABELS: Arm(labels, every),
        SMOOTHED: Arm(labels * (1 - SMOOTHING) + SMOOTHING / 2, every),
        PRUNED: Arm(labels, np.where(issues, 0, 1).astype(np.float32)),
        WEIGHTED: Arm(labels, trust.astype(np.float32)),
        HALF: Arm((labels + soft) / 2, every),
        SOFT: Arm(soft, every),
    }


def fit(rows: Floats, arm: Arm, penalty: float, start: Floats) -> Floats:
    """Fit weighted ridge lines to the roots of targets, by conjugate gradients from a first guess."""
    aim, weight = np.sqrt(arm.target), arm.weight
    middle = (aim * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-9)
    slopes = start.copy()
    residual = rows.T @ (weight * (aim - middle - rows @ slopes)) - np.float32(penalty) * slopes
    direction, size = residual.copy(), (residual**2).sum(axis=0)
    first = ((rows.T @ (weight * (aim - middle))) ** 2).sum(axis=0)
    for _ in range(MOST_STEPS):
        if (size <= ENOUGH * first).all():
            break
        image = rows.T @ (weight * (rows @ direction)) + np.float32(penalty) * direction
        step = size / np.maximum((direction * image).sum(axis=0), 1e-12)
        slopes += step * direction
        residual -= step * image
        before, size = size, (residual**2).sum(axis=0)
        direction = residual + size / np.maximum(before, 1e-12) * direction
    return np.asarray(slopes)


def chosen(data: Data, arm: Arm, kept: Bools, held: Bools, here: Bools) -> Doubles:
    """Fit with each penalty, take each finding's best on held-out patients, and answer for the fold."""
    rows, width, findings = data.features[kept], data.features.shape[1], data.labels.shape[1]
    part = Arm(arm.target[kept], arm.weight[kept])
    slopes = np.zeros((width, findings), dtype=np.float32)
    level = (np.sqrt(part.target) * part.weight).sum(axis=0) / np.maximum(part.weight.sum(axis=0), 1e-9)
    best, said = np.full(findings, np.inf), np.zeros((int(here.sum()), findings))
    for penalty in sorted(PENALTIES, reverse=True):
        slopes = fit(rows, part, penalty * width, slopes)
        apart = np.sqrt(arm.target[held]) - level - data.features[held] @ slopes
        error = (arm.weight[held] * apart**2).sum(axis=0)
        now = np.clip(data.features[here] @ slopes + level, 0, 1) ** 2
        said[:, error < best] = now[:, error < best]
        best = np.minimum(best, error)
    return said


def run_seed(data: Data, seed: int) -> dict[str, Doubles]:
    """Answer for all images under each arm, out of fold."""
    draw = np.random.default_rng(seed)
    names = np.unique(data.patient)
    role = dict(zip(names, draw.random(len(names)), strict=True))
    share = np.array([role[name] for name in data.patient])
    said = {name: np.zeros(data.labels.shape) for name in ARMS}
    kept, held = share < 0.8, (share >= 0.8) & (share < 0.9)  # a tenth is left out, a tenth held out
    for fold in range(FOLDS):
        here = data.fold == fold
        every = Arm(data.labels, np.ones_like(data.labels))
        # Predictions for cleanlab, out of sample and without this fold: two halves of the other patients.
        on_labels = np.zeros(data.labels.shape)
        half = np.array([int(name) % 2 for name in data.patient]) == 0
        for side in (half, ~half):
            on_labels[~side] = chosen(data, every, kept & ~here & side, held & ~here & side, ~side)
        for name, arm in arms(data, fold, on_labels).items():
            said[name][here] = chosen(data, arm, kept & ~here, held & ~here, here)
        print(f"seed {seed}, fold {fold}", flush=True)
    return said


def scored(data: Data, said: Mapping[str, Doubles], expert: Path) -> dict[str, dict[str, Doubles]]:
    """Give for each set of experts and each arm AUROC, AP and calibration error: the value, then the draws."""
    vocabulary = data.dataset.vocabulary
    four = verdicts.load(f"four-findings={expert}", vocabulary=vocabulary, split="test")
    sets: dict[str, tuple[pl.DataFrame, tuple[Group, ...]]] = {"840 adjudicated test images": (four.truth, GROUPS)}
    beside = expert.parent / "expert14" / "all_findings_labels.csv"
    if beside.exists():
        alone = [Group(name=name, members=(name,)) for name in vocabulary.findings]
        sets["448 images, findings with 20 positives"] = (
            verdicts.load(f"all-findings={beside}", vocabulary=vocabulary).truth,
            tuple(alone),
        )
    place = {name: row for row, name in enumerate(data.image_ids)}
    found: dict[str, dict[str, Doubles]] = {}
    for title, (truth, groups) in sets.items():
        known = truth.filter(pl.col("image_id").is_in(data.image_ids))
        images = known["image_id"].unique(maintain_order=True)
        names = pl.Series(data.patient[[place[each] for each in images]])
        draws = list(Resamples.of(names.rank("dense").to_numpy().astype(np.int64), Resampling(draws=DRAWS)).weights())
        weights = np.concatenate([np.ones((1, len(images))), *draws])
        order = {name: row for row, name in enumerate(images)}
        totals: dict[str, list[Doubles]] = {name: [] for name in said}
        for group in groups:
            its = known.filter(pl.col("finding") == group.name)
            present = its["present"].to_numpy()
            if present.sum() < LEAST_PRESENT:
                continue
            row = np.array([place[each] for each in its["image_id"]])
            weight = weights[:, [order[each] for each in its["image_id"]]]
            columns = [vocabulary.findings.index(member) for member in group.members]
            for name, table in said.items():
                p = np.clip(table[row][:, columns].sum(axis=1), 0, 1)
                curve = Curve.of(p, present, weight)
                bias = np.abs((weight * (p - present)).sum(axis=1) / weight.sum(axis=1))
                totals[name].append(np.stack([curve.auroc(), curve.average_precision(), bias]))
        found[title] = {name: np.mean(each, axis=0) for name, each in totals.items()}
    return found


def table(found: Mapping[str, Mapping[str, Doubles]]) -> tuple[str, bool]:
    """Write one table per set, and say whether soft targets are above labels on all."""
    lines, kept = [], True
    for title, its in found.items():
        lines += [f"|{title}|AUROC|AP|more AUROC than labels|more AP|", "|---|--:|--:|--:|--:|"]
        for name, values in its.items():
            more = values - its[LABELS]
            cells = [f"{more[place, 0]:+.3f} ({_span(more[place, 1:])})" for place in range(2)]
            cells = ["", ""] if name == LABELS else cells
            lines.append(f"|{name}|{values[0, 0]:.3f}|{values[1, 0]:.3f}|{cells[0]}|{cells[1]}|")
        low, _ = interval((its[SOFT] - its[LABELS])[0, 1:])
        kept &= low is not None and low > 0
        lines.append("")
    return "\n".join(lines).rstrip(), kept


def _span(draws: Doubles) -> str:
    low, high = interval(draws)
    return f"{low:+.3f} to {high:+.3f}"


def main() -> int:
    """Fit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=Path("../shared/data/images"))
    parser.add_argument("--expert", type=Path, default=Path("../shared/data/expert"))
    parser.add_argument("--workspace", type=Path, default=Path(".cache/probe-bench"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/training.md")
    given = parser.parse_args()
    data, runs = load(given.images, given.workspace), []
    for seed in range(given.seeds):
        path = given.workspace / f"study-{seed}.npy"
        if not path.exists():
            with threadpool_limits(1):
                made = run_seed(data, seed)
            np.save(path, np.stack([made[name] for name in ARMS]), allow_pickle=False)
        runs.append(dict(zip(ARMS, np.load(path, allow_pickle=False), strict=True)))
    found = [scored(data, run, given.expert) for run in runs]
    whole = {t: {name: np.mean([each[t][name] for each in found], axis=0) for name in ARMS} for t in found[0]}
    text, held = table(whole)
    print(text)
    for title, its in whole.items():
        spread = {name: np.std([each[title][name][0, 0] for each in found]) for name in ARMS}
        print(title, "spread of AUROC over seeds:", ", ".join(f"{name} {value:.4f}" for name, value in spread.items()))
        print("mean difference of probability and share:", {name: round(float(v[2, 0]), 3) for name, v in its.items()})
    if given.write:
        Section(PAGE, OPENING, CLOSING).write(text)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
