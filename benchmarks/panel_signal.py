"""The whole signal of a table of judges, measured: from their answers to trust, intervals, flags, reasons and ranks.

python benchmarks/panel_signal.py FOLDER

FOLDER is what `panel_table.py` wrote. Reading it is not measured. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import polars as pl
from threadpoolctl import threadpool_limits

from bpals.judges.record import RecordJudge, fold_of
from bpals.numeric import patients
from bpals.signal.layout import Ints, Panel, lay_out
from bpals.signal.observations import read_answers, read_devices
from bpals.signal.trust import estimate
from bpals.sources import nih
from bpals.tasks.chosen_judges import measure
from bpals.types import Dataset
from peak import peak_mb


def signal(dataset: Dataset, record: pl.DataFrame, eyes: dict[str, pl.DataFrame], fold: Ints) -> pl.DataFrame:
    """Weigh what the judges say, as an audit does; `fold` is the record judge's fold of each film."""
    findings = dataset.vocabulary.findings
    panel = Panel(
        judges=tuple(read_answers(name, table, dataset.images, findings) for name, table in eyes.items()),
        fold=fold,
        devices=read_devices(dataset.images, []),
    )
    with threadpool_limits(1):
        laid = lay_out(dataset, record, panel)
        return estimate(laid, skill=measure(laid)).table


def main() -> None:
    """Measure one signal from a cold start."""
    folder = Path(sys.argv[1])
    dataset = nih.load(folder / "part.csv")
    answers = pl.scan_parquet(folder / "judges.parquet")
    names = answers.select(pl.col("judge").unique(maintain_order=True)).collect().to_series()
    tables = {name: answers.filter(pl.col("judge") == name).collect() for name in names}
    record = tables.pop("record")
    fold = fold_of(patients(dataset.images).to_numpy().astype(str), RecordJudge().folds)
    wall, cpu = time.perf_counter(), time.process_time()
    made = signal(dataset, record, tables, fold)
    told = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "pairs": made.height}
    print(json.dumps(told | {"peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
