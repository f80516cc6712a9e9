"""What an audit knows of a pair, for one finding or a group: the label, the trust, and the judges' answers.

A group is labelled present if any member is. Its probability is min(1, sum of the members'): the labeller seldom
gives two members at once. Where the audit calibrated the group itself, the group's own row is used instead.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bpals.errors import MissingExtra, TruthError, UsageError
from bpals.findings import Group
from bpals.text import several
from bpals.types import Notice

Floats = NDArray[np.float64]


def cleanlab_suspicion(claimed: NDArray[np.bool_], p_present: Floats) -> Floats:
    """Rank labels as cleanlab does: those it prunes by noise rate first, then the others, both by self-confidence."""
    try:
        filtering = importlib.import_module("cleanlab.filter")
    except ImportError:
        raise MissingExtra.of("the method cleanlab", "peers") from None
    with warnings.catch_warnings():
        # It warns of classes with few examples; so few are ranked by self-confidence alone, which is what we want.
        warnings.simplefilter("ignore", UserWarning)
        pruned = filtering.find_label_issues(
            labels=claimed.astype(np.int64),
            pred_probs=np.column_stack([1.0 - p_present, p_present]),
            filter_by="prune_by_noise_rate",
            n_jobs=1,
        )
    doubt = np.where(claimed, 1.0 - p_present, p_present)
    return np.asarray(2.0 * np.asarray(pruned, dtype=np.float64) + doubt)


CROSSFIT = "/crossfit"
"""The end of the method of a row whose trust does not rest on its own review."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The tables of a workspace that a score needs."""

    images: pl.DataFrame
    claims: pl.DataFrame
    judgments: pl.DataFrame
    signal: pl.DataFrame
    groups: pl.DataFrame | None = None
    calibration: pl.DataFrame | None = None
    judges: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Image judge -> its answers, for the rows that score each judge alone."""


def opinions(audited: Audited, group: Group) -> pl.DataFrame:
    """Give `says, trust, p_judge, self_fitted` for every image with a label; null where unknown."""
    claims = _claims(audited.claims, group)
    rows = _members(audited.signal, group).select(
        "image_id", "finding", "p_present", "trust", crossfit=pl.col("method").str.ends_with(CROSSFIT)
    )
    held = (
        claims.join(_summed(rows, group), on="image_id", how="left", maintain_order="left")
        .join(_summed(_answers(audited.judgments, group), group).rename({"p": "p_judge"}), on="image_id", how="left")
        .join(_self_fitted(rows, audited.calibration, group), on="image_id", how="left")
        .with_columns(trust=_trust(pl.col("p")), self_fitted=pl.col("self_fitted").fill_null(value=False))
    )
    if len(group.members) == 1:
        # A finding's own trust is taken as it stands, not worked out again.
        own = rows.select("image_id", own="trust")
        held = held.join(own, on="image_id", how="left").with_columns(trust=pl.col("own"))
    return _own_rows(held, audited, group).select("image_id", "says", "trust", "p_judge", "self_fitted")


def about(
    asked: pl.DataFrame, audited: Audited, groups: Iterable[Group], *, baselines: bool = True
) -> tuple[pl.DataFrame, list[Notice]]:
    """Join what the audit knows to the pairs in question; pairs that cannot be scored are counted.

    `asked` has `image_id`, `finding` and any other columns. The columns `patient, claimed, trust, p_judge` come to
    it, and with `baselines` also `prevalence`, `cleanlab` and a `p_judge NAME` for each image judge.
    """
    known = {group.name: group for group in groups}
    notices = _unknown_images(asked, audited.images)
    parts = []
    for finding in asked["finding"].unique(maintain_order=True):
        group = known.get(finding, Group(name=finding, members=(finding,)))
        held = opinions(audited, group)
        if baselines:
            held = _with_judges(_with_baselines(held, notices, finding), audited, group)
        part = asked.filter(pl.col("finding") == finding).join(held, on="image_id", how="left", maintain_order="left")
        parts.append(part.join(audited.images.select("image_id"), on="image_id", how="semi", maintain_order="left"))
    pairs = pl.concat(parts)
    # Refused, not left out: the figure would be on other pairs than the user named.
    _refuse_self_fitted(pairs)
    return _scorable(pairs, audited.images, notices), notices


def by_finding(pairs: pl.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every finding with a mask of its pairs, then all of them as `pooled`."""
    finding = pairs["finding"].cast(pl.String).to_numpy()
    for name in pairs["finding"].cast(pl.String).unique(maintain_order=True):
        yield name, finding == name
    yield "pooled", np.ones(pairs.height, dtype=np.bool_)


