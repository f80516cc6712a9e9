"""Hard against mislabelled, on real reads: do readers split more often under `hard` than under `likely_mislabelled`?

    python benchmarks/hard_or_mislabelled.py --data DATA                      the record judge alone, a few minutes
    python benchmarks/hard_or_mislabelled.py --data DATA --panel              with the five judges of the CheXNet panel

DATA holds `expert/four_findings_*.csv` and `predictions/chexnet_panel.parquet`. The audit is fitted on the adjudicated
labels and the single reads of the validation images; the reads of the test images are withheld from it and used here
only. A pair is split where its readers disagree or one hedges. Intervals draw patients whole. The exit code is 1 unless
the difference is above 0 pooled and in at least two of the three groups.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.signal.hardness import disagreements
from bpals.store.workspace import Workspace
from bpals.tasks.judge import run_judge

GROUPS = ("Pneumothorax", "Nodule or mass", "Airspace opacity")
POOLED = "pooled"
MODELS = ("jrzech_densenet121", "haooyuee_preds", "haooyuee_test1", "haooyuee_decay033", "haooyuee_nih25")
LOW = ("likely_mislabelled", "suspect", "hard")
RESAMPLING = Resampling(draws=2000, seed=0)
ENOUGH_GROUPS = 2


def audit(data: Path, folder: Path, *, panel: bool) -> None:
    """Audit NIH, fitted on the validation images."""
    if panel:
        for model in MODELS:
            run_judge(f"table:{data / 'predictions' / 'chexnet_panel.parquet'}@{model}", workspace=folder)
    expert = data / "expert"
    bpals.audit(
        workspace=folder,
        calibrate=f"four-findings={expert}",
        calibrate_split="val",
        reviews=expert / "four_findings_readers.csv",
        reviews_split="val",
    )


def pairs_of(folder: Path, data: Path, split: str) -> pl.DataFrame:
    """Give the pairs that several readers read, with the flag, the split of the readers and the error of the claim."""
    audited = Workspace(folder).open()
    columns = ("image_id", "finding", "says", "trust", "flag")
    tables = [audited.table(name, *columns) for name in ("signal.parquet", "groups.parquet")]
    flagged = pl.concat([table.with_columns(pl.col("finding").cast(pl.String)) for table in tables])
    flagged = flagged.filter(pl.col("finding").is_in(GROUPS))
    reads = verdicts.load_reads(data / "expert" / "four_findings_readers.csv", vocabulary=NIH, split=split)
    truth = verdicts.load(f"four-findings={data / 'expert'}", vocabulary=NIH, split=split).truth
    images = audited.table("images.parquet", "image_id", "patient_id")
    return (
        disagreements(reads.table)
        .join(flagged, on=["image_id", "finding"])
        .join(truth.select("image_id", "finding", "present"), on=["image_id", "finding"], how="left")
        .join(images, on="image_id")
        .with_columns(pl.col("flag", "says").cast(pl.String), wrong=(pl.col("says") == "present") != pl.col("present"))
        .sort("finding", "image_id")
    )


def share(split: NDArray[np.bool_], among: NDArray[np.bool_], drawn: Resamples) -> NDArray[np.float64]:
    """Give the share that split, once over all patients and then over each draw; NaN where there is none."""
    sums = drawn.add_up(drawn.patient, [(among & split).astype(float), among.astype(float)])
    hits, total = drawn.totals(sums).T
    return np.asarray(np.divide(hits, total, out=np.full(len(hits), np.nan), where=total > 0))


def told(name: str, pairs: pl.DataFrame, against: tuple[str, ...], drawn: Resamples) -> tuple[str, bool]:
    """Compare `hard` with other flags in one group; say whether the interval is above 0."""
    here = np.ones(pairs.height, dtype=bool) if name == POOLED else (pairs["finding"] == name).to_numpy()
    split, wrong, flag = (pairs[column].to_numpy() for column in ("split", "wrong", "flag"))
    hard, other = here & (flag == "hard"), here & np.isin(flag, against)
    shares = [share(split, among, drawn) for among in (hard, other)]
    difference = shares[0] - shares[1]
    low, high = interval(difference[1:])
    counts = " ".join(
        f"{int(among.sum()):>6} {each[0]:>6.3f} {wrong[among].mean() if among.any() else np.nan:>6.3f}"
        for among, each in zip((hard, other), shares, strict=True)
    )
    if low is None or high is None or np.isnan(difference[0]):
        return f"{name:<18} {counts}   none to compare", False
    return f"{name:<18} {counts}   {difference[0]:+.3f} ({low:+.3f} to {high:+.3f})", low > 0


def compare(pairs: pl.DataFrame, against: tuple[str, ...]) -> bool:
    """Print one comparison; say whether it holds pooled and in enough groups."""
    drawn = Resamples.of(pairs["patient_id"].to_numpy(), RESAMPLING)
    print(f"hard against {' or '.join(against)}: how many, what share split the readers, what share is wrong")
    held = {}
    for name in (*GROUPS, POOLED):
        line, held[name] = told(name, pairs, against, drawn)
        print(line)
    return held[POOLED] and sum(held[name] for name in GROUPS) >= ENOUGH_GROUPS


def main() -> int:
    """Audit, compare, print."""
    parser = argparse.ArgumentParser(description="Do readers split more often under `hard`?")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--panel", action="store_true", help="with the five judges of the CheXNet panel")
    parser.add_argument("--workspace", type=Path, help="keep the audit here, or use the one that is here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = asked.workspace or Path(passing) / "audit"
        if not (folder / "run.json").exists():
            audit(asked.data, folder, panel=asked.panel)
        # Not on the validation images: what was read there is settled, and has no flag of a model.
        pairs = pairs_of(folder, asked.data, "test")
    patients = pairs["patient_id"].n_unique()
    print(f"test: {pairs.height:,} pairs read by two or more readers, {patients:,} patients")
    good = compare(pairs, ("likely_mislabelled",))
    print()
    compare(pairs, tuple(name for name in LOW if name != "hard"))
    print(f"\nabove 0 pooled and in at least {ENOUGH_GROUPS} groups: {'yes' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
