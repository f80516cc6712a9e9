"""Write the answers of several judges about part of the NIH record into a folder, one file for both sides.

python benchmarks/panel_table.py FOLDER PERCENT JUDGES [--alike]

`judges.parquet` has a row a judge, film and finding: the record judge first, then image judges. Films and claims are
the embedded record's. The answers are drawn, seeded: they lean towards the claims, some judges further than others, and
judges err independently of one another, as Dawid and Skene assume; with --alike the image judges share most of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from bpals.numeric import sigmoid
from bpals.sources import nih
from bpals.types import KIND, OUTCOME, Dataset, judgments_schema
from part import films_of, write_csv

SEED = 4
USUAL, NOISE, REACH = -2.0, 1.0, 0.5
"""Logits: what is usual, how far an answer varies about it, half an interval."""
ALIKE = 0.8
"""How much of that the image judges share where they are alike."""
TOWARDS = (1.5, 2.0, 2.5, 3.0, 3.5)
"""How far a claim of presence moves a judge's logit, judge by judge, and then from the first again."""


def answers(dataset: Dataset, judges: int, shared: float) -> pl.DataFrame:
    """Draw every judge's answers about every claim."""
    draw = np.random.default_rng(SEED)
    pairs = dataset.claims.select("image_id", "finding")
    claimed = (dataset.claims["says"] == "present").to_numpy()
    together = draw.normal(0.0, NOISE, len(claimed))
    tables = []
    for number in range(judges):
        part = 0.0 if number == 0 else shared
        noise = np.sqrt(part) * together + np.sqrt(1 - part) * draw.normal(0.0, NOISE, len(claimed))
        z = USUAL + TOWARDS[number % len(TOWARDS)] * claimed + noise
        sides = {"p_present": z, "p_low": z - REACH, "p_high": z + REACH}
        tables.append(
            pairs.with_columns(
                judge=pl.lit("record" if number == 0 else f"eye{number}"),
                kind=pl.lit("record" if number == 0 else "image", dtype=KIND),
                outcome=pl.lit("answered", dtype=OUTCOME),
                **{name: pl.Series(np.round(sigmoid(side), 6)) for name, side in sides.items()},
            )
        )
    schema = judgments_schema(dataset.vocabulary)
    return pl.concat(tables).select(schema.names()).cast(schema)


def main() -> None:
    """Write the files and print the number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("percent", type=float)
    parser.add_argument("judges", type=int)
    parser.add_argument("--alike", action="store_true", help="image judges share their errors")
    given = parser.parse_args()
    write_csv(films_of(given.percent), given.folder / "part.csv")
    dataset = nih.load(given.folder / "part.csv")
    answers(dataset, given.judges, ALIKE if given.alike else 0.0).write_parquet(given.folder / "judges.parquet")
    print(dataset.claims.height)


if __name__ == "__main__":
    main()
