"""The checks of films: what is odd about each, from what was seen of all of them. Arrays in, one row a film out.

blank           nearly one grey                                          pixels at 32 x 32
inverted        white where films are black                              lines on features, see `detecting.py`
turned          lies on its side or stands on its head                   the same
cropped         cut out of the middle of a larger film                   the same
near_duplicate  one exposure with another film                           thumbnails, see `duplicates.py`
view            its pixels, or its markers, speak against the record     lines on features, OCR
lateral         a lateral view                                           its DICOM tag
unlike          far outside what films share, and none of the above      features
text            text burnt into it, beside the usual markers             its DICOM tag, OCR
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.films.detecting import Detection, Sample, detect
from bpals.films.duplicates import Twins, find_twins
from bpals.films.lettering import Lettered
from bpals.films.linear import Features, Floats, Ints
from bpals.films.viewing import AP, PA, UNLIKE, Viewed, measure_unlike, view_films
from bpals.types import FILM_CHECKS

CHECKS = ("blank", "inverted", "turned", "cropped", "near_duplicate", "view", "lateral", "unlike", "text")
GREYS = 9
"""Neighbouring greys that count as one."""
ONE_GREY = 0.98
"""The share of a film in one grey from which it is blank. A child on a large dark plate has .62."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """All films that could be looked at, in the order of their features."""

    table: pl.DataFrame
    """image_id, sha256, width_px, height_px, notes, patient and view, a row a film."""
    thumbnails: npt.NDArray[np.uint8]
    """[film, 32, 32]."""
    features: Features
    fold: Ints
    """The same for all films of a patient."""
    blank: Bools
    one_grey: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the checks say."""

    films: pl.DataFrame
    """FILM_CHECKS, the films that were seen."""
    detection: Detection | None
    """None where too few films were seen to learn from."""
    viewed: Viewed | None
    silent: tuple[str, ...] = field(default=())
    """Checks that find too few of the copies of these films to be heard."""


def one_grey(thumbnails: npt.NDArray[np.uint8]) -> Floats:
    """Give the largest share of each film that lies within a few neighbouring greys."""
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.int64)
    counts = np.zeros((len(flat), 256), dtype=np.int64)
    for start in range(0, len(flat), 4096):
        part = flat[start : start + 4096]
        places = part + 256 * np.arange(len(part))[:, None]
        counts[start : start + 4096] = np.bincount(places.ravel(), minlength=256 * len(part)).reshape(-1, 256)
    upto = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0)))
    return np.asarray((upto[:, GREYS:] - upto[:, :-GREYS]).max(axis=1, initial=0) / max(flat.shape[1], 1), np.float32)


def check(seen: Gallery, sample: Sample | None, lettered: Mapping[str, Lettered] | None) -> Checked:
    """Check every film; without a sample nothing is fitted, and without lettering only DICOM tags speak of text."""
    usable = ~seen.blank
    views = seen.table["view"].fill_null("").to_numpy().astype(np.str_)
    detection = None if sample is None else detect(seen.features, seen.fold, sample)
    silent = () if detection is None else tuple(name for name, said in detection.checks.items() if not said.works)
    viewed = None if sample is None else view_films(seen.features, np.where(usable, views, ""), seen.fold)
    table = seen.table.select("image_id", "sha256", "width_px", "height_px").with_columns(
        pl.lit(None, dtype=pl.String).alias("refused"),
        pl.Series("blank", seen.blank),
        pl.Series("one_grey", seen.one_grey),
        *_detected(detection, silent, usable),
        *_twins(find_twins(seen.thumbnails, usable), seen.table),
        *_viewed(viewed, measure_unlike(seen.features, usable, seen.fold) if sample is not None else None, views),
        *_tagged(seen.table["notes"], None if lettered is None else [lettered.get(i) for i in seen.table["image_id"]]),
    )
    fired = pl.concat_list(pl.when(rule).then(pl.lit(name)) for name, rule in _rules(viewed, views).items())
    films = table.with_columns(checks=fired.list.drop_nulls()).select(FILM_CHECKS.names()).cast(FILM_CHECKS)
    return Checked(films=films, detection=detection, viewed=viewed, silent=silent)


