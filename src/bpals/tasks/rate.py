"""The error rate of a dataset's labels: what `bpals rate` and `bpals rate plan` print, in one call each.

plan = plan_rate("audit", findings=["Pneumothorax"], reads=300)
plan.reading_list   what to read, in this order: images and findings, nothing about their labels
plan.widths         the width of the interval that each number of reads is expected to give
found = rate("audit", reviews="reads.csv")
found.rates         one row per finding, group and kind of label, with intervals
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import TruthError, UnknownName, UsageError, WorkspaceError
from bpals.findings import fold
from bpals.numeric import PAIR
from bpals.reviews import verdicts
from bpals.reviews.verdicts import Files, load_many
from bpals.signal.rates import Rating, rates
from bpals.signal.strata import READS, STRATIFIED, draw, reading_list, reads_for, stratify, widths
from bpals.store.files import parquet, sync_folder, write_durably
from bpals.store.workspace import FinishedAudit, Workspace
from bpals.tasks.score import vocabulary_of
from bpals.types import REVIEWS, Notice, Reviews
from bpals.version import VERSION

# The key of the reading lists, in the workspace: every claim with its stratum, and what was drawn.
PLAN = "rate-plan.parquet"
AGES = (0, 18, 40, 60, 80)  # where bands of age begin, in years
GROUPS = ("sex", "age", "view")

Progress = Callable[[str, float], None]  # called with what is being done and the share of it that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to read, and what that buys."""

    reading_list: pl.DataFrame  # `image_id, finding, verdict, reader`: what was drawn now, in the order of reading
    widths: pl.DataFrame  # the expected width of the interval for several numbers of reads, finding by finding
    reads: int  # reads per finding, those of earlier plans included
    batch: int  # 1 for the first list of a workspace; a later one adds to it
    guessed: tuple[str, ...] = ()
    """Findings whose trust no expert label taught: their expected rate is mostly far too high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Error rates, and what they rest on."""

    rates: pl.DataFrame  # one row per finding, group and kind of label; the columns are explained in docs/rate.md
    reviews: pl.DataFrame  # the reads that were understood, with the chance with which each pair was drawn
    notes: list[Notice] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


def plan_rate(
    workspace: str | os.PathLike[str] = "audit",
    *,
    findings: Sequence[str] = (),
    reads: int | None = None,
    width: float | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _share: None,
) -> Plan:
    """Draw pairs to be read, `reads` per finding or as many as a `width` takes, and keep the key in the workspace.

    A plan that is there is added to: its strata stay, its pairs stay drawn, and only what is missing is listed.
    """
    if (reads is None) == (width is None):
        raise UsageError("say how many reads per finding, or which width. Type: --reads 300, or --width 0.03")
    home = Workspace(workspace)
    audit = home.open()
    before = _plan_of(home)
    wanted = _resolve(audit, findings)
    progress("placing the claims", 0.0)
    fresh = stratify(_claims(audit).filter(pl.col("finding").is_in(wanted)))
    kept = pl.DataFrame(schema=STRATIFIED) if before is None else before
    open_ = pl.concat([fresh.join(kept, on="finding", how="anti"), kept.filter(pl.col("finding").is_in(wanted))])
    numbers = sorted({*READS, *([reads] if reads else [])})
    table = widths(open_, reads=numbers, seed=seed, progress=lambda share: progress("trying numbers of reads", share))
    number = reads if reads is not None else reads_for(table, float(width or 0))
    drawn = draw(open_, reads=number, seed=seed)
    batch = int(drawn["batch"].max() or 1)  # type: ignore[arg-type]
    # By pair and not by batch: the first batch of one finding may come after the third of another.
    new = reading_list(drawn.join(kept.filter(pl.col("batch").is_not_null()), on=PAIR, how="anti"))
    _keep(home, pl.concat([kept.filter(~pl.col("finding").is_in(wanted)), drawn]))
    blank = pl.lit(None, pl.String).alias
    listed = new.select("image_id", "finding", blank("verdict"), blank("reader"))
    calibration = audit.run.get("calibration") or {}
    fitted = {*calibration.get("findings", ()), *calibration.get("members", ())}
    named = table["finding"].unique(maintain_order=True)
    # An expert calibration stands behind the trust of every finding.
    guessed = () if audit.run.get("prior") else tuple(name for name in named if name not in fitted)
    return Plan(reading_list=listed, widths=table, reads=number, batch=batch, guessed=guessed)


