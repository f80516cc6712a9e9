"""Many judges on real films: the record judge with the five-model CheXNet panel, beside simpler ways of combining them.

    python benchmarks/many_judges.py --data DATA            about ten minutes on two cores
    python benchmarks/many_judges.py --data DATA --write    and put the tables into docs/method.md

DATA holds `expert/four_findings_*.csv` and `predictions/chexnet_panel.parquet`. Without expert labels, scored on the
935 adjudicated images that the panel covers; the same from the expert calibration that comes with bpals, each patient
by a fit without them; then fitted on the 527 of them that are validation images and scored on the 408 test images. The
panel counts as five judges, and again as one (the mean of its logits). Intervals draw patients
whole. The exit code is 1 unless everything that is promised holds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.metrics import Curve, Reliability
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.score.opinions import about
from bpals.tasks.judge import Order, run_judge
from bpals.tasks.score import audited_tables, scorecard
from section import Section

Floats = NDArray[np.float64]
Row = dict[str, Any]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "method.md"
MODELS = ("jrzech_densenet121", "haooyuee_preds", "haooyuee_test1", "haooyuee_decay033", "haooyuee_nih25")
GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
MEAN = "mean of judges"
BEST = {"judge ": "the best of the five, in hindsight", "record + ": "metadata judge + the best, in hindsight"}
UNTRAINED = {"Pneumothorax": 0.71, "Nodule or mass": 0.55, "Airspace opacity": 0.79}
TRAINED = {"Pneumothorax": 0.70, "Nodule or mass": 0.50, "Airspace opacity": 0.86}
LOST = 0.02
"""Error AP that the expert calibration may lose beside the panel."""
RESAMPLING = Resampling(draws=1000, seed=0)


def seal_five(data: Path, folder: Path) -> None:
    """Read the panel as five judges."""
    for model in MODELS:
        run_judge(f"table:{data / 'predictions' / 'chexnet_panel.parquet'}@{model}", workspace=folder)


def seal_one(data: Path, folder: Path) -> None:
    """Read the panel as one judge: the mean of its logits."""
    panel = pl.read_parquet(data / "predictions" / "chexnet_panel.parquet")
    logits = [(pl.col(name) / (1 - pl.col(name))).log().mean().alias(name) for name in NIH.findings]
    mean = panel.group_by("Image Index", maintain_order=True).agg(logits)
    scores = mean.with_columns((1 / (1 + (-pl.col(name)).exp())).alias(name) for name in NIH.findings)
    file = folder.parent / "panel.parquet"
    scores.write_parquet(file)
    run_judge(f"table:{file}", workspace=folder, order=Order(name="panel"))


def labels_of_covered(data: Path, folder: Path) -> Path:
    """Write the adjudicated validation labels of the images that the panel covers."""
    truth = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split="val").truth
    covered = pl.read_parquet(data / "predictions" / "chexnet_panel.parquet", columns=["Image Index"]).unique()
    kept = truth.join(covered, left_on="image_id", right_on="Image Index", how="semi", maintain_order="left")
    file = folder / "covered_val.csv"
    kept.select("image_id", "finding", "present").write_csv(file)
    return file


def scored(folder: Path, data: Path, split: str) -> list[Row]:
    """Score a workspace on the images that every judge answered."""
    card = scorecard(
        folder, reference=f"four-findings={data / 'expert'}", split=split, only_judged=True, resampling=RESAMPLING
    )
    return [row for row in card.rows if row["given"] == "all" and row["finding"] in GROUPS]


def promised(rows: list[Row], least: dict[str, float], above: tuple[str, ...]) -> list[str]:
    """Name what does not hold: the least error AP, and how it must stand beside the mean of all judges."""
    broken = []
    by = {(row["finding"], row["method"]): row for row in rows}
    for finding in GROUPS:
        ours, mean = by[finding, "bpals"]["error_ap"], by[finding, MEAN]
        if ours < least[finding]:
            broken.append(f"{finding}: {ours:.3f} is below {least[finding]}")
        if finding in above and not mean["ap_gain_low"] > 0:
            broken.append(f"{finding}: the interval beside the mean of judges is not above 0")
        if mean["ap_gain_high"] < 0:
            broken.append(f"{finding}: below the mean of judges beyond the interval")
    return broken


def table(rows: list[Row], *, best_only: bool = False) -> str:
    """Write error AP by method, and what bpals has more, with its interval."""
    kept = [row for row in rows if row["method"] not in ("oracle", "random", "label_only", "prevalence")]
    if best_only:
        kept = best_of_five(kept)
    lines = [f"| | {' | '.join(GROUPS)} |", f"|---|{'--:|' * len(GROUPS)}"]
    for method in dict.fromkeys(row["method"] for row in kept):
        cells = []
        for row in (row for row in kept if row["method"] == method):
            gain = row["ap_gain"]
            more = "" if gain is None else f"; {gain:+.3f} ({row['ap_gain_low']:+.3f} to {row['ap_gain_high']:+.3f})"
            cells.append(f"{row['error_ap']:.3f}{more}")
        lines.append(f"| {method.replace('_', '-')} | {' | '.join(cells)} |")
    counts = [next(row for row in rows if row["finding"] == finding) for finding in GROUPS]
    shown = ", ".join(f"{row['finding']} {row['errors']}" for row in counts)
    return f"{counts[0]['n']} images; errors: {shown}.\n\n" + "\n".join(lines)


def best_of_five(rows: list[Row]) -> list[Row]:
    """Keep, for each finding, the best of the five models alone and the best beside the metadata judge."""
    kept = [row for row in rows if not row["method"].startswith(tuple(BEST))]
    for start, name in BEST.items():
        of_five = [row for row in rows if row["method"].startswith(start)]
        for finding in GROUPS:
            best = max((row for row in of_five if row["finding"] == finding), key=lambda row: row["error_ap"])
            kept.append(best | {"method": name})
    return kept


def five_or_one(five: Path, one: Path, data: Path, split: str) -> tuple[str, list[str]]:
    """Compare the panel as five judges and as one, pair by pair: error AP and the calibration of the trust."""
    truth = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split=split)
    covered = pl.read_parquet(data / "predictions" / "chexnet_panel.parquet", columns=["Image Index"]).unique()
    asked = truth.truth.join(covered, left_on="image_id", right_on="Image Index", how="semi").drop("split")
    several, single = (about(asked, audited_tables(home), truth.groups, baselines=False)[0] for home in (five, one))
    both = several.join(single.select("image_id", "finding", one="trust"), on=["image_id", "finding"])
    lines, broken = [], []
    for finding in GROUPS:
        pairs = both.filter(pl.col("finding") == finding)
        right = (pairs["claimed"] == pairs["present"]).to_numpy()
        drawn = Resamples.of(pairs["patient"].to_numpy(), RESAMPLING)
        trusts = [pairs[name].to_numpy() for name in ("trust", "one")]
        points = [_figures(trust, right, None) for trust in trusts]
        draws = [np.concatenate([_figures(trust, right, w) for w in drawn.weights()], axis=1) for trust in trusts]
        (ap_low, ap_high), (ece_low, ece_high) = (interval((draws[0] - draws[1])[place]) for place in (0, 1))
        (ap, ece), (ap_one, ece_one) = (point[:, 0] for point in points)
        lines.append(
            f"| {finding} | {ap:.3f} / {ap_one:.3f} | {ap - ap_one:+.3f} ({ap_low:+.3f} to {ap_high:+.3f}) "
            f"| {ece:.3f} / {ece_one:.3f} | {ece - ece_one:+.3f} ({ece_low:+.3f} to {ece_high:+.3f}) |"
        )
        if ap_high is not None and ap_high < 0:
            broken.append(f"{finding}: five judges find less than one")
        if ece_low is not None and ece_low > 0:
            broken.append(f"{finding}: five judges are calibrated worse than one")
    header = "| | error AP, five / one | difference | ECE, five / one | difference |\n|---|--:|--:|--:|--:|\n"
    return header + "\n".join(lines), broken


def _figures(trust: Floats, right: NDArray[np.bool_], weights: Floats | None) -> Floats:
    curve = Curve.of(np.round(1 - trust, 12), ~right, weights)
    return np.stack([curve.average_precision(), Reliability.of(trust, right, weights).ece()])


def main() -> int:
    """Audit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with expert/ and predictions/")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/method.md")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the workspaces; what is audited there is not done again"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = given.keep or Path(folder)
        parts, short, broken = study(given.data, home)
    print(_text(parts))
    if given.write:
        _write(_text(parts | short))
    for line in broken:
        print(f"NOT HELD: {line}")
    return 1 if broken else 0


