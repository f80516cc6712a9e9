"""Reasons: why a claim is trusted as far as it is, each as `code: sentence`, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.chronology import reports_of_films
from bpals.signal import flags
from bpals.signal.hardness import Hard, judges_split
from bpals.signal.pairs import Matrix, Pairs
from bpals.signal.sentences import Places, Sentences
from bpals.signal.voices import Bools, Voice

CODES: Mapping[str, str] = {
    "uncertain_claim": "the dataset itself is uncertain, so no side can be trusted",
    "unjudged": "no judge answered",
    "hard": "the trust is low because nobody can tell: readers would split here, as they did on pairs like it",
    "clear": "the trust is low and not because it is hard: readers would seldom split here",
    "judges_split": "the trust is low because judges stand on both sides of the claim",
    "judges_against": "the trust is low because all judges that answered stand against the claim",
    "wide": "the trust is low, but its interval reaches above the cut: it rests on too little",
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
    "film_blank": "the film shows nothing, or next to nothing",
    "film_inverted": "the film is white where films are black: it looks like inverted copies of other patients' films",
    "film_turned": "the film lies on its side or stands on its head",
    "film_cropped": "the film looks cut out of the middle of a larger one",
    "film_near_duplicate": "another film of the dataset is the same exposure",
    "film_view": "its pixels, or words burnt into them, speak against the recorded view",
    "film_lateral": "a lateral view, by its DICOM tag",
    "film_unlike": "the film lies far outside what the other films share: a lateral, a child, an odd cut",
    "film_text": "text is burnt into its pixels, beside the usual markers",
    "reviewed": "fitted on expert labels; this pair's own patient was left out",
    "calibrated": "fitted on expert labels of other films",
    "group": "follows from the calibrated group",
}
"""Every code that a reason may begin with."""

LIFT = 2.0
"""A co-label is named when it makes the finding at least this many times as common."""
ENOUGH_TOGETHER = 30
"""... and this many films carry both: fewer could be chance."""
CENTS = range(101)
WIDE = "wide: the trust is low, but its interval reaches above the cut"
AGAINST = "judges_against: no judge that answered stands with the claim"
NO_SIGNAL = "no_signal: judges answered, but none of them can tell this finding"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """What was flagged, and what the judges make of it: a row a film, a column a finding."""

    flagged: npt.NDArray[np.int8]
    agreement: Matrix
    asked: Ints


def flag_reasons(seen: Flagged, findings: tuple[str, ...], hard: Mapping[str, Hard]) -> Sentences:
    """Say of every flagged claim whether nobody can tell, or all are against it."""
    words: list[str | None] = [None, WIDE, AGAINST]
    low, nobody = np.isin(seen.flagged, (flags.LIKELY, flags.SUSPECT)), seen.flagged == flags.HARD
    beside = len(words) + _cents(seen.agreement)
    words += [f"judges_split: judges stand on both sides, {p} % of them with the claim" for p in CENTS]
    which = np.where(nobody, np.where(judges_split(seen.agreement, seen.asked) == 1, beside, 1), 0)
    which = np.where(low & (seen.asked > 1) & (seen.agreement == 0), 2, which)
    for column, finding in enumerate(findings):
        if finding not in hard:
            continue
        its = hard[finding]
        told = len(words) + _cents(its.p_split) + np.where(nobody[:, column], 0, len(CENTS))
        usually = f"they did on {100 * its.usual:.0f} % of the {its.pairs:,} pairs that several read"
        words += [f"hard: readers would split here with a chance of {p} %; {usually}" for p in CENTS]
        words += [f"clear: readers would split here with a chance of only {p} %; {usually}" for p in CENTS]
        which[:, column] = np.where(nobody[:, column] | low[:, column], told, 0)
    return Sentences(words=words, which=which)


def _cents(share: Matrix) -> Ints:
    return np.round(np.nan_to_num(share) * 100).astype(np.int64)


def timeline_reasons(pairs: Pairs, images: pl.DataFrame) -> Sentences:
    """Say what the patient's neighbouring reports claim; the first case that holds speaks."""
    films = reports_of_films(images)
    report, rank, size = (films[name].to_numpy() for name in ("report", "rank", "size"))
    said = _said_in_reports(pairs.states, report)
    before, after = said[np.maximum(report - 1, 0)], said[np.minimum(report + 1, len(said) - 1)]
    # Silence, NaN here, is never called absence: no comparison with it holds.
    before[rank == 0], after[rank == size - 1] = np.nan, np.nan
    state, others = pairs.states, (size - 1)[:, None]
    nameless = images["patient_id"].is_null().to_numpy()[:, None]
    elsewhere, nowhere = (_on_others(said == claim, report, rank) for claim in (1, 0))
    least, most = np.fmin(before, after), np.fmax(before, after)
    present, absent, several = state == 1, state == 0, others > 1
    noun = ("study", "studies") if images["study_id"].is_not_null().any() else ("film", "films")
    words, places = _timeline_words(noun, int(size.max(initial=1)))
    beside = np.where(np.isnan(before), np.int32(2), np.isnan(after))
    which: Places = np.zeros(state.shape, dtype=np.int32)

    def say(case: str, holds: Bools, number: Ints | int = 0) -> None:
        np.copyto(which, places[case] + number, where=holds, casting="same_kind")

    # From the last case to the first, so that the first has the last word.
    say("for an absence", absent & (most == 0), beside)
    say("absent everywhere", absent & (nowhere == others), others)
    say("against an absence", absent & (least == 1), beside)
    say("for a presence", present & (least == 1), beside)
    say("against a presence", present & (most == 0), beside)
    say("present on all", ~present & (elsewhere == others) & several, others)
    say("claimed on none", present & (elsewhere == 0) & several, others)
    say("absent on all", present & (nowhere == others) & several, others)
    say("alone", others == 0)
    say("nameless", nameless)
    which[np.isnan(state)] = 0
    return Sentences(words=words, which=which)


