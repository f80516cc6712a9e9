"""`stub:`, a judge that knows nothing on purpose: seeded answers for tests, for trying things out, for the harm test.

An answer is a pure function of the seed, the image and the finding. No label and no pixel reaches it, so its AUROC is
.5 against anything, whatever it is mixed with. Its bias and its failures are set, so that tools that measure bias and
count outcomes can be measured themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import cast

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Vocabulary
from bpals.judges.function import UnreadableFilm
from bpals.registry import AskOptions, ImageOptions, JudgeKind
from bpals.types import OUTCOME, Film, JudgeCard, Outcome, Question, Reply, answers_schema

VERSION = "1"
# A logit is rounded, so that two machines whose logarithms differ in the last bit give the same answers.
DECIMALS = 6
WHY = "the stub was told to"

PNG = b"\x89PNG\r\n\x1a\n"
# The place of `failed` among the outcomes.
FAILED = OUTCOME.categories.len() - 1

Words = npt.NDArray[np.uint64]


class ToldToFail(Exception):
    """Raised for an image that the stub is set to fail on, as a judge whose model breaks down would raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StubJudge:
    """Answers drawn from a hash, the same ones each time."""

    seed: int = 0
    bias: float = 0.0
    """Added to the logit of every question, in both polarities: how far it leans to yes."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Outcome -> share of the pairs that have it; the rest is answered."""
    name: str = "stub"

    def __post_init__(self) -> None:
        """Refuse shares that cannot be."""
        if unknown := set(self.shares) - set(OUTCOME.categories) | ({"answered"} & set(self.shares)):
            known = ", ".join(word for word in OUTCOME.categories if word != "answered")
            raise UsageError(f"stub: {min(unknown)!r} is no outcome without an answer. Known: {known}")
        if any(not 0 <= share <= 1 for share in self.shares.values()) or sum(self.shares.values()) > 1 + 1e-9:
            raise UsageError(f"stub: {dict(self.shares)} are no shares: each is from 0 to 1, and so is their sum")

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
        settings = {key: value for key, value in asdict(self).items() if key != "name"}
        return JudgeCard(
            judge=self.name,
            kind="image",
            version=VERSION,
            engine="bpals stub",
            settings=settings,
            trained_on_target="no",
            evidence="It was trained on nothing: its answers are drawn from a hash.",
            licence="Apache-2.0",
            commercial_use="yes",
        )

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """Ask about every finding in both polarities."""
        both = self.card.polarities
        return tuple(Question(subject=finding, polarity=each) for finding in vocabulary.findings for each in both)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer by the hash of the image; without an image only the bias is left."""
        if film is None:
            return [Reply(outcome="answered", logit=self.bias, method="score") for _ in questions]
        if not film.png.startswith(PNG):
            raise UnreadableFilm(f"the film {film.sha256[:12]} is no PNG")
        subjects = list(dict.fromkeys(question.subject for question in questions))
        z, outcomes = self._draw([film.sha256], subjects)
        if FAILED in outcomes:
            raise ToldToFail(f"the film {film.sha256[:12]}: {WHY}")
        drawn = dict(zip(subjects, zip(z[0].tolist(), outcomes[0].tolist(), strict=True), strict=True))
        return [self._reply(*drawn[question.subject], question) for question in questions]

    def scores(self, image_ids: Iterable[str], vocabulary: Vocabulary) -> pl.DataFrame:
        """Answer for every image and finding at once, without pixels: the table that a run over them would make."""
        films = list(image_ids)
        z, outcomes = self._draw(films, vocabulary.findings)
        answered = pl.col("outcome") == "answered"
        given = pl.when(answered).then(pl.col("z"))
        table = pl.DataFrame(
            {
                "image_id": pl.Series(films, dtype=pl.String).gather(np.arange(len(films)).repeat(z.shape[1])),
                "finding": pl.Series(vocabulary.findings * len(films), dtype=vocabulary.enum),
                "outcome": pl.Series(OUTCOME.categories, dtype=OUTCOME).gather(outcomes.ravel()),
                "z": z.ravel(),
            },
        )
        return table.select(
            "image_id",
            "finding",
            judge=pl.lit(self.name),
            kind=pl.lit("image"),
            outcome="outcome",
            p_present=1 / (1 + (-given).exp()),
            p_low=None,
            p_high=None,
            logit_present=(given + self.bias).round(DECIMALS),
            logit_absent=(self.bias - given).round(DECIMALS),
            mass=None,
            why=pl.when(~answered).then(pl.lit(WHY)),
        ).cast(answers_schema(vocabulary))

    def _draw(
        self, films: Sequence[str], findings: Sequence[str]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Draw a logit and the place of an outcome for each image and finding; an image that fails fails whole."""
        rows = _words(films, key=str(self.seed))[:, None]
        columns = _words(findings, key="finding")[None, :]
        mixed = _mix(rows ^ _mix(columns))
        chance, fate = _unit(mixed), _unit(_mix(mixed + np.uint64(1)))
        z = np.round(np.log(chance) - np.log1p(-chance), DECIMALS)
        lost = self.shares.get("failed", 0.0)
        whole = 1 - lost or 1.0
        edges = np.cumsum([self.shares.get(word, 0.0) / whole for word in OUTCOME.categories[1:FAILED].to_list()])
        place = np.searchsorted(edges, fate, side="right") + 1
        place = np.where(place == FAILED, 0, place)
        return z, np.where(_unit(_mix(rows)) < lost, FAILED, place)

    def _reply(self, z: float, place: int, question: Question) -> Reply:
        outcome = cast("Outcome", OUTCOME.categories[place])
        if outcome != "answered":
            return Reply(outcome=outcome, why=WHY, method="score")
        lean = z if question.polarity == "present" else -z
        return Reply(outcome="answered", logit=round(lean + self.bias, DECIMALS), method="score")


def make(target: str = "", revision: str = "") -> StubJudge:
    """Make a stub of `SEED`, or of `seed=7,bias=1,refused=.1`."""
    if revision:
        raise UsageError(f"stub:{target}@{revision}: a stub has no revision. Type: stub:{target}")
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in target.split(","))):
        name, _, value = part.rpartition("=")
        try:
            given[name or "seed"] = float(value)
        except ValueError:
            raise UsageError(f"stub:{target}: {part!r} is no number. Type: stub:7, or stub:seed=7,refused=.1") from None
    seed, bias = given.pop("seed", 0.0), given.pop("bias", 0.0)
    if not (seed.is_integer() and math.isfinite(bias)):
        raise UsageError(
            f"stub:{target}: the seed {seed} is no whole number, or the bias {bias} no number. Type: stub:7"
        )
    return StubJudge(seed=int(seed), bias=bias, shares=given)


def _words(names: Sequence[str], *, key: str) -> Words:
    """Hash names to 64 bits each; another key is another hash."""
    joined = b"".join(blake2b(name.encode(), digest_size=8, key=key.encode()).digest() for name in names)
    return np.frombuffer(joined, dtype="<u8").astype(np.uint64)


def _mix(words: Words) -> Words:
    """Scatter the bits as SplitMix64 does, so that neighbours share nothing."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _unit(words: Words) -> npt.NDArray[np.float64]:
    """Turn 64 bits into a number between 0 and 1, neither of them."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


JUDGE = JudgeKind(
    name="stub",
    form="stub:[SEED]",
    summary="seeded answers that know nothing, for tests and for trying things out",
    open=make,
    takes=(ImageOptions, AskOptions),
    page="judges.md#a-judge-that-knows-nothing",
)
