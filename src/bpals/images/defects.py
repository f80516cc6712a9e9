"""Detecting inverted, turned and cropped films: by lines fitted on altered copies of the user's own films.

A film is judged by lines that never saw its patient. Some of the films that the copies are made of are wrong
themselves: those that look more like a copy than like a film are left out, and the lines fitted again. The cut of a
check lies half way between the most copy-like per cent of the films and the least copy-like per cent of the copies;
where these overlap, it lies where one film in a hundred is flagged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.images.collection import Shelf
from bpals.images.formats import Refused
from bpals.images.prepare import decode
from bpals.images.stream import Eye, Look, Passage, square
from bpals.images.worker import called
from bpals.types import Refusal

Floats = npt.NDArray[np.float32]

KEPT = 0.6
"""The part of each side that is left of a cropped copy."""


def inverted(image: Image.Image) -> Image.Image:
    """Make black white."""
    return image.point([255 - grey for grey in range(256)])


def cropped(image: Image.Image) -> Image.Image:
    """Cut out the middle."""
    width, height = image.size
    across, down = round(width * (1 - KEPT) / 2), round(height * (1 - KEPT) / 2)
    return image.crop((across, down, width - across, height - down))


def shrunk(image: Image.Image) -> Image.Image:
    """Keep all of the film in as many pixels as a cropped copy has: few pixels alone are no sign of a crop."""
    sides = [max(1, round(side * KEPT)) for side in image.size]
    return image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


COPIES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "inverted": inverted,
    "turned_90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned_180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "turned_270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
    "cropped": cropped,
    "shrunk": shrunk,
}
"""What is made of a film, in this order. Degrees are anticlockwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What an eye made of the altered copies of one film."""

    sha256: str
    notes: tuple[str, ...]
    features: Floats
    """A row a copy, in the order of COPIES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altering:
    """How altered copies are looked at: as the films themselves are, see `looking.Look`."""

    side_px: int
    eye: str
    given: Mapping[str, Any]

    @classmethod
    def like(cls, look: Look) -> Altering:
        """Look at copies as at the films."""
        return cls(side_px=look.side_px, eye=look.eye, given=look.given)

    def as_dict(self) -> dict[str, Any]:
        """Write it out for a worker."""
        return asdict(self)

    def begin(self) -> Callable[[bytes], Copies | Refusal]:
        """Make the eye, and give what looks at the copies of one film."""
        eye: Eye = called(self.eye)(**self.given)

        def look(content: bytes) -> Copies | Refusal:
            try:
                picture = decode(content)
            except Refused as refused:
                return refused.refusal
            rows = [eye(square(alter(picture.image), self.side_px)) for alter in COPIES.values()]
            return Copies(
                sha256=hashlib.sha256(content).hexdigest(),
                notes=picture.notes,
                features=np.stack(rows).astype(np.float32),
            )

        return look

    def pack(self, made: Copies) -> tuple[dict[str, Any], bytes]:
        """Take apart what was seen, for the way from a worker."""
        return {"sha256": made.sha256, "notes": made.notes}, made.features.tobytes()

    def unpack(self, about: Mapping[str, Any], body: bytes) -> Copies:
        """Put together what was seen."""
        features = np.frombuffer(body, np.float32).reshape(len(COPIES), -1)
        return Copies(sha256=str(about["sha256"]), notes=tuple(about["notes"]), features=features)


class LookingAtCopies(Passage[Copies, Copies]):
    """The altered copies of films, looked at, in the order of `shelf.order(image_ids)`."""

    def _given(self, image_id: str, made: Copies) -> Copies:
        del image_id
        return made


def looked_at_copies(
    shelf: Shelf, image_ids: Iterable[str], look: Look, *, workers: int | None = None
) -> LookingAtCopies:
    """Look at the altered copies of films; 0 workers look in this process."""
    return LookingAtCopies(shelf, image_ids, Altering.like(look), workers=workers)


FLOOR = 1e-3
"""A feature that varies less than this share of the most varying one is scaled no further up."""
BLOCK = 4096
"""Films whose features are in memory at a time."""
Ints = npt.NDArray[np.int64]


