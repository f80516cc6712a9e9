"""The nouns, as table schemas: what every room takes and gives.

Dataset    sources   images and claims of one dataset
Claim      sources   a dataset says a finding is present, absent or uncertain; silence is no row
Film       films     the pixels of one image, as a judge is shown them
Question   judges    what is asked about a film: a finding or a topic of the film, in one polarity
Reply      judges    what came back to one question; a failure is a reply without a number
Judgment   judges    what a judge that cannot see the claim answers, pair by pair
Truth      score     what experts say, pair by pair, for scoring and for calibration
Review     score     what one expert said of one pair, single reads that may disagree
Trust      signal    how far to trust each claim, with reasons: the product
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import polars as pl

from bpals.findings import Group, Vocabulary

SAYS = pl.Enum(["present", "absent", "uncertain"])
KIND = pl.Enum(["image", "record"])
OUTCOME = pl.Enum(["answered", "abstained", "refused", "unparsed", "unsupported", "failed"])
FLAG = pl.Enum(["likely_mislabelled", "suspect", "hard", "unverified", "trusted", "unjudged", "confirmed", "rejected"])
DEVICES = pl.Enum(["present", "absent", "unknown"])
VERDICT = pl.Enum(["present", "absent", "uncertain", "unreadable"])
SETTLED_AS = pl.Enum(["present", "absent"])
VERDICT_BY = pl.Enum(["readers", "adjudicated"])

Outcome = Literal["answered", "abstained", "refused", "unparsed", "unsupported", "failed"]
Polarity = Literal["present", "absent"]
Trained = Literal["yes", "no", "unknown"]

IMAGES = pl.Schema(
    {
        "image_id": pl.String,
        "patient_id": pl.String,  # null where the dataset names no patient
        "study_id": pl.String,
        "follow_up": pl.Int64,  # order of the film within its patient: a number or days, not a rank
        "view": pl.String,
        "age": pl.Float64,  # years; null where unknown or impossible
        "sex": pl.String,
        "width_px": pl.Int64,
        "height_px": pl.Int64,
    }
)
"""One row a film. Only image_id is never null."""


def claims_schema(vocabulary: Vocabulary) -> pl.Schema:
    """One row a claim: silence is no row. Image-major, in the order of the images and the vocabulary."""
    return pl.Schema({"image_id": pl.String(), "finding": vocabulary.enum, "says": SAYS})


def judgments_schema(vocabulary: Vocabulary) -> pl.Schema:
    """One row an answer or a failure. `p_present` is filled exactly when the outcome is `answered`."""
    return pl.Schema(
        {
            "image_id": pl.String(),
            "finding": vocabulary.enum,
            "judge": pl.String(),
            "kind": KIND,
            "outcome": OUTCOME,
            "p_present": pl.Float64(),
            "p_low": pl.Float64(),  # 95 % interval of the judge's own probability
            "p_high": pl.Float64(),
        }
    )


def answers_schema(vocabulary: Vocabulary) -> pl.Schema:
    """What the sealed table of an image judge holds: JUDGMENTS, and what its probability was made of."""
    schema = judgments_schema(vocabulary)
    schema.update(
        {
            "logit_present": pl.Float64(),  # log P(yes) - log P(no) to "does it show ...", null where there is none
            "logit_absent": pl.Float64(),  # the same to "is it free of ..."
            "mass": pl.Float64(),  # P(yes) + P(no), the smaller of the two questions'
            "why": pl.String(),  # null if answered, else what happened, in words
        }
    )
    return schema


FILM_ANSWERS = pl.Schema(
    {
        "image_id": pl.String(),
        "topic": pl.String(),  # what was asked of the film itself: devices, quality
        "outcome": OUTCOME,
        "p_present": pl.Float64(),
        "logit_present": pl.Float64(),
        "logit_absent": pl.Float64(),
        "why": pl.String(),
    }
)
"""What an image judge says of the film itself, not of a finding: one row a film and topic."""

FILM_CHECKS = pl.Schema(
    {
        "image_id": pl.String(),
        "sha256": pl.String(),  # of the file's bytes; null where the film was refused
        "width_px": pl.Int64(),
        "height_px": pl.Int64(),
        "refused": pl.String(),  # why it could not be looked at, in one word; null where it could
        "blank": pl.Boolean(),
        "one_grey": pl.Float64(),  # share of the film, at 32 x 32, that lies within 9 neighbouring greys
        "inverted": pl.Boolean(),
        "inverted_score": pl.Float64(),  # above 0: more like inverted copies of other patients' films
        "turned": pl.Int64(),  # degrees anticlockwise by which it lies turned: 0, 90, 180 or 270
        "turned_score": pl.Float64(),
        "cropped": pl.Boolean(),
        "cropped_score": pl.Float64(),
        "lateral": pl.Boolean(),  # by its DICOM tag; null where there is none
        "unlike": pl.Float64(),  # how far it lies outside what the other films share; 1 is usual
        "view": pl.String(),  # as recorded, where it is AP or PA
        "view_score": pl.Float64(),  # by its pixels: 0 is the median of the films recorded as PA, 1 of those as AP
        "view_marked": pl.String(),  # by the markers that OCR read
        "near_duplicate_of": pl.String(),  # the film most like it, where they are one exposure
        "near_duplicate_r": pl.Float64(),  # correlation of the two at 32 x 32
        "same_patient": pl.Boolean(),  # whether the dataset gives both to one patient
        "text": pl.Boolean(),  # text is burnt in beside the usual markers: by its DICOM tag, or by OCR; null if unknown
        "markers": pl.List(pl.String),  # usual markers that OCR read, such as PORTABLE; null where it was not asked
        "checks": pl.List(pl.String),  # the checks that fired: blank, inverted, turned, cropped, ...
    }
)
"""What is odd about the films themselves: one row a film that was looked at. Null is not known."""

SKILL = pl.Schema(
    {
        "judge": pl.String,
        "finding": pl.String,
        "against": pl.String,  # `experts` where there are expert reads of the finding, else `claims`
        "n": pl.Int64,
        "positives": pl.Int64,
        "auroc": pl.Float64,
        "low": pl.Float64,  # 95 % interval, patients drawn whole
        "high": pl.Float64,
        "signal": pl.Boolean,  # false where the interval includes .5: such a judge does not move the trust
    }
)
"""How well a judge tells films with a finding from films without: one row a judge and finding."""

TRUTH = pl.Schema(
    {
        "image_id": pl.String,
        "finding": pl.String,  # a finding of the vocabulary, or the name of a group
        "present": pl.Boolean,
        "split": pl.String,  # val, test, or null
    }
)
"""What experts say: one row a pair."""

REVIEWS = pl.Schema(
    {
        "image_id": pl.String(),
        "finding": pl.String(),  # a finding of the vocabulary, or the name of a group
        "reader": pl.String(),
        "verdict": VERDICT,  # `uncertain`: the reader would not say; `unreadable`: nobody could, on this image
        "inclusion": pl.Float64(),  # chance with which the pair was drawn to be read; null where nobody knows
    }
)
"""What single readers say: one row a read, at most one a reader and pair."""

SETTLED = pl.Schema({"image_id": pl.String(), "finding": pl.String(), "settled": pl.Float64()})
"""What a disagreement was settled to by people who saw each other's opinions: 1 is present, 0 absent."""


