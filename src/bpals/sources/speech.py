"""Words become codes: what a speaker, a film's list or one reader of a film, says of each finding.

A finding that the speaker names is present. What is not named follows from the rest of the speech: absent if the
speaker says `no finding`; silent if a word of `silent_if` stands there; else as `unlisted` says, or as `blank` says
where there is no word at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from bpals.errors import SourceError, UnknownName
from bpals.findings import fold
from bpals.sources.claims import ABSENT, CODE, PRESENT, SILENT, WEAKEST_FIRST, Codes
from bpals.sources.mapping import ColumnMap, Labels
from bpals.tablefile import RawTable
from bpals.types import Notice

ALIKE = 0.9
"""How like a finding a word must be, from 0 to 1, to be taken for a typing error."""

MOST_COMPARED = 2_000
"""Words that are compared with the findings at most, the commonest first: free text has no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """Who says which words, and on which films."""

    words: pl.DataFrame
    """speaker, word, state: one row a word, in the order of the file."""
    rows: pl.DataFrame
    """speaker, film: one row a row of the table."""
    speakers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of each finding, which labels were only counted, and what was odd."""

    codes: Codes
    unaudited: Mapping[str, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)


def hear(speech: Speech, raw: RawTable, mapping: ColumnMap) -> Said:
    """Give each speaker's code for each finding."""
    labels = mapping.labels
    words = speech.words.join(_make_lexicon(speech.words["word"].unique(), labels), on="word", how="left")
    others = words.filter(pl.col("meaning") == "other", pl.col("state") == PRESENT)
    if labels.others == "refuse" and not others.is_empty():
        raise _unknown_label(speech, raw, mapping, others)
    unaudited = _count_others(speech, others)
    said = {m: _speakers_with(speech, words, m) for m in ("no_finding", "silent_if", "finding", "other")}
    default = np.full(speech.speakers, CODE[labels.unlisted], np.uint8)
    wordless = ~(said["no_finding"] | said["silent_if"] | said["finding"] | said["other"])
    default[wordless] = CODE[labels.blank]
    default[said["silent_if"]] = SILENT
    default[said["no_finding"]] = ABSENT
    codes = np.repeat(default[:, None], len(labels.audited), axis=1)
    named = words.filter(pl.col("meaning") == "finding").explode("findings").select("speaker", "findings", "state")
    for state in WEAKEST_FIRST:
        some = named.filter(pl.col("state") == state)
        codes[some["speaker"].to_numpy(), some["findings"].to_numpy()] = state
    _check_names(named, list(unaudited), mapping)
    contradicts = said["no_finding"] & (codes == PRESENT).any(axis=1)
    notices = [
        *count_contradictions(raw, _films_of(speech, contradicts), labels),
        *_count_silences(speech, raw, labels, unread=said["silent_if"] & ~said["no_finding"], wordless=wordless),
        *_count_disagreements(speech, raw, named),
        *_count_near_misses(unaudited, labels),
    ]
    return Said(codes=codes, unaudited=unaudited, notices=notices)


def count_contradictions(raw: RawTable, films: pl.Series, labels: Labels) -> list[Notice]:
    """Count the films that say `no finding` and a finding; the finding is claimed present."""
    word = " / ".join(labels.no_finding)
    return raw.notice("contradiction", films, f"Films that say {word!r} and a finding, which is claimed present")


def _make_lexicon(words: pl.Series, labels: Labels) -> pl.DataFrame:
    """Say what each spelling means; case, blanks, `_` and `-` do not matter."""
    findings: dict[str, list[int]] = {}
    for place, finding in enumerate(labels.audited):
        for spelling in labels.spellings_of(finding):
            findings.setdefault(fold(spelling), []).append(place)
    meanings = {"": "blank"} | dict.fromkeys(findings, "finding")
    meanings |= {fold(word): "no_finding" for word in labels.no_finding}
    meanings |= {fold(word): "silent_if" for word in labels.silent_if}
    folded = [fold(word) for word in words]
    return pl.DataFrame(
        {
            "word": words,
            "meaning": [meanings.get(word, "other") for word in folded],
            "folded": folded,
            "findings": pl.Series([sorted(set(findings.get(word, []))) for word in folded], dtype=pl.List(pl.UInt32)),
        }
    )


