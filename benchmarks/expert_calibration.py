"""The expert calibration against radiologists: does trust hold, do flags keep what they state, does it carry over?

    python benchmarks/expert_calibration.py --data DATA                    asks the metadata judge first, minutes
    python benchmarks/expert_calibration.py --data DATA --workspace DIR    with a NIH audit made before
    python benchmarks/expert_calibration.py --data DATA --test             and looks at the four-findings test images
    python benchmarks/expert_calibration.py --data DATA --test --before DIR  beside an audit of an earlier version
    python benchmarks/expert_calibration.py --data DATA --write            and puts the tables into docs/calibration.md

DATA holds `expert14/all_findings_labels.csv` (448 images, 14 findings) and `expert/four_findings_val.csv` (2,414). Both
are fitted together as the shipped file is, in five folds by patient, and each fold is scored by the fit without it; the
folds are drawn five times. Flags are those of the shipped file. The next tables fit one of the two sets alone and apply
it to the other. The last part fits the validation images as `--prior none --calibrate` does; `--before` is a workspace
that an earlier version wrote with `--calibrate four-findings=PATH --calibrate-split val`. The exit code is 1 if a
figure is outside its limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

import bpals
from bpals.findings import NIH, Group
from bpals.metrics import Curve, Reliability, auroc
from bpals.numeric import patients
from bpals.reviews import verdicts
from bpals.signal import experts, trust
from bpals.signal.bounds import clopper_pearson
from bpals.signal.layout import LaidOut, lay_out
from bpals.signal.prior import ExpertCalibration
from bpals.sources import nih
from bpals.store.workspace import Workspace
from bpals.tasks import calibration
from bpals.tasks.audit import RECORD_ANSWERS
from bpals.tasks.datasets import load_calibration
from bpals.types import Reference
from section import Section

PAGE = Path(__file__).resolve().parents[1] / "docs" / "calibration.md"
GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
DRAWS = 5
ENOUGH = 20
"""Flags of fewer labels have no interval worth a test."""
LEAST = {"AUROC": 0.90, "AP": 0.64, "AUROC of presences": 0.77}
MOST = {"trust less share right, presences": 0.03, "trust less share right, absences": 0.015, "ECE": 0.02}
CARRIED = {"present": 0.08, "absent": 0.03}
"""How far the mean trust may be from the share right where a calibration is carried over."""
CALIBRATED = {"AUROC of Infiltration": 0.88, "AUROC of presences": 0.68}
"""What the fit on the validation images alone must reach on the 14-finding images."""
BEHIND = 0.01
"""Error AP that it may lose to an earlier version on the test images of other patients."""
LOST = 0.02
"""Error AP that the fit on both sets may lose to the better of the two."""
AGAINST_NONE = (-0.02, -0.02, 0.10)
"""What the default must gain in error AP over none, on the test images of other patients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """NIH as an audit lays it out, and the expert labels by source."""

    laid: LaidOut
    all_findings: Reference
    four_findings: Reference
    groups: tuple[Group, ...]
    who: pl.Series
    """The patient of each image."""

    def truth(self, *sources: Reference) -> Reference:
        """Join sources as a calibration file does: groups follow where all members were read."""
        return calibration.joined(list(sources), self.groups)

    def fit(self, *sources: Reference, whole: bool = False) -> ExpertCalibration:
        """Fit a calibration in folds by patient; `whole`: the fit of all patients is used even for its own."""
        reference = sources[0] if len(sources) == 1 else self.truth(*sources)
        made = experts.fit_calibration(self.laid, reference)
        if made is None:
            raise SystemExit("the expert labels hold no label of a NIH image")
        return replace(made, name="benchmark", about={"sources": []}, patients=frozenset() if whole else made.patients)

    def drawn(self, draw: int) -> World:
        """Let patients fall into other folds: the fold is a hash of the patient's name, so each gets another name."""
        dataset = self.laid.dataset
        named = dataset.images.with_columns(patient_id=pl.format(f"{draw}:{{}}", pl.col("patient_id")))
        return replace(self, laid=replace(self.laid, dataset=replace(dataset, images=named)))

    def scored(
        self, prior: ExpertCalibration | None, truth: pl.DataFrame, read: Reference | None = None
    ) -> pl.DataFrame:
        """Audit with a calibration or expert labels, and give the trust and flag of every label that has a truth."""
        made = trust.estimate(self.laid, read, prior=prior)
        return against(truth, made.table, self._summed(made.table) if made.groups is None else made.groups)

    def other_patients(self, data: Path) -> pl.DataFrame:
        """Give the truth of the four-findings test images whose patients have no 14-finding label."""
        reference = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split="test")
        ids = self.laid.dataset.images["image_id"]
        read = self.who.filter(ids.is_in(self.all_findings.truth["image_id"].unique().implode())).unique()
        others = ids.filter(~self.who.is_in(read.implode()))
        return reference.truth.filter(pl.col("image_id").is_in(others.implode()))

    def _summed(self, table: pl.DataFrame) -> pl.DataFrame:
        """Give groups from their members where nothing was fitted: P(group) = min(1, sum)."""
        made = []
        for group in self.groups:
            its = table.filter(pl.col("finding").cast(pl.String).is_in(list(group.members)))
            says = pl.when((pl.col("says") == "present").any()).then(pl.lit("present")).otherwise(pl.lit("absent"))
            rows = its.group_by("image_id", maintain_order=True).agg(
                finding=pl.lit(group.name), says=says, flag=pl.lit("unverified"), p_present=pl.col("p_present").sum()
            )
            p = pl.col("p_present").clip(0, 1)
            sure = pl.when(pl.col("says") == "present").then(p).otherwise(1 - p)
            made.append(rows.with_columns(p_present=p, trust=sure))
        return pl.concat(made)


