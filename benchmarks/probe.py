"""The probe, measured on real films: films a core-second, skill, label errors found, fitted on targets, memory.

    python benchmarks/probe.py --images FOLDER --expert FOLDER        everything; some ten minutes on two cores
    python benchmarks/probe.py --images FOLDER --expert FOLDER rate   one part: rate, skill, errors, truth or memory

FOLDER of the films is what `--images` of `bpals judge run` takes, with plain tars in it; that of the experts has the
four-findings files, and `expert14` beside it the 14 findings. What was seen is kept in `--workspace`, so that a second
run begins at once. `truth` compares the probe on labels with the one on soft targets, against what radiologists say of
the finding itself, out of fold; no expert label is in either. The exit code is 1 if
a promise is broken: 60 films a core-second, mean AUROC .770, permuted labels within .03 of .5, memory that grows by
less than 3 KB a film in learning, the answers themselves included, and by less than 20 KB a film in a whole run; soft
targets above labels beyond the paired interval of the mean AUROC, on both expert sets.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image

from bpals.findings import AIRSPACE_OPACITY, NODULE_OR_MASS, Group
from bpals.images.collection import open_index
from bpals.images.stream import FeatureSpec, image_features
from bpals.judges.backbone import built_file, open_backbone
from bpals.judges.linear_probe import LABELS, SIGNAL, ProbeJudge
from bpals.judges.record import RecordJudge, fold_of, state_matrix
from bpals.metrics import Curve
from bpals.numeric import patients
from bpals.optional import import_silent
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.sources import nih
from bpals.store.features import FeatureCache, StoredFeatures
from bpals.store.workspace import Workspace
from bpals.tasks.judge import Order
from bpals.tasks.probe import EXTRACTOR, run_probe
from bpals.types import Dataset, Reference, Refusal
from peak import ChildrenWatch, peak_mb

Doubles = npt.NDArray[np.float64]

GROUPS = (Group(name="Pneumothorax", members=("Pneumothorax",)), NODULE_OR_MASS, AIRSPACE_OPACITY)
FILMS, ROUNDS, DRAWS = 600, 3, 1000
NIH_FILMS, WIDTH = 112_120, 2576
LEAST_RATE, LEAST_AUROC, MOST_PERMUTED, MOST_BYTES = 60.0, 0.770, 0.03, 3072.0
MOST_LOOKING_BYTES = 20_000.0
"""A film as it lies in memory, 256 px, is three times that: none may stay."""
SMALLEST = 1e-6
LEAST_PRESENT = 20
"""Films with a finding, by experts, below which its AUROC says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Where things are."""

    images: Path
    expert: Path
    workspace: Path


def rate(given: Given) -> bool:
    """Measure films a core-second, ours and a plain loop's in turn, on the same films of one archive."""
    archive = min(given.images.glob("*.tar"))
    index = open_index(archive)
    names = sorted(index.found)[:FILMS]
    both = [(_per_core_second(_ours, archive, names), _per_core_second(_plain, archive, names)) for _ in range(ROUNDS)]
    mine, theirs = (float(np.median(side)) for side in zip(*both, strict=True))
    print(f"\n{len(names):,} films of 256 px (JPEG), one process, one thread, median of {ROUNDS} rounds in turn\n")
    print("| what looks | films a core-second | all of NIH, core-minutes |\n|---|---|---|")
    _row("bpals: checked, hashed, decoded, resized, looked at", f"{mine:.1f}", f"{NIH_FILMS / mine / 60:.0f}")
    _row("Pillow and onnxruntime alone", f"{theirs:.1f}", f"{NIH_FILMS / theirs / 60:.0f}")
    _row("ratio", f"{mine / theirs:.2f}", "")
    originals = given.images / "originals"
    if originals.is_dir():
        found = list(open_index(originals).found)
        large = float(np.median([_per_core_second(_ours, originals, found) for _ in range(ROUNDS)]))
        what = f"bpals, {len(found)} films of 1024 px (PNG), as NIH ships them"
        _row(what, f"{large:.1f}", f"{NIH_FILMS / large / 60:.0f}")
    return mine >= LEAST_RATE


