"""The checks of images: what is odd about each, from the features of all of them. Arrays in, one row per image out.

blank           nearly one grey                                          pixels at 32 x 32
inverted        white where images are black                             lines on features, see `defects.py`
turned          lies on its side or stands on its head                   the same
cropped         cut out of the middle of a larger image                  the same
near_duplicate  one exposure with another image                          thumbnails
view            its pixels, or its markers, contradict the recorded view lines on features, OCR
lateral         a lateral view                                           its DICOM tag
unlike          far outside what images share, and none of the above     features
text            text burnt into it, beside the usual markers             its DICOM tag, OCR
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.images.defects import Detection, Features, Line, Sample, Scale, blocks, crossfitted, detect, fit, gathered
from bpals.images.ocr import Lettered
from bpals.images.stream import Bools, Floats, Grey, Ints
from bpals.metrics import auroc
from bpals.types import FILM_CHECKS

Words = npt.NDArray[np.str_]

CHECKS = ("blank", "inverted", "turned", "cropped", "near_duplicate", "view", "lateral", "unlike", "text")
GREYS = 9  # neighbouring greys that count as one
ONE_GREY = 0.98  # the share of an image in one grey from which it is blank; a child on a large dark plate has .62

# Correlation from which two images are one exposure. Re-encoded copies have .9998, two images of a patient .993.
SAME = 0.997
DUPLICATE_DIRECTIONS = 48
DUPLICATE_SAMPLE = 4000  # images from which the directions are learnt
AT_ONCE = 1 << 24  # pairs whose projections are compared at a time
IN_FULL = 1 << 14  # pairs that are compared in full at a time
SLACK = 1e-4  # what rounding may do to a squared distance

AP, PA = "AP", "PA"
PENALTY = 1.0
VIEW_SAMPLE = 3000  # images from which the views, and what is usual, are learnt, at most
FEWEST = 30  # images of each view below which nothing is learnt of it
VIEW_DIRECTIONS = 64
UNLIKE = 1.6  # how many times further than is usual an image lies outside what images share, to be called unlike


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """All images that could be looked at, in the order of their features."""

    table: pl.DataFrame  # one row per image: image_id, sha256, width_px, height_px, notes, patient, view
    thumbnails: Grey  # [image, 32, 32]
    features: Features
    fold: Ints  # the same for all images of a patient
    blank: Bools
    one_grey: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The results of the checks."""

    films: pl.DataFrame  # FILM_CHECKS, the images that were seen
    detection: Detection | None  # None where too few images were seen to learn from
    viewed: Viewed | None
    silent: tuple[str, ...] = ()  # checks that find too few of the copies of these images to be used


def check(seen: Gallery, sample: Sample | None, lettered: Mapping[str, Lettered] | None) -> Checked:
    """Check every image; without a sample nothing is fitted, and without OCR only DICOM tags tell of text."""
    usable = ~seen.blank
    views = seen.table["view"].fill_null("").to_numpy().astype(np.str_)
    detection = viewed = unlike = None
    if sample is not None:
        detection = detect(seen.features, seen.fold, sample)
        viewed = view_films(seen.features, np.where(usable, views, ""), seen.fold)
        unlike = measure_unlike(seen.features, usable, seen.fold)
    silent = () if detection is None else tuple(name for name, its in detection.checks.items() if not its.works)
    words = [None if lettered is None else lettered.get(image_id) for image_id in seen.table["image_id"]]
    table = seen.table.select("image_id", "sha256", "width_px", "height_px").with_columns(
        pl.lit(None, dtype=pl.String).alias("refused"),
        pl.Series("blank", seen.blank),
        pl.Series("one_grey", seen.one_grey),
        *_detected(detection, silent, usable),
        *_twins(find_twins(seen.thumbnails, usable), seen.table),
        pl.when(pl.Series(views).is_in([AP, PA])).then(pl.Series(views)).alias("view"),
        _numbers("view_score", None if viewed is None else viewed.score),
        _numbers("unlike", unlike),
        *_tagged(seen.table["notes"], words),
    )
    fired = pl.concat_list(pl.when(rule).then(pl.lit(name)) for name, rule in _rules(viewed, views).items())
    films = table.with_columns(checks=fired.list.drop_nulls()).select(FILM_CHECKS.names()).cast(FILM_CHECKS)
    return Checked(films=films, detection=detection, viewed=viewed, silent=silent)


