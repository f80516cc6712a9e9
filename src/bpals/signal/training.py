"""Training with trust: weights per film and finding, and labels with the distrusted ones left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UnknownName, UsageError
from bpals.findings import fold
from bpals.types import FLAG

DISTRUSTED = ("likely_mislabelled", "suspect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels in TorchXRayVision's convention: 1, 0, or NaN for no information; a row a film."""

    image_ids: list[str]
    findings: list[str]
    values: npt.NDArray[np.float32]


def weights(signal: pl.DataFrame, *, floor: float = 0.0) -> pl.DataFrame:
    """Give the trust as a weight: one row a film, one column a finding; no claim or no trust weighs nothing.

    `floor` is the least weight of a claim that has a trust, so that no label is silenced altogether.
    """
    if not 0 <= floor <= 1:
        raise UsageError(f"weights(floor={floor}): a weight lies between 0 and 1")
    kept = signal.select("image_id", "finding", weight=pl.col("trust").clip(lower_bound=floor))
    return _wide(kept, "weight", _findings(signal)).with_columns(pl.exclude("image_id").fill_null(0.0))


def mask(
    signal: pl.DataFrame, *, flags: Sequence[str] = DISTRUSTED, pathologies: Sequence[str] | None = None
) -> Labels:
    """Give the labels with the distrusted ones open: NaN where the flag is one of `flags`, or nothing is claimed.

    `pathologies` picks and orders the columns; a finding that the signal does not have is all NaN, as in
    TorchXRayVision's `relabel_dataset`. Case, blanks and underscores do not matter: `Pleural Thickening` is
    `Pleural_Thickening`.
    """
    for flag in flags:
        if flag not in FLAG.categories:
            raise UnknownName.of("flag", flag, FLAG.categories, where="mask(flags=...)")
    said = pl.when(pl.col("says") == "present").then(1.0).when(pl.col("says") == "absent").then(0.0)
    open_ = pl.col("flag").cast(pl.String).is_in(list(flags))
    kept = signal.select("image_id", "finding", label=pl.when(~open_).then(said))
    findings = _findings(signal) if pathologies is None else list(pathologies)
    if doubled := sorted({name for name in findings if findings.count(name) > 1}):
        raise UsageError(f"mask(pathologies=...): {', '.join(doubled)} is asked for twice")
    table = _wide(kept, "label", findings)
    values = table.select(pl.exclude("image_id").cast(pl.Float32).fill_null(float("nan"))).to_numpy()
    return Labels(image_ids=table["image_id"].to_list(), findings=findings, values=values)


def _findings(signal: pl.DataFrame) -> list[str]:
    """Name the findings in the order of the vocabulary, or of their first appearance where there is none."""
    dtype = signal.schema["finding"]
    if isinstance(dtype, pl.Enum):
        return dtype.categories.to_list()
    return signal["finding"].unique(maintain_order=True).to_list()


def _wide(table: pl.DataFrame, value: str, findings: Sequence[str]) -> pl.DataFrame:
    """Turn pairs into a row a film, in the order of their first appearance."""
    films = table.select("image_id").unique(maintain_order=True)
    known = {fold(finding): finding for finding in _findings(table)}
    for finding in findings:
        its = table.filter(pl.col("finding").cast(pl.String) == known.get(fold(finding), finding))
        column = its.select("image_id", pl.col(value).alias(finding))
        films = films.join(column, on="image_id", how="left", maintain_order="left")
    return films