class Features(Protocol):
    """The features of films, a piece at a time."""

    @property
    def width(self) -> int:
        """How many numbers a film has."""
        ...

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Give the films of these places."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How features are centred and scaled."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, films: Floats) -> Self:
        """Measure it on films; so that a row of scaled features has about the length 1."""
        deviation = films.std(axis=0)
        deviation = np.maximum(deviation, max(FLOOR * float(deviation.max(initial=0.0)), 1e-12))
        return cls(mean=films.mean(axis=0), deviation=deviation * np.sqrt(np.float32(films.shape[1])))

    def apply(self, films: Floats) -> Floats:
        """Centre and scale films."""
        return np.asarray((films - self.mean) / self.deviation, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was fitted: a film in, a number for each target out."""

    scale: Scale
    slope: Floats
    level: Floats

    def score(self, films: Floats) -> Floats:
        """Give each film's numbers."""
        return np.asarray(self.scale.apply(films) @ self.slope + self.level, dtype=np.float32)


def fit(films: Floats, targets: Floats, penalty: float) -> Line:
    """Fit the targets, a column each; there are fewer films than features, so films are what is solved for."""
    scale = Scale.of(films)
    scaled, level = scale.apply(films), targets.mean(axis=0)
    alike = scaled @ scaled.T + np.float32(penalty) * np.eye(len(scaled), dtype=np.float32)
    return Line(scale=scale, slope=scaled.T @ np.linalg.solve(alike, targets - level), level=level)


def blocks(features: Features, count: int) -> Iterator[tuple[slice, Floats]]:
    """Read all features, a block of films at a time."""
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        yield slice(start, stop), np.asarray(features.rows(start, stop), dtype=np.float32)


def gathered(features: Features, places: Ints, count: int) -> Floats:
    """Read the features of a few films, in the order of their places."""
    found = np.empty((len(places), features.width), dtype=np.float32)
    for here, films in blocks(features, count):
        inside = np.flatnonzero((places >= here.start) & (places < here.stop))
        found[inside] = films[places[inside] - here.start]
    return found


def crossfitted(features: Features, fold: Ints, fitted: Callable[[int], Line]) -> Floats:
    """Score every film by the line of its fold, which was fitted without the films of the fold."""
    lines = {int(number): fitted(int(number)) for number in np.unique(fold)}
    targets = next(iter(lines.values())).level.shape[0] if lines else 0
    scores = np.zeros((len(fold), targets), dtype=np.float32)
    for here, films in blocks(features, len(fold)):
        for number, line in lines.items():
            inside = fold[here] == number
            scores[here][inside] = line.score(films[inside])
    return scores


PENALTY = 0.01
FEWEST = 100
"""Films below which nothing is fitted."""
SAMPLE = 300
"""Films of which altered copies are made."""
TAIL = 0.01
MOST_ODD = 0.1
"""The share of the films that may be left out as wrong themselves; where more look so, they do not look so at all."""
WORKS = 0.8
"""A check that finds a smaller share of the copies says nothing."""

Bools = npt.NDArray[np.bool_]

TURNS = ("turned_90", "turned_180", "turned_270")
CHECKS: Mapping[str, tuple[str, ...]] = {"inverted": ("inverted",), "turned": TURNS, "cropped": ("cropped",)}
"""Each check, and the copies that it must find."""
TARGETS = ("inverted", *TURNS, "cropped")
"""What lines are fitted for; the last line, after these, is for films that stand upright."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The films of which altered copies were made."""

    places: Ints
    """Where they stand among all films."""
    copies: Floats
    """[film, copy, feature], copies in the order of COPIES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What one check says, and how well it told copies from films of other patients."""

    score: Floats
    """A film each; above 0 the check fires."""
    found: int
    """Copies on which it fires ..."""
    copies: int
    """... of so many."""
    alarms: int
    """Films of the sample on which it fires; they may be wrong films ..."""
    films: int
    """... of so many."""

    @property
    def works(self) -> bool:
        """Whether it finds enough of the copies to be heard."""
        return self.found >= WORKS * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What the three checks say."""

    checks: Mapping[str, Detected]
    degrees: Ints
    """By how much each film would be turned, if it were: 90, 180 or 270."""
    left_out: int
    """Films of the sample that looked like copies themselves."""


def detect(features: Features, fold: Ints, sample: Sample) -> Detection:
    """Check every film; `fold` is the same for all films of a patient."""
    own = gathered(features, sample.places, len(fold))
    shown = np.concatenate([own[:, None], sample.copies], axis=1)
    sound = ~_odd(_told(shown, fold[sample.places], np.ones(len(own), dtype=bool)))
    if sound.mean() < 1 - MOST_ODD:
        sound[:] = True
    told = _told(shown, fold[sample.places], sound)
    lines = _lines(shown, fold[sample.places], sound, np.unique(fold))
    scores = crossfitted(features, fold, lines.__getitem__)
    every, checks = _scores(scores), {}
    for check, copies in CHECKS.items():
        films, altered = told[check][:, 0], told[check][:, _places(copies)]
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


def _places(copies: tuple[str, ...]) -> list[int]:
    """Find copies among a film and its copies."""
    return [1 + list(COPIES).index(copy) for copy in copies]


def _lines(shown: Floats, fold: Ints, sound: Bools, folds: Ints) -> dict[int, Line]:
    """Fit a line for each fold on the sound films of the others."""
    kinds = ["", *COPIES]
    wanted = [[kind == target for target in TARGETS] for kind in kinds]
    targets = np.array([[*each, not any(each[1:4])] for each in wanted], dtype=np.float32) * 2 - 1
    made = {}
    for number in folds:
        others = shown[sound & (fold != number)]
        made[int(number)] = fit(others.reshape(-1, shown.shape[2]), np.tile(targets, (len(others), 1)), PENALTY)
    return made


def _told(shown: Floats, fold: Ints, sound: Bools) -> dict[str, Floats]:
    """Score the sample's films and copies, each by the line that did not see its patient."""
    scores = np.zeros((*shown.shape[:2], len(TARGETS) + 1), dtype=np.float32)
    for number, line in _lines(shown, fold, sound, np.unique(fold)).items():
        scores[fold == number] = line.score(shown[fold == number])
    return _scores(scores)


def _scores(scores: Floats) -> dict[str, Floats]:
    """Make one number a check of what the lines say."""
    turned = scores[..., 1:4].max(axis=-1) - scores[..., 5]
    return {"inverted": scores[..., 0], "turned": turned, "cropped": scores[..., 4]}


def _odd(told: Mapping[str, Floats]) -> Bools:
    """Find the films that are nearer to the middle of the copies than to the middle of the films."""
    odd = [
        told[check][:, 0] > (np.median(told[check][:, 0]) + np.median(told[check][:, _places(copies)])) / 2
        for check, copies in CHECKS.items()
    ]
    return np.asarray(np.any(odd, axis=0))


def _cut(films: Floats, copies: Floats) -> float:
    most, least = float(np.quantile(films, 1 - TAIL)), float(np.quantile(copies, TAIL))
    return (most + least) / 2 if most < least else most