def _rules(viewed: Viewed | None, views: Words) -> dict[str, pl.Expr]:
    """Say when each check fires; what pixels of an upright whole image tell is not asked of another."""
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
    """Lay out the results of the fitted checks; null where there are none."""
    columns = []
    for name in ("inverted", "turned", "cropped"):
        if detection is None or name in silent:
            kind = pl.Int64 if name == "turned" else pl.Boolean
            columns += [pl.lit(None, dtype=kind).alias(name), pl.lit(None, dtype=pl.Float64).alias(f"{name}_score")]
            continue
        score = detection.checks[name].score
        fires = np.where(score > 0, detection.degrees, 0) if name == "turned" else score > 0
        columns += [
            pl.when(pl.Series(usable)).then(pl.Series(values)).alias(column)
            for values, column in ((fires, name), (score, f"{name}_score"))
        ]
    return columns


def _numbers(name: str, values: Floats | None) -> pl.Expr:
    # Values keep their 32 bits until every rule was applied: in 64 a score at a limit may fall on the other side.
    return (pl.lit(None, dtype=pl.Float64) if values is None else pl.lit(pl.Series(values))).alias(name)


def _twins(twins: Twins, table: pl.DataFrame) -> list[pl.Series]:
    has = pl.Series(twins.other >= 0)
    there = pl.Series(twins.other).set(~has, None).cast(pl.UInt32)
    patient = table["patient"]
    return [
        table["image_id"].gather(there).alias("near_duplicate_of"),
        pl.Series(twins.correlation).set(~has, None).alias("near_duplicate_r"),
        (patient.gather(there) == patient).alias("same_patient"),
    ]


def _tagged(notes: pl.Series, words: Sequence[Lettered | None]) -> list[pl.Series]:
    """Lay out what tags and words on the image say; what neither tells of is null, not absent."""
    text = [
        True if "burned_in" in its else None if word is None else word.text
        for its, word in zip(notes, words, strict=True)
    ]
    markers = [None if word is None else list(word.markers) for word in words]
    return [
        pl.Series("lateral", ["lateral" in its or None for its in notes], dtype=pl.Boolean),
        pl.Series("text", text, dtype=pl.Boolean),
        pl.Series("markers", markers, dtype=pl.List(pl.String)),
        pl.Series("view_marked", [None if word is None else word.view for word in words], dtype=pl.String),
    ]


def refused_films(films: pl.DataFrame) -> pl.DataFrame:
    """Write a row for each image that could not be looked at: one of a single grey is blank, the others unknown."""
    blank = pl.col("code") == "blank"
    rows = films.select("image_id", refused="code", blank=blank, checks=pl.when(blank).then(pl.lit(["blank"])))
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in FILM_CHECKS.items() if name not in rows.columns]
    return rows.with_columns(missing).select(FILM_CHECKS.names()).cast(FILM_CHECKS)


