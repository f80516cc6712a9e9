"""Stage 5, explain: why a label is trusted as far as it is, each reason as `code: sentence`.

Every sentence is written once, and each pair only says which of them it gets: 1.6 million pairs have some ten million
reasons, but only a few thousand of them differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.numeric import Matrix
from bpals.signal import flags
from bpals.signal.layout import Bools, Estimate, Hard, Ints, JudgeAnswers, LaidOut, Pairs, in_blocks
from bpals.text import several

if TYPE_CHECKING:
    from bpals.signal.truth import Verdicts

CODES: Mapping[str, str] = {
    "verdict": "what people settled: most of two or more readers, or an adjudicated label",
    "uncertain_claim": "the dataset itself is uncertain, so no side can be trusted",
    "unjudged": "no judge answered",
    "hard": "the trust is low because nobody can tell: readers would split here, as they did on pairs like it",
    "clear": "the trust is low and not because it is hard: readers would seldom split here",
    "judges_split": "judges stand on both sides of the label",
    "judges_against": "the trust is low because all judges that answered stand against the label",
    "wide": "the trust is low, but its interval reaches above .7: it rests on too little",
    "unread": "next to no label like it was read: the interval is too wide to call it anything",
    "timeline_against": "the neighbouring images of the patient say the opposite",
    "timeline_for": "the neighbouring images of the patient say the same",
    "only_here": "of several images of the patient only this one names it",
    "missing_here": "every other image of the patient names it",
    "alone": "there is no other image of the patient: the answer rests on less",
    "no_patient": "the dataset names no patient: the answer rests on less",
    "seen_with": "another finding labelled present on the image makes it more likely",
    "record": "what the metadata judge gives, beside what is usual",
    "judge": "what an image judge that has a signal for the finding gives, beside what is usual for it",
    "no_signal": "judges answered, but none of them can tell images with the finding from images without",
    "devices": "image judges see support devices on the image",
    "film_blank": "the image shows nothing, or next to nothing",
    "film_inverted": "the image is white where others are black: it looks like inverted copies of others",
    "film_turned": "the image lies on its side or stands on its head",
    "film_cropped": "the image looks cut out of the middle of a larger one",
    "film_near_duplicate": "another image of the dataset is the same exposure",
    "film_view": "its pixels, or words burnt into them, speak against the recorded view",
    "film_lateral": "a lateral view, by its DICOM tag",
    "film_unlike": "the image lies far outside what the other images share: a lateral, a child, an odd cut",
    "film_text": "text is burnt into its pixels, beside the usual markers",
    "reviewed": "experts read images of this patient; the trust comes from a fit without them",
    "calibrated": "what the trust was calibrated by: an expert calibration, or expert labels given here",
}
"""Every code that a reason may begin with."""

LIFT = 2.0
"""A co-label is named when it makes the finding at least this many times as common."""
ENOUGH_TOGETHER = 30
"""... and this many images carry both: fewer could be chance."""
CENTS = range(101)
WIDE = "wide: the trust is low, but its interval reaches above .7"
UNREAD = "unread: readers saw next to no label like this one"
AGAINST = "judges_against: no judge that answered stands with the label"
NO_SIGNAL = "no_signal: judges answered, but none of them can tell this finding"
UNCERTAIN = (None, "uncertain_claim: the dataset itself is uncertain here")
REVIEWED = (None, "reviewed: experts read this image or others of the patient; its trust comes from a fit without them")
BLOCK = 32_768
"""Labels whose reasons are gathered at a time: so few that what is in hand stays in the processor's cache."""

Places = npt.NDArray[np.int32]
Loudness = npt.NDArray[np.uint8]

SILENT, ABSENT, HEDGED, PRESENT = (np.uint8(loud) for loud in range(4))
"""What a report says of a finding, from the weakest to the strongest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """One kind of reason: its sentences, and which of them each pair gets."""

    words: Sequence[str | None]
    """The first is None: nothing is said."""
    which: npt.NDArray[np.integer[Any] | np.bool_]
    """One row per image, one column per finding: a place among the words."""

    def of(self, column: int) -> pl.Series:
        """Give one finding's sentences, one per image; null where nothing is said."""
        return pl.Series(self.words, dtype=pl.String).gather(self.which[:, column])


