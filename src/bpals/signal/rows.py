"""Stage 5, write: one row per label with its trust, flag, reasons and rank of reading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from bpals.signal.flags import NAMES, Flagged
from bpals.signal.layout import Bools, Estimate, LaidOut
from bpals.signal.observations import unchecked
from bpals.signal.reasons import explain
from bpals.signal.value import ranks
from bpals.types import DEVICES, FLAG, SAYS, signal_schema

METHOD = "record-1"
JUDGES_METHOD = "judges-2"
"""Where an image judge took part."""


def write(estimate: Estimate, flagged: Flagged, laid: LaidOut) -> pl.DataFrame:
    """Write a level out as a signal table, in the order of images and findings; explained and ranked on the way."""
    states, panel = estimate.pairs.states, laid.panel
    claimed = ~np.isnan(states)
    matrices = {
        "says": np.where(states == 1, np.uint32(0), np.where(states == 0, np.uint32(1), np.uint32(2))),
        "p_present": flagged.p_present,
        "trust": flagged.trust,
        "trust_low": flagged.low,
        "trust_high": flagged.high,
        "agreement": flagged.agreement,
        "answered": estimate.pairs.answered,
        "flag": flagged.flag.astype(np.uint32),
    }
    kept = slice(None) if claimed.all() else claimed.ravel()  # mostly every pair is labelled, and nothing is copied
    rows, columns = (np.arange(count, dtype=np.uint32) for count in states.shape)
    image = pl.Series(np.repeat(rows, len(columns))[kept])
    table = pl.DataFrame(
        {
            "image_id": estimate.pairs.image_ids.gather(image),
            "finding": pl.Series(np.tile(columns, len(rows))[kept]),
            **{name: matrix.ravel()[kept] for name, matrix in matrices.items()},
        },
        nan_to_null=True,
    )
    schema = signal_schema(estimate.pairs.findings)
    checks = unchecked(laid.dataset.images) if panel is None or panel.checks is None else panel.checks.column
    plain = table.with_columns(
        pl.Series("finding", list(estimate.pairs.findings), dtype=schema["finding"]).gather(table["finding"]),
        pl.Series("says", SAYS.categories, dtype=SAYS).gather(table["says"]),
        pl.Series("flag", NAMES, dtype=FLAG).gather(table["flag"]),
        _method(estimate, claimed),
        pl.lit("unknown", dtype=DEVICES).alias("devices") if panel is None else panel.devices.column.gather(image),
        checks.gather(image),
    )
    # Side by side: each of the two takes a second on 1.6 million labels, and neither needs the other.
    with ThreadPoolExecutor(2) as hands:
        ranked, reasons = hands.submit(ranks, plain), hands.submit(explain, estimate, flagged, laid)
        whole = plain.with_columns(ranked.result(), reasons.result())
    return whole.select(schema.names()).cast(schema)


def _method(estimate: Estimate, claimed: Bools) -> pl.Series:
    """Name the signal that made each row; `/crossfit` marks a pair whose own review was left out."""
    which = np.where(estimate.reviewed, np.uint32(2), estimate.fitted) + np.uint32(3) * estimate.moved
    ends = ("", "+experts", "+experts/crossfit")
    names = [f"{method}{end}" for method in (METHOD, JUDGES_METHOD) for end in ends]
    return pl.Series("method", names).gather(which[claimed])