def _speakers_with(speech: Speech, words: pl.DataFrame, meaning: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the speakers who say a word of this meaning; a word of the record that is denied is not said."""
    said = pl.col("meaning") == meaning
    if meaning in ("no_finding", "silent_if"):
        said &= pl.col("state") == PRESENT
    marked = np.zeros(speech.speakers, bool)
    marked[words.filter(said)["speaker"].to_numpy()] = True
    return marked


def _films_of(speech: Speech, speakers: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pl.Series:
    """Mark one row, the first, for each film of these speakers."""
    rows = speech.rows.with_columns(said=pl.Series(speakers).gather(speech.rows["speaker"])).with_row_index("row")
    first = rows.filter("said").unique("film", keep="first")["row"].to_numpy()
    marked = np.zeros(speech.rows.height, bool)
    marked[first] = True
    return pl.Series(marked)


def _unknown_label(speech: Speech, raw: RawTable, mapping: ColumnMap, others: pl.DataFrame) -> SourceError:
    rows = speech.rows.with_row_index("row").join(others, on="speaker", how="inner").sort("row", maintain_order=True)
    word, row = rows["word"][0], rows["row"][0]
    known = [*mapping.labels.audited, *mapping.labels.no_finding]
    return SourceError(str(UnknownName.of("finding", word[:80], known, where=raw.place(row))))


def _count_others(speech: Speech, others: pl.DataFrame) -> dict[str, int]:
    """Count the films that carry each label that is not audited, the commonest first."""
    films = speech.rows.unique().join(others.select("speaker", "folded").unique(), on="speaker")
    counts = films.unique(["film", "folded"]).group_by("folded").len()
    spelled = others.group_by("folded").agg(pl.col("word").sort().first())
    counted = counts.join(spelled, on="folded").sort(["len", "word"], descending=[True, False])
    return dict(zip(counted["word"].to_list(), counted["len"].to_list(), strict=True))


def _check_names(named: pl.DataFrame, others: list[str], mapping: ColumnMap) -> None:
    """Refuse an audited finding that no row names while a label much like it is there: it would be absent all over."""
    seen = set(named["findings"].unique().to_list())
    for place, finding in enumerate(mapping.labels.audited):
        if place in seen:
            continue
        near = difflib.get_close_matches(fold(finding), [fold(w) for w in others[:MOST_COMPARED]], n=1, cutoff=ALIKE)
        if near:
            meant = next(word for word in others if fold(word) == near[0])
            raise SourceError(
                f"{mapping.origin}: [labels] audited has {finding!r}, which no row names. Did you mean {meant!r}? "
                f"If both are right, list it under [aliases]"
            )


def _count_silences(
    speech: Speech,
    raw: RawTable,
    labels: Labels,
    *,
    unread: np.ndarray[tuple[int], np.dtype[np.bool_]],
    wordless: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[Notice]:
    words = " or ".join(repr(word) for word in labels.silent_if)
    return [
        *raw.notice(
            "unread",
            _films_of(speech, unread),
            f"Films that say {words} and are silent about every finding they do not name",
        ),
        *raw.notice("unlabelled", _films_of(speech, wordless), f"Films without a label, read as {labels.blank}"),
    ]


def _count_disagreements(speech: Speech, raw: RawTable, named: pl.DataFrame) -> list[Notice]:
    """Count the readers who say two things of one finding; the strongest counts."""
    twice = named.group_by("speaker", "findings").agg(pl.col("state").n_unique()).filter(pl.col("state") > 1)
    speakers = np.zeros(speech.speakers, bool)
    speakers[twice["speaker"].to_numpy()] = True
    message = "Films with a reader who says two things of one finding (present counts, then uncertain, then absent)"
    return raw.notice("reader_contradiction", _films_of(speech, speakers), message)


def _count_near_misses(unaudited: Mapping[str, int], labels: Labels) -> list[Notice]:
    """Count labels that look like a misspelt finding; they are not audited."""
    spellings = [fold(word) for finding in labels.audited for word in labels.spellings_of(finding)]
    misses = [
        (word, near[0])
        for word in list(unaudited)[:MOST_COMPARED]
        if (near := difflib.get_close_matches(fold(word), spellings, n=1, cutoff=ALIKE))
    ]
    if not misses:
        return []
    films = sum(unaudited[word] for word, _ in misses)
    pairs = ", ".join(f"{word!r} (like {near!r})" for word, near in misses[:3])
    message = f"Films with a label that looks like a finding, not audited unless [aliases] lists it, {pairs}: {films:,}"
    return [Notice(code="misspelt", count=films, message=message)]
