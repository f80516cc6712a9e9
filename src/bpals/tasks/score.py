"""`bpals score`: the scorecard of a workspace, in one call.

card = scorecard("audit", reference="four-findings=expert", split="test")
card.rows           one row per finding, kind of label and method
card.frame          the same as a Polars frame
card.reliability    how often a label of a given trust was right
card.agreement      how far readers agree with each other, the label, the signal and the judges
card.notes          what was left out, counted
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from bpals.errors import UsageError
from bpals.findings import NIH, Group, Vocabulary
from bpals.reviews import verdicts
from bpals.reviews.agreement import Bootstrap, Row, against_the_others, among, between, majority_reader, side_by_side
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited, about, opinions
from bpals.score.pairwise import called
from bpals.score.readers import readers as score_readers
from bpals.score.scorecard import boxed_trust
from bpals.score.scorecard import scorecard as score_pairs
from bpals.sources import nih
from bpals.store.workspace import RECORD_JUDGE, FinishedAudit, Workspace
from bpals.text import several
from bpals.types import Notice, Reference, Reviews
from bpals.version import VERSION

LABEL = "label"
SIGNAL = "bpals"


def concordance(
    reads: pl.DataFrame,
    audited: Audited,
    judges: Mapping[str, pl.DataFrame],
    groups: Sequence[Group],
    resampling: Resampling,
) -> list[Row]:
    """Give rows for the readers together, then for each reader beside the others, the label, the signal and the judges.

    `reads` are REVIEWS, `judges` the answers of each image judge. The last rows set label, signal and judges beside the
    majority of the readers.
    """
    here = _of_read_films(audited, reads)
    bootstrap = Bootstrap(draws=resampling.draws, seed=resampling.seed)
    known = reads.join(here.images, on="image_id", how="semi", maintain_order="left")
    most = majority_reader(known)
    machines = _machines(most, here, judges, groups)
    pairs = pl.concat([against_the_others(known), side_by_side(known, machines), side_by_side(machines, most)])
    return [*among(known, here.images, bootstrap), *between(pairs, here.images, bootstrap)]


def unlike_films(reads: pl.DataFrame, audited: Audited) -> list[Notice]:
    """Say that the judges answered about different images of those that were read: their rows do not compare."""
    read = set(reads["image_id"]) & set(audited.images["image_id"])
    given = {"record": audited.judgments} if audited.judgments.height else {}
    answered = {
        name: read & set(answers.filter(pl.col("outcome").cast(pl.String) == "answered")["image_id"])
        for name, answers in {**given, **audited.judges}.items()
    }
    unlike = sum(films != read for films in answered.values())
    if not unlike or len(answered) == 1:
        return []
    counts = ", ".join(f"{name} {len(films):,}" for name, films in answered.items())
    films_read = several(len(read), "image that was", "images that were")
    message = (
        f"of the {films_read} read the judges answered different ones ({counts}); each is compared "
        "with readers on its own images, so their rows do not compare. Type: --only-judged"
    )
    return [Notice(code="unlike_films", count=unlike, message=message)]


def _of_read_films(audited: Audited, reads: pl.DataFrame) -> Audited:
    """Keep the rows of images that were read."""
    read = reads.select("image_id").unique()

    def of(table: pl.DataFrame) -> pl.DataFrame:
        return table.join(read, on="image_id", how="semi", maintain_order="left")

    return replace(
        audited,
        images=of(audited.images),
        claims=of(audited.claims),
        judgments=of(audited.judgments),
        signal=of(audited.signal),
        groups=None if audited.groups is None else of(audited.groups),
    )


def _machines(
    most: pl.DataFrame, audited: Audited, judges: Mapping[str, pl.DataFrame], groups: Sequence[Group]
) -> pl.DataFrame:
    """Make readers of the label, the signal, the metadata judge and the image judges."""
    named = {group.name: group for group in groups}
    parts = []
    for finding in most["finding"].unique(maintain_order=True):
        group = named.get(finding, Group(name=finding, members=(finding,)))
        asked = most.filter(pl.col("finding") == finding)
        held = opinions(audited, group)
        held = held.filter(~pl.col("self_fitted") & pl.col("says").is_in(["present", "absent"]))
        label = held.select("image_id", verdict="says")
        parts.append(_as_reads(asked, label, LABEL))
        given = pl.when(pl.col("says") == "present").then("trust").otherwise(1 - pl.col("trust"))
        parts.append(_as_reads(asked, _calls(asked, held.select("image_id", p=given)), SIGNAL))
        for name, answers in {"record": audited.judgments, **judges}.items():
            answered = opinions(replace(audited, judgments=answers), group).select("image_id", p="p_judge")
            parts.append(_as_reads(asked, _calls(asked, answered), name))
    return pl.concat(parts) if parts else most


def _calls(asked: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Call the finding on as many of the images as most readers do."""
    both = asked.select("image_id", "verdict").join(given.drop_nulls("p"), on="image_id", maintain_order="left")
    yes = called(both["p"].to_numpy(), int((both["verdict"] == "present").sum()))
    words = pl.Series(["absent", "present"]).gather(yes.astype("int64"))
    return both.select("image_id", verdict=words)


