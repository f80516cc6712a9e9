"""Feature parts: what backbones made of the films of several workspaces, brought into one; blocks are copied whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from bpals.durable import sync_folder, write_durably
from bpals.errors import WorkspaceError
from bpals.featurecache import FOLDER
from bpals.ledger.merge import Clash
from bpals.plural import several
from bpals.probeplan import ProbePlan, read_plan
from bpals.types import Notice


def has_features(home: Path) -> bool:
    """Say whether films were looked at in a workspace."""
    return any((home / FOLDER).glob("*/*.parquet"))


def merge_features(home: Path, parts: Sequence[Path]) -> tuple[list[Notice], list[Clash]]:
    """Copy the sealed blocks of every backbone that are not here yet; say of how many films, and what clashes."""
    notices, clashes = list[Notice](), list[Clash]()
    for name in sorted({folder.name for part in parts for folder in (part / FOLDER).glob("*") if folder.is_dir()}):
        folder = home / FOLDER / name
        new = sum(_copy(part / FOLDER / name, folder) for part in parts)
        films = _films(folder)
        count = films["image_id"].n_unique()
        plan, differing = _plan(folder, [part / FOLDER / name for part in parts])
        notices += differing
        words = (
            f"{name}: {several(count, 'film has', 'films have')} been looked at "
            f"({several(new, 'block of them is', 'blocks of them are')} new here). To learn from them: "
            f"bpals judge run {'probe:BACKBONE' if plan is None else plan.spec} --workspace {home}"
        )
        notices.append(Notice(code="features_merged", count=count, message=words))
        clashes += _clashes(name, films)
    return notices, clashes


def _copy(source: Path, target: Path) -> int:
    """Copy blocks, the numbers of each before its table, which makes it count; give how many were new."""
    copied = 0
    for table in sorted(source.glob("*.parquet")):
        numbers = table.with_suffix(".npy")
        # A block is called by the hash of what it holds: one that is here is the same.
        if (target / table.name).exists() or not numbers.exists():
            continue
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in (numbers, table):
                part = target / f".{file.name}.part"
                write_durably(part, file.read_bytes())
                part.replace(target / file.name)
                sync_folder(target)
        except OSError as error:
            raise WorkspaceError(f"{table} cannot be copied to {target}: {error.strerror}. Make room") from None
        copied += 1
    return copied


def _plan(target: Path, sources: Sequence[Path]) -> tuple[ProbePlan | None, list[Notice]]:
    """Keep the largest plan of the parts, as one of all of them; say where they were not of the same films."""
    here, there = read_plan(target), [plan.whole for source in sources if (plan := read_plan(source)) is not None]
    largest = max(there, key=lambda plan: (plan.films, plan.spec), default=None)
    if largest is None or (here is not None and here.films >= largest.films):
        return here, []
    largest.keep(target)
    drawn = sorted({plan.films for plan in there} | ({here.films} if here is not None else set()), reverse=True)
    if len(drawn) == 1:
        return largest, []
    each = " and ".join(several(films, "film") for films in drawn)
    words = f"{target.name}: the parts were drawn differently: {each}. The run of the probe looks at what is missing"
    return largest, [Notice(code="features_drawn", count=len(drawn), message=words)]


def _films(folder: Path) -> pl.DataFrame:
    columns = {"image_id": pl.String(), "sha256": pl.String()}
    blocks = (pl.read_parquet(file, columns=list(columns)) for file in sorted(folder.glob("*.parquet")))
    return pl.concat([pl.DataFrame(schema=columns), *blocks])


def _clashes(name: str, films: pl.DataFrame) -> Iterator[Clash]:
    """Name the films that were seen in two places, and are two files."""
    several = films.drop_nulls().unique().group_by("image_id").agg(pl.col("sha256").sort()).sort("image_id")
    for image_id, hashes in several.filter(pl.col("sha256").list.len() > 1).iter_rows():
        yield Clash(judge=name, image_id=image_id, subject="", here=hashes[0], there=hashes[1])
