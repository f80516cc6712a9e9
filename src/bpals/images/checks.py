"""The checks of films: what is odd about each, from what was seen of all of them. Arrays in, one row a film out.

blank           nearly one grey                                          pixels at 32 x 32
inverted        white where films are black                              lines on features, see `detecting.py`
turned          lies on its side or stands on its head                   the same
cropped         cut out of the middle of a larger film                   the same
near_duplicate  one exposure with another film                           thumbnails, see `duplicates.py`
view            its pixels, or its markers, speak against the record     lines on features, OCR
lateral         a lateral view                                           its DICOM tag
unlike          far outside what films share, and none of the above      features
from bpals.metrics import auroc
text            text burnt into it, beside the usual markers             its DICOM tag, OCR
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.images.defects import Detection, Features, Line, Sample, Scale, blocks, crossfitted, detect, fit, gathered
from bpals.images.ocr import Lettered
from bpals.metrics import auroc
from bpals.types import FILM_CHECKS

SAME = 0.997
"""Correlation from which two films are one exposure. Re-encoded copies have .9998, two films of a patient .993."""
DUPLICATE_DIRECTIONS = 48
DUPLICATE_SAMPLE = 4000
"""Films from which the directions are learnt."""
AT_ONCE = 1 << 24
"""Pairs that are compared at a time."""
IN_FULL = 1 << 14
"""Pairs that are compared in full at a time."""
SLACK = 1e-4
"""What rounding may do to a squared distance."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """For each film the one that is most like it, where they are one exposure."""

    other: Ints
    """Its place; -1 where there is none."""
    correlation: Floats


def find_twins(thumbnails: npt.NDArray[np.uint8], usable: npt.NDArray[np.bool_]) -> Twins:
    """Find near-duplicates among the usable films; a film without contrast has none."""
    other, correlation = np.full(len(thumbnails), -1, dtype=np.int64), np.zeros(len(thumbnails), dtype=np.float32)
    places = np.flatnonzero(usable & (np.ptp(thumbnails, axis=(1, 2)) > 0))
    if len(places) < 2:
        return Twins(other=other, correlation=correlation)
    unit = thumbnails[places].reshape(len(places), -1).astype(np.float32)
    unit -= unit.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for one, two in _near(unit):
        alike = np.einsum("ij,ij->i", unit[one], unit[two])
        for first, second in ((one, two), (two, one)):
            for place in np.flatnonzero(alike >= SAME):
                its = places[first[place]]
                if alike[place] > correlation[its]:
                    other[its], correlation[its] = places[second[place]], alike[place]
    return Twins(other=other, correlation=correlation)


def _near(unit: Floats) -> Iterator[tuple[Ints, Ints]]:
    """Give the pairs whose shadows are near enough, a few at a time, each pair once."""
    learnt = unit[:: max(1, len(unit) // DUPLICATE_SAMPLE)]
    learnt = learnt - learnt.mean(axis=0)
    _, directions = np.linalg.eigh(learnt.T @ learnt)  # the most telling last
    shadow = unit @ directions[:, : -DUPLICATE_DIRECTIONS - 1 : -1]
    order = np.argsort(shadow[:, 0], kind="stable")
    shadow, first = shadow[order], np.sort(shadow[:, 0], kind="stable")
    squares = (shadow**2).sum(axis=1)
    reach = 2 * (1 - SAME) + SLACK
    start = 0
    while start < len(order):
        end = int(np.searchsorted(first, first[start] + np.sqrt(reach), side="right"))
        stop = min(end, start + max(1, AT_ONCE // max(end - start, 1)))
        end = int(np.searchsorted(first, first[stop - 1] + np.sqrt(reach), side="right"))
        apart = squares[start:stop, None] + squares[None, start:end] - 2 * shadow[start:stop] @ shadow[start:end].T
        one, two = np.nonzero(np.triu(apart <= reach, k=1))
        for piece in range(0, len(one), IN_FULL):
            here = slice(piece, piece + IN_FULL)
            yield order[start + one[here]], order[start + two[here]]
        start = stop


AP, PA = "AP", "PA"
PENALTY = 1.0
VIEW_SAMPLE = 3000
"""Films from which the views, and what is usual, are learnt, at most."""
FEWEST = 30
"""Films of each view below which nothing is learnt of it."""
VIEW_DIRECTIONS = 64
UNLIKE = 1.6
"""How many times further than is usual a film lies outside what films share, to be called unlike the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    """How AP each film looks: 0 is the median of those recorded as PA, 1 of those recorded as AP."""

    score: Floats
    auroc: float
    """Of the score against the recorded view, over films of other patients than those it was learnt from."""
    recorded: int
    """Films that have one of the two views on record."""

    @property
    def seen(self) -> npt.NDArray[np.str_]:
        """Name the view that each film looks like."""
        return np.where(self.score > 0.5, AP, PA)

    def against(self, recorded: npt.NDArray[np.str_]) -> npt.NDArray[np.bool_]:
        """Find films that look more like the other view than half of its own films do."""
        return np.asarray(((recorded == PA) & (self.score >= 1)) | ((recorded == AP) & (self.score <= 0)))


