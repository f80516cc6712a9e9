"""The nouns, as table schemas: what every room takes and gives.

Dataset    sources   images and claims of one dataset
Claim      sources   a dataset says a finding is present, absent or uncertain; silence is no row
Judgment   judges    what a judge that cannot see the claim answers
Truth      score     what experts say, pair by pair, for scoring and for calibration
Trust      signal    how far to trust each claim, with reasons: the product
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from bpals.findings import Group, Vocabulary

SAYS = pl.Enum(["present", "absent", "uncertain"])
KIND = pl.Enum(["image", "record"])
OUTCOME = pl.Enum(["answered", "abstained", "refused", "unparsed", "unsupported", "failed"])
FLAG = pl.Enum(["likely_mislabelled", "suspect", "hard", "trusted", "unjudged"])
DEVICES = pl.Enum(["present", "absent", "unknown"])

IMAGES = pl.Schema(
    {
        "image_id": pl.String,
        "patient_id": pl.String,  # null where the dataset names no patient
        "study_id": pl.String,
        "follow_up": pl.Int64,  # order of the film within its patient: a number or days, not a rank
        "view": pl.String,
        "age": pl.Float64,  # years; null where unknown or impossible
        "sex": pl.String,
        "width_px": pl.Int64,
        "height_px": pl.Int64,
    }
)
"""One row a film. Only image_id is never null."""


def claims_schema(vocabulary: Vocabulary) -> pl.Schema:
    """One row a claim: silence is no row. Image-major, in the order of the images and the vocabulary."""
    return pl.Schema({"image_id": pl.String(), "finding": vocabulary.enum, "says": SAYS})


def judgments_schema(vocabulary: Vocabulary) -> pl.Schema:
    """One row an answer or a failure. `p_present` is filled exactly when the outcome is `answered`."""
    return pl.Schema(
        {
            "image_id": pl.String(),
            "finding": vocabulary.enum,
            "judge": pl.String(),
            "kind": KIND,
            "outcome": OUTCOME,
            "p_present": pl.Float64(),
            "p_low": pl.Float64(),  # 95 % interval of the judge's own probability
            "p_high": pl.Float64(),
        }
    )


TRUTH = pl.Schema(
    {
        "image_id": pl.String,
        "finding": pl.String,  # a finding of the vocabulary, or the name of a group
        "present": pl.Boolean,
        "split": pl.String,  # val, test, or null
    }
)
"""What experts say: one row a pair."""


def signal_schema(findings: tuple[str, ...]) -> pl.Schema:
    """The product: one row a claim. For `groups.parquet`, the findings are the groups' names."""
    return pl.Schema(
        {
            "image_id": pl.String(),
            "finding": pl.Enum(findings),
            "says": SAYS,
            "p_present": pl.Float64(),
            "trust": pl.Float64(),
            "trust_low": pl.Float64(),
            "trust_high": pl.Float64(),
            "agreement": pl.Float64(),
            "answered": pl.Int32(),
            "flag": FLAG,
            "reasons": pl.List(pl.String),
            "review_rank": pl.Int64(),
            "devices": DEVICES,
            "method": pl.String(),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something odd that was read on from, counted."""

    code: str
    count: int
    message: str
    """What was found, where it first was, and what was done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a source gives: every film and every claim; selecting is someone else's job."""

    name: str
    title: str
    vocabulary: Vocabulary
    images: pl.DataFrame
    claims: pl.DataFrame
    attribution: str
    inputs: Mapping[str, str]
    """Name of each file read -> its sha256."""
    unaudited: Mapping[str, int] = field(default_factory=dict)
    """Labels that are not audited -> films that carry them: counted, not lost."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Expert labels: pairs with a truth, and what the groups among them mean."""

    kind: str
    truth: pl.DataFrame
    groups: tuple[Group, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    positives_only: bool = False
    """True where every pair is a confirmed presence, so that no error can be scored."""

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups all of whose members a dataset audits."""
        return [group for group in self.groups if set(vocabulary.findings).issuperset(group.members)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCard:
    """Who a judge is: what a reader must know before believing it."""

    judge: str
    kind: str
    version: str
    fingerprint: str
    trained_on_target: bool
    evidence: str
    """How we know whether it was trained on the labels it judges."""
    licence: str
    settings: Mapping[str, object] = field(default_factory=dict)