def refused_films(films: pl.DataFrame) -> pl.DataFrame:
    """Write a row for each film that could not be looked at: one of a single grey is blank, of others no word."""
    blank = pl.col("code") == "blank"
    rows = films.select("image_id", refused="code", blank=blank, checks=pl.when(blank).then(pl.lit(["blank"])))
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in FILM_CHECKS.items() if name not in rows.columns]
    return rows.with_columns(missing).select(FILM_CHECKS.names()).cast(FILM_CHECKS)


def _rules(viewed: Viewed | None, views: npt.NDArray[np.str_]) -> dict[str, pl.Expr]:
    """Say when each check fires; what is told by pixels of an upright whole film is not asked of another."""
    turned = pl.col("turned") > 0
    altered = pl.any_horizontal(
        rule.fill_null(value=False) for rule in (pl.col("blank", "inverted", "cropped"), turned)
    )
    against = pl.lit(value=False) if viewed is None else pl.Series(viewed.against(views))
    marked = pl.col("view_marked")
    return {
        "blank": pl.col("blank"),
        "inverted": pl.col("inverted"),
        "turned": turned,
        "cropped": pl.col("cropped"),
        "near_duplicate": pl.col("near_duplicate_of").is_not_null(),
        "view": (marked != pl.col("view")).fill_null(against & ~altered & marked.is_null()),
        "lateral": pl.col("lateral"),
        "unlike": (pl.col("unlike") > UNLIKE) & ~altered,
        "text": pl.col("text"),
    }


def _detected(detection: Detection | None, silent: Sequence[str], usable: Bools) -> list[pl.Expr]:
    """Lay out what the fitted checks say; null where they say nothing."""
    columns = []
    for name in ("inverted", "turned", "cropped"):
        if detection is None or name in silent:
            kind = pl.Int64 if name == "turned" else pl.Boolean
            columns += [pl.lit(None, dtype=kind).alias(name), pl.lit(None, dtype=pl.Float64).alias(f"{name}_score")]
            continue
        score = detection.checks[name].score
        fires = pl.Series(np.where(score > 0, detection.degrees, 0)) if name == "turned" else pl.Series(score > 0)
        columns += [
            pl.when(pl.Series(usable)).then(said).alias(column)
            for said, column in ((fires, name), (pl.Series(score), f"{name}_score"))
        ]
    return columns


def _twins(twins: Twins, table: pl.DataFrame) -> list[pl.Series]:
    has = twins.other >= 0
    other = pl.Series(np.where(has, twins.other, 0)).cast(pl.UInt32)
    there = pl.select(pl.when(pl.Series(has)).then(other)).to_series()
    patient = table["patient"]
    return [
        table["image_id"].gather(there).alias("near_duplicate_of"),
        pl.select(pl.when(pl.Series(has)).then(pl.Series(twins.correlation))).to_series().alias("near_duplicate_r"),
        (patient.gather(there) == patient).alias("same_patient"),
    ]


def _viewed(viewed: Viewed | None, unlike: Floats | None, views: npt.NDArray[np.str_]) -> list[pl.Expr]:
    known = pl.Series(views).is_in([AP, PA])
    return [
        pl.when(known).then(pl.Series(views)).alias("view"),
        (pl.lit(None, dtype=pl.Float64) if viewed is None else pl.lit(pl.Series(viewed.score))).alias("view_score"),
        (pl.lit(None, dtype=pl.Float64) if unlike is None else pl.lit(pl.Series(unlike))).alias("unlike"),
    ]


def _tagged(notes: pl.Series, lettered: Sequence[Lettered | None] | None) -> list[pl.Series]:
    """Lay out what tags and words on the film say; what neither speaks of is null, not absent."""
    words = lettered or [None] * len(notes)
    markers = [None if word is None else list(word.markers) for word in words]
    tagged = [tag in its for tag in ("lateral", "burned_in") for its in notes]
    lateral, burnt = tagged[: len(notes)], tagged[len(notes) :]
    text = [True if tag else None if word is None else word.text for tag, word in zip(burnt, words, strict=True)]
    return [
        pl.Series("lateral", [tag or None for tag in lateral], dtype=pl.Boolean),
        pl.Series("text", text, dtype=pl.Boolean),
        pl.Series("markers", markers, dtype=pl.List(pl.String)),
        pl.Series("view_marked", [None if word is None else word.view for word in words], dtype=pl.String),
    ]