def _members(table: pl.DataFrame, group: Group) -> pl.DataFrame:
    chosen = table.filter(pl.col("finding").cast(pl.String).is_in(list(group.members)))
    return chosen.with_columns(pl.col("finding").cast(pl.String))


def _claims(claims: pl.DataFrame, group: Group) -> pl.DataFrame:
    """One row per image: present if any member is, absent if all are, else uncertain; part silence is no label."""
    says = pl.col("says").cast(pl.String)
    films = (
        _members(claims, group)
        .group_by("image_id", maintain_order=True)
        .agg(
            present=(says == "present").any(),
            uncertain=(says == "uncertain").any(),
            whole=pl.len() == len(group.members),
        )
    )
    present, uncertain, absent = (pl.lit(word) for word in ("present", "uncertain", "absent"))
    return films.filter(pl.col("present") | pl.col("uncertain") | pl.col("whole")).select(
        "image_id", says=pl.when("present").then(present).when("uncertain").then(uncertain).otherwise(absent)
    )


def _summed(rows: pl.DataFrame, group: Group) -> pl.DataFrame:
    """P(group) = min(1, sum of the members'); null unless every member has one."""
    p = pl.col("p_present")
    whole = p.count() == len(group.members)
    return rows.group_by("image_id").agg(p=pl.when(whole).then(p.sum().clip(upper_bound=1.0)))


def _answers(judgments: pl.DataFrame, group: Group) -> pl.DataFrame:
    """The mean of the judges that answered, by image and member."""
    answered = _members(judgments, group).filter(pl.col("outcome").cast(pl.String) == "answered")
    return answered.group_by("image_id", "finding").agg(pl.col("p_present").mean())


def _trust(p_present: pl.Expr) -> pl.Expr:
    says = pl.col("says")
    return pl.when(says == "present").then(p_present).when(says == "absent").then(1.0 - p_present)


def _self_fitted(rows: pl.DataFrame, calibration: pl.DataFrame | None, group: Group) -> pl.DataFrame:
    """Images whose trust rests on their own review: a used row that was not cross-fitted."""
    if calibration is None:
        return pl.DataFrame(schema={"image_id": pl.String, "self_fitted": pl.Boolean})
    used = calibration.select("image_id", pl.col("finding").cast(pl.String))
    whole = used.filter(pl.col("finding") == group.name).select("image_id").unique()
    # A row that was not cross-fitted has seen its own answer: to score it would be cheating.
    careless = rows.filter(~pl.col("crossfit"))
    own = careless.join(used, on=["image_id", "finding"], how="semi")
    films = pl.concat([own, careless.join(whole, on="image_id", how="semi")]).select("image_id")
    return films.unique().with_columns(self_fitted=pl.lit(True))


def _own_rows(held: pl.DataFrame, audited: Audited, group: Group) -> pl.DataFrame:
    """Use the trust of the group's own row, where `groups.parquet` has one."""
    if audited.groups is None:
        return held
    rows = audited.groups.filter(pl.col("finding").cast(pl.String) == group.name)
    used = pl.lit(False)
    if audited.calibration is not None:
        films = audited.calibration.filter(pl.col("finding").cast(pl.String) == group.name)["image_id"]
        used = pl.col("image_id").is_in(films.implode())
    own = rows.select(
        "image_id", own_trust="trust", own_fitted=used & ~pl.col("method").str.ends_with(CROSSFIT), calibrated=True
    )
    return held.join(own, on="image_id", how="left", maintain_order="left").with_columns(
        trust=pl.when("calibrated").then("own_trust").otherwise("trust"),
        self_fitted=pl.when("calibrated").then("own_fitted").otherwise("self_fitted"),
    )


def _with_judges(held: pl.DataFrame, audited: Audited, group: Group) -> pl.DataFrame:
    """Add the answers of each image judge, `p_judge NAME`; null where it did not answer."""
    for name, answers in audited.judges.items():
        own = _summed(_answers(answers, group), group).rename({"p": f"p_judge {name}"})
        held = held.join(own, on="image_id", how="left", maintain_order="left")
    return held


