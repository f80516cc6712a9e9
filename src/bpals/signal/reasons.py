"""Reasons: why a claim is trusted as far as it is, each as `code: sentence`, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.signal import flags
from bpals.signal.blocks import in_blocks
from bpals.signal.hardness import Hard, judges_split
from bpals.signal.pairs import Matrix, Pairs
from bpals.signal.sentences import Places, Sentences
from bpals.signal.voices import Bools, Counts, Voice
from bpals.text import several

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
Loudness = npt.NDArray[np.uint8]

SILENT, ABSENT, UNCERTAIN, PRESENT = (np.uint8(loud) for loud in range(4))
"""What a report says of a finding, by how loud it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """What was flagged, and what the judges make of it: a row a film, a column a finding."""

    flagged: npt.NDArray[np.int8]
    agreement: Matrix
    asked: Counts


def flag_reasons(seen: Flagged, findings: tuple[str, ...], hard: Mapping[str, Hard]) -> Sentences:
    """Say of every flagged claim whether nobody can tell, or all are against it."""
    words: list[str | None] = [None, WIDE, AGAINST]
    low = (seen.flagged == flags.LIKELY) | (seen.flagged == flags.SUSPECT)
    nobody = seen.flagged == flags.HARD
    which: Places = np.zeros(low.shape, dtype=np.int32)
    agreement, asked = seen.agreement[nobody], seen.asked[nobody]  # few: most claims are trusted
    which[nobody] = np.where(judges_split(agreement, asked) == 1, len(words) + _cents(agreement), 1)
    which[low] = np.where((seen.asked[low] > 1) & (seen.agreement[low] == 0), 2, 0)
    words += [f"judges_split: judges stand on both sides, {p} % of them with the claim" for p in CENTS]
    for column, finding in enumerate(findings):
        if finding not in hard:
            continue
        its = hard[finding]
        told = len(words) + _cents(its.p_split) + np.where(nobody[:, column], 0, len(CENTS))
        usually = f"they did on {100 * its.usual:.0f} % of the {several(its.pairs, 'pair')} that several read"
        words += [f"hard: readers would split here with a chance of {p} %; {usually}" for p in CENTS]
        only = [f"only {p}" if p < 100 * its.usual else str(p) for p in CENTS]
        words += [f"clear: readers would split here with a chance of {p} %; {usually}" for p in only]
        which[:, column] = np.where(nobody[:, column] | low[:, column], told, 0)
    return Sentences(words=words, which=which)


def _cents(share: Matrix) -> Places:
    """Give whole per cents; 0 where there is no share."""
    cents = share * 100
    np.round(cents, out=cents)
    cents[np.isnan(cents)] = 0
    return cents.astype(np.int32)


def timeline_reasons(pairs: Pairs, images: pl.DataFrame, reports: pl.DataFrame) -> Sentences:
    """Say what the patient's neighbouring reports claim; the first case that holds speaks.

    `reports` are `reports_of_films(images)`.
    """
    report, rank, size = (reports[name].to_numpy() for name in ("report", "rank", "size"))
    said = _said_in_reports(pairs.states, report)
    before, after = said[np.maximum(report - 1, 0)], said[np.minimum(report + 1, len(said) - 1)]
    before[rank == 0], after[rank == size - 1] = SILENT, SILENT
    # Silence is never called absence: it is less than any word, and less one it is more.
    most, least = np.maximum(before, after), np.minimum(before - ABSENT, after - ABSENT) + ABSENT
    others = (size - 1).astype(np.int32)[:, None]
    (on_all, on_none), (absent_on_all, _) = (_on_others(said == word, report, rank) for word in (PRESENT, ABSENT))
    present, absent, many = pairs.states == 1, pairs.states == 0, others > 1
    noun = ("study", "studies") if images["study_id"].is_not_null().any() else ("film", "films")
    words, places = _timeline_words(noun, int(size.max(initial=1)))
    beside = np.where(before == SILENT, np.int32(2), after == SILENT)
    which: Places = np.zeros(present.shape, dtype=np.int32)

    def say(case: str, holds: Bools, number: Places | int = 0) -> None:
        np.add(number, places[case], out=which, where=holds)

    # From the last case to the first, so that the first has the last word.
    say("for an absence", absent & (most == ABSENT), beside)
    say("absent everywhere", absent & absent_on_all, others)
    say("against an absence", absent & (least == PRESENT), beside)
    say("for a presence", present & (least == PRESENT), beside)
    say("against a presence", present & (most == ABSENT), beside)
    say("present on all", ~present & on_all & many, others)
    say("claimed on none", present & on_none & many, others)
    say("absent on all", present & absent_on_all & many, others)
    say("alone", others == 0)
    say("nameless", images["patient_id"].is_null().to_numpy()[:, None])
    which[np.isnan(pairs.states)] = 0
    return Sentences(words=words, which=which)