def against(truth: pl.DataFrame, *tables: pl.DataFrame) -> pl.DataFrame:
    """Join the rows of a signal, and of its groups, to what readers said of them."""
    names = [pl.col(name).cast(pl.String) for name in ("finding", "says", "flag")]
    rows = pl.concat([table.select("image_id", *names, "p_present", "trust") for table in tables])
    joined = truth.join(rows, on=["image_id", "finding"], how="inner", maintain_order="left")
    return joined.with_columns(wrong=(pl.col("says") == "present") != pl.col("present"))


def load(data: Path, folder: Path) -> World:
    """Read the labels, and what the metadata judge says of all NIH."""
    dataset, answers = nih.load(), Workspace(folder).open().table(RECORD_ANSWERS)
    four = verdicts.load(f"four-findings={data / 'expert' / 'four_findings_val.csv'}", vocabulary=NIH)
    all_findings = verdicts.load(f"all-findings={data / 'expert14' / 'all_findings_labels.csv'}", vocabulary=NIH)
    groups = tuple(four.groups_within(NIH))
    return World(
        laid=lay_out(dataset, answers, None, groups),
        all_findings=all_findings,
        four_findings=four,
        groups=groups,
        who=patients(dataset.images),
    )


def error_ap(rows: pl.DataFrame) -> float:
    """Give the average precision of finding wrong labels by low trust."""
    return float(Curve.of(1 - rows["trust"].to_numpy(), rows["wrong"].to_numpy()).average_precision()[0])


def error_auroc(rows: pl.DataFrame) -> float:
    """Give the AUROC of the same."""
    low, wrong = 1 - rows["trust"].to_numpy(), rows["wrong"].to_numpy()
    return auroc(low[wrong], low[~wrong])


def gap(rows: pl.DataFrame) -> float:
    """Give the mean trust less the share of labels that are right."""
    return float((rows["trust"].to_numpy() - ~rows["wrong"].to_numpy()).mean())


def figures(rows: pl.DataFrame) -> dict[str, float]:
    """Give the figures of all 14 findings together."""
    own = rows.filter(pl.col("finding").is_in(list(NIH.findings)))
    present, absent = (own.filter(pl.col("says") == says) for says in ("present", "absent"))
    return {
        "AUROC": error_auroc(own),
        "AP": error_ap(own),
        "AUROC of presences": error_auroc(present),
        "trust less share right, presences": gap(present),
        "trust less share right, absences": gap(absent),
        "ECE": float(Reliability.of(own["trust"].to_numpy(), (~own["wrong"]).to_numpy()).ece()[0]),
    }