def explain(estimate: Estimate, flagged: flags.Flagged, laid: LaidOut, verdicts: Verdicts | None = None) -> pl.Series:
    """Gather each label's reasons, the most telling first."""
    pairs, panel, images = estimate.pairs, laid.panel, laid.dataset.images
    notes = [estimate.notes.get(name) for name in pairs.findings]
    of_images = [] if panel is None else [panel.devices.seen_by, *(panel.checks.fired if panel.checks else ())]
    noted = np.array([0 if note is None else column for column, note in enumerate(notes, start=1)])
    kinds = [
        *([] if verdicts is None else [verdict_reasons(verdicts)]),
        Sentences(words=UNCERTAIN, which=pairs.states == 0.5),
        flag_reasons(flagged, pairs.findings, estimate.hard),
        timeline_reasons(pairs, images, laid.reports),
        colabel_reasons(pairs),
        record_reasons(pairs, estimate.record),
        *(judge_reasons(judge) for judge in estimate.judges if judge.used.any()),
        *(_of_images(sentences, len(pairs.findings)) for sentences in of_images),
        Sentences(words=(None, *notes), which=np.where(estimate.fitted, noted, 0)),
        Sentences(words=REVIEWED, which=estimate.reviewed),
    ]
    return listed(kinds, ~np.isnan(pairs.states))


def verdict_reasons(verdicts: Verdicts) -> Sentences:
    """Say who settled a pair, and to what."""
    words: list[str | None] = [None, *(f"verdict: an adjudicated label says {word}" for word in ("absent", "present"))]
    which: Places = np.zeros(verdicts.present.shape, dtype=np.int32)
    which[verdicts.adjudicated] = 1 + verdicts.present[verdicts.adjudicated]
    voted = verdicts.settled & ~verdicts.adjudicated
    present = verdicts.present[voted] == 1
    cases = np.stack([present, verdicts.yes[voted], verdicts.no[voted]], axis=1)
    different, place = np.unique(cases, axis=0, return_inverse=True)
    which[voted] = len(words) + place.reshape(-1)
    for says_present, yes, no in different.tolist():
        most, word = (yes, "present") if says_present else (no, "absent")
        words.append(f"verdict: {most} of {yes + no} readers say {word}")
    return Sentences(words=words, which=which)


def flag_reasons(seen: flags.Flagged, findings: tuple[str, ...], hard: Mapping[str, Hard]) -> Sentences:
    """Say of every flagged label whether nobody can tell, or all are against it."""
    words: list[str | None] = [None, WIDE, AGAINST, UNREAD]
    low = (seen.flag == flags.LIKELY) | (seen.flag == flags.SUSPECT)
    nobody = seen.flag == flags.HARD
    which: Places = np.zeros(low.shape, dtype=np.int32)
    which[(seen.flag == flags.UNVERIFIED) & flags.too_wide(seen.low, seen.high)] = 3
    agreement, asked = seen.agreement[nobody], seen.asked[nobody]  # few: most labels are trusted
    which[nobody] = np.where(flags.judges_split(agreement, asked) == 1, len(words) + _cents(agreement), 1)
    which[low] = np.where((seen.asked[low] > 1) & (seen.agreement[low] == 0), 2, 0)
    words += [f"judges_split: judges stand on both sides, {p} % of them with the label" for p in CENTS]
    for column, finding in enumerate(findings):
        if finding not in hard:
            continue
        its = hard[finding]
        place = len(words) + _cents(its.p_split) + np.where(nobody[:, column], 0, len(CENTS))
        usually = f"they did on {100 * its.usual:.0f} % of the {several(its.pairs, 'pair')} that several read"
        words += [f"hard: readers would split here with a chance of {p} %; {usually}" for p in CENTS]
        only = [f"only {p}" if p < 100 * its.usual else str(p) for p in CENTS]
        words += [f"clear: readers would split here with a chance of {p} %; {usually}" for p in only]
        which[:, column] = np.where(nobody[:, column] | low[:, column], place, 0)
    return Sentences(words=words, which=which)


def _cents(share: Matrix) -> Places:
    """Give whole per cents; 0 where there is no share."""
    cents = share * 100
    np.round(cents, out=cents)
    cents[np.isnan(cents)] = 0
    return cents.astype(np.int32)


