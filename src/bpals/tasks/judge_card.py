"""`bpals judge card`: a judge of a workspace with its answers, its card, and its skill against labels or experts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.numeric import Matrix, patients
from bpals.reviews import verdicts
from bpals.score.pairwise import Row, Side
from bpals.score.skill import Scores, Yardstick
from bpals.store.workspace import RECORD_JUDGE, RUN, Workspace
from bpals.tasks.datasets import dataset_of, load_source
from bpals.tasks.score import vocabulary_of
from bpals.types import OUTCOME, SKILL, Notice, Reference

NOT_ON_A_CARD = ("skill", "effective_weight", "counts", "sealed")
"""What an audit writes beside a judge's card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecord:
    """A judge of the workspace, with all its answers."""

    name: str
    answers: pl.DataFrame
    card: Mapping[str, Any]
    record: Mapping[str, Any]
    """What its seal says beside the card: offsets, tally, drift."""

    @property
    def side(self) -> Side:
        """This judge as one of two; a subject with one polarity only has no answer without an image."""
        offsets = {subject: both for subject, both in (self.record.get("offsets") or {}).items() if None not in both}
        return Side.of(self.name, self.answers, offsets)

    @property
    def row(self) -> Row:
        """Its card, its questions by outcome, their cost, and its drift."""
        counted = dict(self.answers["outcome"].cast(pl.String).value_counts().iter_rows())
        return {
            "judge": self.name,
            "card": dict(self.card),
            "films": self.answers["image_id"].n_unique(),
            "asked": self.answers.height,
            **{outcome: counted.get(outcome, 0) for outcome in OUTCOME.categories},
            "cost": _cost(self.record.get("tally"), served=bool(self.card.get("observed"))),
            "drift": self.record.get("drift"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of the dataset."""

    title: str
    vocabulary: Vocabulary
    claims: pl.DataFrame
    images: pl.DataFrame

    def films_of(self, judges: Sequence[JudgeRecord]) -> pl.DataFrame:
        """Give the images that a judge was asked about: image_id, patient (a number from 0), name (of the patient)."""
        asked = pl.concat([judge.answers.select("image_id").unique() for judge in judges])
        named = self.images.select("image_id", name=patients(self.images)).join(asked, on="image_id", how="semi")
        return named.with_columns(patient=pl.col("name").rank("dense").cast(pl.Int64) - 1)


def card_of(
    name: str,
    *,
    workspace: str | os.PathLike[str] = "audit",
    reference: str | None = None,
    split: str = "all",
) -> dict[str, Any]:
    """Give a judge's card, its questions by outcome, its cost and drift, and its AUROC of each finding: `skill`.

    `notices` says where a finding was scored against the dataset's labels, although experts were given.
    """
    home = Workspace(workspace)
    judge, labels = judge_of(home, name), labels_of(home)
    experts = None if reference is None else experts_of(reference, labels, split)
    found = skill(judge.answers, labels.claims, labels.images, experts)
    asked = dict(judge.answers.filter(pl.col("outcome") != "unsupported")["finding"].value_counts().iter_rows())
    rows = [{**row, "asked": asked.get(row["finding"], 0)} for row in found.drop("judge").to_dicts()]
    notices = () if experts is None else (*experts.notices, *_not_by_experts(rows, experts))
    return {**judge.row, "skill": rows, "notices": [notice.message for notice in notices]}


def _not_by_experts(rows: Sequence[Row], experts: Reference) -> list[Notice]:
    """Say which findings were scored against the labels: no expert read them, or too few images for an interval."""
    others = [row["finding"] for row in rows if row["against"] != "experts" and row["asked"]]
    read = set(experts.truth["finding"].unique())
    grouped = {member: group.name for group in experts.groups for member in group.members if group.name in read}
    notices = []
    for code, those, why in (
        ("no_expert_label", [name for name in others if name not in read], "no expert label of"),
        ("few_expert_labels", [name for name in others if name in read], "too few expert labels of"),
    ):
        if those:
            named = [f"{name} (only of {grouped[name]})" if name in grouped else name for name in those]
            words = f"{why} {', '.join(named)}: scored against the dataset's labels, which shows agreement, not quality"
            notices.append(Notice(code=code, count=len(those), message=words))
    return notices


def judge_of(home: Workspace, name: str) -> JudgeRecord:
    """Open a judge by its name; the record judge's answers are those of the audit."""
    if name != RECORD_JUDGE:
        sealed = home.judge(name)
        return JudgeRecord(name=name, answers=sealed.answers(), card=sealed.card, record=sealed.record)
    audit = home.open()
    missing = [pl.lit(None, pl.Float64).alias(column) for column in ("logit_present", "logit_absent", "mass")]
    answers = audit.table(f"judgments/{RECORD_JUDGE}.parquet").with_columns(missing)
    entry: Mapping[str, Any] = next((entry for entry in audit.run["judges"] if entry["judge"] == name), {})
    card = {key: value for key, value in entry.items() if key not in NOT_ON_A_CARD}
    return JudgeRecord(name=name, answers=answers, card=card, record={})


def labels_of(home: Workspace) -> Labels:
    """Read the claims that the workspace audits; without an audit, those of the dataset that its judges were asked."""
    if (home.path / RUN).exists():
        audit = home.open()
        claims, title = audit.table("claims.parquet"), audit.run["source"]["title"]
        images = audit.table("images.parquet")
        return Labels(title=title, vocabulary=vocabulary_of(claims), claims=claims, images=images)
    dataset = load_source(*dataset_of(home))
    return Labels(title=dataset.title, vocabulary=dataset.vocabulary, claims=dataset.claims, images=dataset.images)


def experts_of(spec: str, labels: Labels, split: str) -> Reference:
    """Read expert labels; presences alone cannot tell who is right."""
    if verdicts.parse(spec)[0] == "boxes":
        raise UsageError("--reference boxes: they are presences only. Type: --reference four-findings=PATH")
    return verdicts.load(spec, vocabulary=labels.vocabulary, split=split)


def _cost(tally: Mapping[str, Any] | None, *, served: bool) -> Row | None:
    """Say what asking has cost, in tokens where it was paid in tokens; null where the answers were not asked for here.

    A judge that was tried out at its endpoint is served, also where the endpoint counts no tokens.
    """
    if not tally or not tally["films"]:
        return None
    films, tokens = tally["films"], tally["tokens"]
    each_s = {"seconds_per_film": tally["seconds"] / films}
    if not served and not tokens["prompt"] + tokens["output"]:
        return each_s
    return {
        "requests": tally["attempts"],
        "prompt_tokens": tokens["prompt"],
        "cached_tokens": tokens["cached"],
        "output_tokens": tokens["output"],
        "tokens_per_film": (tokens["prompt"] + tokens["output"]) / films,
        **each_s,
    }


def skill(
    answers: pl.DataFrame, claims: pl.DataFrame, images: pl.DataFrame, reference: Reference | None = None
) -> pl.DataFrame:
    """Give the skill of each judge of an answers table, one row per judge and finding, in the order of their names."""
    findings = tuple(claims.schema["finding"].categories)  # type: ignore[attr-defined]
    yardstick = Yardstick.of(images, reference)
    labels = claims.select("image_id", "finding", value=pl.col("says").cast(pl.String).replace_strict(STATES))
    states = _matrix(labels, images, findings)
    tables = []
    for judge in answers["judge"].unique().sort():
        its = answers.filter((pl.col("judge") == judge) & (pl.col("outcome") == "answered"))
        given = _matrix(its.select("image_id", "finding", value="p_present"), images, findings)
        tables.append(yardstick.measure(Scores(judge=judge, findings=findings, given=given, states=states)))
    return pl.concat(tables) if tables else pl.DataFrame(schema=SKILL)


STATES = {"present": 1.0, "absent": 0.0, "uncertain": 0.5}


def _matrix(table: pl.DataFrame, images: pl.DataFrame, findings: tuple[str, ...]) -> Matrix:
    """Lay values out, one row per image and one column per finding; NaN where there is none."""
    rows = images.select("image_id").with_row_index("row")
    columns = pl.DataFrame({"finding": list(findings)}, schema={"finding": pl.String}).with_row_index("column")
    placed = (
        table.with_columns(pl.col("finding").cast(pl.String))
        .join(rows, on="image_id", how="inner", maintain_order="left")
        .join(columns, on="finding", how="inner", maintain_order="left")
    )
    matrix = np.full((images.height, len(findings)), np.nan)
    matrix[placed["row"].to_numpy(), placed["column"].to_numpy()] = placed["value"].to_numpy()
    return matrix