def _timeline_words(noun: tuple[str, str], most: int) -> tuple[list[str | None], dict[str, int]]:
    """Write every sentence of the timeline: the words, and where those of each case begin."""
    one, many = noun
    neighbours = (f"{many} before and after", f"{one} before", f"{one} after")
    numbers = range(most)
    all_others = [f"the only other {one}" if number == 1 else f"all {number} other {many}" for number in numbers]
    said = {
        "nameless": [f"no_patient: the dataset names no patient, so no other {one} can speak"],
        "alone": [f"alone: no other {one} of this patient"],
        "absent on all": [f"only_here: absent on {them} of this patient" for them in all_others],
        "claimed on none": [
            f"only_here: claimed on none of the {number} other {many} of this patient" for number in numbers
        ],
        "present on all": [f"missing_here: present on {them} of this patient" for them in all_others],
        "absent everywhere": [f"timeline_for: absent on {them} of this patient too" for them in all_others],
        "against a presence": [f"timeline_against: absent on the {them}" for them in neighbours],
        "for a presence": [f"timeline_for: present on the {them} too" for them in neighbours],
        "against an absence": [f"timeline_against: present on the {them}" for them in neighbours],
        "for an absence": [f"timeline_for: absent on the {them} too" for them in neighbours],
    }
    words: list[str | None] = [None]
    places = {}
    for case, its in said.items():
        places[case] = len(words)
        words += its
    return words, places


def _said_in_reports(states: Matrix, report: Ints) -> npt.NDArray[np.float32]:
    """Let the loudest film of a report speak for it: present, else uncertain, else absent; NaN is silence."""
    order = np.argsort(report, kind="stable")
    starts = np.flatnonzero(np.diff(report[order], prepend=-1))
    ordered = states[order].astype(np.float32)
    return ordered if len(starts) == len(order) else np.asarray(np.fmax.reduceat(ordered, starts, axis=0))


def _on_others(said: npt.NDArray[np.bool_], report: Ints, rank: Ints) -> Ints:
    """Count, for each film, the other reports of its patient that say it."""
    first = np.zeros(len(said), dtype=bool)
    first[report - rank] = True
    if not len(said):
        return said.astype(np.int32)
    total = np.add.reduceat(said, np.flatnonzero(first), axis=0, dtype=np.int32)
    return np.asarray(total[(np.cumsum(first) - 1)[report]] - said[report])


def colabel_reasons(pairs: Pairs) -> Sentences:
    """Name the co-label that makes a finding most common, where the finding is claimed or conspicuously not."""
    claimed = pairs.states == 1
    films = [np.flatnonzero(column) for column in claimed.T]
    share = claimed.sum(axis=0) / max(len(claimed), 1)
    together = claimed.T.astype(np.float64) @ claimed
    beside = together / np.maximum(np.diag(together), 1)[:, None]
    words: list[str | None] = [None]
    which: Places = np.zeros(claimed.shape, dtype=np.int32)
    for column in range(len(pairs.findings)):
        lift = beside[:, column] / max(float(share[column]), 1e-12)
        speaks = (lift >= LIFT) & (together[:, column] >= ENOUGH_TOGETHER) & (np.arange(len(lift)) != column)
        # From the weakest to the strongest, so that the strongest has the last word; of equals the first.
        for other in sorted(np.flatnonzero(speaks), key=lambda place: (lift[place], -place)):
            which[films[other], column] = len(words) + other
        words += [
            f"seen_with: {name} is claimed here too, beside which it is {times:.1f} times as common"
            for name, times in zip(pairs.findings, lift, strict=True)
        ]
    which[np.isnan(pairs.states)] = 0
    return Sentences(words=words, which=which)


def record_reasons(pairs: Pairs, record: Pairs) -> Sentences:
    """Say what the rest of the record gives beside what is usual; or that nobody could say."""
    nobody = (None, "unjudged: no judge answered", NO_SIGNAL)
    words = [
        f"record: the rest of the record gives {p} %; {100 * usual:.1f} % is usual for {finding}"
        for finding, usual in zip(pairs.findings, record.usual, strict=True)
        for p in CENTS
    ]
    told = _in_cents(record.p_present, len(nobody))
    silent = np.where(pairs.answered > 0, np.int32(2), np.int32(1))
    return Sentences(words=[*nobody, *words], which=np.where(np.isnan(pairs.p_present), silent, told))


def judge_reasons(voice: Voice) -> Sentences:
    """Say what an image judge gives beside what is usual for it, where it is heeded."""
    gives, usually = f"judge: {voice.judge} gives", "% is usual for it"
    words = [f"{gives} {p} %; {100 * usual:.1f} {usually}" for usual in voice.usual for p in CENTS]
    return Sentences(words=[None, *words], which=np.where(voice.heeded, _in_cents(voice.p_present, 1), 0))


def _in_cents(p: Matrix, first: int) -> Places:
    """Find the words of each pair's whole per cent, 101 a finding from the first on; 0 where there is none."""
    cents = p * 100
    np.round(cents, out=cents)
    cents += len(CENTS) * np.arange(p.shape[1]) + first
    return np.nan_to_num(cents, copy=False).astype(np.int32)
