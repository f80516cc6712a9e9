"""What was observed on the images: the answers of image judges, support devices, and what a probe finds odd.

Tables may come from elsewhere, so nothing is taken on trust, and nothing is dropped without a notice. Devices and what
is odd change no trust: both are columns of the signal, and reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import PAIR, Matrix, logit
from bpals.signal.layout import (
    ABSENT,
    PRESENT,
    TINY,
    UNKNOWN,
    Devices,
    FilmChecks,
    JudgeAnswers,
    in_blocks,
    places_of,
    standardised,
)
from bpals.text import several
from bpals.types import Dataset, Notice

TOPIC = "devices"
"""What a judge is asked of the image."""
_PLACE = "\0place"
MOST_NAMED = 3
"""Unknown findings that a notice names."""


def sound_answers(
    judge: str, answers: pl.DataFrame, dataset: Dataset, blank: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep a judge's sound answers about this dataset; those about others, and about `blank` images, are counted."""
    here, foreign = _of_dataset(judge, answers, dataset)
    here, unseen = _without_blank(judge, here, blank)
    kept, strange = sound(judge, here)
    return kept, [*foreign, *unseen, *strange]


def _of_dataset(judge: str, answers: pl.DataFrame, dataset: Dataset) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep the answers about images and findings of this dataset; the others are counted."""
    named = pl.col("finding").is_in(list(dataset.vocabulary.findings))
    known, images = answers.filter(named), dataset.images.select("image_id")
    unknown, elsewhere = answers.filter(~named), known.join(images, on="image_id", how="anti", maintain_order="left")
    notices = []
    if unknown.height:
        names = unknown["finding"].unique().sort().to_list()
        more = f" and {several(len(names) - MOST_NAMED, 'other')}" if len(names) > MOST_NAMED else ""
        other = f"findings that are not audited here ({', '.join(map(str, names[:MOST_NAMED]))}{more})"
        notices.append(_left_out("foreign_findings", judge, unknown.height, answers.height, other))
    if elsewhere.height:
        other = f"images that are not in this dataset (first: {elsewhere['image_id'][0]})"
        notices.append(_left_out("foreign_answers", judge, elsewhere.height, answers.height, other))
        known = known.join(images, on="image_id", how="semi", maintain_order="left")
    return known, notices


def _without_blank(judge: str, answers: pl.DataFrame, blank: pl.DataFrame | None) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out answers about blank images: a judge that saw nothing gives no evidence."""
    if blank is None:
        return answers, []
    kept = answers.join(blank.select("image_id"), on="image_id", how="anti", maintain_order="left")
    if kept.height == answers.height:
        return answers, []
    return kept, [_left_out("blank_films", judge, answers.height - kept.height, answers.height, "blank images")]


def _left_out(code: str, judge: str, count: int, of: int, what: str) -> Notice:
    message = f"{judge}: {count:,} of its {several(of, 'answer')} left out, about {what}"
    return Notice(code=code, count=count, message=message)


