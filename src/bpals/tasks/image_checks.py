"""Check the images themselves: blank, inverted, turned, cropped, doubled, of another view, unlike the others.

The checks run after a probe has extracted features, on the same cache. They read no label.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import WorkspaceError
from bpals.images.checks import CHECKS, ONE_GREY, Checked, Gallery, check, one_grey, refused_films
from bpals.images.collection import ImageIndex
from bpals.images.defects import FEWEST, SAMPLE, Copies, Sample, copy_features
from bpals.images.ocr import Lettered, spelt
from bpals.images.stream import THUMBNAIL_PX, FeatureSpec
from bpals.judges.record import fold_of
from bpals.numeric import patients
from bpals.store.features import FeatureCache
from bpals.store.workspace import ImageChecks, Workspace, open_image_checks, summary, write_image_checks
from bpals.text import several
from bpals.types import FILM_CHECKS, Notice

FOLDS = 5
# Counts up when the same images would be checked differently, or the record would say something else.
RULE = 2
LEARNT: Mapping[str, tuple[str, ...]] = {
    "inverted": ("inverted",),
    "turned": ("turned",),
    "cropped": ("cropped",),
    "view": ("view_score", "view_marked"),
    "unlike": ("unlike",),
}
"""Each check that learns from the images, or reads words on them, and the columns with its results."""

ALTERED, WRITTEN = "altered copies", "words on images"
"""The two stages that take long."""

Say = Callable[[str], None]
"""Called with a sentence that a user should read while the run goes on."""
Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its images are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCheckReport:
    """What the checks found."""

    sealed: ImageChecks
    notices: tuple[Notice, ...]

    @property
    def sentence(self) -> str:
        """Count the images by what is odd about them."""
        return summary(self.sealed.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedImages:
    """Images whose features are cached: where they lie, how the features were made, and the cache."""

    images: pl.DataFrame
    """IMAGES."""
    index: ImageIndex
    feature_spec: FeatureSpec
    cache: FeatureCache


def check_images(
    home: Workspace,
    extracted: ExtractedImages,
    *,
    ocr: bool = False,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> ImageCheckReport:
    """Check every image with cached features and write the findings; the same images are not checked twice."""
    rows = _rows(extracted)
    key = _key(extracted, rows, ocr=ocr)
    try:
        there = open_image_checks(home.path)
    except WorkspaceError:  # damaged: written anew below
        there = None
    if there is not None and there.record.get("key") == key:
        return ImageCheckReport(sealed=there, notices=_notices(there.record))
    gallery = gallery_of(extracted)
    sample = sample_of(gallery, extracted, workers=workers, say=say, progress=progress)
    lettered = _read_words(extracted.index, gallery.table, workers, say, progress) if ocr else None
    with threadpool_limits(1):
        checked = check(gallery, sample, lettered)
    table = pl.concat([checked.films, refused_films(rows.filter(pl.col("row").is_null()))])
    table = rows.select("image_id").join(table, on="image_id", how="left", maintain_order="left")
    record = {"key": key, "backbone": extracted.cache.path.name, "rule": RULE, **_record(table, checked, ocr=ocr)}
    sealed = write_image_checks(home.path, table.select(FILM_CHECKS.names()), record)
    return ImageCheckReport(sealed=sealed, notices=_notices(sealed.record))


def _key(extracted: ExtractedImages, rows: pl.DataFrame, *, ocr: bool) -> str:
    """Hash everything that could change what is found."""
    whole = hashlib.sha256(f"{RULE} {extracted.cache.path.name} {ocr} {extracted.feature_spec.side_px}".encode())
    for row in rows.select("image_id", "sha256", "code", "patient", "view").iter_rows():
        whole.update(repr(row).encode())
    return whole.hexdigest()


def _rows(extracted: ExtractedImages) -> pl.DataFrame:
    """List the dataset's images in the cache, with those that could not be read."""
    named = extracted.images.select("image_id", "view", patient=patients(extracted.images))
    return named.join(extracted.cache.films(), on="image_id", how="inner", maintain_order="left")


def gallery_of(extracted: ExtractedImages) -> Gallery:
    """Gather thumbnails and features of every image that could be read."""
    seen = _rows(extracted).filter(pl.col("row").is_not_null())
    pixels = np.frombuffer(b"".join(seen["thumbnail"].to_list()), np.uint8)
    thumbnails = pixels.reshape(-1, THUMBNAIL_PX, THUMBNAIL_PX)
    grey = one_grey(thumbnails)
    return Gallery(
        table=seen,
        thumbnails=thumbnails,
        features=extracted.cache.features(seen["image_id"].to_list()),
        fold=fold_of(seen["patient"].to_numpy().astype(np.str_), FOLDS),
        blank=grey >= ONE_GREY,
        one_grey=grey,
    )