def one_grey(thumbnails: Grey) -> Floats:
    """Give the largest share of each image that lies within a few neighbouring greys."""
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.int64)
    counts = np.zeros((len(flat), 256), dtype=np.int64)
    for start in range(0, len(flat), 4096):
        part = flat[start : start + 4096]
        places = part + 256 * np.arange(len(part))[:, None]
        counts[start : start + 4096] = np.bincount(places.ravel(), minlength=256 * len(part)).reshape(-1, 256)
    upto = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0)))
    return np.asarray((upto[:, GREYS:] - upto[:, :-GREYS]).max(axis=1, initial=0) / max(flat.shape[1], 1), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """For each image the one that is most like it, where they are one exposure."""

    other: Ints  # its place; -1 where there is none
    correlation: Floats


def find_twins(thumbnails: Grey, usable: Bools) -> Twins:
    """Find near-duplicates among the usable images; an image without contrast has none."""
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
    """Give the pairs whose projections are near enough, a few at a time, each pair once."""
    learnt = unit[:: max(1, len(unit) // DUPLICATE_SAMPLE)]
    learnt = learnt - learnt.mean(axis=0)
    _, directions = np.linalg.eigh(learnt.T @ learnt)  # the most telling last
    projected = unit @ directions[:, : -DUPLICATE_DIRECTIONS - 1 : -1]
    order = np.argsort(projected[:, 0], kind="stable")
    projected, first = projected[order], np.sort(projected[:, 0], kind="stable")
    squares = (projected**2).sum(axis=1)
    # A projection brings two images nearer, never further apart: no pair within reach is missed.
    reach = 2 * (1 - SAME) + SLACK
    start = 0
    while start < len(order):
        end = int(np.searchsorted(first, first[start] + np.sqrt(reach), side="right"))
        stop = min(end, start + max(1, AT_ONCE // max(end - start, 1)))
        end = int(np.searchsorted(first, first[stop - 1] + np.sqrt(reach), side="right"))
        products = projected[start:stop] @ projected[start:end].T
        apart = squares[start:stop, None] + squares[None, start:end] - 2 * products
        one, two = np.nonzero(np.triu(apart <= reach, k=1))
        for piece in range(0, len(one), IN_FULL):
            here = slice(piece, piece + IN_FULL)
            yield order[start + one[here]], order[start + two[here]]
        start = stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    """How AP each image looks: 0 is the median of those recorded as PA, 1 of those recorded as AP."""

    score: Floats
    auroc: float  # of the score against the recorded view, over images of other patients than those learnt from
    recorded: int  # images that have one of the two views on record

    def against(self, recorded: Words) -> Bools:
        """Find images that look more like the other view than half of its own images do."""
        return np.asarray(((recorded == PA) & (self.score >= 1)) | ((recorded == AP) & (self.score <= 0)))


def view_films(features: Features, recorded: Words, fold: Ints) -> Viewed | None:
    """Say which view each image looks like, by images of other patients; None where a view has too few images."""
    sides = [np.flatnonzero(recorded == view) for view in (PA, AP)]
    if min(len(side) for side in sides) < FEWEST:
        return None
    places = np.sort(np.concatenate([_spread(side, VIEW_SAMPLE // 2) for side in sides]))
    films, target = gathered(features, places, len(fold)), (recorded[places] == AP).astype(np.float32)[:, None]

    def fitted(number: int) -> Line:
        others = fold[places] != number
        return fit(films[others], target[others], PENALTY)

    scores = crossfitted(features, fold, fitted)[:, 0]
    low, high = (float(np.median(scores[side])) for side in sides)
    if not low < high:
        return None
    return Viewed(
        score=(scores - low) / (high - low),
        auroc=auroc(scores[sides[1]], scores[sides[0]]),
        recorded=len(sides[0]) + len(sides[1]),
    )


def measure_unlike(features: Features, usable: Bools, fold: Ints) -> Floats | None:
    """Measure how far each image lies outside the 64 directions in which images of others differ most; 1 is usual."""
    outside = np.zeros(len(usable), dtype=np.float32)
    for half in (0, 1):
        # An odd image would be a direction of its own among those that it helped to learn.
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
    """Give the length of what the shared directions leave of each image."""
    left = []
    for _, films in blocks(features, count):
        scaled = scale.apply(films)
        left.append(np.maximum((scaled**2).sum(axis=1) - ((scaled @ shared) ** 2).sum(axis=1), 0))
    return np.asarray(np.sqrt(np.concatenate(left)), dtype=np.float32)


def _spread(places: Ints, most: int) -> Ints:
    """Take at most so many of the places, evenly."""
    return places if len(places) <= most else places[np.linspace(0, len(places) - 1, most).astype(np.int64)]
