"""Reasons: why a claim is trusted as far as it is, each as `code: sentence`, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.chronology import reports_of_films
from bpals.signal.pairs import Matrix, Pairs
from bpals.signal.voices import Voice

CODES: Mapping[str, str] = {
    "uncertain_claim": "the dataset itself is uncertain, so no side can be trusted",
    "unjudged": "no judge answered",
    "timeline_against": "the neighbouring films of the patient say the opposite",
    "timeline_for": "the neighbouring films of the patient say the same",
    "only_here": "of several films of the patient only this one claims it",
    "missing_here": "every other film of the patient claims it",
    "alone": "there is no other film of the patient: the answer rests on less",
    "no_patient": "the dataset names no patient: the answer rests on less",
    "seen_with": "another finding claimed on the film makes it more likely",
    "record": "what the rest of the record gives, beside what is usual",
    "judge": "what an image judge that has a signal for the finding gives, beside what is usual for it",
    "no_signal": "judges answered, but none of them can tell films with the finding from films without",
    "devices": "image judges see support devices on the film",
    "reviewed": "fitted on expert labels; this pair's own patient was left out",
    "calibrated": "fitted on expert labels of other films",
    "group": "follows from the calibrated group",
}
"""Every code that a reason may begin with."""

LIFT = 2.0
"""A co-label is named when it makes the finding at least this many times as common."""
ENOUGH_TOGETHER = 30
"""... and this many films carry both: fewer could be chance."""
SILENT = -1.0
CENTS = range(101)
NO_SIGNAL = "no_signal: judges answered, but none of them can tell this finding"

Ints = npt.NDArray[np.int64]


def timeline_reasons(pairs: Pairs, images: pl.DataFrame) -> list[pl.Series]:
    """Say, finding by finding, what the patient's neighbouring reports claim; null says nothing."""
    films = reports_of_films(images)
    report, rank, size = (films[name].to_numpy() for name in ("report", "rank", "size"))
    # The loudest film of a report speaks for it: present, else uncertain, else absent; -1 is silence.
    said = np.full((int(report.max(initial=-1)) + 1, len(pairs.findings)), SILENT, dtype=np.float32)
    np.maximum.at(said, report, np.nan_to_num(pairs.states, nan=SILENT).astype(np.float32))
    before, after = said[np.maximum(report - 1, 0)], said[np.minimum(report + 1, len(said) - 1)]
    before, after = np.where(rank[:, None] > 0, before, SILENT), np.where((rank < size - 1)[:, None], after, SILENT)
    elsewhere = {"present": _on_others(said == 1, report, rank), "absent": _on_others(said == 0, report, rank)}
    nameless = images["patient_id"].is_null()
    noun = ("study", "studies") if images["study_id"].is_not_null().any() else ("film", "films")
    worded = []
    for column in range(len(pairs.findings)):
        told = {"before": before[:, column], "after": after[:, column]}
        heard = [pl.when(pl.col(name) != SILENT).then(name).alias(name) for name in told]
        counts = {f"{word}_elsewhere": count[:, column] for word, count in elsewhere.items()}
        state = pl.Series(pairs.states[:, column]).fill_nan(None)
        frame = pl.DataFrame({"state": state, **told, **counts, "others": size - 1, "nameless": nameless})
        worded.append(frame.with_columns(heard).select(timeline=_timeline(noun)).to_series())
    return worded


def _on_others(said: npt.NDArray[np.bool_], report: Ints, rank: Ints) -> Ints:
    """Count, for each film, the other reports of its patient that say it."""
    patient = np.unique(report - rank, return_inverse=True)[1]
    total = np.zeros((int(patient.max(initial=-1)) + 1, said.shape[1]), dtype=np.int64)
    np.add.at(total, patient[np.unique(report, return_index=True)[1]], said)
    return total[patient] - said[report]