def sample_of(
    gallery: Gallery,
    extracted: ExtractedImages,
    *,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> Sample | None:
    """Extract features of altered copies of a few hundred images, one per patient; None if there are too few."""
    usable = gallery.table.with_columns(
        place=pl.int_range(pl.len()), draw=pl.col("image_id").map_elements(_draw_key, return_dtype=pl.String)
    ).filter(pl.Series(~gallery.blank))
    if usable.height < FEWEST:
        return None
    drawn = usable.sort("draw").unique("patient", keep="first", maintain_order=True).head(SAMPLE)
    if drawn.height < FEWEST:
        return None
    say(f"altering copies of {drawn.height:,} images, to learn what a defect looks like")
    place = {image_id: (at, sha) for image_id, at, sha in drawn.select("image_id", "place", "sha256").iter_rows()}
    copies: dict[int, Copies] = {}
    with copy_features(extracted.index, list(place), extracted.feature_spec, workers=workers) as reading:
        progress(ALTERED, 0, len(place))
        for done, (image_id, made) in enumerate(reading, start=1):
            progress(ALTERED, done, len(place))
            at, sha = place[image_id]
            # A file that changed since is another image than the one in the cache.
            if isinstance(made, Copies) and made.sha256 == sha:
                copies[at] = made
    if len(copies) < FEWEST:
        return None
    places = np.array(sorted(copies), dtype=np.int64)
    return Sample(places=places, copies=np.stack([copies[at].features for at in places.tolist()]))


def _draw_key(image_id: str) -> str:
    # A hash of the id alone: another image in the dataset does not change which ones are drawn.
    return hashlib.sha256(f"film checks {image_id}".encode()).hexdigest()


def _read_words(
    index: ImageIndex, seen: pl.DataFrame, workers: int | None, say: Say, progress: Progress
) -> dict[str, Lettered]:
    """Read what is written on every image."""
    say(f"reading what is written on {several(seen.height, 'image')}")
    words: dict[str, Lettered] = {}
    with spelt(index, seen["image_id"].to_list(), workers=workers) as reading:
        progress(WRITTEN, 0, seen.height)
        for done, (image_id, read) in enumerate(reading, start=1):
            progress(WRITTEN, done, seen.height)
            if isinstance(read, Lettered):
                words[image_id] = read
    return words


def _record(table: pl.DataFrame, checked: Checked, *, ocr: bool) -> dict[str, Any]:
    """Count what was found, and how well the checks tell altered copies from images."""
    fired = Counter(table["checks"].explode().drop_nulls().to_list())
    learnt = {}
    if checked.detection is not None:
        learnt = {
            name: {"found": tested.found, "copies": tested.copies, "alarms": tested.alarms, "films": tested.films}
            for name, tested in checked.detection.checks.items()
        }
    viewed = checked.viewed
    pairs = _pairs(table)
    return {
        "films": table.height,
        "checked": table["checks"].count(),
        "refused": table["refused"].count(),
        "fired": {name: fired[name] for name in CHECKS},
        "near_duplicate_pairs": len(pairs),
        "pairs_of_two_patients": len(pairs) - int(pairs.sum()),
        "learnt": learnt,
        "silent": list(checked.silent),
        "not_looked_for": _not_looked_for(table),
        "view": None if viewed is None else {"auroc": round(viewed.auroc, 4), "films": viewed.recorded},
        "ocr": ocr,
    }


def _pairs(table: pl.DataFrame) -> pl.Series:
    """Return, once per pair of near duplicates, whether both are of one patient."""
    both = pl.col("image_id", "near_duplicate_of")
    pairs = table.filter(pl.col("near_duplicate_of").is_not_null()).select(
        pl.min_horizontal(both).alias("one"), pl.max_horizontal(both).alias("two"), "same_patient"
    )
    return pairs.unique(["one", "two"])["same_patient"]


def _not_looked_for(table: pl.DataFrame) -> list[str]:
    """Name the learnt checks that have no result for any of these images."""
    return [name for name, columns in LEARNT.items() if not any(table[column].count() for column in columns)]


def _notices(record: Mapping[str, Any]) -> tuple[Notice, ...]:
    notices = []
    if not record["learnt"]:
        words = (
            f"fewer than {FEWEST} patients have readable images: too few to check whether one is inverted, turned or "
            "cropped, shows another view than recorded, or is unlike the others"
        )
        notices.append(Notice(code="few_films_to_check", count=record["films"], message=words))
    for name in record["silent"]:
        tested = record["learnt"][name]
        words = (
            f"the check {name} finds {tested['found']:,} of {tested['copies']:,} copies of these images: it is not used"
        )
        notices.append(Notice(code="check_not_heard", count=tested["copies"], message=words))
    return tuple(notices)
