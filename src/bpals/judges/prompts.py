"""Prompt packs, the questions of a judge word for word, and the rules that read its replies as numbers.

A pack is a versioned and hashed TOML file; docs/prompts.md has the reference of its keys. Every mistake in a pack is a
one-line UsageError that names the file and the place.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bpals.errors import UnknownName, UsageError
from bpals.findings import Vocabulary, fold
from bpals.registry import ASKING, option
from bpals.types import Notice, Outcome, Polarity, Question

# Characters of a reply that are read at all: an answer of 32 numbers has about a thousand.
LONGEST_TEXT = 65_536
# Log-probs below this are taken as this: servers write -9999 for `none`, and float32 resolves nothing there.
LOWEST_LOGPROB = -30.0
# No probability is above 1, but for rounding: a server whose log-probs are higher sends something else.
MOST_LOGPROB = 0.01
# A stated probability of 0 or 1 has no logit: it is read as this sure, and no surer.
SUREST = 0.999
# How tokenizers write a leading blank: SentencePiece, byte-level BPE, its line break; and the hard blank.
SPACE_MARKS = "\u2581\u0120\u010a\u00a0"
WRAPPING = " \t\r\n*_`\"'.,!:;()[]{}" + SPACE_MARKS

_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_REFUSAL = re.compile(
    r"\W*(?:(?:i['\u2019]?m |i am |we['\u2019]?re |we are )?(?:very |so )?sorry\b|i apologi[sz]e\b|unfortunately\b"
    r"|i (?:can ?not|can['\u2019]?t|can not|won['\u2019]?t|will not) "
    r"(?:help|assist|provide|give|offer|answer|comply|analy[sz]e|interpret|diagnose|make)\b"
    r"|(?:i['\u2019]?m|i am) (?:not able|unable) to\b|as an ai\b)",
    re.IGNORECASE,
)


# Packs that come with bpals; a name without a version is the newest.
SHIPPED: Mapping[str, str] = {"chest": "chest-1.toml", "chest@1": "chest-1.toml"}
TOP_KEYS = ("name", "version", "line", "reply", "joint", "answers", "templates", "findings", "topics")
TEMPLATE_KEYS = ("polarity", "wording", "text", "reply", "probe")
SUBJECT_KEYS = ("phrase", "definition", "aliases", "present", "absent")
POLARITIES: tuple[Polarity, ...] = ("present", "absent")
_NEGATED = re.compile(r"\b(?:no|not|never|without|neither|nor)\b|n['\u2019]t\b", re.IGNORECASE)


Side = Literal["yes", "no", "abstain"]
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWords:
    """The words that count as an answer, in lower case; a model may write them in any case, with a blank before."""

    yes: tuple[str, ...] = ("yes",)
    no: tuple[str, ...] = ("no",)
    abstain: tuple[str, ...] = ()
    """Words by which the prompt lets the model say that it cannot tell; none, where the prompt offers none."""

    def side(self, word: str) -> Side | None:
        """Return the side that a token or a word is on."""
        folded = word.strip(WRAPPING).casefold()
        # Called for every token of every reply: a loop over the sides costs 3 % of a run's CPU.
        if folded in self.yes:
            return "yes"
        if folded in self.no:
            return "no"
        return "abstain" if folded in self.abstain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One way of asking about any finding."""

    polarity: Polarity
    wording: str
    text: str
    reply: str
    """The line after the question, which says how to answer."""
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a finding or a topic is called in a question."""

    name: str
    phrase: str = ""
    definition: str = ""
    texts: Mapping[str, str]
    """Polarity -> a question of its own, where the templates do not fit."""

    @property
    def words(self) -> str:
        """The phrase with its definition in brackets."""
        return f"{self.phrase} ({self.definition})" if self.definition else self.phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A prompt pack that has been read and checked."""

    name: str
    version: int
    line: str
    """The constant line between the image and the question."""
    joint: tuple[str, str]
    """What stands before and after the list, where all questions travel together."""
    answers: AnswerWords
    templates: tuple[Template, ...]
    findings: Mapping[str, Subject]
    """Folded spelling -> how it is asked about."""
    topics: tuple[Subject, ...]
    sha256: str

    @property
    def label(self) -> str:
        """Name, version and hash: what a judge card carries."""
        return f"{self.name}@{self.version} sha256:{self.sha256}"

    def questions(
        self, vocabulary: Vocabulary, *, topics: bool = True, probes: bool = False, reply: bool = True
    ) -> tuple[Question, ...]:
        """List the questions about an image: each finding in both polarities, whatever its label, then the topics.

        Without `reply` the line that says how to answer is left to the caller.
        """
        questions = []
        templates = [template for template in self.templates if probes or not template.probe]
        for finding in vocabulary.findings:
            known = self.subjects(finding, vocabulary)
            subject = known[0] if known else Subject(name=finding, phrase=fold(finding), texts={})
            questions += [_question(template, finding, subject, "finding", reply=reply) for template in templates]
        for subject in self.topics if topics else ():
            plain = [template for template in templates if not (template.probe and subject.texts)]
            questions += [_question(template, subject.name, subject, "film", reply=reply) for template in plain]
        return tuple(questions)

    def prompt(self, question: Question) -> str:
        """Write the whole text that follows the image."""
        return f"{self.line}\n{question.text}"

    def joint_prompt(self, questions: Sequence[Question]) -> str:
        """Write the text that follows the image where all questions travel together."""
        listed = "\n".join(f"{joint_label(question)}: {question.text}" for question in questions)
        return f"{self.line}\n{self.joint[0]}\n{listed}\n{self.joint[1]}"

    def unphrased(self, vocabulary: Vocabulary) -> tuple[Notice, ...]:
        """Count the findings that the pack has no phrase for; their own names stand in the questions."""
        own = [finding for finding in vocabulary.findings if not self.subjects(finding, vocabulary)]
        if not own:
            return ()
        named = ", ".join(repr(finding) for finding in own[:3]) + (", ..." if len(own) > 3 else "")
        message = f"the prompt pack {self.name}@{self.version} has no phrase for {named}: asked in their own words"
        return (Notice(code="unphrased", count=len(own), message=message),)

    def subjects(self, finding: str, vocabulary: Vocabulary) -> list[Subject]:
        """List what the pack knows of a finding, by its name and then by its aliases."""
        spellings = [finding, *(alias for alias, meant in vocabulary.aliases.items() if meant == finding)]
        return [self.findings[fold(word)] for word in spellings if fold(word) in self.findings]


