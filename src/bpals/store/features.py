"""The features that a backbone computed from the images of a workspace, in blocks, and the plan of a probe.

features/<backbone>-<hash>/<block>.npy      the features of some images, as 16-bit floats
features/<backbone>-<hash>/<block>.parquet  which images these are; a block counts once it has this table
features/<backbone>-<hash>/plan.json        what the probe set out to look at, so that anybody can tell how far it is
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import JudgeError, WorkspaceError
from bpals.store.files import only_one_in, parquet, replace_file, sha256, writable
from bpals.store.ledger.locks import held
from bpals.types import Refusal

FOLDER = "features"
PLAN = "plan.json"
SHORT = 16  # hex digits of a hash in a file's name
# A block is written after so many images or seconds: a killed run with a slow backbone must not lose many minutes.
BLOCK = 512
BLOCK_S = 20.0
MOST = float(np.finfo(np.float16).max)

SEEN_FILMS = pl.Schema(
    {
        "image_id": pl.String(),
        "sha256": pl.String(),  # of the image's file; null where it could not be read
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "notes": pl.List(pl.String),
        "thumbnail": pl.Binary(),  # 32 x 32 grey values
        "code": pl.String(),  # why it could not be read, in one word; null where it was
        "why": pl.String(),
        "row": pl.Int64(),  # where its numbers stand in the block; null where it could not be read
        "numbers": pl.String(),  # sha256 of the block's numbers
    }
)
"""The table of a block: one row per image."""

Numbers = npt.NDArray[np.float16]


class FeatureCache:
    """The features that one backbone computed from the images of a workspace."""

    def __init__(self, home: Path, backbone: str, sha256: str, width: int, *, block: int = BLOCK) -> None:
        """Name the folder, with at most `block` images per block; nothing is read or made yet."""
        plain = re.sub(r"[^a-z0-9._-]+", "-", backbone.lower()).strip("-._")[:60] or "backbone"
        self.path = home / FOLDER / f"{plain}-{sha256.removeprefix('sha256:')[:SHORT]}"
        self.width = width
        self.block = block

    def films(self, *columns: str) -> pl.DataFrame:
        """List every image once, with its `block`; one with features counts before a refusal."""
        wanted = [*dict.fromkeys(["image_id", *(columns or SEEN_FILMS), "row"])]
        schema = {**{name: SEEN_FILMS[name] for name in wanted if name in SEEN_FILMS}, "block": pl.String()}
        blocks = [
            pl.read_parquet(file, columns=[name for name in wanted if name != "block"]).with_columns(
                block=pl.lit(file.stem)
            )
            for file in sorted(self.path.glob("*.parquet"))
            if file.with_suffix(".npy").exists()
        ]
        table = pl.concat([pl.DataFrame(schema=schema), *blocks], how="diagonal")
        # An image may be in two blocks, of a run that failed and one that did not, or after merging.
        return table.sort("image_id", pl.col("row").is_null(), "block").unique(
            "image_id", keep="first", maintain_order=True
        )

    def features(self, image_ids: Sequence[str]) -> StoredFeatures:
        """Give the features of those of the images that have any, in this order."""
        wanted = pl.DataFrame({"image_id": pl.Series(image_ids, dtype=pl.String)})
        placed = wanted.join(self.films("row", "numbers"), on="image_id", how="inner", maintain_order="left")
        return StoredFeatures(folder=self.path, width=self.width, places=placed.filter(pl.col("row").is_not_null()))

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """Open the cache for new images; the open block is written at the end, however it ends."""
        with only_one_in(self.path, f"another run is looking at images for {self.path}"):
            for part in self.path.glob(".*.part"):
                part.unlink()
            writer = Writer(self)
            try:
                yield writer
            finally:
                writer.flush()


class Writer:
    """Takes images one by one and writes them in blocks."""

    def __init__(self, cache: FeatureCache) -> None:
        """Begin with an empty block."""
        self._cache = cache
        self._rows: list[dict[str, Any]] = []
        self._numbers: list[Numbers] = []
        self._since_s = time.monotonic()

    def put(self, film: Any) -> None:
        """Keep the features of an image."""
        # An `images.stream.ImageFeatures`; it has no type here because the store may not import the images' room.
        if film.features.shape != (self._cache.width,) or not np.all(np.abs(film.features) <= MOST):
            raise JudgeError(
                f"{film.image_id}: the backbone gave {film.features.shape} numbers up to "
                f"{np.abs(film.features).max(initial=0):.3g}; {self._cache.width} numbers up to {MOST:.0f} can be kept"
            )
        self._keep(
            image_id=film.image_id,
            sha256=film.sha256,
            width_px=film.width_px,
            height_px=film.height_px,
            notes=list(film.notes),
            thumbnail=film.thumbnail.tobytes(),
            row=len(self._numbers),
        )
        self._numbers.append(film.features.astype(np.float16))

    def refuse(self, image_id: str, refusal: Refusal) -> None:
        """Keep why an image could not be read."""
        self._keep(image_id=image_id, notes=[], code=refusal.code, why=refusal.message)

    def _keep(self, **row: Any) -> None:
        self._rows.append(dict.fromkeys(SEEN_FILMS) | row)

    def flush_if_due(self) -> bool:
        """Write the open block if it is full, or has been open for long; say whether it was."""
        due = len(self._rows) >= self._cache.block or time.monotonic() - self._since_s > BLOCK_S
        if due:
            self.flush()
        return due

    def flush(self) -> None:
        """Write the open block durably, if it holds an image."""
        if self._rows:
            numbers = np.stack(self._numbers) if self._numbers else np.zeros((0, self._cache.width), np.float16)
            stream = io.BytesIO()
            np.save(stream, numbers, allow_pickle=False)
            rows = pl.DataFrame(self._rows, schema=SEEN_FILMS).with_columns(numbers=pl.lit(sha256(stream.getvalue())))
            table = parquet(rows)
            name = sha256(table).removeprefix("sha256:")[:SHORT]
            # The table goes last: a block without it does not count.
            replace_file(self._cache.path, f"{name}.npy", stream.getvalue())
            replace_file(self._cache.path, f"{name}.parquet", table)
        self._rows, self._numbers, self._since_s = [], [], time.monotonic()


class StoredFeatures:
    """The features of some images, read from their blocks a piece at a time."""

    def __init__(self, *, folder: Path, width: int, places: pl.DataFrame) -> None:
        """Take where each image lies; no number is read yet."""
        self.image_ids: list[str] = places["image_id"].to_list()
        self.width = width
        self._folder = folder
        self._names: list[str] = places["block"].unique().sort().to_list()
        self._block = places["block"].cast(pl.Enum(self._names)).to_physical().to_numpy()
        self._hashes = dict(places.select("block", "numbers").unique().iter_rows())
        self._row = places["row"].to_numpy()
        self._checked: set[str] = set()

    def rows(self, start: int, stop: int) -> Numbers:
        """Read some rows; each block is mapped, read and let go, so that no more than this is in memory."""
        return self.take(slice(start, stop))

    def take(self, places: slice | npt.NDArray[np.int64]) -> Numbers:
        """Read the rows at some places, in their order."""
        block, row = self._block[places], self._row[places]
        made = np.empty((len(row), self.width), dtype=np.float16)
        for number in np.unique(block):
            here = block == number
            made[here] = self._open(self._names[number])[row[here]]
        return made

    def _open(self, name: str) -> Numbers:
        path = self._folder / f"{name}.npy"
        try:
            # A block is hashed once per reader: many calls read a few rows each.
            whole = name in self._checked or sha256(path.read_bytes()) == self._hashes[name]
            numbers: Numbers | None = np.load(path, mmap_mode="r", allow_pickle=False) if whole else None
        except (OSError, ValueError):
            numbers = None
        if numbers is None:
            raise WorkspaceError(
                f"{path} is missing or damaged. Remove it, and its images are looked at again: rm {path}"
            )
        self._checked.add(name)
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What a probe set out to look at."""

    judge: str
    spec: str
    films: int  # images of all parts together
    part: int  # images of this part; all where there is no other
    shard: str = ""  # the part, as in 1/2

    def keep(self, folder: Path) -> None:
        """Write it beside the features."""
        with writable(folder):
            replace_file(folder, PLAN, json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())

    @property
    def whole(self) -> ProbePlan:
        """The plan of all parts together."""
        return replace(self, part=self.films, shard="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A probe that was begun, and how far it is."""

    plan: ProbePlan
    films: int  # images that were looked at, and are kept
    busy: bool  # whether somebody is looking at images, or fitting the probe, now

    @property
    def seen(self) -> bool:
        """Whether all images of the plan were looked at."""
        return self.films >= self.plan.part


def read_plan(folder: Path) -> ProbePlan | None:
    """Read the plan of a folder of features; None where there is none that can be read."""
    try:
        return ProbePlan(**json.loads((folder / PLAN).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def begun(home: Path) -> Iterator[Begun]:
    """Give every probe that was begun in a workspace."""
    for folder in sorted((home / FOLDER).glob("*")):
        if (plan := read_plan(folder)) is not None:
            yield Begun(plan=plan, films=films_in(folder), busy=held(folder / ".lock"))


def films_in(folder: Path) -> int:
    """Count the images in the finished blocks of a folder, each once."""
    blocks = [pl.read_parquet(file, columns=["image_id"]) for file in sorted(folder.glob("*.parquet"))]
    return pl.concat([pl.DataFrame(schema={"image_id": pl.String()}), *blocks])["image_id"].n_unique()