def view_films(features: Features, recorded: npt.NDArray[np.str_], fold: Ints) -> Viewed | None:
    """Say which view each film looks like, by films of other patients; None where a view has too few films."""
    sides = [np.flatnonzero(recorded == view) for view in (PA, AP)]
    if min(len(side) for side in sides) < FEWEST:
        return None
    places = np.sort(np.concatenate([_spread(side, VIEW_SAMPLE // 2) for side in sides]))
    films, target = gathered(features, places, len(fold)), (recorded[places] == AP).astype(np.float32)[:, None]

    def fitted(number: int) -> Line:
        others = fold[places] != number
        return fit(films[others], target[others], PENALTY)

    said = crossfitted(features, fold, fitted)[:, 0]
    low, high = (float(np.median(said[side])) for side in sides)
    if not low < high:
        return None
    return Viewed(
        score=(said - low) / (high - low),
        auroc=auroc(said[sides[1]], said[sides[0]]),
        recorded=len(sides[0]) + len(sides[1]),
    )


def measure_unlike(features: Features, usable: npt.NDArray[np.bool_], fold: Ints) -> Floats | None:
    """Measure how far each film lies outside the 64 directions in which films of others differ most; 1 is usual."""
    outside = np.zeros(len(usable), dtype=np.float32)
    for half in (0, 1):
        # An odd film would be a direction of its own among those that it helped to learn.
        places = _spread(np.flatnonzero(usable & (fold % 2 != half)), VIEW_SAMPLE)
        if len(places) <= 2 * VIEW_DIRECTIONS:
            return None
        films = gathered(features, places, len(usable))
        scale = Scale.of(films)
        scaled = scale.apply(films)
        _, directions = np.linalg.eigh(scaled.T @ scaled)  # the most telling last
        its = fold % 2 == half
        outside[its] = _outside(features, scale, directions[:, -VIEW_DIRECTIONS:], len(usable))[its]
        outside[its] /= max(float(np.median(outside[its & usable])), 1e-12) if (its & usable).any() else 1
    return outside


def _outside(features: Features, scale: Scale, shared: Floats, count: int) -> Floats:
    """Give the length of what the shared directions leave of each film."""
    left = []
    for _, films in blocks(features, count):
        scaled = scale.apply(films)
        left.append(np.maximum((scaled**2).sum(axis=1) - ((scaled @ shared) ** 2).sum(axis=1), 0))
    return np.asarray(np.sqrt(np.concatenate(left)), dtype=np.float32)


def _spread(places: Ints, most: int) -> Ints:
    """Take at most so many of the places, evenly."""
    return places if len(places) <= most else places[np.linspace(0, len(places) - 1, most).astype(np.int64)]


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