SETTLED_COLUMNS = pl.Schema(
    {
        "verdict": SETTLED_AS,
        "verdict_by": VERDICT_BY,
        "readers_present": pl.Int32(),
        "readers_absent": pl.Int32(),
    }
)
"""The columns of a signal that an audit before 0.6.0 did not write: null in such a table."""


def signal_schema(findings: tuple[str, ...]) -> pl.Schema:
    """The product: one row a claim. For `groups.parquet`, the findings are the groups' names."""
    return pl.Schema(
        {
            "image_id": pl.String(),
            "finding": pl.Enum(findings),
            "says": SAYS,
            "p_present": pl.Float64(),
            "trust": pl.Float64(),
            "trust_low": pl.Float64(),
            "trust_high": pl.Float64(),
            "agreement": pl.Float64(),
            "answered": pl.Int32(),
            "flag": FLAG,
            "verdict": SETTLED_AS,  # what people settled; null where nobody read, or reads settle nothing
            "verdict_by": VERDICT_BY,  # most of two or more readers, or an adjudicated label; null without a verdict
            "readers_present": pl.Int32(),  # readers who say present; a hedge is no vote
            "readers_absent": pl.Int32(),
            "reasons": pl.List(pl.String),
            "review_rank": pl.Int64(),
            "devices": DEVICES,
            "film_checks": pl.List(pl.String),  # null where nobody looked at the film
            "method": pl.String(),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something odd that was read on from, counted."""

    code: str
    count: int
    message: str
    """What was found, where it first was, and what was done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a source gives: every film and every claim; selecting is someone else's job."""

    name: str
    title: str
    vocabulary: Vocabulary
    images: pl.DataFrame
    claims: pl.DataFrame
    attribution: str
    inputs: Mapping[str, str]
    """Name of each file read -> its sha256."""
    unaudited: Mapping[str, int] = field(default_factory=dict)
    """Labels that are not audited -> films that carry them: counted, not lost."""
    notices: tuple[Notice, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash the files that were read, whatever they are called: two with the same one claim the same."""
        return "sha256:" + hashlib.sha256("\n".join(sorted(self.inputs.values())).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Expert labels: pairs with a truth, and what the groups among them mean."""

    kind: str
    truth: pl.DataFrame
    groups: tuple[Group, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    votes: pl.DataFrame | None = None
    """Where the truth is a vote of readers, no adjudication: `image_id, finding`, and how many said `yes` and `no`."""
    positives_only: bool = False
    """True where every pair is a confirmed presence, so that no error can be scored."""

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups all of whose members a dataset audits."""
        return [group for group in self.groups if set(vocabulary.findings).issuperset(group.members)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviews:
    """Single reads by experts, and what the groups among them mean."""

    table: pl.DataFrame
    """REVIEWS: one row a read."""
    groups: tuple[Group, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    settled: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SETTLED))
    """SETTLED: pairs of which an adjudicator or a discussion said more than the reads do; it stands over them."""

    @property
    def readers(self) -> list[str]:
        """Name the readers, in order."""
        return sorted(self.table["reader"].unique().to_list())

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups all of whose members a dataset audits."""
        return [group for group in self.groups if set(vocabulary.findings).issuperset(group.members)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Everything from experts that an audit uses; by default nothing."""

    reference: Reference | None = None
    """Labels to calibrate on."""
    reviews: Reviews | None = None
    random_sample: Reference | None = None
    """Labels of a random sample of the audited images."""
    prior: Any = None
    """A fit on expert labels elsewhere (`signal.prior.ExpertCalibration`), from which the fit here starts."""
    notices: tuple[Notice, ...] = ()

    @property
    def given(self) -> bool:
        """Whether there is anything to fit the trust on."""
        return self.reference is not None or self.reviews is not None

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups that experts label and all of whose members a dataset audits."""
        given = [each for each in (self.reference, self.reviews) if each is not None]
        return list(dict.fromkeys(group for each in given for group in each.groups_within(vocabulary)))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCard:
    """Who a judge is: what a reader must know before believing it."""

    judge: str
    """What it is called in a workspace; the name does not change who it is."""
    kind: str
    """`image` or `record`."""
    version: str
    model: str = ""
    revision: str = ""
    """The commit of the weights; empty where nobody said."""
    engine: str = ""
    """What runs it, with its version: `openai-compatible`, `transformers 5.22.0`."""
    pack: str = ""
    """The prompt pack, `name@version sha256:...`; empty where nothing is asked in words."""
    preparation: Mapping[str, object] = field(default_factory=dict)
    """What is done to a film before the judge sees it: side, codec, interpolation."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Everything else that could change an answer: decoding, layout, device, dtype."""
    polarities: tuple[Polarity, ...] = ("present", "absent")
    trained_on_target: Trained = "unknown"
    evidence: str = ""
    """How we know whether it was trained on the labels it judges."""
    held_out: bool = False
    """True where it was trained on these labels, but of no patient that it judges: cross-fitted, or a split apart."""
    licence: str = "unknown"
    commercial_use: Trained = "unknown"
    """Whether its licence allows commercial use; `no` keeps it out of commercial editions."""
    observed: Mapping[str, object] = field(default_factory=dict)
    """What the self-test saw. It is written down, and does not change who the judge is."""

    @property
    def identity(self) -> dict[str, object]:
        """Everything that could change an answer: what the fingerprint is made of."""
        names = ("kind", "version", "model", "revision", "engine", "pack", "preparation", "settings", "polarities")
        whole = asdict(self)
        return {name: whole[name] for name in names}

    @property
    def fingerprint(self) -> str:
        """The hash of the identity: two judges with the same one give the same answers."""
        written = json.dumps(self.identity, sort_keys=True, ensure_ascii=False).encode()
        return "sha256:" + hashlib.sha256(written).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Write the card out, with its fingerprint."""
        return {**asdict(self), "fingerprint": self.fingerprint}


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """One film as an image judge sees it: pixels, and no file name, patient or label."""

    sha256: str
    """Of the file's bytes: which film this is."""
    png: bytes
    """The prepared pixels, grey, encoded anew: no tag of the file is in it."""
    width_px: int
    height_px: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a film cannot be shown to a judge."""

    code: str
    """One word for counting: `truncated`, `blank`, `missing`."""
    message: str
    """What is wrong with it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question about a film."""

    subject: str
    """A finding of the vocabulary, or a topic of the film such as `devices`."""
    about: Literal["finding", "film"] = "finding"
    polarity: Polarity = "present"
    wording: str = "a"
    text: str = ""
    """What is asked, word for word; empty for a judge that is not asked in words."""

    @property
    def sha256(self) -> str:
        """The hash of what is asked."""
        asked = f"{self.about}\0{self.subject}\0{self.polarity}\0{self.wording}\0{self.text}"
        return hashlib.sha256(asked.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one reply."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back to one question."""

    outcome: Outcome
    logit: float | None = None
    """log P(yes) - log P(no) to the question as asked; filled exactly if answered."""
    mass: float | None = None
    """P(yes) + P(no) before they are compared; below .9 the model wanted to say something else."""
    method: str = ""
    """How the logit was got: token_ids, top_k, sampled, joint, exact, contrastive, score."""
    why: str = ""
    """What happened, in words, where it did not answer."""
    text: str = ""
    top: tuple[tuple[str, float], ...] = ()
    """The raw evidence: tokens and their log-probs."""
    usage: Usage = field(default_factory=Usage)
    latency_s: float = 0.0
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """What an asked judge says of one finding, or one topic, of one film: a row of its table to be."""

    subject: str
    about: Literal["finding", "film"]
    outcome: Outcome
    p_present: float | None
    """sigmoid((logit_present - logit_absent) / 2), filled exactly if answered: raw, never fitted, never corrected."""
    logit_present: float | None = None
    logit_absent: float | None = None
    mass: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed try to get one reply."""

    number: int
    """Of the question, from 0; of the first one, where several travel in one request."""
    attempt: int
    """Which try it was, from 1."""
    kind: str
    """One word for counting: `timeout`, `status`, `bad_reply`."""
    status: int | None = None
    """The HTTP status, where there was one."""
    message: str = ""


R = TypeVar("R")
ReadReply = Callable[[Mapping[str, Any]], R]
"""Turns the JSON object of a server's reply into what the judge wants; raises BadReply if it cannot."""


class BadReply(Exception):
    """A server answered 200 and the body is not what it promised: the runner sends the request again."""


class RequestRefused(Exception):
    """A server refused one request for good (400, 413, 422), which says nothing about the next image."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the status and the server's own words."""
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Client(Protocol):
    """Sends a judge's requests about one image to one server; limits, retries and deadlines are behind it."""

    image_sent: bool
    """Set by the judge once the server has this image, so that the judge need not send it again."""

    async def post(self, body: bytes, read: ReadReply[R]) -> R:
        """Send one request and return what `read` makes of the reply.

        The runner retries transient faults and BadReply. RequestRefused is raised: no retry cures it.
        """
        ...


class BaseJudge(Protocol):
    """What every judge that sees images can say of itself; it keeps no state between images and sees no label."""

    @property
    def card(self) -> JudgeCard:
        """Describe this judge."""
        ...

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List the questions about every image, in order."""
        ...


@runtime_checkable
class ImageJudge(BaseJudge, Protocol):
    """A judge that answers in this process."""

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one image, one reply each, in order; None is the no-image control."""
        ...


@runtime_checkable
class ChatJudge(BaseJudge, Protocol):
    """A judge behind an endpoint: it writes requests and reads replies, and the runner sends them."""

    @property
    def at_once(self) -> int:
        """How many questions travel in one request; 1 lets a server reuse the image for each."""
        ...

    async def ask_line(self, film: Film | None, questions: Sequence[Question], line: Client) -> Sequence[Reply]:
        """Answer up to `at_once` questions about one image through the client, one reply each, in order."""
        ...


@runtime_checkable
class RecordJudge(Protocol):
    """A judge that reads the dataset's own table and not the images."""

    def read(self, images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> pl.DataFrame:
        """Answer for every label as JUDGMENTS, in the order of the labels, without using the label itself."""
        ...


@runtime_checkable
class Source(Protocol):
    """A kind of dataset, such as a SourceKind."""

    def load(self, target: str, /) -> Dataset:
        """Read every image and every label; options of its own come by name."""
        ...


@runtime_checkable
class Signal(Protocol):
    """A way from labels and answers to trust, such as a SignalKind."""

    def estimate(self, laid: Any, reference: Reference | None = None, /) -> Any:
        """Give an object whose `table` is the signal, one row per label, from what `signal.layout.lay_out` made.

        Skill, single reads, a random sample and features come by name.
        """
        ...