def _text(parts: dict[str, str]) -> str:
    return "\n\n".join(f"**{title}** {body}" for title, body in parts.items())


def study(data: Path, home: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Make the six audits and score them: all tables, the shorter ones of the page, what is not held."""
    home.mkdir(parents=True, exist_ok=True)
    labels = labels_of_covered(data, home)
    for name, seal in (("five", seal_five), ("one", seal_one)):
        for kind in KINDS:
            folder = home / f"{name}-{kind}"
            if not (folder / "run.json").exists():
                seal(data, folder)
                # The labels that are fitted on are in the calibration too: they would count twice.
                bpals.audit(
                    workspace=folder,
                    calibrate=f"table={labels}" if kind == "trained" else None,
                    prior=None if kind == "from the expert calibration" else "none",
                )
    untrained, prior, trained = (scored(home / f"five-{kind}", data, split) for kind, split in KINDS.items())
    broken = promised(untrained, UNTRAINED, ("Nodule or mass",))
    broken += promised(trained, TRAINED, ("Nodule or mass", "Airspace opacity"))
    before = scored(home / "five-untrained", data, "test")
    first, then = (_ours(rows, "Pneumothorax") for rows in (before, trained))
    if then < first - 1e-9:
        broken.append(f"Pneumothorax: {then:.3f} trained is below {first:.3f} untrained")
    for finding in GROUPS:
        with_prior, without = _ours(prior, finding), _ours(untrained, finding)
        if with_prior < without - LOST:
            broken.append(f"{finding}: {with_prior:.3f} from the expert calibration, {without:.3f} without")
    both = {
        "Without expert labels.": untrained,
        "From the expert calibration.": prior,
        "Fitted on the validation images, scored on the test images.": trained,
    }
    parts = {title: table(rows) for title, rows in both.items()}
    short = {title: table(rows, best_only=True) for title, rows in both.items()}
    for kind, split in KINDS.items():
        told, worse = five_or_one(home / f"five-{kind}", home / f"one-{kind}", data, split)
        parts[f"The panel as five judges or as one, {kind}."] = "\n\n" + told
        broken += worse
    return parts, short, broken


KINDS = {"untrained": "all", "from the expert calibration": "all", "trained": "test"}


def _ours(rows: list[Row], finding: str) -> float:
    return next(float(row["error_ap"]) for row in rows if (row["finding"], row["method"]) == (finding, "bpals"))


def _write(text: str) -> None:
    opening, closing = "<!-- printed by benchmarks/many_judges.py --write -->", "<!-- end of many judges -->"
    Section(PAGE, opening, closing).write(text)


if __name__ == "__main__":
    sys.exit(main())