def _as_reads(asked: pl.DataFrame, verdict: pl.DataFrame, name: str) -> pl.DataFrame:
    """Lay out verdicts of a machine as reads."""
    read = asked.select("image_id", "finding").join(verdict, on="image_id", maintain_order="left")
    return read.select("image_id", "finding", reader=pl.lit(name), verdict="verdict")


Progress = Callable[[str, float], None]
"""Called with what is being scored and the share of it that is done."""


@dataclass(frozen=True, slots=True)
class Scorecard:
    """How well a signal finds the labels that experts reject."""

    rows: list[Row] = field(default_factory=list)
    """One row per reference, finding, kind of label and method."""
    boxes: list[Row] = field(default_factory=list)
    """The trust of boxed presences against other presences, one row per finding."""
    readers: list[Row] = field(default_factory=list)
    """Single readers beside the signal, one row per finding and reader."""
    agreement: list[Row] = field(default_factory=list)
    """All readers, one row per finding; then two beside each other, one row per `first`, `second` and finding."""
    reliability: list[Row] = field(default_factory=list)
    """One curve per reference and finding."""
    notes: list[Notice] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a Polars frame."""
        return pl.DataFrame(self.rows, infer_schema_length=None)


def scorecard(  # noqa: PLR0913  an option of the command is a parameter
    workspace: str | os.PathLike[str] = "audit",
    *,
    reference: str | Sequence[str] = (),
    split: str = "all",
    only_judged: bool = False,
    readers: str | os.PathLike[str] | None = None,
    min_readers: int | None = None,
    resampling: Resampling | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Scorecard:
    """Score the signal of a workspace against expert labels, and against single readers.

    `only_judged` keeps to the images that every image judge of the audit answered, so that each has its own row.
    """
    specs = [reference] if isinstance(reference, str) else list(reference)
    if not specs and readers is None:
        raise UsageError("nothing to score against. Type: bpals score --reference four-findings=PATH")
    if min_readers is not None and not any(verdicts.parse(spec)[0] == "all-findings" for spec in specs):
        raise UsageError("--min-readers counts the readers of all-findings. Type: --reference all-findings=PATH")
    audit = Workspace(workspace).open()
    drawn = resampling or Resampling()
    audited = audited_tables(workspace)
    if only_judged and not audited.judges:
        raise UsageError(
            f"--only-judged: no image judge took part in {workspace}. Type: bpals judge run, then bpals audit"
        )
    vocabulary = vocabulary_of(audited.claims)
    loaded = [_load(spec, vocabulary, split, min_readers) for spec in specs]
    if only_judged:
        loaded = [_judged(each, audited) for each in loaded]
    read = (
        None
        if readers is None
        else verdicts.load_reads(Path(readers), vocabulary=vocabulary, split=split, option="--readers")
    )
    if only_judged and read is not None:
        read = _judged_reads(read, audited)
    card = Scorecard(meta=_meta(audit, specs, split, drawn))
    for name, each in zip(reference_names(specs), loaded, strict=True):
        _score(card, {"reference": name, "split": split}, each, (audited, drawn, progress))
    if read is not None:
        progress("readers", 0.0)
        rows, notices = score_readers(read.table, audited, verdicts.GROUPS, drawn)
        card.readers.extend(rows)
        card.agreement.extend(concordance(read.table, audited, audited.judges, verdicts.GROUPS, drawn))
        card.notes.extend([*read.notices, *notices, *unlike_films(read.table, audited)])
        progress("readers", 1.0)
    return card


def _score(card: Scorecard, key: Row, reference: Reference, means: tuple[Audited, Resampling, Progress]) -> None:
    """Add the rows of one reference."""
    audited, resampling, progress = means
    name = str(key["reference"])
    card.notes.extend(reference.notices)
    progress(name, 0.0)
    if reference.positives_only:
        rows, notices = boxed_trust(reference.truth, audited, resampling)
        card.boxes.extend({**key, "split": "all", **row} for row in rows)
    else:
        asked = reference.truth.drop("split")
        pairs, notices = about(asked, audited, reference.groups)
        rows, curves = score_pairs(pairs, resampling, lambda share: progress(name, share))
        card.rows.extend(key | row for row in rows)
        card.reliability.extend(key | curve for curve in curves)
    card.notes.extend(notices)
    progress(name, 1.0)


def _load(spec: str, vocabulary: Vocabulary, split: str, min_readers: int | None) -> Reference:
    kind, path = verdicts.parse(spec)
    boxes = nih.load_boxes(path) if kind == "boxes" else None
    return verdicts.load(spec, vocabulary=vocabulary, split=split, boxes=boxes, min_readers=min_readers)


def _judged(reference: Reference, audited: Audited) -> Reference:
    """Keep the expert labels of images about which every image judge answered."""
    truth, notices = _on_judged_films(reference.truth, audited, reference.kind, "pair")
    return replace(reference, truth=truth, notices=(*reference.notices, *notices))


def _judged_reads(reviews: Reviews, audited: Audited) -> Reviews:
    """Keep the reads of such images."""
    table, notices = _on_judged_films(reviews.table, audited, ", ".join(reviews.inputs), "read")
    return replace(reviews, table=table, notices=(*reviews.notices, *notices))


def _on_judged_films(table: pl.DataFrame, audited: Audited, name: str, row: str) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep the rows of images about which every image judge answered; the others are counted."""
    kept = table
    for answers in audited.judges.values():
        answered = answers.filter(pl.col("outcome").cast(pl.String) == "answered")
        kept = kept.join(answered, on="image_id", how="semi", maintain_order="left")
    if kept.is_empty():
        raise UsageError(f"--only-judged: no image of {name} was answered by every image judge")
    left_out = table.height - kept.height
    those = several(left_out, f"{row} was", f"{row}s were")
    message = f"{those} left out: not every image judge answered about the image"
    return kept, [Notice(code="not_judged", count=left_out, message=message)] if left_out else []