def _timeline_words(noun: tuple[str, str], most: int) -> tuple[list[str | None], dict[str, int]]:
    """Write every sentence of the timeline: the words, and where those of each case begin."""
    one, many = noun
    neighbours = (f"{many} before and after", f"{one} before", f"{one} after")
    numbers = range(most)
    few = {1: f"the only other {one}", 2: f"both other {many}"}
    all_others = [few.get(number, f"all {number} other {many}") for number in numbers]
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


def _said_in_reports(states: Matrix, report: Ints) -> Loudness:
    """Let the loudest film of a report speak for it: present, else uncertain, else absent, else silence."""
    loud = np.full(states.shape, SILENT)
    for word, state in ((ABSENT, 0), (UNCERTAIN, 0.5), (PRESENT, 1)):
        loud[states == state] = word
    order = np.argsort(report, kind="stable")
    starts = np.flatnonzero(np.diff(report[order], prepend=-1))
    ordered = loud[order]
    return ordered if len(starts) == len(order) else np.asarray(np.maximum.reduceat(ordered, starts, axis=0))


def _on_others(said: Bools, report: Ints, rank: Ints) -> tuple[Bools, Bools]:
    """Say of each film whether all other reports of its patient say it, and whether none of them does."""
    own = said[report]
    if not len(said):
        return own, own
    first = np.flatnonzero(np.bincount(report - rank))
    those = np.add.reduceat(said, first, axis=0, dtype=np.int32)
    others = np.diff(first, append=len(said))[:, None] - those
    whose = np.searchsorted(first, report, side="right") - 1
    # Whether one, or none, or more: then a byte is enough.
    saying, silent = (np.minimum(count, 2).astype(np.uint8)[whose] for count in (those, others))
    return silent == ~own, saying == own


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
    which = _in_cents(record.p_present, len(nobody))
    unjudged = np.isnan(pairs.p_present)
    which[unjudged] = np.where(pairs.answered[unjudged] > 0, 2, 1)
    return Sentences(words=[*nobody, *words], which=which)


def judge_reasons(voice: Voice) -> Sentences:
    """Say what an image judge gives beside what is usual for it, where it is heeded."""
    gives, usually = f"judge: {voice.judge} gives", "% is usual for it"
    words = [f"{gives} {p} %; {100 * usual:.1f} {usually}" for usual in voice.usual for p in CENTS]
    which = _in_cents(voice.p_present, 1)
    which[:, ~voice.heeded] = 0
    return Sentences(words=[None, *words], which=which)


def _in_cents(p: Matrix, first: int) -> Places:
    """Find the words of each pair's whole per cent, 101 a finding from the first on; 0 where there is none."""
    which: Places = np.empty(p.shape, dtype=np.int32)
    begin = len(CENTS) * np.arange(p.shape[1]) + first

    def place(films: slice) -> None:
        cents = np.round(p[films] * 100) + begin
        cents[np.isnan(cents)] = 0
        which[films] = cents

    in_blocks(len(p), place)
    return which
