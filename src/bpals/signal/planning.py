"""How many reads buy which width: what an interval would be like if errors were as frequent as the trust says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.signal.coverage import Strata, interval
from bpals.signal.strata import STRATA, allocate

READS = (50, 100, 200, 300, 500, 1000)
TRIALS = 10
"""Made-up readings a number of reads."""

WIDTHS = pl.Schema(
    {
        "finding": pl.String(),
        "claims": pl.Int64(),
        "expected_rate": pl.Float64(),  # mean of 1 - trust
        "reads": pl.Int64(),
        "width": pl.Float64(),  # mean width of the 95 % interval, if errors are as frequent as expected
    }
)
"""One row a finding and number of reads."""

Progress = Callable[[float], None]


def widths(
    stratified: pl.DataFrame,
    *,
    reads: Sequence[int] = READS,
    seed: int = 0,
    progress: Progress = lambda _share: None,
) -> pl.DataFrame:
    """Say which width each number of reads a finding is expected to buy, finding by finding."""
    rows = []
    findings = stratified.group_by("finding", maintain_order=True)
    total = stratified["finding"].n_unique() * len(reads)
    for (finding,), claims in findings:
        parts = [claims.filter(pl.col("stratum") == name) for name in STRATA]
        size = np.array([part.height for part in parts if part.height])
        suspicion = np.array([part["suspicion"].mean() for part in parts if part.height], dtype=np.float64)
        rate = float(size @ suspicion / size.sum())
        for number in [n for n in reads if n <= claims.height] or [claims.height]:
            width = _width(Strata.of(size, allocate(size, suspicion, number), 0 * size), suspicion, seed)
            rows.append((str(finding), claims.height, rate, number, width))
            progress(len(rows) / total)
    return pl.DataFrame(rows, schema=WIDTHS, orient="row")


def _width(read: Strata, suspicion: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> float:
    dice = np.random.default_rng([seed, int(read.read.sum())])
    wrong = np.clip(np.rint(read.size * suspicion).astype(np.int64), 0, read.size)
    seen = [tuple(dice.hypergeometric(wrong, read.size - wrong, read.read)) for _ in range(TRIALS)]
    made = {x: interval(Strata(read.size, read.read, np.array(x))).width for x in set(seen)}
    return float(np.mean([made[x] for x in seen]))


def reads_for(table: pl.DataFrame, width: float) -> int:
    """Give the number of reads a finding that buys a width for every finding of a table of `widths`.

    Between its rows the width is taken to fall as a power of the reads; beyond the last, as their root.
    """
    if not 0 < width < 1:
        raise UsageError(f"no interval has a width of {width:g}. Type a number between 0 and 1, such as --width 0.02")
    needed = 1.0
    for _, part in table.group_by("finding", maintain_order=True):
        reads, got = (part[name].to_numpy().astype(np.float64) for name in ("reads", "width"))
        if width < got[-1]:
            n = reads[-1] * (got[-1] / width) ** 2
        else:
            n = np.exp(np.interp(-np.log(width), -np.log(np.maximum(got, 1e-9)), np.log(reads)))
        needed = max(needed, min(float(n), float(part["claims"][0])))
    return int(np.ceil(needed - 1e-6))
