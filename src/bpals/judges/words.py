"""From a model's words to a number, by one published rule a layout; what the rule does not read has no number.

docs/prompts.md states the rules for users. No function here raises, whatever a model said.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from bpals.types import Outcome

LONGEST_TEXT = 65_536
"""Characters of a reply that are read at all: an answer of 32 numbers has about a thousand."""
LOWEST_LOGPROB = -30.0
"""Log-probs below this are taken as this: servers write -9999 for `none`, and float32 resolves nothing there."""
MOST_LOGPROB = 0.01
"""No probability is above 1, but for rounding: a server whose log-probs are higher sends something else."""
SUREST = 0.999
"""A stated probability of 0 or 1 has no logit: it is read as this sure, and no surer."""
SPACE_MARKS = "\u2581\u0120\u010a\u00a0"
"""How tokenizers write a leading blank: SentencePiece, byte-level BPE, its line break; and the hard blank."""
WRAPPING = " \t\r\n*_`\"'.,!:;()[]{}" + SPACE_MARKS

_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_REFUSAL = re.compile(
    r"\W*(?:(?:i['\u2019]?m |i am |we['\u2019]?re |we are )?(?:very |so )?sorry\b|i apologi[sz]e\b|unfortunately\b"
    r"|i (?:can ?not|can['\u2019]?t|can not|won['\u2019]?t|will not) "
    r"(?:help|assist|provide|give|offer|answer|comply|analy[sz]e|interpret|diagnose|make)\b"
    r"|(?:i['\u2019]?m|i am) (?:not able|unable) to\b|as an ai\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWords:
    """The words that count as an answer, in lower case; a model may write them in any case, with a blank before."""

    yes: tuple[str, ...] = ("yes",)
    no: tuple[str, ...] = ("no",)
    abstain: tuple[str, ...] = ()
    """Words by which the prompt lets the model say that it cannot tell; none, where the prompt offers none."""

    def side(self, word: str) -> Literal["yes", "no", "abstain"] | None:
        """Say which side a token or a word is on."""
        folded = word.strip(WRAPPING).casefold()
        if folded in self.yes:
            return "yes"
        if folded in self.no:
            return "no"
        return "abstain" if folded in self.abstain else None


class Reading(NamedTuple):
    """What a rule read out of a reply: a logit exactly if it is an answer."""

    outcome: Outcome
    logit: float | None = None
    mass: float | None = None
    why: str = ""


def read_logprobs(
    top: Sequence[tuple[str, float]], words: AnswerWords, *, text: str = "", exact: bool = False
) -> Reading:
    """Read the log-probs of the first token: log P(yes) - log P(no), each summed over its spellings.

    The likeliest token must be an answer word, else the model wanted to say something else. A side of which no
    spelling is listed gets the most that it can have: the smallest listed probability, or what is left of 1 if that
    is less. With `exact` the list is not the likeliest tokens but those that were asked for, so that no such bound
    holds and a side that is missing is no answer.
    """
    if not top:
        return Reading("unparsed", why="promised log-probs are missing")
    first, highest = max(top, key=lambda listed: listed[1])
    if highest > MOST_LOGPROB:
        return Reading("unparsed", why=f"a log-prob is {highest:.3g}: these are no logarithms of probabilities")
    held = {"yes": 0.0, "no": 0.0, "abstain": 0.0, None: 0.0}
    smallest = 1.0
    for token, logprob in top:
        p = math.exp(max(logprob, LOWEST_LOGPROB))
        held[words.side(token)] += p
        smallest = min(smallest, p)
    side, mass = words.side(first), min(held["yes"] + held["no"], 1.0)
    if side == "abstain":
        return Reading("abstained", mass=mass, why=f"the model said {first.strip(WRAPPING)!r}")
    if side is None:
        outcome: Outcome = "refused" if is_refusal(text or first) else "unparsed"
        return Reading(outcome, mass=mass, why=f"the likeliest token is {first[:40]!r}, which is no answer word")
    if exact and not (held["yes"] and held["no"]):
        return Reading("unparsed", mass=mass, why="the log-prob of an answer token that was asked for is missing")
    left = 1 - sum(held.values())
    most = max(min(smallest, left) if left > 0 else smallest, math.exp(LOWEST_LOGPROB))
    return Reading("answered", logit=math.log(held["yes"] or most) - math.log(held["no"] or most), mass=mass)


def read_samples(texts: Sequence[str | None], words: AnswerWords) -> Reading:
    """Read several short replies to one question: the logit of (yes + 1/2) / (n + 1).

    A reply counts if it is an answer word and nothing else; None stands for one that was cut. More than half of them
    must count, else the pair takes what most of the others are.
    """
    sides = [_side_of_text(text, words) for text in texts]
    counted = Counter(sides)
    yes, no = counted["yes"], counted["no"]
    mass = (yes + no) / len(sides) if sides else 0.0
    if 2 * (yes + no) > len(sides):
        return Reading("answered", logit=math.log((yes + 0.5) / (no + 0.5)), mass=mass)
    if not sides:
        return Reading("unparsed", mass=mass, why="no sample came back")
    kinds: tuple[Outcome, ...] = ("refused", "abstained", "unparsed")
    outcome = max(kinds, key=lambda kind: counted[kind])
    kept = next((text for text, side in zip(texts, sides, strict=True) if side == outcome), None)
    said = "was cut" if kept is None else f"said {kept[:40]!r}"
    return Reading(outcome, mass=mass, why=f"{yes + no} of {len(sides)} samples gave an answer word; one {said}")


def _side_of_text(text: str | None, words: AnswerWords) -> str:
    if text is None or len(text) > LONGEST_TEXT:
        return "unparsed"
    side = words.side(text)
    if side:
        return "abstained" if side == "abstain" else side
    return "refused" if is_refusal(text) else "unparsed"


def read_joint(text: str, labels: Sequence[str]) -> list[Reading]:
    """Read one JSON object of label -> probability of yes: a reading a label, in their order.

    The text is the object and nothing else, or one code fence around it. A number from 0 to 1 is an answer, null is
    `cannot tell`; a label that is missing, written twice or anything else is unparsed; labels nobody asked for are
    passed over.
    """
    if is_refusal(text[:LONGEST_TEXT]):
        return [Reading("refused", why=f"the model said {text[:80]!r}")] * len(labels)
    said = _one_object(text)
    if isinstance(said, str):
        return [Reading("unparsed", why=said)] * len(labels)
    return [_read_label(said, label) for label in labels]


def _one_object(text: str) -> Mapping[str, Any] | str:
    """Parse the reply, or say why it is not one JSON object."""
    if len(text) > LONGEST_TEXT:
        return f"the reply has {len(text):,} characters; {LONGEST_TEXT:,} are read"
    if not (bare := text.strip()):
        return "the reply is empty"
    fenced = _FENCE.fullmatch(bare)
    try:
        said = json.loads(fenced[1] if fenced else bare, parse_constant=_no_constant, object_pairs_hook=_Pairs.of)
    except (ValueError, RecursionError):
        return f"the reply is not one JSON object: {bare[:80]!r}"
    if not isinstance(said, dict):
        return f"the reply is JSON but no object: {bare[:80]!r}"
    return said


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class _Pairs(dict[str, Any]):
    """A JSON object that remembers which of its keys stood in it twice."""

    doubled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> _Pairs:
        made = cls(pairs)
        made.doubled = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return made


def _read_label(said: Mapping[str, Any], label: str) -> Reading:
    if label not in said:
        return Reading("unparsed", why=f"the reply has no {label!r}")
    if isinstance(said, _Pairs) and label in said.doubled:
        return Reading("unparsed", why=f"the reply has {label!r} twice")
    value = said[label]
    if value is None:
        return Reading("abstained", why=f"the model gave null for {label!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return Reading("unparsed", why=f"{label!r} is {str(value)[:40]!r}, not a number from 0 to 1")
    p = min(max(float(value), 1 - SUREST), SUREST)
    return Reading("answered", logit=math.log(p) - math.log1p(-p))


def is_refusal(text: str) -> bool:
    """Say whether a text opens as models do when their policy forbids an answer."""
    return _REFUSAL.match(text) is not None