def timeline_reasons(pairs: Pairs, images: pl.DataFrame, reports: pl.DataFrame) -> Sentences:
    """Say what the patient's neighbouring reports say; the first case that holds is given.

    `reports` are `reports_of_films(images)`.
    """
    report, rank, size = (reports[name].to_numpy() for name in ("report", "rank", "size"))
    stated = _states_of_reports(pairs.states, report)
    before, after = stated[np.maximum(report - 1, 0)], stated[np.minimum(report + 1, len(stated) - 1)]
    before[rank == 0], after[rank == size - 1] = SILENT, SILENT
    # Silence is never called absence: it is less than any word, and less one it is more.
    most, least = np.maximum(before, after), np.minimum(before - ABSENT, after - ABSENT) + ABSENT
    others = (size - 1).astype(np.int32)[:, None]
    (on_all, on_none), (absent_on_all, _) = (_on_others(stated == word, report, rank) for word in (PRESENT, ABSENT))
    present, absent, many = pairs.states == 1, pairs.states == 0, others > 1
    noun = ("study", "studies") if images["study_id"].is_not_null().any() else ("image", "images")
    words, places = _timeline_words(noun, int(size.max(initial=1)))
    sides = np.where(before == SILENT, np.int32(2), after == SILENT)
    which: Places = np.zeros(present.shape, dtype=np.int32)

    def say(case: str, holds: Bools, number: Places | int = 0) -> None:
        np.add(number, places[case], out=which, where=holds)

    # From the last case to the first, so that the first has the last word.
    say("for an absence", absent & (most == ABSENT), sides)
    say("absent everywhere", absent & absent_on_all, others)
    say("against an absence", absent & (least == PRESENT), sides)
    say("for a presence", present & (least == PRESENT), sides)
    say("against a presence", present & (most == ABSENT), sides)
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
    cases = {
        "nameless": [f"no_patient: the dataset names no patient, so no other {one} can speak"],
        "alone": [f"alone: no other {one} of this patient"],
        "absent on all": [f"only_here: absent on {them} of this patient" for them in all_others],
        "claimed on none": [
            f"only_here: labelled on none of the {number} other {many} of this patient" for number in numbers
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
    for case, its in cases.items():
        places[case] = len(words)
        words += its
    return words, places


def _states_of_reports(states: Matrix, report: Ints) -> Loudness:
    """Take the strongest label among a report's images: present, else uncertain, else absent, else silence."""
    loud = np.full(states.shape, SILENT)
    for word, state in ((ABSENT, 0), (HEDGED, 0.5), (PRESENT, 1)):
        loud[states == state] = word
    order = np.argsort(report, kind="stable")
    starts = np.flatnonzero(np.diff(report[order], prepend=-1))
    ordered = loud[order]
    return ordered if len(starts) == len(order) else np.asarray(np.maximum.reduceat(ordered, starts, axis=0))


def _on_others(stated: Bools, report: Ints, rank: Ints) -> tuple[Bools, Bools]:
    """Say of each image whether all other reports of its patient say it, and whether none of them does."""
    own = stated[report]
    if not len(stated):
        return own, own
    first = np.flatnonzero(np.bincount(report - rank))
    those = np.add.reduceat(stated, first, axis=0, dtype=np.int32)
    others = np.diff(first, append=len(stated))[:, None] - those
    whose = np.searchsorted(first, report, side="right") - 1
    # Whether one, or none, or more: then a byte is enough.
    naming, silent = (np.minimum(count, 2).astype(np.uint8)[whose] for count in (those, others))
    return silent == ~own, naming == own


def colabel_reasons(pairs: Pairs) -> Sentences:
    """Name the co-label that makes a finding most common, where the finding is labelled or conspicuously not."""
    claimed = pairs.states == 1
    rows = [np.flatnonzero(column) for column in claimed.T]
    share = claimed.sum(axis=0) / max(len(claimed), 1)
    together = claimed.T.astype(np.float64) @ claimed
    among = together / np.maximum(np.diag(together), 1)[:, None]
    words: list[str | None] = [None]
    which: Places = np.zeros(claimed.shape, dtype=np.int32)
    for column in range(len(pairs.findings)):
        lift = among[:, column] / max(float(share[column]), 1e-12)
        speaks = (lift >= LIFT) & (together[:, column] >= ENOUGH_TOGETHER) & (np.arange(len(lift)) != column)
        # From the weakest to the strongest, so that the strongest has the last word; of equals the first.
        for other in sorted(np.flatnonzero(speaks), key=lambda place: (lift[place], -place)):
            which[rows[other], column] = len(words) + other
        words += [
            f"seen_with: {name} is labelled here too, beside which it is {times:.1f} times as common"
            for name, times in zip(pairs.findings, lift, strict=True)
        ]
    which[np.isnan(pairs.states)] = 0
    return Sentences(words=words, which=which)


def record_reasons(pairs: Pairs, record: Pairs) -> Sentences:
    """Say what the metadata judge gives beside what is usual; or that nobody answered."""
    nobody = (None, "unjudged: no judge answered", NO_SIGNAL)
    words = [
        f"record: the metadata gives {p} %; {100 * usual:.1f} % is usual for {finding}"
        for finding, usual in zip(pairs.findings, record.usual, strict=True)
        for p in CENTS
    ]
    which = _in_cents(record.p_present, len(nobody))
    unjudged = np.isnan(pairs.p_present)
    which[unjudged] = np.where(pairs.answered[unjudged] > 0, 2, 1)
    return Sentences(words=[*nobody, *words], which=which)


def judge_reasons(judge: JudgeAnswers) -> Sentences:
    """Say what an image judge gives beside what is usual for it, where it is used."""
    gives, usually = f"judge: {judge.name} gives", "% is usual for it"
    words = [f"{gives} {p} %; {100 * usual:.1f} {usually}" for usual in judge.usual for p in CENTS]
    which = _in_cents(judge.p_present, 1)
    which[:, ~judge.used] = 0
    return Sentences(words=[None, *words], which=which)


def _in_cents(p: Matrix, first: int) -> Places:
    """Find the words of each pair's whole per cent, 101 per finding from the first on; 0 where there is none."""
    which: Places = np.empty(p.shape, dtype=np.int32)
    begin = len(CENTS) * np.arange(p.shape[1]) + first

    def place(rows: slice) -> None:
        cents = np.round(p[rows] * 100) + begin
        cents[np.isnan(cents)] = 0
        which[rows] = cents

    in_blocks(len(p), place)
    return which


def listed(kinds: Sequence[Sentences], claimed: Bools) -> pl.Series:
    """List each label's sentences in the order of the kinds, image by image and finding by finding."""
    kinds = [kind for kind in kinds if kind.which.any()]
    starts = np.cumsum([0, *(len(kind.words) for kind in kinds)]).tolist()
    words = pl.Series([word for kind in kinds for word in kind.words], dtype=pl.String)
    picked = [kind.which.ravel() for kind in kinds]
    places = np.flatnonzero(claimed)
    every = len(places) == claimed.size

    def block(start: int) -> pl.Series:
        stop = min(start + BLOCK, len(places))
        its = slice(start, stop) if every else places[start:stop]
        places_in = np.empty((stop - start, len(kinds)), dtype=np.uint32)
        given = np.empty(places_in.shape, dtype=bool)
        counts = np.zeros(len(given), dtype=np.int64)
        for column, which in enumerate(picked):
            here = which[its]
            np.not_equal(here, 0, out=given[:, column])
            counts += given[:, column]
            places_in[:, column] = here + starts[column]
        return _lists(words.gather(pl.Series(places_in[given])), counts)

    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        blocks = list(hands.map(block, range(0, len(places), BLOCK)))
    return pl.concat([pl.Series("reasons", [], dtype=pl.List(pl.String)), *blocks])


def _lists(sentences: pl.Series, counts: npt.NDArray[np.integer[Any]]) -> pl.Series:
    """Cut sentences into lists of the given lengths."""
    row = pl.Series("row", np.repeat(np.arange(len(counts), dtype=np.uint32), counts)).set_sorted()
    frame = pl.DataFrame([row, sentences.alias("reasons")]).group_by("row", maintain_order=True).agg("reasons")
    if (counts == 0).any():
        every = pl.DataFrame({"row": np.arange(len(counts), dtype=np.uint32)})
        frame = every.join(frame, on="row", how="left", maintain_order="left").with_columns(
            pl.col("reasons").fill_null(pl.lit([], dtype=pl.List(pl.String)))
        )
    return frame["reasons"]


def _of_images(sentences: pl.Series, findings: int) -> Sentences:
    """Say a sentence that belongs to an image of each of its findings."""
    words = sentences.drop_nulls().unique(maintain_order=True)
    which = sentences.replace_strict(words, range(1, len(words) + 1), default=0, return_dtype=pl.Int32)
    return Sentences(words=[None, *words], which=np.broadcast_to(which.to_numpy()[:, None], (len(which), findings)))
