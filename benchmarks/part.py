"""Write part of the NIH record into a folder: `part.csv` for bpals; `part.npz`, its features and folds, for the peer.

python benchmarks/part.py FOLDER PERCENT [--without-features]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from bpals.findings import NIH
from bpals.judges.record import RecordJudge, fold_of, read_record
from bpals.sources import nih
from bpals.types import Dataset

SEED = 14
NIH_COLUMNS = {
    "image_id": "Image Index",
    "labels": "Finding Labels",
    "follow_up": "Follow-up #",
    "patient_id": "Patient ID",
    "age": "Patient Age",
    "sex": "Patient Gender",
    "view": "View Position",
    "width_px": "OriginalImageWidth",
    "height_px": "OriginalImageHeight",
}


def films_of(percent: float) -> pl.DataFrame:
    """Take the films of some of the patients, whole patients only; a larger part holds the smaller ones."""
    images = nih.load().images
    patients = images["patient_id"].unique(maintain_order=True).shuffle(SEED)
    taken = patients.head(round(len(patients) * percent / 100))
    return images.filter(pl.col("patient_id").is_in(taken.implode()))


def write_csv(images: pl.DataFrame, file: Path) -> None:
    """Write the films as NIH's own table has them."""
    claimed = nih.load().claims.filter(pl.col("says") == "present")
    labels = claimed.group_by("image_id").agg(labels=pl.col("finding").cast(pl.String).str.join("|"))
    table = images.join(labels, on="image_id", how="left", maintain_order="left").with_columns(
        pl.col("labels").fill_null("No Finding"), pl.col("age").cast(pl.Int64)
    )
    table.select(*NIH_COLUMNS).rename(NIH_COLUMNS).write_csv(file)


def write_matrices(dataset: Dataset, file: Path) -> None:
    """Write the features and folds that the record judge uses, and the labels."""
    record = read_record(dataset.images, dataset.claims, dataset.vocabulary)
    fold = fold_of(record.patients, RecordJudge().folds)
    np.savez(file, features=record.features, fold=fold, labels=record.states.astype(np.int64), findings=NIH.findings)


def main() -> None:
    """Write the files and print the number of films."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("percent", type=float)
    parser.add_argument("--without-features", action="store_true", help="only the CSV")
    given = parser.parse_args()
    images = films_of(given.percent)
    table = given.folder / "part.csv"
    write_csv(images, table)
    if not given.without_features:
        write_matrices(nih.load(table), given.folder / "part.npz")
    print(images.height)


if __name__ == "__main__":
    main()
