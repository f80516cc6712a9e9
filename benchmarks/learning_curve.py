"""The learning curve: how error AP grows with the number of images that readers read, from the first 25 on.

    python benchmarks/learning_curve.py --data DATA                     asks the metadata judge first, two minutes
    python benchmarks/learning_curve.py --data DATA --workspace DIR     with a NIH audit made before
    python benchmarks/learning_curve.py --data DATA --write             and put table and plot into docs/calibration.md

DATA holds `expert14/all_findings_labels.csv` (448 images, 14 findings) and `expert/four_findings_val.csv`. So many
images are drawn, their labels are given to the audit as expert labels, and the labels of all other patients are scored.
The last row has all images in five folds by patient. Once without a prior, and once from a calibration that was fitted
on the four-findings validation images alone. The exit code is 1 if an error AP is below its target, or if the log-loss
of a finding with 20 or more errors is above that without experts beyond a simultaneous interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.metrics import Curve
from bpals.numeric import patients
from bpals.report.charts import element
from bpals.reviews import verdicts
from bpals.signal import experts, trust
from bpals.signal.layout import LaidOut, lay_out
from bpals.signal.prior import ExpertCalibration
from bpals.sources import nih
from bpals.store.workspace import Workspace
from bpals.tasks.audit import RECORD_ANSWERS
from bpals.types import Reference
from section import Section

Floats = NDArray[np.float64]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "calibration.md"
PICTURE = PAGE.with_name("learning-curve.svg")
COLOURS = {"without a prior": "#1b6ca8", "from four-findings validation": "#b3541e"}
SIZES = (25, 50, 100, 200)
TARGETS = {25: 0.58, 50: 0.59, 100: 0.60, 200: 0.61, 448: 0.65}
DRAWS = 20
ENOUGH_ERRORS = 20
LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size: the error AP of each draw, and each finding's gain in log-loss."""

    images: int
    ap: Floats
    gains: dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The images that readers read, laid out alone; the metadata judge learned from all of NIH."""

    laid: LaidOut
    truth: pl.DataFrame
    fitted_before: ExpertCalibration
    """On the four-findings validation images alone."""

    def trusts(self, read: Reference | None, prior: ExpertCalibration | None) -> pl.DataFrame:
        """Audit with some reads, and give the trust of every label that has a truth."""
        made = trust.estimate(self.laid, read, prior=prior).table
        columns = made.select("image_id", pl.col("finding").cast(pl.String), pl.col("says").cast(pl.String), "trust")
        whole = self.truth.join(columns, on=["image_id", "finding"], how="inner", maintain_order="left")
        return whole.with_columns(wrong=(pl.col("says") == "present") != pl.col("present"))


def load(data: Path, folder: Path) -> World:
    """Lay out the read images with what the metadata judge says of them, having learned from all of NIH."""
    answers = Workspace(folder).open().table(RECORD_ANSWERS)
    dataset = nih.load()
    truth = verdicts.load(f"all-findings={data / 'expert14' / 'all_findings_labels.csv'}", vocabulary=NIH).truth
    val = verdicts.load(f"four-findings={data / 'expert' / 'four_findings_val.csv'}", vocabulary=NIH)
    before = experts.fit_calibration(lay_out(dataset, answers, None, val.groups_within(NIH)), val)
    if before is None:
        raise SystemExit(f"{data} holds no label of a NIH image")
    read = {"inputs": dict(val.inputs), "labels": val.truth.height, "images": val.truth["image_id"].n_unique()}
    kept = pl.col("image_id").is_in(truth["image_id"].unique().implode())
    small = replace(dataset, images=dataset.images.filter(kept), claims=dataset.claims.filter(kept))
    laid = lay_out(small, answers.filter(kept), None, before.groups)
    return World(
        laid=laid, truth=truth, fitted_before=replace(before, name="four-findings-val", about={"sources": [read]})
    )


def curve(world: World, prior: ExpertCalibration | None, draws: int) -> Iterator[Row]:
    """Score every size, on the patients that were not drawn."""
    start = world.trusts(None, prior)
    who = dict(zip(world.laid.dataset.images["image_id"], patients(world.laid.dataset.images), strict=True))
    start = start.with_columns(patient=pl.col("image_id").replace_strict(who))
    yield Row(images=0, ap=np.array([error_ap(start)]), gains={})
    images = sorted(set(world.truth["image_id"]))
    for size in SIZES:
        found: list[float] = []
        gains: dict[str, list[float]] = {}
        for draw in range(draws):
            chosen = np.random.default_rng([size, draw]).choice(images, size, replace=False)
            read = Reference(kind="drawn", truth=world.truth.filter(pl.col("image_id").is_in(chosen.tolist())))
            others = ~pl.col("patient").is_in([who[image] for image in chosen])
            after = world.trusts(read, prior).with_columns(patient=start["patient"]).filter(others)
            found.append(error_ap(after))
            for finding, gain in log_gains(start.filter(others), after):
                gains.setdefault(finding, []).append(gain)
        yield Row(images=size, ap=np.array(found), gains=gains)
    whole = world.trusts(Reference(kind="all", truth=world.truth), prior)
    gains = {finding: [gain] for finding, gain in log_gains(start, whole)}
    yield Row(images=len(images), ap=np.array([error_ap(whole)]), gains=gains)


def log_gains(before: pl.DataFrame, after: pl.DataFrame) -> Iterator[tuple[str, float]]:
    """Give how much smaller each finding's mean log-loss became, where it has errors enough."""
    for finding in before["finding"].unique(maintain_order=True):
        its = before["finding"] == finding
        if int(before.filter(its)["wrong"].sum()) >= ENOUGH_ERRORS:
            yield finding, log_loss(before.filter(its)) - log_loss(after.filter(its))