def sound(judge: str, answers: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep a judge's sound rows, in their order; the others are as if it had not answered, and are counted.

    A probability is a number from 0 to 1, and a judge gives one answer per pair.
    """
    kept, notices = _probable(judge, answers)
    return _once(judge, kept, notices)


def _probable(judge: str, answers: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out answers without a probability from 0 to 1."""
    given = pl.col("p_present")
    wrong = (pl.col("outcome") == "answered") & ~(given.is_between(0, 1) & given.is_not_nan()).fill_null(value=False)
    strange = answers.filter(wrong)
    if strange.is_empty():
        return answers, []
    message = (
        f"{judge}: of its {several(answers.height, 'answer')} {several(strange.height, 'gives', 'give')} no "
        f"probability from 0 to 1 ({_first(strange)} gives {strange['p_present'][0]}): counted as not answered"
    )
    return answers.filter(~wrong), [Notice(code="no_probability", count=strange.height, message=message)]


def _once(judge: str, answers: pl.DataFrame, notices: list[Notice]) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep one answer per pair: twice the same counts once, and two different answers count as none."""
    given = answers.filter(pl.col("outcome") == "answered").with_row_index(_PLACE)
    doubled = given.filter(given.select(PAIR).is_duplicated())
    if doubled.is_empty():
        return answers, notices
    pairs = doubled.group_by(PAIR, maintain_order=True).agg(pl.col("p_present").n_unique().alias("different"))
    against, again = pairs.filter(pl.col("different") > 1), pairs.filter(pl.col("different") == 1)
    kept = given.join(against.select(PAIR), on=PAIR, how="anti", maintain_order="left")
    kept = kept.unique(PAIR, keep="first", maintain_order=True).drop(_PLACE)
    for code, found, words in (
        ("answers_contradict", against, "it gives two different answers ({}); they count as not answered"),
        ("answers_again", again, "it gives the same answer again ({}); it counts once"),
    ):
        if found.height:
            message = f"{judge}: about {several(found.height, 'pair')} {words.format(f'first: {_first(found)}')}"
            notices = [*notices, Notice(code=code, count=found.height, message=message)]
    return kept, notices


def _first(rows: pl.DataFrame) -> str:
    return f"{rows['image_id'][0]}, {rows['finding'][0]}"


def read_answers(name: str, table: pl.DataFrame, images: pl.DataFrame, findings: tuple[str, ...]) -> JudgeAnswers:
    """Lay an image judge's answers out; those about images or findings that are not here are passed over."""
    answers = table.filter(pl.col("outcome") == "answered")
    column = answers["finding"].cast(pl.Enum(findings), strict=False).to_physical()
    answers, column = answers.filter(column.is_not_null()), column.drop_nulls()
    places = places_of(answers["image_id"], column.to_numpy(), images["image_id"], len(findings))
    given = answers["p_present"].to_numpy()
    p_present = np.full((images.height, len(findings)), np.nan)
    if not isinstance(places, slice):
        here = places < p_present.size
        places, given = places[here], given[here]
    p_present.ravel()[places] = given
    logits = np.empty(p_present.shape)

    def weigh(rows: slice) -> None:
        logits[rows] = logit(p_present[rows], TINY)

    in_blocks(len(logits), weigh)
    return JudgeAnswers(name=name, p_present=p_present, evidence=standardised(logits))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswers:
    """What one judge answers about the images themselves."""

    judge: str
    answers: pl.DataFrame
    """FILM_ANSWERS."""
    offsets: Mapping[str, Any]
    """Topic -> its mean logits without an image, `[present, absent]`; either may be null."""


def read_devices(images: pl.DataFrame, judges: Sequence[DeviceAnswers]) -> Devices:
    """Average the judges' evidence, each less its answer without an image; above zero is present, no answer unknown."""
    ids = images.select("image_id")
    evidence = np.stack([_evidence(ids, judge) for judge in judges]) if judges else np.full((1, ids.height), np.nan)
    answered = (~np.isnan(evidence)).sum(axis=0)
    mean = np.nansum(evidence, axis=0) / np.maximum(answered, 1)
    state = np.where(answered == 0, UNKNOWN, np.where(mean > 0, PRESENT, ABSENT)).astype(np.uint32)
    return Devices(state=state, seen_by=_seen_by([judge.judge for judge in judges], evidence, state))


def _evidence(ids: pl.DataFrame, judge: DeviceAnswers) -> Matrix:
    """Give one judge's logit, image by image, less its answer without an image; NaN where it did not answer."""
    its = judge.answers.filter((pl.col("topic") == TOPIC) & (pl.col("outcome") == "answered"))
    placed = ids.join(its.select("image_id", "p_present"), on="image_id", how="left", maintain_order="left")
    p = placed["p_present"].fill_null(float("nan")).to_numpy()
    # A judge that says .9 without an image and .85 with this one sees none.
    present, absent = judge.offsets.get(TOPIC) or (None, None)
    sides = [side for side in (present, None if absent is None else -absent) if side is not None]
    return np.asarray(logit(p) - (sum(sides) / len(sides) if sides else 0.0))


def _seen_by(names: list[str], evidence: Matrix, state: npt.NDArray[np.uint32]) -> pl.Series:
    """Name, for each image with devices, the judges whose evidence is above zero."""
    nobody = pl.Series([None] * len(state), dtype=pl.String)
    if not names:
        return nobody
    seeing = [pl.when(pl.Series(row > 0)).then(pl.lit(name)) for name, row in zip(names, evidence, strict=True)]
    listed = pl.concat_list(seeing).list.drop_nulls()
    verb = pl.when(listed.list.len() > 1).then(pl.lit(" see ")).otherwise(pl.lit(" sees "))
    sentence = "devices: " + listed.list.join(" and ") + verb + "support devices on the image"
    return pl.select(pl.when(pl.Series(state == PRESENT)).then(sentence)).to_series()


CHECK_WORDS: Mapping[str, pl.Expr] = {
    "blank": pl.lit(
        "the image shows nothing, or next to nothing, so it confirms no label and the metadata alone speaks"
    ),
    "inverted": pl.lit("the image looks inverted, white where images are black"),
    "turned": pl.format(
        "the image {}, turned {} degrees anticlockwise",
        pl.when(pl.col("turned") == 180).then(pl.lit("stands on its head")).otherwise(pl.lit("lies on its side")),
        pl.col("turned"),
    ),
    "cropped": pl.lit("the image looks cut out of the middle of a larger one"),
    "near_duplicate": pl.format(
        "the image is the same exposure as {}, of {}",
        pl.col("near_duplicate_of"),
        pl.when("same_patient").then(pl.lit("the same patient")).otherwise(pl.lit("another patient")),
    ),
    "view": pl.when(pl.col("view_marked") != pl.col("view"))
    .then(pl.format("recorded as {}, the image is marked {}", pl.col("view"), pl.col("markers").list.join(" ")))
    .otherwise(
        pl.format(
            "recorded as {}, the image looks {}",
            pl.col("view"),
            pl.when(pl.col("view") == "PA").then(pl.lit("AP")).otherwise(pl.lit("PA")),
        )
    ),
    "lateral": pl.lit("a lateral view, by its DICOM tag"),
    "unlike": pl.format(
        "the image is unlike the others, {} times as far from what they share as usual; a lateral perhaps, or a child",
        pl.col("unlike").round(1),
    ),
    "text": pl.lit("text is burnt into the image, beside the usual markers"),
}
"""Every check, and what it says where it fires."""


def read_checks(images: pl.DataFrame, films: pl.DataFrame) -> FilmChecks:
    """Lay the checks out image by image; `films` is FILM_CHECKS, and what it says of other images is passed over."""
    placed = images.select("image_id").join(
        films.unique("image_id", keep="first"), on="image_id", how="left", maintain_order="left"
    )
    sentences = {
        check: pl.when(pl.col("checks").list.contains(check)).then(pl.concat_str(pl.lit(f"film_{check}: "), words))
        for check, words in CHECK_WORDS.items()
    }
    return FilmChecks(
        column=placed["checks"].alias("film_checks"),
        fired=tuple(placed.select(words).to_series() for words in sentences.values()),
    )