def _question(
    template: Template, name: str, subject: Subject, about: Literal["finding", "film"], *, reply: bool
) -> Question:
    text = subject.texts.get(template.polarity) or template.text.replace("{phrase}", subject.words)
    return Question(
        subject=name,
        about=about,
        polarity=template.polarity,
        wording=template.wording,
        text=f"{text}\n{template.reply}" if reply else text,
    )


def joint_label(question: Question) -> str:
    """Name a question in the one JSON object of the joint layout."""
    label = f"{question.subject}/{question.polarity}"
    return label if question.wording == "a" else f"{label}/{question.wording}"


def load_pack(pack: str | Path) -> Pack:
    """Read a pack: a TOML file, or the name of one that is shipped."""
    if str(pack) in SHIPPED:
        file = resources.files("bpals.judges").joinpath("prompt_packs", SHIPPED[str(pack)])
        return parse_pack(file.read_bytes(), origin=file.name)
    path = Path(pack)
    if path.suffix != ".toml" and not path.exists():
        raise UnknownName.of("prompt pack", str(pack), [*SHIPPED, "FILE.toml"])
    try:
        return parse_pack(path.read_bytes(), origin=str(pack))
    except OSError as error:
        raise UsageError(f"{pack} cannot be read: {error.strerror}. Name a TOML file, or one of: chest") from None


def parse_pack(content: bytes, *, origin: str) -> Pack:
    """Read and check the text of a pack."""
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"{origin} is not UTF-8, so it is no TOML. Save it as UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{origin} is not TOML: {reason}. Mend that place; docs/prompts.md has an example") from None
    top = _Part(origin, "", document, TOP_KEYS)
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise top.wrong("version", f"is {version!r}; a whole number from 1 is wanted")
    joint = _Part(origin, "joint", document.get("joint", {}), ("ask", "reply"))
    return Pack(
        name=top.text("name"),
        version=version,
        line=top.text("line"),
        joint=(joint.text("ask"), joint.text("reply")),
        answers=_parse_answers(top),
        templates=_parse_templates(top, top.text("reply")),
        findings=_parse_findings(top),
        topics=tuple(_parse_subject(part) for part in top.parts("topics", SUBJECT_KEYS)),
        sha256=hashlib.sha256(content).hexdigest(),
    )