def _with_baselines(held: pl.DataFrame, notices: list[Notice], finding: str) -> pl.DataFrame:
    """Add what needs the whole dataset: the prevalence of the label, and cleanlab's ranking."""
    definite = held.filter(pl.col("says") != "uncertain")
    held = held.with_columns(prevalence=pl.lit((definite["says"] == "present").sum() / max(1, definite.height)))
    judged = definite.drop_nulls("p_judge")
    ranking = _cleanlab(judged, finding, notices)
    ranked = judged.select("image_id", cleanlab=pl.lit(None, pl.Float64) if ranking is None else ranking)
    return held.join(ranked, on="image_id", how="left", maintain_order="left")


def _cleanlab(judged: pl.DataFrame, finding: str, notices: list[Notice]) -> pl.Series | None:
    """Rank every label of the dataset as cleanlab does; where it cannot, say why."""
    claimed = (judged["says"] == "present").to_numpy()
    try:
        if judged.is_empty():
            reason = ": it needs the answers of the metadata judge, which took no part"
        elif claimed.any() and not claimed.all():
            return pl.Series(cleanlab_suspicion(claimed, judged["p_judge"].to_numpy()))
        else:
            reason = f" for {finding}: all its labels are alike"
    except MissingExtra as missing:
        reason = f": {missing}"
    notice = Notice(code="no_cleanlab", count=1, message=f"there are no rows of cleanlab{reason}")
    if notice not in notices:
        notices.append(notice)
    return None


def _unknown_images(asked: pl.DataFrame, images: pl.DataFrame) -> list[Notice]:
    films = asked.select("image_id").unique(maintain_order=True)
    unknown = films.join(images, on="image_id", how="anti", maintain_order="left")["image_id"]
    if unknown.is_empty():
        return []
    if len(unknown) == films.height:
        raise TruthError(
            f"of {several(films.height, 'image')} of the reference none is in this audit: the first is {unknown[0]!r}, "
            f"the audit has {images['image_id'].first()!r}. Type: bpals audit --source, with the dataset they belong to"
        )
    those = several(len(unknown), "image of the reference is", "images of the reference are")
    message = f"{those} not in this audit: left out (first: {unknown[0]})"
    return [Notice(code="unknown_images", count=len(unknown), message=message)]


def _refuse_self_fitted(pairs: pl.DataFrame) -> None:
    fitted = pairs.filter("self_fitted")
    if not fitted.is_empty():
        first = fitted.row(0, named=True)
        raise UsageError(
            f"{several(fitted.height, 'pair was', 'pairs were')} used to calibrate this audit, and the trust there is "
            f"not cross-fitted (first: {first['image_id']}, {first['finding']}): it has seen the answer. Score other "
            "images with --split, or type: bpals audit --calibrate KIND=PATH"
        )


def _scorable(pairs: pl.DataFrame, images: pl.DataFrame, notices: list[Notice]) -> pl.DataFrame:
    """Keep the pairs with a definite label and a trust; count the others by reason."""
    # An audit without the metadata judge has no p_judge at all; else every method is scored on the same pairs.
    compared = pairs["p_judge"].is_not_null().any()
    unjudged = pl.col("trust").is_null() | (pl.col("p_judge").is_null() & compared)
    for code, condition, words in (
        ("silent", pl.col("says").is_null(), "about which the dataset is silent"),
        ("uncertain_claims", pl.col("says") == "uncertain", "whose label is uncertain"),
        ("unjudged", unjudged, "that no judge answered for"),
    ):
        left_out = pairs.filter(condition)
        pairs = pairs.filter(~condition)
        if left_out.height:
            those = several(left_out.height, f"pair {words} was", f"pairs {words} were")
            message = f"{those} left out (first: {left_out['image_id'][0]})"
            notices.append(Notice(code=code, count=left_out.height, message=message))
    if pairs.is_empty():
        raise TruthError("no pair of the reference has both a label and a trust in this audit. Type: bpals audit")
    joined = pairs.join(_patients(images), on="image_id", how="left", maintain_order="left")
    return joined.with_columns(claimed=pl.col("says") == "present").drop("says", "self_fitted")


def _patients(images: pl.DataFrame) -> pl.DataFrame:
    """Number the patients; an image whose patient is unknown is a patient of its own."""
    alone = pl.lit("film ") + pl.col("image_id")
    named = pl.lit("patient ") + pl.col("patient_id")
    return images.select("image_id", patient=pl.coalesce(named, alone).rank("dense").cast(pl.Int64))
