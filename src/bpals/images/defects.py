"""Detecting inverted, turned and cropped images: by lines fitted on altered copies of the user's own images.

An image is judged by lines that never saw its patient. Some of the images that the copies are made of are wrong
themselves: those that look more like a copy than like an image are left out, and the lines fitted again. The cut of a
check lies half way between the most copy-like per cent of the images and the least copy-like per cent of the copies;
where these overlap, it lies where one image in a hundred is flagged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.images.collection import ImageIndex
from bpals.images.picture import Picture
from bpals.images.prepare import decode_then
from bpals.images.stream import Bools, Extractor, FeatureSpec, Floats, Ints, Passage, square
from bpals.images.worker import called
from bpals.types import Refusal

KEPT = 0.6  # the part of each side that is left of a cropped copy
FLOOR = 1e-3  # a feature that varies less than this share of the most varying one is scaled no further up
BLOCK = 4096  # images whose features are in memory at a time
PENALTY = 0.01
FEWEST = 100  # images below which nothing is fitted
SAMPLE = 300  # images of which altered copies are made
TAIL = 0.01
MOST_ODD = 0.1  # the share of images left out as wrong themselves; where more look so, the look means nothing
WORKS = 0.8  # a check that finds a smaller share of the copies is not used

TURNS = ("turned_90", "turned_180", "turned_270")
CHECKS: Mapping[str, tuple[str, ...]] = {"inverted": ("inverted",), "turned": TURNS, "cropped": ("cropped",)}
"""Each check, and the copies that it must find."""
TARGETS = ("inverted", *TURNS, "cropped")
"""What lines are fitted for; the last line, after these, is for images that are upright."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The images of which altered copies were made."""

    places: Ints  # their row numbers among all images
    copies: Floats  # [image, copy, feature], copies in the order of COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The result of one check, and how well it told copies from images of other patients."""

    score: Floats  # one per image; above 0 the check fires
    found: int  # copies on which it fires ...
    copies: int  # ... of so many
    alarms: int  # images of the sample on which it fires; they may be wrong images ...
    films: int  # ... of so many

    @property
    def works(self) -> bool:
        """Whether it finds enough of the copies to be used."""
        return self.found >= WORKS * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The results of the three checks."""

    checks: Mapping[str, Detected]
    degrees: Ints  # by how much each image would be turned, if it were: 90, 180 or 270
    left_out: int  # images of the sample that looked like copies themselves


def detect(features: Features, fold: Ints, sample: Sample) -> Detection:
    """Check every image; `fold` is the same for all images of a patient."""
    own = gathered(features, sample.places, len(fold))
    originals_and_copies = np.concatenate([own[:, None], sample.copies], axis=1)
    fold_of = fold[sample.places]
    sound = ~_odd(_sample_scores(originals_and_copies, fold_of, np.ones(len(own), dtype=bool)))
    if sound.mean() < 1 - MOST_ODD:
        sound[:] = True
    sampled = _sample_scores(originals_and_copies, fold_of, sound)
    lines = _lines(originals_and_copies, fold_of, sound, np.unique(fold))
    scores = crossfitted(features, fold, lines.__getitem__)
    every, checks = _check_scores(scores), {}
    for check, copies in CHECKS.items():
        films, altered = sampled[check][:, 0], sampled[check][:, _places(copies)]
        cut = _cut(films[sound], altered[sound].ravel())
        checks[check] = Detected(
            score=every[check] - cut,
            found=int((altered[sound] > cut).sum()),
            copies=int(altered[sound].size),
            alarms=int((films > cut).sum()),
            films=len(films),
        )
    degrees = 90 * (1 + scores[:, 1:4].argmax(axis=1))
    return Detection(checks=checks, degrees=degrees.astype(np.int64), left_out=int((~sound).sum()))


def _sample_scores(features: Floats, fold: Ints, sound: Bools) -> dict[str, Floats]:
    """Score the sample's images and copies, each by the line that did not see its patient."""
    scores = np.zeros((*features.shape[:2], len(TARGETS) + 1), dtype=np.float32)
    for number, line in _lines(features, fold, sound, np.unique(fold)).items():
        scores[fold == number] = line.score(features[fold == number])
    return _check_scores(scores)


def _lines(features: Floats, fold: Ints, sound: Bools, folds: Ints) -> dict[int, Line]:
    """Fit a line for each fold on the sound images of the others."""
    wanted = [[kind == target for target in TARGETS] for kind in ("", *COPIES)]
    targets = np.array([[*each, not any(each[1:4])] for each in wanted], dtype=np.float32) * 2 - 1
    made = {}
    for number in folds:
        others = features[sound & (fold != number)]
        made[int(number)] = fit(others.reshape(-1, features.shape[2]), np.tile(targets, (len(others), 1)), PENALTY)
    return made


def _check_scores(scores: Floats) -> dict[str, Floats]:
    """Make one number per check of what the lines give."""
    turned = scores[..., 1:4].max(axis=-1) - scores[..., 5]
    return {"inverted": scores[..., 0], "turned": turned, "cropped": scores[..., 4]}


def _odd(sampled: Mapping[str, Floats]) -> Bools:
    """Find the images that are nearer to the middle of the copies than to the middle of the images."""
    odd = [
        sampled[check][:, 0] > (np.median(sampled[check][:, 0]) + np.median(sampled[check][:, _places(copies)])) / 2
        for check, copies in CHECKS.items()
    ]
    return np.asarray(np.any(odd, axis=0))