class _Part:
    """One table of the file, with a closed list of keys."""

    def __init__(self, origin: str, name: str, content: object, known: Sequence[str]) -> None:
        self.origin = origin
        self.name = name
        if not isinstance(content, dict):
            raise UsageError(f"{origin}: {name} is not a table of keys. Write it as [{name}] on a line of its own")
        self.content: dict[str, object] = content
        for key in content:
            if key not in known:
                raise UnknownName.of("key", key, known, where=f"{origin}{f' [{name}]' if name else ''}")

    def wrong(self, key: str, what: str) -> UsageError:
        """Make the error about one key."""
        place = f"[{self.name}] " if self.name else ""
        return UsageError(f"{self.origin}: {place}{key} {what}. docs/prompts.md has an example")

    def text(self, key: str, default: str | None = None) -> str:
        """Read a text that is not blank; without a default it must be there."""
        if key not in self.content and default is not None:
            return default
        value = self.content.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "is missing" if value is None else f"is {value!r}; a text is wanted")
        return value.strip()

    def words(self, key: str) -> tuple[str, ...]:
        """Read a list of texts, which may be missing."""
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) and word.strip() for word in value):
            raise self.wrong(key, f"is {value!r}; a list of texts is wanted")
        return tuple(word.strip() for word in value)

    def parts(self, key: str, known: Sequence[str]) -> list[_Part]:
        """Open the tables below a key, each named after where it stands."""
        found = self.content.get(key, {})
        whole = _Part(self.origin, key, found, list(found) if isinstance(found, dict) else [])
        return [_Part(self.origin, f"{key}.{name}", content, known) for name, content in whole.content.items()]


def _parse_answers(top: _Part) -> AnswerWords:
    part = _Part(top.origin, "answers", top.content.get("answers", {}), SIDES)
    sides = {side: tuple(word.casefold() for word in part.words(side)) for side in SIDES}
    for side in ("yes", "no"):
        if not sides[side]:
            raise part.wrong(side, "is missing; name at least one word, such as ['yes']")
    every = [word for words in sides.values() for word in words]
    if doubled := sorted({word for word in every if every.count(word) > 1}):
        raise part.wrong("yes", f"and another side share the word {doubled[0]!r}; each word has one meaning")
    return AnswerWords(**sides)


def _parse_templates(top: _Part, reply: str) -> tuple[Template, ...]:
    listed = top.content.get("templates", [])
    if not isinstance(listed, list):
        raise top.wrong("templates", "is not a list. Write each as [[templates]] on a line of its own")
    parts = [_Part(top.origin, f"templates {n}", content, TEMPLATE_KEYS) for n, content in enumerate(listed, 1)]
    templates = tuple(_parse_template(part, reply) for part in parts)
    keys = [(template.polarity, template.wording) for template in templates]
    for polarity in POLARITIES:
        plain = [template for template in templates if template.polarity == polarity and not template.probe]
        if len(plain) != 1:
            raise top.wrong("templates", f"has {len(plain)} of polarity {polarity!r} that are no probe; one is wanted")
    if doubled := next((key for key in keys if keys.count(key) > 1), None):
        raise top.wrong("templates", f"has {'/'.join(doubled)} twice; give each its own wording")
    return templates


def _parse_template(part: _Part, reply: str) -> Template:
    polarity = part.text("polarity")
    if polarity not in POLARITIES:
        raise UnknownName.of("polarity", polarity, POLARITIES, where=f"{part.origin} [{part.name}]")
    probe = part.content.get("probe", False)
    if not isinstance(probe, bool):
        raise part.wrong("probe", f"is {probe!r}; true or false is wanted")
    text = part.text("text")
    if text.count("{phrase}") != 1:
        raise part.wrong("text", f"is {text!r}; it must name {{phrase}} once")
    if not probe:
        _refuse_negation(part, "text", text)
    return Template(
        polarity=polarity, wording=part.text("wording"), text=text, reply=part.text("reply", reply), probe=probe
    )


def _parse_findings(top: _Part) -> dict[str, Subject]:
    findings: dict[str, Subject] = {}
    for part in top.parts("findings", SUBJECT_KEYS):
        subject = _parse_subject(part)
        for spelling in (subject.name, *part.words("aliases")):
            if fold(spelling) in findings and findings[fold(spelling)] is not subject:
                raise part.wrong("aliases", f"has {spelling!r}, which another finding has too; keep one of them")
            findings[fold(spelling)] = subject
    return findings


