"""The plan of a probe: whom it makes of which films, kept beside what was seen, so that anybody can say how far it is.

features/<backbone>-<hash>/plan.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from bpals.durable import sync_folder, write_durably
from bpals.errors import WorkspaceError
from bpals.featurecache import FOLDER
from bpals.ledger.lock import held

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
