"""Each patient's reports in order: a report is a study, or a film where the dataset names no study.

Films of one study share one report and so one set of labels. They are no evidence for one another.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray


def order(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sort: give the places of the values from the least to the greatest, equals in the order in which they stand.

    numpy sorts numbers of 16 bits by counting, and longer ones by comparing, which takes ten times as long. So values
    are sorted by their nearest numbers of 32 bits, half by half; then those that have one such number in common, by
    themselves.
    """
    with np.errstate(over="ignore"):
        near = values.astype(np.float32) + np.float32(0)  # so that -0 is 0
    bits = near.view(np.int32)
    # As whole numbers, in the same order: floats have a sign, then an exponent, then digits.
    whole = np.where(bits < 0, ~bits, bits | np.int32(-(2**31))).view(np.uint32)
    place = np.argsort(whole.astype(np.uint16), kind="stable")
    place = place[np.argsort((whole >> 16).astype(np.uint16)[place], kind="stable")]
    ordered, rough = values[place], near[place]
    alike = rough[1:] == rough[:-1]
    apart = alike & (ordered[1:] != ordered[:-1])
    if apart.any():
        group = np.cumsum(np.append(False, ~alike))
        mixed = np.flatnonzero(np.bincount(group[1:][apart], minlength=group[-1] + 1)[group])
        place[mixed] = place[mixed][np.argsort(ordered[mixed], kind="stable")]
    return place


def patients(images: pl.DataFrame) -> pl.Series:
    """Name each film's patient; a film without one is a patient of its own."""
    return images.select(patient=pl.coalesce("patient_id", "film:" + pl.col("image_id"))).to_series()


def reports_of_films(images: pl.DataFrame) -> pl.DataFrame:
    """Give, a row a film in the order of the images: patient, report (a number), rank in the patient, size, follow_up.

    Reports are numbered patient by patient in the order of time, so the neighbours of a report are its number minus
    and plus one, where the rank allows.
    """
    films = images.select(
        "follow_up",
        patient=patients(images),
        study=pl.coalesce("study_id", "film:" + pl.col("image_id")),
        film=pl.int_range(pl.len()),
    )
    reports = (
        films.group_by("patient", "study")
        .agg(pl.col("follow_up").min().alias("at"), pl.col("film").min().alias("first"))
        .sort("patient", "at", "first", nulls_last=True)
        .with_columns(
            report=pl.int_range(pl.len(), dtype=pl.Int64),
            rank=pl.int_range(pl.len(), dtype=pl.Int64).over("patient"),
            size=pl.len().over("patient").cast(pl.Int64),
        )
    )
    placed = films.join(reports, on=["patient", "study"], how="left", maintain_order="left")
    return placed.select("patient", "report", "rank", "size", follow_up="at")
