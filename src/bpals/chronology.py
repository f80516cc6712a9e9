"""Each patient's reports in order: a report is a study, or a film where the dataset names no study.

Films of one study share one report and so one set of labels. They are no evidence for one another.
"""

from __future__ import annotations

import polars as pl


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
