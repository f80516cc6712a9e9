"""Checking the films of a workspace, from the pass in which a backbone looked at them; sealed as `films.parquet`.

Only what the record says of a film itself is taken from the dataset, its patient and its view: no claim is read here.
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

from bpals.chronology import patients
from bpals.errors import WorkspaceError
from bpals.featurecache import FeatureCache
from bpals.films.altering import Copies, looked_at_copies
from bpals.films.checks import CHECKS, ONE_GREY, Checked, Gallery, check, one_grey, refused_films
from bpals.films.detecting import FEWEST, SAMPLE, Sample
from bpals.films.lettering import Lettered, spelt
from bpals.films.looking import THUMBNAIL_PX, Look
from bpals.films.shelf import Shelf
from bpals.judges.timeline import fold_of
from bpals.plural import several
from bpals.sealedfilms import SealedFilms, open_films, seal_films, summary
from bpals.types import FILM_CHECKS, Notice
from bpals.workspace import Workspace

FOLDS = 5
RULE = 2
"""Counts up when the same films would be checked otherwise, or the record would say otherwise."""
LEARNT: Mapping[str, tuple[str, ...]] = {
    "inverted": ("inverted",),
    "turned": ("turned",),
    "cropped": ("cropped",),
    "view": ("view_score", "view_marked"),
    "unlike": ("unlike",),
}
"""Each check that learns from the films, or reads words on them, and where it says anything."""

ALTERED, WRITTEN = "altered copies", "words on films"
"""The two stages that take long."""

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]
"""Told a stage, how many of its films are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReport:
    """What was found out about the films."""

    sealed: SealedFilms
    notices: tuple[Notice, ...]

    @property
    def sentence(self) -> str:
        """Count the films by what is odd about them."""
        return summary(self.sealed.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Films that a backbone looked at: where they lie, how they were looked at, and what was seen."""

    images: pl.DataFrame
    """IMAGES."""
    shelf: Shelf
    look: Look
    cache: FeatureCache


def check_films(
    home: Workspace,
    looked: Looked,
    *,
    ocr: bool = False,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> FilmReport:
    """Check every film that was looked at, and seal what was found; nothing is done twice for the same films."""
    films = _films(looked)
    key = _key(looked, films, ocr=ocr)
    try:
        there = open_films(home.path)
    except WorkspaceError:  # sealed anew below
        there = None
    if there is not None and there.record.get("key") == key:
        return FilmReport(sealed=there, notices=_notices(there.record))
    gallery = gallery_of(looked)
    sample = sample_of(gallery, looked, workers=workers, say=say, progress=progress)
    lettered = _spelt(looked.shelf, gallery.table, workers, say, progress) if ocr else None
    with threadpool_limits(1):
        checked = check(gallery, sample, lettered)
    table = pl.concat([checked.films, refused_films(films.filter(pl.col("row").is_null()))])
    table = films.select("image_id").join(table, on="image_id", how="left", maintain_order="left")
    told = {"key": key, "backbone": looked.cache.path.name, "rule": RULE, **_told(table, checked, ocr=ocr)}
    sealed = seal_films(home.path, table.select(FILM_CHECKS.names()), told)
    return FilmReport(sealed=sealed, notices=_notices(sealed.record))


def _key(looked: Looked, films: pl.DataFrame, *, ocr: bool) -> str:
    """Hash everything that could change what is found."""
    whole = hashlib.sha256(f"{RULE} {looked.cache.path.name} {ocr} {looked.look.side_px}".encode())
    for row in films.select("image_id", "sha256", "code", "patient", "view").iter_rows():
        whole.update(repr(row).encode())
    return whole.hexdigest()


def _films(looked: Looked) -> pl.DataFrame:
    """List the films of the dataset that were looked at, those that could not be seen among them."""
    named = looked.images.select("image_id", "view", patient=patients(looked.images))
    return named.join(looked.cache.films(), on="image_id", how="inner", maintain_order="left")


def gallery_of(looked: Looked) -> Gallery:
    """Gather what was seen of every film."""
    seen = _films(looked).filter(pl.col("row").is_not_null())
    pixels = np.frombuffer(b"".join(seen["thumbnail"].to_list()), np.uint8)
    thumbnails = pixels.reshape(-1, THUMBNAIL_PX, THUMBNAIL_PX)
    grey = one_grey(thumbnails)
    return Gallery(
        table=seen,
        thumbnails=thumbnails,
        features=looked.cache.features(seen["image_id"].to_list()),
        fold=fold_of(seen["patient"].to_numpy().astype(np.str_), FOLDS),
        blank=grey >= ONE_GREY,
        one_grey=grey,
    )


def sample_of(
    gallery: Gallery,
    looked: Looked,
    *,
    workers: int | None = None,
    say: Say = lambda _sentence: None,
    progress: Progress = lambda _stage, _done, _films: None,
) -> Sample | None:
    """Make altered copies of a few hundred films, one of a patient, drawn by a hash of their ids; None of too few."""
    usable = gallery.table.with_columns(
        place=pl.int_range(pl.len()), draw=pl.col("image_id").map_elements(_lot, return_dtype=pl.String)
    ).filter(pl.Series(~gallery.blank))
    if usable.height < FEWEST:
        return None
    drawn = usable.sort("draw").unique("patient", keep="first", maintain_order=True).head(SAMPLE)
    if drawn.height < FEWEST:
        return None
    say(f"altered copies of {drawn.height:,} films are looked at, to learn what wrong ones look like")
    place = {image_id: (at, sha) for image_id, at, sha in drawn.select("image_id", "place", "sha256").iter_rows()}
    copies: dict[int, Copies] = {}
    with looked_at_copies(looked.shelf, list(place), looked.look, workers=workers) as reading:
        progress(ALTERED, 0, len(place))
        for done, (image_id, made) in enumerate(reading, start=1):
            progress(ALTERED, done, len(place))
            at, sha = place[image_id]
            # A file that was changed since is another film than the one that was seen.
            if isinstance(made, Copies) and made.sha256 == sha:
                copies[at] = made
    if len(copies) < FEWEST:
        return None
    places = np.array(sorted(copies), dtype=np.int64)
    return Sample(places=places, copies=np.stack([copies[at].features for at in places.tolist()]))


def _lot(image_id: str) -> str:
    return hashlib.sha256(f"film checks {image_id}".encode()).hexdigest()


def _spelt(shelf: Shelf, seen: pl.DataFrame, workers: int | None, say: Say, progress: Progress) -> dict[str, Lettered]:
    """Read what is written on every film."""
    say(f"reading what is written on {several(seen.height, 'film')}")
    words: dict[str, Lettered] = {}
    with spelt(shelf, seen["image_id"].to_list(), workers=workers) as reading:
        progress(WRITTEN, 0, seen.height)
        for done, (image_id, read) in enumerate(reading, start=1):
            progress(WRITTEN, done, seen.height)
            if isinstance(read, Lettered):
                words[image_id] = read
    return words


def _told(table: pl.DataFrame, checked: Checked, *, ocr: bool) -> dict[str, Any]:
    """Write down what was found, and how well the checks told altered copies from films."""
    fired = Counter(table["checks"].explode().drop_nulls().to_list())
    learnt = {}
    if checked.detection is not None:
        learnt = {
            name: {"found": said.found, "copies": said.copies, "alarms": said.alarms, "films": said.films}
            for name, said in checked.detection.checks.items()
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
    """Give each pair of a film and the one that is most like it once: whether both are of one patient."""
    both = pl.col("image_id", "near_duplicate_of")
    pairs = table.filter(pl.col("near_duplicate_of").is_not_null()).select(
        pl.min_horizontal(both).alias("one"), pl.max_horizontal(both).alias("two"), "same_patient"
    )
    return pairs.unique(["one", "two"])["same_patient"]


def _not_looked_for(table: pl.DataFrame) -> list[str]:
    """Name the checks that must be learnt, and say nothing of any of these films."""
    return [name for name, columns in LEARNT.items() if not any(table[column].count() for column in columns)]


def _notices(record: Mapping[str, Any]) -> tuple[Notice, ...]:
    notices = []
    if not record["learnt"]:
        words = (
            f"fewer than {FEWEST} patients' films were seen: whether one is inverted, turned or cropped, shows another "
            "view than is recorded, or is unlike the others is not said"
        )
        notices.append(Notice(code="few_films_to_check", count=record["films"], message=words))
    for name in record["silent"]:
        its = record["learnt"][name]
        words = f"the check {name} finds {its['found']:,} of {its['copies']:,} copies of these films: it is not heard"
        notices.append(Notice(code="check_not_heard", count=its["copies"], message=words))
    return tuple(notices)