def reference_names(specs: Sequence[str]) -> list[str]:
    """Call each reference by its kind, and by its file too where one kind comes twice."""
    parsed = [verdicts.parse(spec) for spec in specs]
    kinds = [kind for kind, _ in parsed]
    return [f"{kind}={path.name}" if path and kinds.count(kind) > 1 else kind for kind, path in parsed]


def vocabulary_of(claims: pl.DataFrame) -> Vocabulary:
    """The findings of the workspace: those of its labels."""
    dtype = claims.schema["finding"]
    audited = tuple(dtype.categories if isinstance(dtype, pl.Enum) else claims["finding"].unique(maintain_order=True))
    return NIH if audited == NIH.findings else Vocabulary(name="workspace", findings=audited)


def audited_tables(workspace: str | os.PathLike[str]) -> Audited:
    """Read the tables of a workspace's audit, and the answers of its image judges."""
    audit = Workspace(workspace).open()
    return replace(_audited(audit), judges=_image_judges(workspace, audit))


def _audited(audit: FinishedAudit) -> Audited:
    """Read the tables that belong to one audit."""
    files, table = audit.run["files"], audit.table
    columns = ("image_id", "finding", "p_present", "trust", "method")
    answers = [
        table(name, "image_id", "finding", "outcome", "p_present") for name in files if name.startswith("judgments/")
    ]
    return Audited(
        images=table("images.parquet", "image_id", "patient_id"),
        claims=table("claims.parquet", "image_id", "finding", "says"),
        judgments=pl.concat(answers) if answers else _no_answers(),
        signal=table("signal.parquet", *columns),
        groups=table("groups.parquet", *columns) if audit.has("groups.parquet") else None,
        calibration=table("calibration.parquet", "image_id", "finding") if audit.has("calibration.parquet") else None,
    )


def _image_judges(workspace: str | os.PathLike[str], audit: FinishedAudit) -> dict[str, pl.DataFrame]:
    """Read the answers of the audit's image judges."""
    names = [judge["judge"] for judge in audit.run.get("judges") or () if judge["judge"] != RECORD_JUDGE]
    home = Workspace(workspace)
    columns = ("image_id", "finding", "outcome", "p_present")
    return {name: home.judge(name).answers().select(columns) for name in names if name in home.judge_names()}


def _no_answers() -> pl.DataFrame:
    return pl.DataFrame(
        schema={"image_id": pl.String, "finding": pl.String, "outcome": pl.String, "p_present": pl.Float64}
    )


def _meta(audit: FinishedAudit, specs: list[str], split: str, resampling: Resampling) -> dict[str, Any]:
    run = audit.run
    return {
        "bpals": VERSION,
        "workspace": str(audit.path),
        "source": run.get("source"),
        "audited_by": run.get("bpals"),
        "references": specs,
        "split": split,
        "bootstrap": resampling.draws,
        "seed": resampling.seed,
    }