def _parse_subject(part: _Part) -> Subject:
    texts: dict[str, str] = {polarity: part.text(polarity) for polarity in POLARITIES if polarity in part.content}
    if len(texts) == 1:
        raise part.wrong("present or absent", "is missing; ask in both polarities")
    if texts and "phrase" in part.content:
        raise part.wrong("phrase", "stands beside questions of its own; keep one of them")
    for key in (*texts, *(key for key in ("phrase", "definition") if key in part.content)):
        _refuse_negation(part, key, part.text(key))
    return Subject(
        name=part.name.partition(".")[2],
        phrase="" if texts else part.text("phrase"),
        definition=part.text("definition", ""),
        texts=texts,
    )


def _refuse_negation(part: _Part, key: str, text: str) -> None:
    if found := _NEGATED.search(text):
        raise part.wrong(key, f"has the negation {found[0]!r}; ask the opposite in other words, such as 'free of'")


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The option of every judge that takes its questions from a pack."""

    pack: str | Path = option("chest", "The prompt pack.", metavar="NAME|FILE.toml", reads=str, panel=ASKING)
    """The name of a shipped pack, or a TOML file."""


class Reading(NamedTuple):
    """What a rule reads out of a reply: a logit exactly if it is an answer."""

    outcome: Outcome
    logit: float | None = None
    mass: float | None = None
    why: str = ""


def read_logprobs(
    top: Sequence[tuple[str, float]], words: AnswerWords, *, text: str = "", exact: bool = False
) -> Reading:
    """Read the log-probs of the first token: log P(yes) - log P(no), each summed over its spellings.

    The likeliest token must be an answer word, else the reply is no answer. A side of which no spelling is listed
    gets the most that it can have: the smallest listed probability, or what is left of 1 if that is less. With `exact`
    the list holds the tokens of the request, not the likeliest: no such bound holds, and a missing side is no answer.
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
    example = "was cut" if kept is None else f"said {kept[:40]!r}"
    return Reading(outcome, mass=mass, why=f"{yes + no} of {len(sides)} samples gave an answer word; one {example}")


def _side_of_text(text: str | None, words: AnswerWords) -> str:
    if text is None or len(text) > LONGEST_TEXT:
        return "unparsed"
    side = words.side(text)
    if side:
        return "abstained" if side == "abstain" else side
    return "refused" if is_refusal(text) else "unparsed"


def read_joint(text: str, labels: Sequence[str]) -> list[Reading]:
    """Read one JSON object of label -> probability of yes: one reading per label, in their order.

    The text is the object and nothing else, or one code fence around it. A number from 0 to 1 is an answer, null is
    `cannot tell`; a label that is missing, written twice or anything else is unparsed; other labels are passed over.
    """
    if is_refusal(text[:LONGEST_TEXT]):
        return [Reading("refused", why=f"the model said {text[:80]!r}")] * len(labels)
    values = _one_object(text)
    if isinstance(values, str):
        return [Reading("unparsed", why=values)] * len(labels)
    return [_read_label(values, label) for label in labels]


def _one_object(text: str) -> _Pairs | str:
    """Parse the reply, or write why it is not one JSON object."""
    if len(text) > LONGEST_TEXT:
        return f"the reply has {len(text):,} characters; {LONGEST_TEXT:,} are read"
    if not (bare := text.strip()):
        return "the reply is empty"
    fenced = _FENCE.fullmatch(bare)
    try:
        parsed = json.loads(fenced[1] if fenced else bare, parse_constant=_no_constant, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return f"the reply is not one JSON object: {bare[:80]!r}"
    if not isinstance(parsed, _Pairs):
        return f"the reply is JSON but no object: {bare[:80]!r}"
    return parsed


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class _Pairs(dict[str, Any]):
    """A JSON object that knows which of its keys it has twice: json would keep the last one without a word."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.doubled = {key for key, count in Counter(key for key, _ in pairs).items() if count > 1}


def _read_label(values: _Pairs, label: str) -> Reading:
    if label not in values:
        return Reading("unparsed", why=f"the reply has no {label!r}")
    if label in values.doubled:
        return Reading("unparsed", why=f"the reply has {label!r} twice")
    value = values[label]
    if value is None:
        return Reading("abstained", why=f"the model gave null for {label!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return Reading("unparsed", why=f"{label!r} is {str(value)[:40]!r}, not a number from 0 to 1")
    p = min(max(float(value), 1 - SUREST), SUREST)
    return Reading("answered", logit=math.log(p) - math.log1p(-p))


def is_refusal(text: str) -> bool:
    """Return whether a text opens as models do when their policy forbids an answer."""
    return _REFUSAL.match(text) is not None
