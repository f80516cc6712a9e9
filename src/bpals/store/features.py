"""The plan of a probe: whom it makes of which films, kept beside what was seen, so that anybody can say how far it is.

features/<backbone>-<hash>/plan.json
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
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import JudgeError, WorkspaceError
from bpals.store.files import only_one_in, parquet, sha256, sync_folder, write_durably
from bpals.store.ledger.locks import held
from bpals.types import Refusal

FOLDER = "features"
SHORT = 16
"""Hex digits of a hash in a file's name."""
BLOCK = 512
"""Films of a block ..."""
BLOCK_S = 20.0
"""... or seconds after which one is sealed: a slow backbone must not lose many minutes."""
MOST = float(np.finfo(np.float16).max)

SEEN_FILMS = pl.Schema(
    {
        "image_id": pl.String(),
        "sha256": pl.String(),  # of the film's file; null where it could not be seen
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "notes": pl.List(pl.String),
        "thumbnail": pl.Binary(),  # 32 x 32 grey values
        "code": pl.String(),  # why it could not be seen, in one word; null where it was
        "why": pl.String(),
        "row": pl.Int64(),  # where its numbers stand in the block; null where it could not be seen
        "numbers": pl.String(),  # sha256 of the block's numbers
    }
)
"""One row a film that was looked at, as a block has it."""

Numbers = npt.NDArray[np.float16]


class SeenFilm(Protocol):
    """A film that was looked at: what `films.looking` gives."""

    @property
    def image_id(self) -> str:
        """Name it."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of its file."""
        ...

    @property
    def width_px(self) -> int:
        """Its width."""
        ...

    @property
    def height_px(self) -> int:
        """Its height."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What it was."""
        ...

    @property
    def features(self) -> npt.NDArray[np.float32]:
        """What the backbone made of it."""
        ...

    @property
    def thumbnail(self) -> npt.NDArray[np.uint8]:
        """The film, small."""
        ...


class FeatureCache:
    """What one backbone made of the films of a workspace."""

    def __init__(self, home: Path, backbone: str, sha256: str, width: int, *, block: int = BLOCK) -> None:
        """Name the folder; nothing is read or made yet."""
        self.path = home / FOLDER / f"{_plain(backbone)}-{sha256.removeprefix('sha256:')[:SHORT]}"
        self.width = width
        self.block = block
        """Films of a block, at most."""

    def films(self, *columns: str) -> pl.DataFrame:
        """List every film that was looked at, once, with its `block`; one that was seen counts before a refusal."""
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
        return table.sort("image_id", pl.col("row").is_null(), "block").unique(
            "image_id", keep="first", maintain_order=True
        )

    def features(self, image_ids: Sequence[str]) -> StoredFeatures:
        """Give the features of those of the films that were seen, in this order."""
        asked = pl.DataFrame({"image_id": pl.Series(image_ids, dtype=pl.String)})
        placed = asked.join(self.films("row", "numbers"), on="image_id", how="inner", maintain_order="left")
        placed = placed.filter(pl.col("row").is_not_null())
        return StoredFeatures(folder=self.path, width=self.width, places=placed)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """Open the cache for new films; what was put is sealed at the end, however it ends."""
        with only_one_in(self.path, f"another run is looking at films for {self.path}"):
            for part in self.path.glob(".*.part"):
                part.unlink()
            writer = Writer(self)
            try:
                yield writer
            finally:
                writer.seal()

    def seal(self, films: pl.DataFrame, numbers: Numbers) -> None:
        """Write one block durably, its table last."""
        stream = io.BytesIO()
        np.save(stream, numbers, allow_pickle=False)
        table = parquet(films.with_columns(numbers=pl.lit(sha256(stream.getvalue()))).select(SEEN_FILMS.names()))
        name = sha256(table).removeprefix("sha256:")[:SHORT]
        for file, content in ((f"{name}.npy", stream.getvalue()), (f"{name}.parquet", table)):
            write_durably(self.path / f".{file}.part", content)
            (self.path / f".{file}.part").replace(self.path / file)
            sync_folder(self.path)