def log_loss(pairs: pl.DataFrame) -> float:
    """Give the mean log-loss of the trusts."""
    right = pairs.select(pl.when("wrong").then(1 - pl.col("trust")).otherwise("trust")).to_series().to_numpy()
    return float(-np.log(np.clip(right, LEAST, 1)).mean())


def error_ap(pairs: pl.DataFrame) -> float:
    """Give the average precision of finding wrong labels by low trust."""
    return float(Curve.of(1 - pairs["trust"].to_numpy(), pairs["wrong"].to_numpy()).average_precision()[0])


def harmed(row: Row) -> list[str]:
    """Name the findings whose log-loss rose beyond a simultaneous interval over findings (Bonferroni)."""
    reach = NORMAL[min(len(row.gains), len(NORMAL) - 1)]
    named = []
    for finding, gains in row.gains.items():
        error = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.inf
        if np.mean(gains) + reach * error < 0:
            named.append(finding)
    return named


NORMAL = (1.96, 1.96, 2.24, 2.39, 2.50, 2.58, 2.64, 2.69, 2.73, 2.77, 2.81, 2.84, 2.87, 2.89, 2.91)
"""Two-sided 95 % quantiles of the normal distribution for so many comparisons at once."""


def main() -> int:
    """Print the curve, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.workspace or Path(temporary) / "audit"
        if given.workspace is None:
            bpals.audit("nih", workspace=folder, prior="none")
        world = load(given.data, folder)
    lines, failed = ["| images read | without a prior | from four-findings validation |", "|---|---|---|"], []
    rows = []
    both = zip(curve(world, None, given.draws), curve(world, world.fitted_before, given.draws), strict=True)
    for plain, before in both:
        rows.append((plain, before))
        lines.append(f"| {plain.images} | {shown(plain)} | {shown(before)} |")
        print(lines[-1], flush=True)
        if plain.ap.mean() < TARGETS.get(plain.images, 0):
            failed.append(f"{plain.images} images: {plain.ap.mean():.3f} is below {TARGETS[plain.images]}")
        failed += [f"{plain.images} images: the log-loss of {name} rose" for name in harmed(plain)]
    for line in failed:
        print(line)
    if given.write:
        section = Section(PAGE, "<!-- python benchmarks/learning_curve.py --write -->", "<!-- end of the curve -->")
        section.write("\n".join(lines))
        PICTURE.write_text(picture(rows) + "\n", encoding="utf-8")
    return bool(failed)


def picture(rows: Sequence[tuple[Row, Row]]) -> str:
    """Draw both curves; sizes stand at equal distances, and a bar is the middle nine tenths of the draws."""
    left, top, wide, tall = 50.0, 30.0, 430.0, 220.0
    low, high = 0.5, 0.7

    def at(place: int, ap: float) -> tuple[float, float]:
        return left + 20 + place * (wide - 40) / (len(rows) - 1), top + (high - ap) / (high - low) * tall

    def words(text: str, x: float, y: float, anchor: str = "middle", fill: str = "#333333") -> str:
        return str(element("text", text, x=x, y=y, text_anchor=anchor, fill=fill))

    parts: list[str] = [element("rect", width=left + wide + 20, height=top + tall + 70, fill="#ffffff")]
    for tick in np.linspace(low, high, 5):
        _, y = at(0, float(tick))
        parts.append(element("line", x1=left, y1=y, x2=left + wide, y2=y, stroke="#dddddd"))
        parts.append(words(f"{tick:.2f}", left - 6, y + 4, "end"))
    for place, (plain, _) in enumerate(rows):
        parts.append(words(str(plain.images), at(place, low)[0], top + tall + 18))
    parts.append(words("images read", left + wide / 2, top + tall + 38))
    for number, (name, colour) in enumerate(COLOURS.items()):
        its = [pair[number] for pair in rows]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(k, float(row.ap.mean())) for k, row in enumerate(its)))
        parts.append(element("polyline", points=points, fill="none", stroke=colour, stroke_width=2))
        for place, row in enumerate(its):
            x, y = at(place, float(row.ap.mean()))
            parts.append(element("circle", cx=x, cy=y, r=3.5, fill=colour))
            if len(row.ap) > 1:
                below, above = (at(place, float(end))[1] for end in np.quantile(row.ap, [0.05, 0.95]))
                parts.append(element("line", x1=x, y1=below, x2=x, y2=above, stroke=colour, stroke_width=1))
        parts.append(words(name, left + 10 + number * 190, top + tall + 60, "start", colour))
    title = element("title", "Average precision of finding wrong labels against the number of images read")
    parts.append(words("error AP", left - 40, top - 12, "start"))
    return str(
        element("svg", title, *parts, xmlns="http://www.w3.org/2000/svg", width=left + wide + 20,
                height=top + tall + 70, role="img", font_family="sans-serif", font_size=12)
    )  # fmt: skip


def shown(row: Row) -> str:
    """Write the mean error AP of a size with the spread of its draws."""
    if len(row.ap) == 1:
        return f"{row.ap[0]:.3f}"
    low, high = np.quantile(row.ap, [0.05, 0.95])
    return f"{row.ap.mean():.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