@dataclass(slots=True)
class Study:
    """The lines that were printed, and what is outside its limit."""

    failed: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Print a line, and keep it for the page."""
        print(line, flush=True)
        self.lines.append(line)

    def check(self, what: str, *, holds: bool) -> None:
        """Remember what does not hold."""
        if not holds:
            self.failed.append(what)

    def default_and_none(self, drawn: Sequence[pl.DataFrame], none: pl.DataFrame) -> None:
        """Compare the default with no prior, on all 14 findings."""
        by_draw, without = [figures(rows) for rows in drawn], figures(none)
        self.say(f"| 14 findings, {none['image_id'].n_unique()} images | default | range of draws | `--prior none` |")
        self.say("|---|--:|---|--:|")
        for name, plain in without.items():
            values = [its[name] for its in by_draw]
            mean = float(np.mean(values))
            self.say(f"| {name} | {mean:.3f} | {min(values):.3f} to {max(values):.3f} | {plain:.3f} |")
            self.check(f"{name} is {mean:.3f}", holds=mean >= LEAST.get(name, -9) and abs(mean) <= MOST.get(name, 9))

    def flags(self, rows: pl.DataFrame) -> None:
        """Compare what each flag states with what readers say, of the shipped folds."""
        own = rows.filter(pl.col("finding").is_in(list(NIH.findings)))
        self.say("")
        self.say("| flag | label | n | wrong, stated | wrong, seen (95 %) |")
        self.say("|---|---|--:|--:|---|")
        for (says, flag), its in sorted(own.group_by("says", "flag"), key=lambda pair: str(pair[0]), reverse=True):
            wrong = int(its["wrong"].sum())
            low, high = clopper_pearson(wrong, its.height)
            stated = float(1 - its["trust"].to_numpy().mean())
            share = wrong / its.height
            self.say(f"| `{flag}` | {says} | {its.height:,} | {stated:.3f} | {share:.3f} ({low:.3f} to {high:.3f}) |")
            if its.height >= ENOUGH:
                self.check(f"{flag}, {says}: stated {stated:.3f}", holds=low <= stated <= high)
            self._amount(str(flag), str(says), its.height, share)

    def _amount(self, flag: str, says: str, labels: int, share: float) -> None:
        if (flag, says) == ("trusted", "absent"):
            self.check(f"{labels} trusted absences, {share:.3f} wrong", holds=labels >= 3000 and share <= 0.06)
        if (flag, says) == ("trusted", "present") and labels >= ENOUGH:
            self.check(f"{share:.3f} of the trusted presences are wrong", holds=share <= 0.25)

    def likely(self, rows: pl.DataFrame) -> None:
        """Count the likely mislabelled of both directions together."""
        its = rows.filter(pl.col("flag") == "likely_mislabelled", pl.col("finding").is_in(list(NIH.findings)))
        share = float(its["wrong"].to_numpy().mean())
        self.say(f"\nLikely mislabelled in all: {its.height}, {share:.3f} of them wrong.")
        self.check(f"{its.height} likely mislabelled, {share:.3f} wrong", holds=its.height >= 100 and share >= 0.75)

    def carried(self, world: World) -> None:
        """Fit one set alone and apply it to the other; then both together beside the better of the two."""
        four, all_findings = world.four_findings, world.all_findings
        truths = {"validation": four.truth, "expert14": world.truth(all_findings).truth}
        fits = {"expert14": world.fit(all_findings, whole=True), "validation": world.fit(four, whole=True)}
        self.say("")
        self.say("| fitted on | applied to | label | " + " | ".join(GROUPS) + " |")
        self.say("|---|---|---|--:|--:|--:|")
        for source, target in (("expert14", "validation"), ("validation", "expert14")):
            rows = world.scored(fits[source], truths[target])
            for says, limit in CARRIED.items():
                cells = [gap(its) for its in _by_group(rows.filter(pl.col("says") == says))]
                self.say(f"| {source} | {target} | {says} | " + " | ".join(f"{cell:+.3f}" for cell in cells) + " |")
                for group, cell in zip(GROUPS, cells, strict=True):
                    self.check(f"{source} to {target}, {says} {group}: {cell:+.3f}", holds=abs(cell) <= limit)
        self.spoiled(world, truths)

    def spoiled(self, world: World, truths: dict[str, pl.DataFrame]) -> None:
        """Compare the fit on both sets with each alone: error AP on each set, all by fits without the patient."""
        four, all_findings = world.four_findings, world.all_findings
        self.say("")
        self.say("| error AP on | fitted on | " + " | ".join(GROUPS) + " |")
        self.say("|---|---|--:|--:|--:|")
        fits = {
            "both": world.fit(four, all_findings),
            "expert14": world.fit(all_findings),
            "validation": world.fit(four),
        }
        for target, truth in truths.items():
            by_source = {}
            for name, made in fits.items():
                by_source[name] = [error_ap(its) for its in _by_group(world.scored(made, truth))]
                self.say(f"| {target} | {name} | " + " | ".join(f"{ap:.3f}" for ap in by_source[name]) + " |")
            for place, group in enumerate(GROUPS):
                best = max(by_source["expert14"][place], by_source["validation"][place])
                lost = best - by_source["both"][place]
                self.check(f"{target}, {group}: both sets lose {lost:.3f} AP to one", holds=lost <= LOST)

    def calibrated(self, world: World) -> None:
        """Fit the validation images alone, as `--prior none --calibrate`, and look at members of groups."""
        rows = world.scored(None, world.all_findings.truth, world.four_findings)
        own = rows.filter(pl.col("finding").is_in(list(NIH.findings)))
        values = {
            "AUROC of Infiltration": error_auroc(own.filter(pl.col("finding") == "Infiltration")),
            "AUROC of presences": error_auroc(own.filter(pl.col("says") == "present")),
        }
        self.say("")
        self.say("| `--prior none --calibrate`, validation; 14 findings, 448 images | errors |")
        self.say("|---|--:|")
        for name, value in values.items():
            self.say(f"| {name} | {value:.3f} |")
            self.check(f"calibrated, {name} is {value:.3f}", holds=value >= CALIBRATED[name])

    def test_images(self, world: World, data: Path, shipped: ExpertCalibration, before: Path | None) -> None:
        """Compare the default with none on the four-findings test images of other patients; then `--calibrate`."""
        truth = world.other_patients(data)
        kinds = {
            "default": world.scored(shipped, truth),
            "`--prior none`": world.scored(None, truth),
            "`--prior none --calibrate`, validation": world.scored(None, truth, world.four_findings),
        }
        if before is not None:
            tables = [pl.read_parquet(before / f"{name}.parquet") for name in ("signal", "groups")]
            kinds["the same, earlier version"] = against(truth, *tables)
        ap = {name: [error_ap(its) for its in _by_group(rows)] for name, rows in kinds.items()}
        self.say("")
        self.say(f"| test images of other patients, n {truth['image_id'].n_unique()} | " + " | ".join(GROUPS) + " |")
        self.say("|---|--:|--:|--:|")
        for name, values in ap.items():
            self.say(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
        default, none, fitted, *earlier = ap.values()
        for group, with_prior, without, gain in zip(GROUPS, default, none, AGAINST_NONE, strict=True):
            self.check(f"test, {group}: {with_prior - without:+.3f}", holds=with_prior - without >= gain)
        for values in earlier:
            for group, now, then in zip(GROUPS, fitted, values, strict=True):
                self.check(f"test, calibrated, {group}: {now - then:+.3f}", holds=now >= then - BEHIND)


def _by_group(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return (rows.filter(pl.col("finding") == group) for group in GROUPS)


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--test", action="store_true", help="look at the four-findings test images too")
    parser.add_argument("--before", type=Path, help="a workspace of an earlier version, calibrated on validation")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.workspace or Path(temporary) / "audit"
        if given.workspace is None:
            bpals.audit("nih", workspace=folder, prior="none")
        world = load(given.data, folder)
    study, truth = Study(), world.truth(world.all_findings).truth
    with threadpool_limits(1):
        shipped = load_calibration("nih-experts-1")
        worlds = [world.drawn(draw) for draw in range(given.draws)]
        drawn = [its.scored(its.fit(its.four_findings, its.all_findings), truth) for its in worlds]
        study.default_and_none(drawn, world.scored(None, truth))
        by_file = world.scored(shipped, truth)
        study.flags(by_file)
        study.likely(by_file)
        study.carried(world)
        study.calibrated(world)
        if given.test:
            study.test_images(world, given.data, shipped, given.before)
    for line in study.failed:
        print(f"outside its limit: {line}")
    if given.write:
        opening = "<!-- python benchmarks/expert_calibration.py --test --write -->"
        Section(PAGE, opening, "<!-- end of the figures -->").write("\n".join(study.lines))
    return bool(study.failed)


if __name__ == "__main__":
    sys.exit(main())
