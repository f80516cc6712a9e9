"""Calibration where errors shift: fitted on the validation images, refitted on 200 random test images, 50 times over.

    python benchmarks/calibration_shift.py --data DATA                     audits NIH first, a few minutes
    python benchmarks/calibration_shift.py --data DATA --workspace DIR     with an audit made before
    python benchmarks/calibration_shift.py --data DATA --write             and put the table into docs/method.md

DATA holds `expert/four_findings_*.csv` and `predictions/chexnet_panel.parquet`. The audit is the record judge's with
the panel where it covers, fitted on the 2,414 validation images. Each draw takes 200 of the 1,962 test images at
random, refits the shifts on them, and measures the ECE of the others: 10 bins of equal mass, a group and direction.
Beside it stand the 95th percentile of a perfect predictor on the same films, and of one put through the same refit.
The exit code is 1 unless the median ECE is within the first in 5 of the 6 cells, and each cell within the second in
at least 75 % of the draws.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.numeric import logit, sigmoid
from bpals.reviews import verdicts
from bpals.signal.hierarchical import Reviewed, shifts
from bpals.store.workspace import Workspace
from bpals.tasks.judge import run_judge
from section import Section

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "method.md"
MODELS = ("jrzech_densenet121", "haooyuee_preds", "haooyuee_test1", "haooyuee_decay033", "haooyuee_nih25")
GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
BINS = 10
DRAWS, SAMPLE = 50, 200
PERFECT = 200
"""Perfect predictors that are drawn for each percentile."""
ENOUGH_CELLS, ENOUGH_DRAWS = 5, 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """The test images of one group: the logit, what is claimed, what is there."""

    z: Floats
    said: Floats
    present: Floats

    def refitted(self, present: Floats, sample: Ints, start: Floats | None = None) -> Floats:
        """Give the probabilities once a sample has said how common the finding is."""
        z = self.z if start is None else start
        ones = np.ones(len(sample))
        seen = Reviewed(rows=sample, present=present[sample], weight=ones, fold=np.zeros(len(sample), dtype=np.int64))
        up, down = shifts(z, self.said, seen)
        return sigmoid(z + np.where(self.said == 1, up, down))


def ece(p: Floats, present: Floats) -> float:
    """Give the expected calibration error in bins of equal mass."""
    places = np.array_split(np.argsort(p, kind="stable"), BINS)
    return float(sum(abs(p[place].sum() - present[place].sum()) for place in places) / max(len(p), 1))


def audited(data: Path, folder: Path) -> None:
    """Audit NIH with the panel, fitted on the validation images."""
    for model in MODELS:
        run_judge(f"table:{data / 'predictions' / 'chexnet_panel.parquet'}@{model}", workspace=folder)
    bpals.audit(workspace=folder, calibrate=f"four-findings={data / 'expert'}", calibrate_split="val")


def films(folder: Path, data: Path) -> dict[str, Films]:
    """Lay the test images out, group by group."""
    home = Workspace(folder).open()
    columns = ("image_id", "finding", "says", "p_present")
    tables = [home.table(name, *columns) for name in ("signal.parquet", "groups.parquet")]
    held = pl.concat([table.with_columns(pl.col("finding", "says").cast(pl.String)) for table in tables])
    truth = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split="test").truth
    both = truth.join(held, on=["image_id", "finding"]).sort("image_id")
    laid = {}
    for name in GROUPS:
        its = both.filter(pl.col("finding") == name)
        laid[name] = Films(
            z=logit(its["p_present"].to_numpy()),
            said=(its["says"] == "present").to_numpy().astype(float),
            present=its["present"].to_numpy().astype(float),
        )
    return laid


def cell_by_cell(group: Films, dice: np.random.Generator, draws: int) -> dict[int, dict[str, Floats]]:
    """Measure both directions of one group, draw by draw."""
    names = ("ece", "perfect", "refitted", "no refit", "whole")
    told: dict[int, dict[str, list[float]]] = {claimed: {name: [] for name in names} for claimed in (1, 0)}
    count = len(group.z)
    everything = group.refitted(group.present, np.arange(count))
    for _ in range(draws):
        order = dice.permutation(count)
        sample, rest = order[:SAMPLE], order[SAMPLE:]
        p = group.refitted(group.present, sample)
        worlds = [(dice.random(count) < p).astype(float) for _ in range(PERFECT)]
        again = [group.refitted(world, sample, logit(p)) for world in worlds]
        for claimed, its in told.items():
            here = rest[group.said[rest] == claimed]
            its["ece"].append(ece(p[here], group.present[here]))
            its["perfect"].append(float(np.quantile([ece(p[here], world[here]) for world in worlds], 0.95)))
            passed = [ece(q[here], world[here]) for q, world in zip(again, worlds, strict=True)]
            its["refitted"].append(float(np.quantile(passed, 0.95)))
            its["no refit"].append(ece(sigmoid(group.z)[here], group.present[here]))
            its["whole"].append(ece(everything[here], group.present[here]))
    return {claimed: {name: np.array(values) for name, values in its.items()} for claimed, its in told.items()}


def study(groups: dict[str, Films], draws: int) -> tuple[str, bool]:
    """Write the table, and say whether everything promised holds."""
    lines = [
        "| | claimed | n | ECE, median | perfect, 95 % | perfect and refitted, 95 % | within | no refit | all of it |"
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    good, held = 0, True
    for place, (name, group) in enumerate(groups.items()):
        for claimed, its in cell_by_cell(group, np.random.default_rng([0, place]), draws).items():
            middle = {key: float(np.median(values)) for key, values in its.items()}
            within = float((its["ece"] <= its["refitted"]).mean())
            good += middle["ece"] <= middle["perfect"]
            held = held and within >= ENOUGH_DRAWS
            cells = [middle[key] for key in ("ece", "perfect", "refitted")]
            lines.append(
                f"| {name} | {'present' if claimed else 'absent'} | {int((group.said == claimed).sum())} | "
                + " | ".join(f"{value:.3f}" for value in cells)
                + f" | {within:.0%} | {middle['no refit']:.3f} | {middle['whole']:.3f} |"
            )
    return "\n".join(lines), held and good >= ENOUGH_CELLS


def main() -> int:
    """Audit if need be, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with expert/ and predictions/")
    parser.add_argument("--workspace", type=Path, help="an audit of NIH, fitted on the validation images")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/method.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.workspace or Path(scratch) / "audit"
        if given.workspace is None:
            audited(given.data, folder)
        told, held = study(films(folder, given.data), given.draws)
    print(told)
    print("held" if held else "NOT HELD")
    if given.write:
        opening, closing = "<!-- printed by benchmarks/calibration_shift.py --write -->", "<!-- end of calibration -->"
        Section(PAGE, opening, closing).write(told)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
