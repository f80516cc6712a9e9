"""Boxed presences against other presences: a finding that somebody pointed at should be trusted more.

Boxes are positives only, and all of them agree with the label: there is no error to find, so no error column here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from bpals.errors import TruthError
from bpals.plural import several
from bpals.score.metrics import Curve
from bpals.score.opinions import Audited, about
from bpals.score.resamples import Resamples, Resampling, interval
from bpals.types import Notice

Row = dict[str, Any]

_PAIR = ["image_id", "finding"]


def boxed_trust(truth: pl.DataFrame, audited: Audited, resampling: Resampling) -> tuple[list[Row], list[Notice]]:
    """Compare the trust of presences with and without a box, by each finding that has boxes, and pooled."""
    boxed = truth.select(_PAIR)
    presences = (
        audited.claims.filter(pl.col("says").cast(pl.String) == "present")
        .select("image_id", pl.col("finding").cast(pl.String))
        .join(boxed.select("finding").unique(), on="finding", how="semi", maintain_order="left")
    )
    asked = presences.join(boxed.with_columns(boxed=True), on=_PAIR, how="left", maintain_order="left").with_columns(
        pl.col("boxed").fill_null(value=False)
    )
    if not asked["boxed"].any():
        raise TruthError(
            f"of {several(boxed.height, 'boxed pair')} none is a presence in this audit (first: "
            f"{boxed['image_id'][0]}, {boxed['finding'][0]}). The boxes belong to NIH's films: type: bpals audit "
            "--source nih"
        )
    pairs, notices = about(asked, audited, (), baselines=False)
    elsewhere = boxed.join(presences, on=_PAIR, how="anti")
    if elsewhere.height:
        those = several(elsewhere.height, "boxed pair is", "boxed pairs are")
        message = f"{those} no presence in this audit: left out"
        notices.append(Notice(code="boxed_elsewhere", count=elsewhere.height, message=message))
    resamples = Resamples.of(pairs["patient"].to_numpy(), resampling)
    findings = pairs["finding"].to_numpy()
    rows = []
    for finding in [*pairs["finding"].unique(maintain_order=True), "pooled"]:
        chosen = np.ones(len(findings), dtype=np.bool_) if finding == "pooled" else findings == finding
        rows.append(_row(finding, pairs.filter(pl.Series(chosen)), resamples.take(chosen)))
    return rows, notices


def _row(finding: str, pairs: pl.DataFrame, resamples: Resamples) -> Row:
    boxed = pairs["boxed"].to_numpy()
    trust = pairs["trust"].to_numpy()
    row: Row = {"finding": finding, "n_boxed": int(boxed.sum()), "n_other": int((~boxed).sum())}
    for name, chosen in (("boxed", boxed), ("other", ~boxed)):
        row[f"trust_{name}_mean"] = float(trust[chosen].mean()) if chosen.any() else None
        row[f"trust_{name}_median"] = float(np.median(trust[chosen])) if chosen.any() else None
    row |= dict.fromkeys(("boxed_auroc", "boxed_auroc_low", "boxed_auroc_high"))
    if boxed.any() and not boxed.all():
        low, high = interval(np.concatenate([Curve.of(trust, boxed, w).auroc() for w in resamples.weights()]))
        auroc = float(Curve.of(trust, boxed).auroc()[0])
        row |= {"boxed_auroc": auroc, "boxed_auroc_low": low, "boxed_auroc_high": high}
    return row