class Writer:
    """Takes films one by one and seals them in blocks."""

    def __init__(self, cache: FeatureCache) -> None:
        """Begin with an empty block."""
        self._cache = cache
        self._rows: list[dict[str, Any]] = []
        self._numbers: list[Numbers] = []
        self._since_s = time.monotonic()

    def put(self, film: SeenFilm) -> None:
        """Keep a film that was seen."""
        if film.features.shape != (self._cache.width,) or not np.all(np.abs(film.features) <= MOST):
            raise JudgeError(
                f"{film.image_id}: the backbone gave {film.features.shape} numbers up to "
                f"{np.abs(film.features).max(initial=0):.3g}; {self._cache.width} numbers up to {MOST:.0f} can be kept"
            )
        self._keep(
            {
                "image_id": film.image_id,
                "sha256": film.sha256,
                "width_px": film.width_px,
                "height_px": film.height_px,
                "notes": list(film.notes),
                "thumbnail": film.thumbnail.tobytes(),
                "row": len(self._numbers),
            }
        )
        self._numbers.append(film.features.astype(np.float16))

    def refuse(self, image_id: str, refusal: Refusal) -> None:
        """Keep why a film could not be seen."""
        self._keep({"image_id": image_id, "notes": [], "code": refusal.code, "why": refusal.message})

    def seal_if_due(self) -> bool:
        """Seal the open block if it is full, or has been open for long; say whether it was."""
        due = len(self._rows) >= self._cache.block or time.monotonic() - self._since_s > BLOCK_S
        if due:
            self.seal()
        return due

    def seal(self) -> None:
        """Seal the open block, if it holds a film."""
        if self._rows:
            numbers = np.stack(self._numbers) if self._numbers else np.zeros((0, self._cache.width), np.float16)
            self._cache.seal(pl.DataFrame(self._rows, schema=SEEN_FILMS), numbers)
        self._rows, self._numbers, self._since_s = [], [], time.monotonic()

    def _keep(self, row: dict[str, Any]) -> None:
        self._rows.append(dict.fromkeys(SEEN_FILMS) | row)


class StoredFeatures:
    """The features of some films, read from their blocks a piece at a time."""

    def __init__(self, *, folder: Path, width: int, places: pl.DataFrame) -> None:
        """Take where each film lies; no number is read yet."""
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
        block, row = self._block[start:stop], self._row[start:stop]
        made = np.empty((len(row), self.width), dtype=np.float16)
        for number in np.unique(block):
            here = block == number
            made[here] = self._open(self._names[number])[row[here]]
        return made

    def _open(self, name: str) -> Numbers:
        path = self._folder / f"{name}.npy"
        try:
            whole = name in self._checked or sha256(path.read_bytes()) == self._hashes[name]
            numbers: Numbers | None = np.load(path, mmap_mode="r", allow_pickle=False) if whole else None
        except (OSError, ValueError):
            numbers = None
        if numbers is None:
            raise WorkspaceError(
                f"{path} is missing or damaged. Remove it, and its films are looked at again: rm {path}"
            )
        self._checked.add(name)
        return numbers


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:60] or "backbone"


PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What a probe was asked to look at."""

    judge: str
    spec: str
    films: int
    """Films of all parts together."""
    part: int
    """Films of this part; all where there is no other."""
    shard: str = ""
    """The part, as in 1/2."""

    def keep(self, folder: Path) -> None:
        """Write it beside what was seen."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / f".{PLAN}.part", json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())
            (folder / f".{PLAN}.part").replace(folder / PLAN)
            sync_folder(folder)
        except OSError as error:
            raise WorkspaceError(
                f"{folder} cannot be written: {error.strerror}. Name another with --workspace DIR"
            ) from None

    @property
    def whole(self) -> ProbePlan:
        """The plan of all parts together."""
        return replace(self, part=self.films, shard="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A probe that was begun, and how far it is."""

    plan: ProbePlan
    films: int
    """Films that were looked at, and are kept."""
    busy: bool
    """Whether somebody is looking at films, or learning from them, now."""

    @property
    def seen(self) -> bool:
        """Whether all films of the plan were looked at."""
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
        plan = read_plan(folder)
        if plan is not None:
            yield Begun(plan=plan, films=films_in(folder), busy=held(folder / ".lock"))


def films_in(folder: Path) -> int:
    """Count the films that the sealed blocks of a folder hold, each once."""
    blocks = [pl.read_parquet(file, columns=["image_id"]) for file in sorted(folder.glob("*.parquet"))]
    return pl.concat([pl.DataFrame(schema={"image_id": pl.String()}), *blocks])["image_id"].n_unique()