def rate(
    workspace: str | os.PathLike[str] = "audit",
    *,
    reviews: Files | pl.DataFrame,
    group_by: Sequence[str] = (),
    simple_random: bool = False,
    films: Collection[str] | None = None,
    seed: int = 0,
) -> Rates:
    """Estimate the label error rate of a workspace's dataset from reads: a file, or a table with REVIEWS' columns.

    `films` names the images that could be drawn, where not all could: the rate is theirs.
    """
    home = Workspace(workspace)
    audit = home.open()
    images = audit.table("images.parquet")
    if films is not None:
        images = images.filter(pl.col("image_id").is_in(list(films)))
    loaded = verdicts.keep_known_images(_reviews(audit, reviews), images)
    # A plan was drawn from all films: the reads of a part of them have chances of their own.
    plan = _plan_of(home) if films is None else None
    named = loaded.table["finding"].unique().to_list()
    claims = _claims(audit).filter(pl.col("finding").is_in(named))
    if films is not None:
        claims = claims.join(images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    fresh = stratify(claims)
    stratified = fresh if plan is None else _planned(fresh, plan.filter(pl.col("finding").is_in(named)), home)
    grouped = stratified.join(_groups(images, group_by), on="image_id", how="left", maintain_order="left")
    how = Rating(simple_random=simple_random, seed=seed)
    table, notices = rates(loaded.table, grouped, by=list(group_by), rating=how)
    drawn = stratified.filter(pl.col("inclusion").is_not_null()).select("image_id", "finding", drawn="inclusion")
    known = loaded.table.join(drawn, on=["image_id", "finding"], how="left", maintain_order="left")
    read = known.with_columns(inclusion=pl.coalesce("drawn", "inclusion")).select(REVIEWS.names())
    meta = {"bpals": VERSION, "workspace": str(audit.path), "inputs": dict(loaded.inputs), "planned": plan is not None}
    meta |= {"simple_random": simple_random, "group_by": list(group_by), "seed": seed, "level": how.level}
    return Rates(rates=table, reviews=read, notes=[*loaded.notices, *notices], meta=meta)


def write_list(plan: Plan, file: Path) -> None:
    """Write a reading list for the readers; one that is there, perhaps filled in, is never overwritten."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(plan.reading_list.write_csv())
    except FileExistsError:
        raise UsageError(f"{file} is there already, and may hold verdicts. Name another with --out FILE") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another with --out FILE") from None


def _reviews(audit: FinishedAudit, given: Files | pl.DataFrame) -> Reviews:
    if not isinstance(given, pl.DataFrame):
        vocabulary = vocabulary_of(audit.table("claims.parquet", "finding"))
        return load_many(given, vocabulary=vocabulary)
    if missing := set(REVIEWS.names()) - set(given.columns):
        raise TruthError(f"the table of reviews has no column {min(missing)!r}. Give it {', '.join(REVIEWS)}")
    return Reviews(table=given.select(REVIEWS.names()).cast(REVIEWS), inputs={"the table": ""})


def _claims(audit: FinishedAudit) -> pl.DataFrame:
    """Read what is claimed and trusted, of findings and of groups of findings."""
    columns = ("image_id", "finding", "says", "trust")
    names = [name for name in ("signal.parquet", "groups.parquet") if audit.has(name)]
    return pl.concat(
        [audit.table(name, *columns).with_columns(pl.col("finding", "says").cast(pl.String)) for name in names]
    )


def _resolve(audit: FinishedAudit, findings: Sequence[str]) -> list[str]:
    """Name the findings that are asked for; all of the vocabulary where none is."""
    vocabulary = vocabulary_of(audit.table("claims.parquet", "finding"))
    if not findings:
        return list(vocabulary.findings)
    known = verdicts.spellings(vocabulary, verdicts.GROUPS)
    resolved = []
    for word in findings:
        if fold(word) not in known:
            raise UnknownName.of("finding", word, vocabulary.findings, where="--findings")
        resolved.append(known[fold(word)])
    return list(dict.fromkeys(resolved))


def _groups(images: pl.DataFrame, group_by: Sequence[str]) -> pl.DataFrame:
    """Give the columns that make groups of patients; ages become bands."""
    for name in group_by:
        if name not in images.columns or name == "image_id":
            raise UnknownName.of(
                "column of images", name, [n for n in images.columns if n in GROUPS], where="--group-by"
            )
    chosen = [
        _band(pl.col("age")) if name == "age" else pl.col(name).cast(pl.String) for name in dict.fromkeys(group_by)
    ]
    return images.select("image_id", *chosen)


def _band(age: pl.Expr) -> pl.Expr:
    # 40-59, or 80+ for the last.
    band = pl.lit(f"{AGES[-1]}+")
    for low, high in reversed(list(itertools.pairwise(AGES))):
        band = pl.when(age < high).then(pl.lit(f"{low}-{high - 1}")).otherwise(band)
    return pl.when(age.is_not_null()).then(band).alias("age")


def _plan_of(home: Workspace) -> pl.DataFrame | None:
    """Read the key of the reading lists, if any was drawn here."""
    file = home.path / PLAN
    try:
        plan = pl.read_parquet(io.BytesIO(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, pl.exceptions.PolarsError):
        plan = pl.DataFrame()
    if plan.schema != STRATIFIED:
        raise WorkspaceError(f"{file} cannot be read. Restore it, or remove it and read a new plan: bpals rate plan")
    return plan


def _planned(fresh: pl.DataFrame, plan: pl.DataFrame, home: Workspace) -> pl.DataFrame:
    """Put the plan's strata in place of new ones, for the findings that it has; the claims must be the same."""
    for finding in plan["finding"].unique(maintain_order=True):
        now, then = (table.filter(pl.col("finding") == finding) for table in (fresh, plan))
        same = now.join(then, on=["image_id", "says"], how="inner").height
        if same != now.height or same != then.height:
            raise WorkspaceError(
                f"the claims of {finding} are not those that {home.path / PLAN} was drawn from ({then.height:,} then, "
                f"{now.height:,} now, {same:,} alike). Audit the dataset of that plan, or remove it and draw anew"
            )
    return pl.concat([plan, fresh.join(plan, on="finding", how="anti")])


def _keep(home: Workspace, plan: pl.DataFrame) -> None:
    part = home.path / f".{PLAN}.part"
    try:
        write_durably(part, parquet(plan))
        part.replace(home.path / PLAN)
        sync_folder(home.path)
    except OSError as error:
        raise WorkspaceError(
            f"{home.path / PLAN} cannot be written: {error.strerror}. Make room or permit it"
        ) from None