def _timeline(noun: tuple[str, str]) -> pl.Expr:
    """Word one finding's timeline; the first case that holds speaks, and silence is never called absence."""
    one, many = noun
    others, here = pl.col("others"), pl.col("present_elsewhere")
    present, absent = pl.col("state") == 1, pl.col("state") == 0
    both = pl.col("before").is_not_null() & pl.col("after").is_not_null()
    neighbours = (
        pl.when(both)
        .then(pl.lit(f"{many} before and after"))
        .when(pl.col("before").is_not_null())
        .then(pl.lit(f"{one} before"))
        .otherwise(pl.lit(f"{one} after"))
    )
    least, most = pl.min_horizontal("before", "after"), pl.max_horizontal("before", "after")
    number = others.cast(pl.String)
    count = pl.when(others == 1).then(pl.lit(f"the only other {one}")).otherwise("all " + number + f" other {many}")
    nowhere = pl.col("absent_elsewhere") == others
    return (
        pl.when(pl.col("state").is_null())
        .then(None)
        .when(pl.col("nameless"))
        .then(pl.lit(f"no_patient: the dataset names no patient, so no other {one} can speak"))
        .when(others == 0)
        .then(pl.lit(f"alone: no other {one} of this patient"))
        .when(present & nowhere & (others > 1))
        .then("only_here: absent on " + count + " of this patient")
        .when(present & (here == 0) & (others > 1))
        .then("only_here: claimed on none of the " + number + f" other {many} of this patient")
        .when(~present & (here == others) & (others > 1))
        .then("missing_here: present on " + count + " of this patient")
        .when(present & (most == 0))
        .then("timeline_against: absent on the " + neighbours)
        .when(present & (least == 1))
        .then("timeline_for: present on the " + neighbours + " too")
        .when(absent & (least == 1))
        .then("timeline_against: present on the " + neighbours)
        .when(absent & nowhere)
        .then("timeline_for: absent on " + count + " of this patient too")
        .when(absent & (most == 0))
        .then("timeline_for: absent on the " + neighbours + " too")
        .otherwise(None)
    )


def colabel_reasons(pairs: Pairs) -> list[pl.Series]:
    """Name the co-label that makes a finding most common, where the finding is claimed or conspicuously not."""
    claimed = pairs.states == 1
    share = claimed.sum(axis=0) / max(len(claimed), 1)
    together = claimed.T.astype(np.float64) @ claimed
    beside = together / np.maximum(np.diag(together), 1)[:, None]
    worded = []
    for column in range(len(pairs.findings)):
        lift = beside[:, column] / max(float(share[column]), 1e-12)
        speaks = (lift >= LIFT) & (together[:, column] >= ENOUGH_TOGETHER) & (np.arange(len(lift)) != column)
        weight = np.where(speaks, lift, 0.0)
        strongest = (claimed * weight).argmax(axis=1)
        said = (claimed * weight).max(axis=1) > 0
        known = ~np.isnan(pairs.states[:, column])
        words = [
            f"seen_with: {name} is claimed here too, beside which it is {times:.1f} times as common"
            for name, times in zip(pairs.findings, lift, strict=True)
        ]
        picked = np.where(said & known, strongest, len(words))
        worded.append(pl.Series([*words, None], dtype=pl.String).gather(picked))
    return worded


def record_reasons(pairs: Pairs, record: Pairs) -> list[pl.Series]:
    """Say what the rest of the record gives beside what is usual; or that nobody could say."""
    worded = []
    for column, (finding, usual) in enumerate(zip(pairs.findings, record.usual, strict=True)):
        words = [
            f"record: the rest of the record gives {p} %; {100 * usual:.1f} % is usual for {finding}" for p in CENTS
        ]
        told = _gathered(words, record.p_present[:, column])
        silent = pl.Series(np.isnan(pairs.p_present[:, column]))
        asked = pl.Series(pairs.answered[:, column] > 0)
        nobody = pl.when(asked).then(pl.lit(NO_SIGNAL)).otherwise(pl.lit("unjudged: no judge answered"))
        worded.append(pl.select(pl.when(silent).then(nobody).otherwise(told)).to_series())
    return worded


def judge_reasons(voice: Voice, findings: tuple[str, ...]) -> list[pl.Series]:
    """Say what an image judge gives beside what is usual for it, where it is heeded."""
    worded = []
    for column in range(len(findings)):
        usually = f"{100 * voice.usual[column]:.1f} % is usual for it"
        words = [f"judge: {voice.judge} gives {p} %; {usually}" for p in CENTS]
        given = voice.p_present[:, column] if voice.heeded[column] else np.full(len(voice.p_present), np.nan)
        worded.append(_gathered(words, given))
    return worded


def _gathered(words: list[str], p: Matrix) -> pl.Series:
    """Give each film the words of its whole per cent; null where there is none."""
    picked = np.where(np.isnan(p), len(words), np.round(np.nan_to_num(p) * 100)).astype(np.int64)
    return pl.Series([*words, None], dtype=pl.String).gather(picked)
