"""Film checks: what is odd about a film itself, said of each of its claims. They change no trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from bpals.signal.sentences import Sentences

COLUMN = "film_checks"
WORDS: Mapping[str, pl.Expr] = {
    "blank": pl.lit("the film shows nothing, or next to nothing, so it confirms no label and the record alone speaks"),
    "inverted": pl.lit("the film looks inverted, white where films are black"),
    "turned": pl.format(
        "the film {}, turned {} degrees anticlockwise",
        pl.when(pl.col("turned") == 180).then(pl.lit("stands on its head")).otherwise(pl.lit("lies on its side")),
        pl.col("turned"),
    ),
    "cropped": pl.lit("the film looks cut out of the middle of a larger one"),
    "near_duplicate": pl.format(
        "the film is the same exposure as {}, of {}",
        pl.col("near_duplicate_of"),
        pl.when("same_patient").then(pl.lit("the same patient")).otherwise(pl.lit("another patient")),
    ),
    "view": pl.when(pl.col("view_marked") != pl.col("view"))
    .then(pl.format("recorded as {}, the film is marked {}", pl.col("view"), pl.col("markers").list.join(" ")))
    .otherwise(
        pl.format(
            "recorded as {}, the film looks {}",
            pl.col("view"),
            pl.when(pl.col("view") == "PA").then(pl.lit("AP")).otherwise(pl.lit("PA")),
        )
    ),
    "lateral": pl.lit("a lateral view, by its DICOM tag"),
    "unlike": pl.format(
        "the film is unlike the others, {} times as far from what they share as usual; a lateral perhaps, or a child",
        pl.col("unlike").round(1),
    ),
    "text": pl.lit("text is burnt into the film, beside the usual markers"),
}
"""Every check, and what it says where it fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmChecks:
    """What the checks say of each film of a dataset."""

    column: pl.Series
    """The checks that fired, a list a film; null where nobody looked at it."""
    told: tuple[pl.Series, ...]
    """Of each check a sentence a film, null where it did not fire."""

    def sentences(self, findings: int) -> list[Sentences]:
        """Say it of every finding of the film."""
        return [_sentences(told, findings) for told in self.told]


def read_checks(images: pl.DataFrame, films: pl.DataFrame) -> FilmChecks:
    """Lay the checks out film by film; `films` is FILM_CHECKS, and what it says of other films is passed over."""
    placed = images.select("image_id").join(
        films.unique("image_id", keep="first"), on="image_id", how="left", maintain_order="left"
    )
    said = {
        check: pl.when(pl.col("checks").list.contains(check)).then(pl.concat_str(pl.lit(f"film_{check}: "), words))
        for check, words in WORDS.items()
    }
    return FilmChecks(
        column=placed["checks"].alias(COLUMN), told=tuple(placed.select(words).to_series() for words in said.values())
    )


def unchecked(images: pl.DataFrame) -> pl.Series:
    """Say that nobody looked at any film."""
    return pl.Series(COLUMN, [None], dtype=pl.List(pl.String)).new_from_index(0, images.height)


def _sentences(told: pl.Series, findings: int) -> Sentences:
    words = told.drop_nulls().unique(maintain_order=True)
    which = told.replace_strict(words, range(1, len(words) + 1), default=0, return_dtype=pl.Int32)
    return Sentences(words=[None, *words], which=np.broadcast_to(which.to_numpy()[:, None], (len(which), findings)))