def _per_core_second(look: Callable[[Path, list[str]], int], place: Path, names: list[str]) -> float:
    began = time.process_time()
    count = look(place, names)
    return count / (time.process_time() - began)


def _ours(place: Path, names: list[str]) -> int:
    """Look at films as the probe does, in this process."""
    with image_features(open_index(place, names), names, FeatureSpec(extractor=EXTRACTOR), workers=0) as extracting:
        return sum(not isinstance(seen, Refusal) for _, seen in extracting)


def _plain(place: Path, names: list[str]) -> int:
    """Do the same with Pillow and onnxruntime alone: no check, no hash, no thumbnail, no refusal."""
    onnxruntime = import_silent("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(built_file(), options, providers=["CPUExecutionProvider"])
    wanted, done = {Path(name).stem for name in names}, 0
    with tarfile.open(place) as tar:
        for member in tar:
            stream = tar.extractfile(member) if Path(member.name).stem in wanted else None
            if stream is not None:
                with Image.open(io.BytesIO(stream.read())) as opened:
                    shown = np.asarray(opened.convert("L").resize((224, 224), Image.Resampling.LANCZOS))
                session.run(None, {"films": shown[None]})
                done += 1
    return done


def skill(given: Given) -> bool:
    """Measure the AUROC against NIH's labels, out of fold, beside that of labels dealt out anew among the films."""
    dataset, features = nih.load(), _features(given)
    films = dataset.images.filter(pl.col("image_id").is_in(features.image_ids))
    claims = dataset.claims.join(films, on="image_id", how="semi", maintain_order="left")
    findings = dataset.vocabulary.findings
    said = _matrix(pl.read_parquet(given.workspace / "judgments" / "probe-lite0.parquet"), findings)
    states = state_matrix(films, claims, dataset.vocabulary)
    dealt = _dealt(claims, films["image_id"])
    noise = _matrix(ProbeJudge().read(films, dealt, dataset.vocabulary, features), findings)
    dealt_states = state_matrix(films, dealt, dataset.vocabulary)
    names = patients(films).to_numpy().astype(np.str_)
    fold, draws = fold_of(names, ProbeJudge().folds), _draws(films["patient_id"])
    print(
        f"\n{films.height:,} films of {films['patient_id'].n_unique():,} patients, out of fold against NIH's labels\n"
    )
    print("| finding | present | AUROC (95 % interval) | labels dealt anew |\n|---|---|---|---|")
    aurocs, permuted, drawn = [], [], []
    for column, finding in enumerate(findings):
        label = states[:, column] == 1
        aurocs.append(float(Curve.of(said[:, column], label).auroc()[0]))
        permuted.append(_within(noise[:, column], dealt_states[:, column] == 1, fold))
        drawn.append(np.concatenate([Curve.of(said[:, column], label, weight).auroc() for weight in draws.weights()]))
        answered = np.isfinite(noise[:, column]).mean()
        beside = f"{permuted[-1]:.3f} ({answered:.0%} answered)"
        _row(finding, f"{label.sum():,}", _figure(aurocs[-1], drawn[-1]), beside)
    _row("mean of 14", "", _figure(float(np.mean(aurocs)), np.mean(drawn, axis=0)), f"{np.mean(permuted):.3f}")
    return bool(np.mean(aurocs) >= LEAST_AUROC and abs(np.mean(permuted) - 0.5) <= MOST_PERMUTED)


def _within(scores: Doubles, label: npt.NDArray[np.bool_], fold: npt.NDArray[np.int64]) -> float:
    """Give the AUROC among films of one fold, on average; a fold in which the probe abstains is all ties."""
    parts = [(fold == number, label[fold == number].sum()) for number in np.unique(fold)]
    aurocs = [Curve.of(np.nan_to_num(scores[here]), label[here]).auroc()[0] for here, _ in parts]
    return float(np.average(aurocs, weights=[count for _, count in parts]))


def _dealt(claims: pl.DataFrame, image_ids: pl.Series) -> pl.DataFrame:
    """Give each film the labels of another."""
    other = image_ids.shuffle(seed=14)
    names = pl.DataFrame({"image_id": image_ids, "other": other})
    moved = claims.join(names, on="image_id", how="left", maintain_order="left")
    return moved.select(pl.col("other").alias("image_id"), "finding", "says")


def errors(given: Given) -> bool:
    """Measure how well errors are found on the adjudicated films: record judge, probe, the mean of their logits."""
    dataset, features = nih.load(), _features(given)
    reference = verdicts.load(f"four-findings={given.expert}", vocabulary=dataset.vocabulary)
    probe = pl.read_parquet(given.workspace / "judgments" / "probe-lite0.parquet")
    kept = given.workspace / "record.parquet"
    if not kept.exists():
        RecordJudge().read(dataset.images, dataset.claims, dataset.vocabulary).write_parquet(kept)
    record = pl.read_parquet(kept)
    films = dataset.images.filter(pl.col("image_id").is_in(features.image_ids))
    print("\nlabel errors on the adjudicated films, suspicion against the label; AUROC and AP (95 % interval)\n")
    print("| finding | films | errors | record judge | probe | mean of logits |\n|---|---|---|---|---|---|")
    for group in GROUPS:
        truth = reference.truth.filter(pl.col("finding") == group.name).join(films, on="image_id")
        claimed = _claimed(dataset.claims, group, truth["image_id"])
        wrong = claimed != truth["present"].to_numpy()
        logits = [_group_logit(table, group, truth["image_id"]) for table in (record, probe)]
        draws = _draws(truth["patient_id"])
        cells = []
        for logit in (*logits, np.mean(logits, axis=0)):
            suspicion = np.where(claimed, -logit, logit)
            whole = Curve.of(suspicion, wrong)
            drawn = np.concatenate([Curve.of(suspicion, wrong, each).average_precision() for each in draws.weights()])
            cells.append(f"{whole.auroc()[0]:.3f} / {_figure(float(whole.average_precision()[0]), drawn)}")
        _row(group.name, f"{truth.height:,}", f"{wrong.sum():,}", *cells)
    return True


def truth(given: Given) -> bool:
    """Measure how well the probe on labels and the one on soft targets tell what radiologists see, out of fold."""
    dataset = nih.load()
    _features(given)
    said = {targets: _answers_of(given, targets) for targets in (LABELS, SIGNAL)}
    four = verdicts.load(f"four-findings={given.expert}", vocabulary=dataset.vocabulary)
    parts = [_Expert("964 adjudicated films", four, [(group.name, group) for group in GROUPS])]
    beside = given.expert.parent / "expert14" / "all_findings_labels.csv"
    if beside.exists():
        every = verdicts.load(f"all-findings={beside}", vocabulary=dataset.vocabulary)
        common = [(name, Group(name=name, members=(name,))) for name in dataset.vocabulary.findings]
        parts.append(_Expert("films of the 14-finding set", every, common))
    kept = True
    for part in parts:
        kept &= _truth_table(dataset, part, said)
    return kept


class _Expert(NamedTuple):
    """What experts say of some films, and of which findings."""

    title: str
    reference: Reference
    groups: list[tuple[str, Group]]


def _truth_table(dataset: Dataset, expert: _Expert, said: dict[str, pl.DataFrame]) -> bool:
    """Print one line per finding with enough present, and their mean; say whether targets are above labels."""
    films = dataset.images.join(said[LABELS].select("image_id").unique(), on="image_id", how="semi")
    told = expert.reference.truth.join(films.select("image_id", "patient_id"), on="image_id")
    rows, points, drawn = [], [], []
    images = told.select("image_id", "patient_id").unique(maintain_order=True)
    draws = list(_draws(images["patient_id"]).weights())
    for name, group in expert.groups:
        its = told.filter(pl.col("finding") == name)
        place = images.with_row_index("row").join(its, on="image_id", maintain_order="left")
        row, present = place["row"].to_numpy(), place["present"].to_numpy()
        if present.sum() < LEAST_PRESENT:
            continue
        logits = [_group_logit(table, group, place["image_id"]) for table in said.values()]
        here = np.stack([_both(logit, present, None) for logit in logits])[..., 0]
        spread = np.stack(
            [np.concatenate([_both(logit, present, each[:, row]) for each in draws], axis=1) for logit in logits]
        )
        points.append(here)
        drawn.append(spread)
        rows.append((name, f"{len(present):,}", f"{present.sum():,}", *_cells(here, spread)))
    mean, spread = np.mean(points, axis=0), np.mean(drawn, axis=0)
    print(f"\n{expert.title}: {images.height:,} films of {images['patient_id'].n_unique():,} patients, AUROC / AP\n")
    print("| finding | films | present | fitted on labels | on soft targets | more AUROC | more AP |")
    print("|---|---|---|---|---|---|---|")
    for each in rows:
        _row(*each)
    _row(f"mean of {len(rows)}", "", "", *_cells(mean, spread))
    low, _ = interval(spread[1, 0] - spread[0, 0])
    return low is not None and low > 0


def _both(scores: Doubles, present: npt.NDArray[np.bool_], weights: Doubles | None) -> Doubles:
    curve = Curve.of(scores, present, weights)
    return np.stack([curve.auroc(), curve.average_precision()])


def _cells(points: Doubles, drawn: Doubles) -> list[str]:
    """Write AUROC / AP of labels and of targets, and how much more the targets give."""
    more = [
        f"{points[1, place] - points[0, place]:+.3f} ({low:+.3f} to {high:+.3f})"
        for place in range(2)
        for low, high in [interval(drawn[1, place] - drawn[0, place])]
    ]
    return [*(f"{auroc:.3f} / {ap:.3f}" for auroc, ap in points), *more]


def _answers_of(given: Given, targets: str) -> pl.DataFrame:
    """Read what the probe on these targets said; it is fitted where it is not there yet."""
    name = "probe-lite0" if targets == LABELS else f"probe-lite0-{targets}"
    if name not in Workspace(given.workspace).judge_names():
        run_probe(images=given.images, workspace=given.workspace, order=Order(options={"targets": targets}))
    return pl.read_parquet(given.workspace / "judgments" / f"{name}.parquet")


def _claimed(claims: pl.DataFrame, group: Group, image_ids: pl.Series) -> npt.NDArray[np.bool_]:
    """Say of each film whether a member of the group is claimed present."""
    its = claims.filter(pl.col("finding").cast(pl.String).is_in(group.members), pl.col("says") == "present")
    return image_ids.is_in(its["image_id"].unique().implode()).to_numpy()


def _group_logit(table: pl.DataFrame, group: Group, image_ids: pl.Series) -> Doubles:
    """Give the logit of min(1, sum of the members'), film by film."""
    its = table.filter(pl.col("finding").cast(pl.String).is_in(group.members))
    summed = its.group_by("image_id").agg(pl.col("p_present").sum())
    p = pl.DataFrame({"image_id": image_ids}).join(summed, on="image_id", how="left", maintain_order="left")
    kept = np.clip(p["p_present"].to_numpy(), SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(kept / (1 - kept)))


def memory(given: Given) -> bool:
    """Measure what a whole run takes at some films and four times as many, and learning at a quarter of NIH and all."""
    whole, learning = _memory_of_runs(given), _memory_of_learning()
    return whole and learning


def _memory_of_runs(given: Given) -> bool:
    """Run the probe whole over real films, in a process that gathers what another one looked at."""
    print("\na whole run over real films, one process that looks\n")
    print("| films | seconds (CPU) | most memory, MB | of the one that looks, MB |\n|---|---|---|---|")
    peaks = {}
    for count in (FILMS, 4 * FILMS):
        told = _child("--look", str(count), "--images", str(given.images))
        peaks[count] = np.array([told["peak_mb"], told["looking_mb"]])
        _row(f"{count:,}", f"{told['cpu_s']:.0f}", *(f"{peak:.0f}" for peak in peaks[count]))
    grown = (peaks[4 * FILMS] - peaks[FILMS]) * 1e6 / (3 * FILMS)
    print(f"\n{grown[0]:,.0f} bytes more a film, {grown[1]:,.0f} in the one that looks")
    return bool((grown <= MOST_LOOKING_BYTES).all())


def _child(*words: str) -> dict[str, float]:
    line = [sys.executable, __file__, *words]
    told: dict[str, float] = json.loads(subprocess.run(line, capture_output=True, check=True, text=True).stdout)
    return told


def _memory_of_learning() -> bool:
    """Learn from features of noise, made as they are read."""
    print("\nlearning from features of noise, 14 findings, one process\n")
    print("| films | seconds (CPU) | most memory, MB |\n|---|---|---|")
    peaks = {}
    for count in (NIH_FILMS // 4, NIH_FILMS):
        told = _child("--learn", str(count))
        peaks[count] = told["peak_mb"]
        _row(f"{count:,}", f"{told['cpu_s']:.0f}", f"{told['peak_mb']:.0f}")
    grown = (peaks[NIH_FILMS] - peaks[NIH_FILMS // 4]) * 1e6 / (NIH_FILMS - NIH_FILMS // 4)
    print(f"\n{grown:,.0f} bytes more a film; its features alone would take {2 * WIDTH:,} as 16-bit floats")
    return bool(grown <= MOST_BYTES)


class Noise(StoredFeatures):
    """Features that are made when they are read, and nowhere kept."""

    def __init__(self, image_ids: list[str]) -> None:
        """Name the films."""
        self.image_ids = image_ids
        self.width = WIDTH

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float16]:
        """Draw some rows; the same ones each time."""
        stop = min(stop, len(self.image_ids))
        return np.random.default_rng(start).normal(size=(stop - start, WIDTH)).astype(np.float16)


def learn(count: int) -> None:
    """Learn from the first films of NIH, and say what it took."""
    dataset = nih.load()
    films = dataset.images.head(count)
    claims = dataset.claims.join(films, on="image_id", how="semi", maintain_order="left")
    noise = Noise(films["image_id"].to_list())
    began = time.process_time()
    ProbeJudge().read(films, claims, dataset.vocabulary, noise)
    print(json.dumps({"cpu_s": time.process_time() - began, "peak_mb": peak_mb()}))


def look(images: Path, count: int) -> None:
    """Run the probe over some films in a workspace of its own, and say what it took."""
    with tempfile.TemporaryDirectory() as place, ChildrenWatch() as children:
        run_probe(images=images, workspace=place, order=Order(limit_images=count, workers=1))
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps({"cpu_s": cpu_s, "peak_mb": peak_mb(), "looking_mb": children.peak_mb}))


def _features(given: Given) -> StoredFeatures:
    """Give the features of all films; the first time they are looked at, and the probe is sealed."""
    backbone = open_backbone()
    if "probe-lite0" not in Workspace(given.workspace).judge_names():
        run_probe(images=given.images, workspace=given.workspace)
    cache = FeatureCache(given.workspace, backbone.name, backbone.sha256, backbone.width)
    return cache.features(nih.load().images["image_id"].to_list())


def _draws(named: pl.Series) -> Resamples:
    """Draw patients whole."""
    return Resamples.of(named.rank("dense").to_numpy().astype(np.int64), Resampling(draws=DRAWS))


def _matrix(table: pl.DataFrame, findings: tuple[str, ...]) -> Doubles:
    return table["p_present"].to_numpy().reshape(-1, len(findings))


def _figure(value: float, drawn: Doubles) -> str:
    low, high = interval(drawn)
    return f"{value:.3f} ({low:.3f}-{high:.3f})"


def _row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    """Measure what is asked for, and say by the exit code whether the promises hold."""
    parts = {"rate": rate, "skill": skill, "errors": errors, "truth": truth, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part", nargs="*", choices=[*parts, []], help="rate, skill, errors, truth, memory; by default all"
    )
    parser.add_argument("--images", type=Path, default=Path("../shared/data/images"))
    parser.add_argument("--expert", type=Path, default=Path("../shared/data/expert"))
    parser.add_argument("--workspace", type=Path, default=Path(".cache/probe-bench"))
    parser.add_argument("--learn", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    typed = parser.parse_args()
    if typed.learn:
        learn(typed.learn)
        return 0
    if typed.look:
        look(typed.images, typed.look)
        return 0
    given = Given(images=typed.images, expert=typed.expert, workspace=typed.workspace)
    kept = [parts[name](given) for name in typed.part or parts]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