def _places(copies: tuple[str, ...]) -> list[int]:
    """Find copies among an image and its copies."""
    return [1 + list(COPIES).index(copy) for copy in copies]


def _cut(films: Floats, copies: Floats) -> float:
    most, least = float(np.quantile(films, 1 - TAIL)), float(np.quantile(copies, TAIL))
    return (most + least) / 2 if most < least else most


class Features(Protocol):
    """The features of images, a piece at a time."""

    @property
    def width(self) -> int:
        """How many numbers an image has."""

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the features of images `start` to `stop`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How features are centred and scaled."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, films: Floats) -> Self:
        """Measure it on images; so that a row of scaled features has about the length 1."""
        deviation = films.std(axis=0)
        deviation = np.maximum(deviation, max(FLOOR * float(deviation.max(initial=0.0)), 1e-12))
        return cls(mean=films.mean(axis=0), deviation=deviation * np.sqrt(np.float32(films.shape[1])))

    def apply(self, films: Floats) -> Floats:
        """Centre and scale images."""
        return np.asarray((films - self.mean) / self.deviation, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was fitted: an image in, a number for each target out."""

    scale: Scale
    slope: Floats
    level: Floats

    def score(self, films: Floats) -> Floats:
        """Return each image's numbers."""
        return np.asarray(self.scale.apply(films) @ self.slope + self.level, dtype=np.float32)


def fit(films: Floats, targets: Floats, penalty: float) -> Line:
    """Fit the targets, a column each."""
    scale = Scale.of(films)
    scaled, level = scale.apply(films), targets.mean(axis=0)
    # There are fewer images than features, so that the dual form, one unknown per image, is the smaller one.
    alike = scaled @ scaled.T + np.float32(penalty) * np.eye(len(scaled), dtype=np.float32)
    return Line(scale=scale, slope=scaled.T @ np.linalg.solve(alike, targets - level), level=level)


def crossfitted(features: Features, fold: Ints, fitted: Callable[[int], Line]) -> Floats:
    """Score every image by the line of its fold, which was fitted without the images of the fold."""
    lines = {int(number): fitted(int(number)) for number in np.unique(fold)}
    targets = next(iter(lines.values())).level.shape[0] if lines else 0
    scores = np.zeros((len(fold), targets), dtype=np.float32)
    for here, films in blocks(features, len(fold)):
        for number, line in lines.items():
            inside = fold[here] == number
            scores[here][inside] = line.score(films[inside])
    return scores


def blocks(features: Features, count: int) -> Iterator[tuple[slice, Floats]]:
    """Read all features, a block of images at a time."""
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        yield slice(start, stop), np.asarray(features.rows(start, stop), dtype=np.float32)


def gathered(features: Features, places: Ints, count: int) -> Floats:
    """Read the features of a few images, in the order of their places."""
    found = np.empty((len(places), features.width), dtype=np.float32)
    for here, films in blocks(features, count):
        inside = np.flatnonzero((places >= here.start) & (places < here.stop))
        found[inside] = films[places[inside] - here.start]
    return found


def copy_features(
    index: ImageIndex, image_ids: Iterable[str], feature_spec: FeatureSpec, *, workers: int | None = None
) -> Passage[Copies, Copies]:
    """Extract features of the altered copies of images; 0 workers extract in this process."""
    return Passage(index, image_ids, Altering(**asdict(feature_spec)), workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The features of the altered copies of one image."""

    sha256: str
    notes: tuple[str, ...]
    features: Floats  # one row per copy, in the order of COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Altering:
    """How features of altered copies are extracted: as those of the images are, see `stream.FeatureSpec`."""

    side_px: int
    extractor: str
    given: Mapping[str, Any]

    def begin(self) -> Callable[[bytes], Copies | Refusal]:
        """Make the extractor, and return the function that extracts features of the copies of one image."""
        extractor: Extractor = called(self.extractor)(**self.given)

        def extract(picture: Picture, sha256: str) -> Copies:
            rows = [extractor(square(alter(picture.image), self.side_px)) for alter in COPIES.values()]
            return Copies(sha256=sha256, notes=picture.notes, features=np.stack(rows).astype(np.float32))

        return partial(decode_then, extract)

    def pack(self, made: Copies) -> tuple[dict[str, Any], bytes]:
        """Serialise the features, to send them from a worker."""
        return {"sha256": made.sha256, "notes": made.notes}, made.features.tobytes()

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Copies:
        """Deserialise what `pack` wrote."""
        features = np.frombuffer(body, np.float32).reshape(len(COPIES), -1)
        return Copies(sha256=str(about["sha256"]), notes=tuple(about["notes"]), features=features)


def _cropped(image: Image.Image) -> Image.Image:
    """Cut out the middle."""
    width, height = image.size
    across, down = round(width * (1 - KEPT) / 2), round(height * (1 - KEPT) / 2)
    return image.crop((across, down, width - across, height - down))


def _shrunk(image: Image.Image) -> Image.Image:
    """Keep all of the image in as many pixels as a cropped copy has: few pixels alone are no sign of a crop."""
    width, height = (max(1, round(side * KEPT)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


COPIES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "inverted": lambda image: image.point([255 - grey for grey in range(256)]),
    "turned_90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned_180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "turned_270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
    "cropped": _cropped,
    "shrunk": _shrunk,
}
"""What is made of an image, in this order. Degrees are anticlockwise."""
