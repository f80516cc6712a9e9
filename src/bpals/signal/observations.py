"""What is known of the images themselves: support devices that image judges see, and what a probe finds odd.

Neither changes a trust: both are columns of the signal, and reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import Matrix, logit
from bpals.types import DEVICES

TOPIC = "devices"
"""What a judge is asked of the image."""
PRESENT, ABSENT, UNKNOWN = range(3)
COLUMN = "film_checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswers:
    """What one judge answers about the images themselves."""

    judge: str
    answers: pl.DataFrame
    """FILM_ANSWERS."""
    offsets: Mapping[str, Any]
    """Topic -> its mean logits without an image, `[present, absent]`; either may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Whether each image shows devices, and who sees them."""

    state: npt.NDArray[np.uint32]
    """A place in DEVICES for each image."""
    seen_by: pl.Series
    """The judges that see devices where they are present, else null: a sentence per image."""

    @property
    def column(self) -> pl.Series:
        """The states as words."""
        return pl.Series("devices", DEVICES.categories, dtype=DEVICES).gather(self.state)

    @property
    def present(self) -> Matrix:
        """1 where devices are seen, else 0."""
        return np.asarray(self.state == PRESENT, dtype=np.float64)


def read_devices(images: pl.DataFrame, judges: Sequence[DeviceAnswers]) -> Devices:
    """Average the judges' evidence, each less its answer without an image; above zero is present, no answer unknown."""
    ids = images.select("image_id")
    evidence = np.stack([_evidence(ids, judge) for judge in judges]) if judges else np.full((1, ids.height), np.nan)
    answered = (~np.isnan(evidence)).sum(axis=0)
    mean = np.nansum(evidence, axis=0) / np.maximum(answered, 1)
    state = np.where(answered == 0, UNKNOWN, np.where(mean > 0, PRESENT, ABSENT)).astype(np.uint32)
    return Devices(state=state, seen_by=_seen_by([judge.judge for judge in judges], evidence, state))


def _evidence(ids: pl.DataFrame, judge: DeviceAnswers) -> Matrix:
    """Give one judge's logit, image by image, less its answer without an image; NaN where it did not answer."""
    its = judge.answers.filter((pl.col("topic") == TOPIC) & (pl.col("outcome") == "answered"))
    placed = ids.join(its.select("image_id", "p_present"), on="image_id", how="left", maintain_order="left")
    p = placed["p_present"].fill_null(float("nan")).to_numpy()
    present, absent = judge.offsets.get(TOPIC) or (None, None)
    sides = [side for side in (present, None if absent is None else -absent) if side is not None]
    return np.asarray(logit(p) - (sum(sides) / len(sides) if sides else 0.0))


def _seen_by(names: list[str], evidence: Matrix, state: npt.NDArray[np.uint32]) -> pl.Series:
    """Name, for each image with devices, the judges whose evidence is above zero."""
    nobody = pl.Series([None] * len(state), dtype=pl.String)
    if not names:
        return nobody
    seeing = [pl.when(pl.Series(row > 0)).then(pl.lit(name)) for name, row in zip(names, evidence, strict=True)]
    listed = pl.concat_list(seeing).list.drop_nulls()
    verb = pl.when(listed.list.len() > 1).then(pl.lit(" see ")).otherwise(pl.lit(" sees "))
    sentence = "devices: " + listed.list.join(" and ") + verb + "support devices on the image"
    return pl.select(pl.when(pl.Series(state == PRESENT)).then(sentence)).to_series()


CHECK_WORDS: Mapping[str, pl.Expr] = {
    "blank": pl.lit(
        "the image shows nothing, or next to nothing, so it confirms no label and the metadata alone speaks"
    ),
    "inverted": pl.lit("the image looks inverted, white where images are black"),
    "turned": pl.format(
        "the image {}, turned {} degrees anticlockwise",
        pl.when(pl.col("turned") == 180).then(pl.lit("stands on its head")).otherwise(pl.lit("lies on its side")),
        pl.col("turned"),
    ),
    "cropped": pl.lit("the image looks cut out of the middle of a larger one"),
    "near_duplicate": pl.format(
        "the image is the same exposure as {}, of {}",
        pl.col("near_duplicate_of"),
        pl.when("same_patient").then(pl.lit("the same patient")).otherwise(pl.lit("another patient")),
    ),
    "view": pl.when(pl.col("view_marked") != pl.col("view"))
    .then(pl.format("recorded as {}, the image is marked {}", pl.col("view"), pl.col("markers").list.join(" ")))
    .otherwise(
        pl.format(
            "recorded as {}, the image looks {}",
            pl.col("view"),
            pl.when(pl.col("view") == "PA").then(pl.lit("AP")).otherwise(pl.lit("PA")),
        )
    ),
    "lateral": pl.lit("a lateral view, by its DICOM tag"),
    "unlike": pl.format(
        "the image is unlike the others, {} times as far from what they share as usual; a lateral perhaps, or a child",
        pl.col("unlike").round(1),
    ),
    "text": pl.lit("text is burnt into the image, beside the usual markers"),
}
"""Every check, and what it says where it fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmChecks:
    """What the checks say of each image of a dataset."""

    column: pl.Series
    """The checks that fired, a list per image; null where nobody looked at it."""
    fired: tuple[pl.Series, ...]
    """Of each check a sentence per image, null where it did not fire."""


def read_checks(images: pl.DataFrame, films: pl.DataFrame) -> FilmChecks:
    """Lay the checks out image by image; `films` is FILM_CHECKS, and what it says of other images is passed over."""
    placed = images.select("image_id").join(
        films.unique("image_id", keep="first"), on="image_id", how="left", maintain_order="left"
    )
    sentences = {
        check: pl.when(pl.col("checks").list.contains(check)).then(pl.concat_str(pl.lit(f"film_{check}: "), words))
        for check, words in CHECK_WORDS.items()
    }
    return FilmChecks(
        column=placed["checks"].alias(COLUMN),
        fired=tuple(placed.select(words).to_series() for words in sentences.values()),
    )


def unchecked(images: pl.DataFrame) -> pl.Series:
    """Say that nobody looked at any image."""
    return pl.Series(COLUMN, [None], dtype=pl.List(pl.String)).new_from_index(0, images.height)
