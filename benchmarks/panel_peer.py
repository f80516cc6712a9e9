"""The peer of the signal: crowd-kit's Dawid-Skene on the same judges, finding by finding, measured.

python benchmarks/panel_peer.py FOLDER [FINDINGS]

A judge votes for a finding where its probability is above what is usual for it. The votes are laid out, as numbers,
before the clock starts. Prints one line of JSON; with FINDINGS only so many are asked about.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import polars as pl
from crowdkit.aggregation import DawidSkene

from peak import peak_mb

MOST_ITERATIONS = 25
"""A quarter of crowd-kit's own default: on rare findings it would take all of them."""


def votes(folder: Path) -> list[pl.DataFrame]:
    """Lay the votes out: a table a finding, a row a film and judge."""
    table = pl.read_parquet(folder / "judges.parquet", columns=["image_id", "finding", "judge", "p_present"])
    usual = pl.col("p_present").mean().over("finding", "judge")
    told = table.select(
        "finding",
        task=pl.col("image_id").rank("dense").cast(pl.Int64),
        worker=pl.col("judge").rank("dense").cast(pl.Int64),
        label=(pl.col("p_present") > usual).cast(pl.Int64),
    )
    return [its.drop("finding") for its in told.partition_by("finding", maintain_order=True)]


def main() -> None:
    """Measure Dawid-Skene on each finding in turn."""
    tables = votes(Path(sys.argv[1]))
    tables = tables[: int(sys.argv[2])] if len(sys.argv) > 2 else tables
    frames = [its.to_pandas() for its in tables]
    rounds = []
    wall, cpu = time.perf_counter(), time.process_time()
    for frame in frames:
        model = DawidSkene(n_iter=MOST_ITERATIONS)
        model.fit_predict_proba(frame)
        rounds.append(len(model.loss_history_))
    told = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "iterations": rounds}
    print(json.dumps(told | {"peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
