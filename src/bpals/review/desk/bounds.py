"""The bounds of an answer: what can be kept, and what is said to whoever sends something else."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from bpals.errors import Refused
from bpals.ledger.reviewschema import VERDICTS
from bpals.review.desk.answer import Answer, Spent, Verdict
from bpals.review.desk.study import Unmarked

NOTE_LETTERS = 10_000
KEY_LETTERS = 200
MOST_BOXES = 200
MOST_PIXELS = 100_000
"""No film is wider: a box beyond is no box."""
QUALITIES = ("good", "limited", "unreadable")
DEVICES = ("present", "absent")


def check_answer(answer: Answer, findings: Collection[str]) -> None:
    """Refuse an answer that says something of another finding, or something that nobody can say."""
    for finding, verdict in answer.verdicts.items():
        _check_finding(finding, findings, "a verdict")
        check_verdict(finding, verdict)
    for finding, confidence in answer.confidence.items():
        _check_finding(finding, findings, "a confidence")
        if not isinstance(confidence, int) or isinstance(confidence, bool) or not 0 <= confidence <= 100:
            raise Refused(f"the confidence of {finding} is {confidence!r}; it is a whole number from 0 to 100")
    _check_boxes(answer, findings)
    check_text(answer.note, "the note")
    if answer.quality is not None and answer.quality not in QUALITIES:
        raise Refused(f"the quality of the film is {answer.quality!r}; it is {', '.join(QUALITIES)} or not given")
    if answer.devices is not None and answer.devices not in DEVICES:
        raise Refused(f"devices is {answer.devices!r}; it is {' or '.join(DEVICES)} or not given")


def check_verdict(finding: str, verdict: object) -> None:
    """Refuse a word that is no verdict."""
    if verdict not in VERDICTS:
        raise Refused(f"the verdict on {finding} is {verdict!r}; it is one of {', '.join(VERDICTS)}")


def check_text(written: object, what: str) -> None:
    """Refuse a text that is too long or that one of the databases cannot keep."""
    if not isinstance(written, str):
        raise Refused(f"{what} is no text")
    if len(written) > NOTE_LETTERS:
        raise Refused(f"{what} has {len(written):,} characters; {NOTE_LETTERS:,} are kept. Shorten it")
    if "\0" in written or any("\ud800" <= letter <= "\udfff" for letter in written):
        raise Refused(f"{what} has a character that cannot be kept (U+0000 or half of a pair). Write it again")


def check_reason(reason: object) -> str:
    """Refuse an amendment without a reason."""
    check_text(reason, "the reason")
    written = str(reason).strip()
    if not written:
        raise Refused("a read that is locked is amended with a reason only. Write why")
    return written


def check_key(key: object) -> None:
    """Refuse a request that cannot be told from another one."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LETTERS or not key.isprintable():
        raise Refused(f"every change carries a key of 1 to {KEY_LETTERS} printable characters, a new one each time")


def check_spent(spent: Spent) -> None:
    """Refuse seconds that are none."""
    for name, seconds in (("active_s", spent.active_s), ("wall_s", spent.wall_s)):
        if not _is_number(seconds) or seconds < 0:
            raise Refused(f"{name} is {seconds!r}; it is seconds, 0 or more")


def complete(answer: Answer, findings: Collection[str], unmarked: Unmarked) -> dict[str, Verdict]:
    """Give the verdict on every finding; what is not marked means what the study says."""
    missing = [finding for finding in findings if finding not in answer.verdicts]
    if missing and unmarked == "ask":
        raise Refused(f"no verdict on {', '.join(missing)}: this study asks for each. Mark them, then lock")
    # Of a film that nobody can read, nothing is known to be absent.
    otherwise: Verdict = "unreadable" if answer.quality == "unreadable" else "absent"
    return {finding: answer.verdicts.get(finding, otherwise) for finding in findings}


def complete_verdicts(verdicts: Mapping[str, Any], findings: Collection[str]) -> None:
    """Refuse verdicts that leave out a disputed finding or speak of another."""
    for finding, verdict in verdicts.items():
        _check_finding(finding, findings, "a verdict")
        check_verdict(finding, verdict)
    if missing := [finding for finding in findings if finding not in verdicts]:
        raise Refused(f"no verdict on {', '.join(missing)}: every disputed finding needs one")


def _check_boxes(answer: Answer, findings: Collection[str]) -> None:
    if len(answer.boxes) > MOST_BOXES:
        raise Refused(f"{len(answer.boxes):,} boxes are more than the {MOST_BOXES} that a case keeps")
    for box in answer.boxes:
        _check_finding(box.finding, findings, "a box")
        sides = (box.x, box.y, box.width, box.height)
        inside = all(_is_number(side) and 0 <= side <= MOST_PIXELS for side in sides)
        if not inside or box.width <= 0 or box.height <= 0:
            raise Refused(
                f"the box of {box.finding} is {list(sides)}; x, y are 0 or more, width and height above 0, "
                f"all at most {MOST_PIXELS:,} pixels"
            )


def _check_finding(finding: object, findings: Collection[str], what: str) -> None:
    if finding not in findings:
        raise Refused(f"{what} is given on {finding!r}, which this case does not ask. It asks: {', '.join(findings)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
