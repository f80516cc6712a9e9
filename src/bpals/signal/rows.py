"""Stage 5, write: one row per label with its trust, flag, reasons and rank of reading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import Matrix
from bpals.signal.flags import NAMES, Flagged
from bpals.signal.layout import Bools, Estimate, LaidOut
from bpals.signal.reasons import explain
from bpals.signal.value import ranks
from bpals.types import DEVICES, FLAG, SAYS, SETTLED_AS, SETTLED_COLUMNS, VERDICT_BY, signal_schema

if TYPE_CHECKING:
    from bpals.signal.truth import Verdicts

METHOD = "record-1"
JUDGES_METHOD = "judges-2"
"""Where an image judge took part."""
FLAGS = (*NAMES, "confirmed", "rejected")
CONFIRMED, REJECTED = range(len(NAMES), len(FLAGS))


def write(estimate: Estimate, flagged: Flagged, laid: LaidOut, verdicts: Verdicts | None = None) -> pl.DataFrame:
    """Write a level out as a signal table, in the order of images and findings; explained and ranked on the way.

    `verdicts` are what people say of the pairs; what they settled decides the flag, and no trust.
    """
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
        "flag": _flags(flagged, states, verdicts).astype(np.uint32),
    }
    if verdicts is not None:
        matrices |= {
            "verdict": np.where(verdicts.settled, np.where(verdicts.present == 1, 0.0, 1.0), np.nan),
            "verdict_by": np.where(verdicts.settled, np.where(verdicts.adjudicated, 1.0, 0.0), np.nan),
            "readers_present": verdicts.yes,
            "readers_absent": verdicts.no,
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
    plain = table.with_columns(
        pl.Series("finding", list(estimate.pairs.findings), dtype=schema["finding"]).gather(table["finding"]),
        pl.Series("says", SAYS.categories, dtype=SAYS).gather(table["says"]),
        pl.Series("flag", FLAGS, dtype=FLAG).gather(table["flag"]),
        *_settled(table),
        _method(estimate, claimed),
        pl.lit("unknown", dtype=DEVICES).alias("devices") if panel is None else panel.devices.column.gather(image),
        pl.lit(None, dtype=pl.List(pl.String)).alias("film_checks")
        if panel is None or panel.checks is None
        else panel.checks.column.gather(image),
    )
    # Side by side: each of the two takes a second on 1.6 million labels, and neither needs the other.
    with ThreadPoolExecutor(2) as hands:
        ranked, reasons = hands.submit(ranks, plain), hands.submit(explain, estimate, flagged, laid, verdicts)
        whole = plain.with_columns(ranked.result(), reasons.result())
    return whole.select(schema.names()).cast(schema)


def _flags(flagged: Flagged, states: Matrix, verdicts: Verdicts | None) -> npt.NDArray[np.int8]:
    """Flag what people settled as confirmed or rejected, whatever the judges say; an uncertain label is neither."""
    if verdicts is None:
        return flagged.flag
    settled = verdicts.settled & ((states == 0) | (states == 1))
    return np.where(settled, np.where(verdicts.present == states, CONFIRMED, REJECTED), flagged.flag).astype(np.int8)


def _settled(table: pl.DataFrame) -> list[pl.Series | pl.Expr]:
    """Give the columns of what people settled; without any verdict there was no reader."""
    if "verdict" not in table.columns:
        nobody = {"verdict": None, "verdict_by": None, "readers_present": 0, "readers_absent": 0}
        return [pl.lit(nobody[name], dtype=kind).alias(name) for name, kind in SETTLED_COLUMNS.items()]
    words = {"verdict": SETTLED_AS, "verdict_by": VERDICT_BY}
    return [
        pl.Series(name, kind.categories, dtype=kind).gather(table[name].cast(pl.UInt32)) for name, kind in words.items()
    ]


def _method(estimate: Estimate, claimed: Bools) -> pl.Series:
    """Name the signal that made each row; `/crossfit` marks a pair whose own review was left out."""
    which = np.where(estimate.reviewed, np.uint32(2), estimate.fitted) + np.uint32(3) * estimate.moved
    ends = ("", f"+{estimate.fitted_by}", f"+{estimate.fitted_by}/crossfit")
    names = [f"{method}{end}" for method in (METHOD, JUDGES_METHOD) for end in ends]
    return pl.Series("method", names).gather(which[claimed])
