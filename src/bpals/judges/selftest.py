"""The self-test of an endpoint before a run, the control images, and the drift of answers that are asked again.

The self-test checks three things: does the image arrive, are the log-probs there, does each question get its own reply?
Only these stop a run, each with its own message. Anything else odd is a warning on the judge's card: little probability
on the answer words, nothing reused between two questions about an image, unsteady repeats, samples that are all the
same, answer words of several tokens, another model's name.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image

from bpals.errors import JudgeError
from bpals.judges.openai import Method, OpenAIJudge
from bpals.judges.prompts import WRAPPING
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.messages import Plan, RetriesExhausted
from bpals.judges.runner.runner import wait_for
from bpals.text import several
from bpals.types import ChatJudge, Client, Film, ImageJudge, Question, R, ReadReply, Reply, RequestRefused

SEED = 20171
BITS = 255
LOW_MASS = 0.9
# Log-probs that differ by less are the same: no two different images give that to a model that sees them.
SAME = 1e-6
# Nats by which a repeat may differ: a reused prefix alone moves a log-prob by about .06.
UNSTEADY = 0.1
# Nats by which two replies must differ so that a swap of the two is noticed.
TELLING = 0.3
# Log-probs below this are too small to compare: their noise is large.
LIKELY = -5.0
# Keys that only vLLM's replies have: it alone keeps images by uuid, and others answer the question with an error.
OF_VLLM = ("prompt_logprobs", "kv_transfer_params")
# Nats. What batching and prefix caches were seen to move a logit by on one server; more is another judge.
EXPECTED = 0.06
SIDE_PX = 512
AT_ONCE, ROUNDS = 6, 2

OpenLine = Callable[[], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the self-test found."""

    judge: OpenAIJudge
    """The judge with its method and its way to send images decided, and this on its card."""
    model: str
    """The name in the endpoint's replies, without its path."""
    method: str
    image_by: str
    image_tokens: int | None
    """Tokens that an image adds to the prompt; null where the endpoint does not count."""
    cached_tokens: int
    """Tokens of an image's second question that the endpoint had already read."""
    low_mass: float | None
    """Share of the replies with less than .9 on the answer words; null where mass means nothing."""
    repeat: float | None
    """Nats by which the same request differed when it was sent again; null where answers are sampled."""
    between_images: float | None
    """Nats by which replies differed between images; null where one was answered and another was not."""
    checked_order: int
    """Replies that came back together, each to its own request."""
    outcomes: Mapping[str, int]
    calls: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Write it out for the judge's card."""
        left_out = ("judge", "warnings", "outcomes")
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in plain.items()}
        return {**rounded, "outcomes": dict(self.outcomes), "warnings": list(self.warnings)}


class _Response:
    """The replies to one request."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies = replies
        self.first = replies[0]
        logits = {str(place): reply.logit for place, reply in enumerate(replies) if reply.logit is not None}
        self.numbers = dict(self.first.top) or logits

    def distance(self, other: _Response, *, floor: float = LIKELY) -> float:
        """Measure how far two responses are apart in nats; a token that one does not list has at most its smallest."""
        mine, theirs = self.numbers, other.numbers
        if not mine or not theirs:
            return 0.0 if [r.outcome for r in self.replies] == [r.outcome for r in other.replies] else math.inf
        lowest, other_lowest = min(mine.values()), min(theirs.values())
        pairs = [(mine.get(key, lowest), theirs.get(key, other_lowest)) for key in mine.keys() | theirs.keys()]
        return max((abs(one - two) for one, two in pairs if max(one, two) > floor), default=0.0)


class _Trial:
    """A judge on trial: its requests and responses so far."""

    def __init__(
        self, judge: OpenAIJudge, films: Sequence[Film], questions: Sequence[Question], open_line: OpenLine
    ) -> None:
        self.judge = judge
        self.open_line = open_line
        self.models: list[str] = []
        self.calls = 0
        self.is_vllm = False
        self.responses: list[_Response] = []
        self.by_image: list[tuple[Film, int, _Response]] = []
        self.warnings: list[str] = []
        half = max(len(questions) // 2, 1)
        joint = [list(questions[:half]), list(questions[half:])]
        self.requests = [part for part in joint if part] if judge.layout == "joint" else [[q] for q in questions[:2]]
        side_px = max(films[0].width_px, films[0].height_px) if films else SIDE_PX
        self.images = [film for _, film in control_images(side_px) if film] + list(films)
        self.films = list(films) or self.images[1:2]

    async def ask(
        self, film: Film | None, request: int = 0, *, judge: OpenAIJudge | None = None, client: _Recorder | None = None
    ) -> _Response:
        questions = self.requests[request % len(self.requests)]
        replies = await (judge or self.judge).ask_line(film, questions, client or _Recorder(self))
        self.responses.append(_Response(replies))
        return self.responses[-1]


class _Recorder:
    """A client that notes in the trial what goes over it."""

    def __init__(self, trial: _Trial) -> None:
        self._trial = trial
        self._client = trial.open_line()

    @property
    def image_sent(self) -> bool:
        return self._client.image_sent

    @image_sent.setter
    def image_sent(self, sent: bool) -> None:
        self._client.image_sent = sent

    async def post(self, body: bytes, read: ReadReply[R]) -> R:
        def noted(payload: Mapping[str, Any]) -> R:
            self._trial.models.append(str(payload.get("model") or ""))
            self._trial.is_vllm |= any(mark in payload for mark in OF_VLLM)
            return read(payload)

        self._trial.calls += 1
        return await self._client.post(body, noted)


async def selftest(
    judge: OpenAIJudge, films: Sequence[Film], questions: Sequence[Question], open_line: OpenLine, asked_model: str = ""
) -> Observed:
    """Try a judge on a few images (ten are enough) and decide its open settings; raises JudgeError if it is useless.

    `open_line` gives a new client, as for a new image.
    """
    trial = _Trial(judge, films, questions, open_line)
    try:
        await _decide_method(trial)
        image_tokens, between, repeat = await _check_image(trial)
        cached = await _check_reuse(trial, image_tokens)
        await _decide_image_by(trial, repeat)
    except RequestRefused as refusal:
        raise JudgeError(
            f"the endpoint refuses a question with an image ({refusal}): no image arrives. "
            f"Serve a model that takes images, and look at its log"
        ) from None
    checked = await _check_order(trial, repeat)
    low_mass = _check_words(trial)
    _check_samples(trial)
    model = _check_model(trial, asked_model or judge.model)
    counted = [reply.outcome for response in trial.responses for reply in response.replies]
    observed = Observed(
        judge=trial.judge,
        model=model,
        method="joint" if judge.layout == "joint" else trial.judge.method,
        image_by=trial.judge.image_by,
        image_tokens=image_tokens,
        cached_tokens=cached,
        low_mass=low_mass,
        repeat=repeat if repeat is None or math.isfinite(repeat) else None,
        between_images=between if math.isfinite(between) else None,
        checked_order=checked,
        outcomes={outcome: counted.count(outcome) for outcome in sorted(set(counted))},
        calls=trial.calls,
        warnings=tuple(trial.warnings),
    )
    return replace(observed, judge=replace(trial.judge, observed=observed.as_dict()))


async def _decide_method(trial: _Trial) -> None:
    """Find the method for this server; one that the user chose and that does not work stops the run."""
    if trial.judge.layout == "joint":
        return
    wanted = trial.judge.method
    every: tuple[Method, ...] = ("token_ids", "top_k")
    tried = every if wanted == "auto" else tuple(method for method in every if method == wanted)
    for method in tried:
        candidate = replace(trial.judge, method=method) if method == "top_k" or trial.judge.token_ids else None
        if candidate is not None and await _has_logprobs(trial, candidate):
            trial.judge = candidate
            return
    if wanted in ("token_ids", "top_k"):
        raise JudgeError(
            f"the endpoint was asked for log-probs and sends none: {wanted} cannot be read. "
            f"Turn them on in the server, or type --method sampled to ask each question {trial.judge.samples} times"
        )
    trial.judge = replace(trial.judge, method="sampled")
    if wanted == "auto":
        times = trial.judge.samples
        trial.warnings.append(f"the endpoint sends no log-probs: each question is asked {times} times and counted")
    try:
        await trial.ask(trial.films[0])
    except RequestRefused:
        trial.judge = replace(trial.judge, several=False)


async def _has_logprobs(trial: _Trial, judge: OpenAIJudge) -> bool:
    try:
        first = (await trial.ask(trial.films[0], judge=judge)).first
    except RequestRefused:
        return False
    if first.top and (judge.method == "top_k" or first.outcome == "answered"):
        return True
    trial.responses.pop()  # it tells nothing about the judge when it is read another way
    return False


async def _check_image(trial: _Trial) -> tuple[int | None, float, float | None]:
    """Send no image, the controls and the images; stop if the image makes no difference."""
    blind = await trial.ask(None)
    seen = [[await trial.ask(film, request) for film in trial.images] for request in (0, 1)]
    trial.by_image = [
        (film, request, response)
        for request, responses in enumerate(seen)
        for film, response in zip(trial.images, responses, strict=True)
    ]
    again = [await trial.ask(trial.images[-1], request) for request in (0, 1)]
    counted = (seen[0][0].first.usage.prompt, blind.first.usage.prompt)
    image_tokens = counted[0] - counted[1] if all(counted) else None
    repeats = [(responses[-1], twice) for responses, twice in zip(seen, again, strict=True)]
    if _is_blind(trial, seen, max(one.distance(two, floor=-math.inf) for one, two in repeats), image_tokens):
        longer = image_tokens is not None and image_tokens > 0
        raise JudgeError(
            f"the image does not arrive: {len(trial.images)} different images, among them black and noise, got the "
            f"same replies{'' if longer else ', and the prompt is no longer with an image than without'}. "
            f"Is this a model that takes images, served with its image part (llama.cpp: --mmproj)?"
        )
    repeat = max(one.distance(two) for one, two in repeats)
    if trial.judge.sampled:
        return image_tokens, _widest(seen), None
    if repeat > UNSTEADY:
        gave = f"log-probs that differ by {repeat:.2f}" if math.isfinite(repeat) else "an answer once and none again"
        trial.warnings.append(f"the same request gave {gave}: runs cannot be repeated")
    return image_tokens, _widest(seen), repeat


def _is_blind(trial: _Trial, seen: Sequence[Sequence[_Response]], repeat: float, image_tokens: int | None) -> bool:
    """Return whether different images made no more difference than the same one sent again.

    Log-probs that are all the same are enough. Whole words and noisy servers are evidence only together with a prompt
    that an image does not make longer.
    """
    between = _widest(seen, floor=-math.inf)
    coarse = trial.judge.sampled or trial.judge.layout == "joint"
    if not coarse and between <= SAME:
        return True
    alike = between <= max(SAME, repeat if image_tokens is None else 3 * repeat)
    if alike and image_tokens is None:
        trial.warnings.append("whether the image arrives cannot be seen: the replies are alike, no tokens are counted")
    return alike and image_tokens is not None and image_tokens <= 0


def _widest(seen: Sequence[Sequence[_Response]], *, floor: float = LIKELY) -> float:
    pairs = (pair for responses in seen for pair in itertools.combinations(responses, 2))
    return max((one.distance(two, floor=floor) for one, two in pairs), default=0.0)


async def _check_reuse(trial: _Trial, image_tokens: int | None) -> int:
    """Ask two questions about one image in a row: the server should have read the image for the second."""
    client = _Recorder(trial)
    await trial.ask(trial.films[0], 0, client=client)
    cached = (await trial.ask(trial.films[0], 1, client=client)).first.usage.cached
    if cached < max(image_tokens or 0, 1) and trial.judge.layout == "single":
        trial.warnings.append(
            f"a film's second question found {cached} tokens already read: the server reads the film for every "
            f"question. Turn on its prefix cache, or its count of cached tokens (vLLM: --enable-prompt-tokens-details)"
        )
    return cached


async def _decide_image_by(trial: _Trial, repeat: float | None) -> None:
    """Test whether the server keeps an image by its uuid and answers the same without its bytes."""
    wanted = trial.judge.image_by
    trial.judge = replace(trial.judge, image_by="bytes")
    if wanted == "bytes" or (wanted == "auto" and not trial.is_vllm):
        return
    kept = replace(trial.judge, image_by="uuid")
    film, client = trial.films[0], _Recorder(trial)
    before = trial.calls
    sent = await trial.ask(film, 0, judge=kept, client=client)
    between = trial.calls
    try:
        again = await trial.ask(film, 0, judge=kept, client=client)
        refused = trial.calls - between > between - before  # a miss costs a second request, with the bytes
    except RetriesExhausted:  # llama.cpp answers 500 to an image without bytes
        again, refused = sent, True
    lost = again.first.usage.prompt < sent.first.usage.prompt
    lost |= not trial.judge.sampled and sent.distance(again) > max(UNSTEADY, 3 * (repeat or 0.0))
    if lost and wanted == "uuid":
        raise JudgeError(
            "the image does not arrive by its uuid: the endpoint takes the request and answers without the image. "
            'Pass image_by="bytes"'
        )
    if refused and wanted == "uuid":
        trial.warnings.append("the endpoint keeps no image by its uuid: the bytes are sent with every question")
    if not lost and not refused:
        trial.judge = kept


async def _check_order(trial: _Trial, repeat: float | None) -> int:
    """Send requests whose replies are known and different all at once; stop if one gets another's reply."""
    if repeat is None:
        trial.warnings.append("whether replies are swapped cannot be seen: the answers are sampled")
        return 0
    tolerance = max(UNSTEADY, 2 * repeat)
    telling = max(TELLING, 2 * tolerance)
    known: list[tuple[Film, int, _Response]] = []
    for film, request, response in reversed(trial.by_image):
        if len(known) < AT_ONCE and all(response.distance(other) > telling for _, _, other in known):
            known.append((film, request, response))
    if len(known) < 2:
        trial.warnings.append("whether replies are swapped cannot be seen: the replies are too much alike")
        return 0
    for _ in range(ROUNDS):
        came = await asyncio.gather(*(trial.ask(film, request) for film, request, _ in known))
        for response, (_, _, expected) in zip(came, known, strict=True):
            far = response.distance(expected) > tolerance
            if far and any(response.distance(other) <= tolerance for _, _, other in known):
                raise JudgeError(
                    f"replies are swapped: of {len(known)} requests sent at once, one got the reply of another. "
                    f"Ask with one request at a time, or mend what stands between: a proxy, a cache, a load balancer"
                )
    return len(known) * ROUNDS


def _check_words(trial: _Trial) -> float | None:
    """Check the answer words: how much probability they hold, and whether each is one token."""
    replies = [reply for response in trial.responses for reply in response.replies]
    masses = [reply.mass for reply in replies if reply.mass is not None]
    low = sum(mass < LOW_MASS for mass in masses) / len(masses) if masses else None
    if low:
        trial.warnings.append(
            f"{low:.0%} of {len(masses)} replies have less than {LOW_MASS} of their probability on yes and no: "
            f"the model wanted to say something else"
        )
    answers = trial.judge.pack.answers
    words = (*answers.yes, *answers.no)
    firsts = {
        max(reply.top, key=lambda listed: listed[1])[0].strip(WRAPPING).casefold() for reply in replies if reply.top
    }
    pieces = sorted(first for first in firsts for word in words if first and first != word and word.startswith(first))
    if pieces:
        trial.warnings.append(f"answer words are not single tokens here: a reply began with {pieces[0]!r}")
    if not any(reply.outcome == "answered" for reply in replies):
        trial.warnings.append(f"none of {len(replies)} replies was an answer; the first: {replies[0].why}")
    return low


def _check_samples(trial: _Trial) -> None:
    """Check that samples differ at all: a server that ignores the temperature gives one answer many times."""
    times = trial.judge.samples
    texts = [f"{response.first.text}\n" for response in trial.responses]
    if trial.judge.sampled and times > 1 and all(text == text[: len(text) // times] * times for text in texts):
        why = "the model is sure, or the server does not sample (do_sample, top_k in its generation_config.json)"
        trial.warnings.append(f"all {times} samples of each of {len(texts)} questions are the same: {why}")


def _check_model(trial: _Trial, wanted: str) -> str:
    """Compare the name in the replies with the one in the requests, both without their path."""
    names = [base_name(model) for model in trial.models]
    if set(names) != {base_name(wanted)}:
        others = ", ".join(sorted(set(names) - {base_name(wanted)})) or "nothing"
        trial.warnings.append(f"asked for {base_name(wanted)}, the endpoint's replies name {others}")
    return names[-1] if names else ""


def base_name(model: str) -> str:
    """Give a model's name without the path or the organisation before it."""
    return model.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1]


def control_images(side_px: int) -> tuple[tuple[str, Film | None], ...]:
    """Make the four controls, named, in the size of the prepared images: none, black, a mean chest image, noise.

    The same size gives the same pixels on every machine, so that a control is judged only once.
    """
    noise = np.random.default_rng(SEED).integers(0, BITS + 1, size=(side_px, side_px), dtype=np.uint8)
    return (
        ("none", None),
        ("black", _film(np.zeros((side_px, side_px), dtype=np.uint8))),
        ("mean", _film(_mean_chest(side_px))),
        ("noise", _film(noise)),
    )


def offsets(replies: pl.DataFrame) -> dict[str, list[float | None]]:
    """Average a judge's logits over the controls: subject -> `[present, absent]`, null where it answered none.

    `replies` has one row per control and question: `control`, `subject`, `polarity` and `logit`, null if not answered.
    """
    sides = [pl.col("logit").filter(pl.col("polarity") == side).first().alias(side) for side in ("present", "absent")]
    wide = replies.group_by("control", "subject", maintain_order=True).agg(sides)
    means = wide.group_by("subject", maintain_order=True).agg(pl.mean("present"), pl.mean("absent"))
    return {subject: [present, absent] for subject, present, absent in means.iter_rows()}


def _mean_chest(side_px: int) -> npt.NDArray[np.uint8]:
    """Draw the average of thousands of frontal images: two dark lungs, a bright middle and belly, nothing sharp."""
    y, x = np.mgrid[0:side_px, 0:side_px].astype(np.float64) / max(side_px - 1, 1)

    def bump(at_x: float, at_y: float, across: float, down: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.exp(-(((x - at_x) / across) ** 2) - ((y - at_y) / down) ** 2))

    body = bump(0.5, 0.55, 0.55, 0.75)
    lungs = bump(0.3, 0.45, 0.13, 0.27) + bump(0.7, 0.45, 0.13, 0.27)
    middle = bump(0.54, 0.6, 0.12, 0.3)
    grey = 0.08 + 0.62 * body - 0.42 * lungs + 0.2 * middle
    return np.asarray(np.round(np.clip(grey, 0, 1) * BITS), dtype=np.uint8)


def _film(pixels: npt.NDArray[np.uint8]) -> Film:
    height_px, width_px = pixels.shape
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format="PNG")
    # Named by its pixels: encoders differ between versions, the control does not.
    named = hashlib.sha256(f"{width_px}x{height_px} ".encode() + pixels.tobytes()).hexdigest()
    return Film(sha256=named, png=encoded.getvalue(), width_px=width_px, height_px=height_px)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far answers moved when the same questions were asked again."""

    questions: int
    other_outcome: int
    """Questions that were answered once and not the other time."""
    compared: int
    mean: float | None
    """Of the distance between the two logits, in nats; null where none was answered twice."""
    largest: float | None
    beyond: int
    """Answers that moved by more than .06 nat."""

    @property
    def sentence(self) -> str:
        """The drift in one line."""
        questions = several(self.questions, "question")
        if self.mean is None or self.largest is None:
            return f"drift: {questions} asked again, none answered both times"
        return (
            f"drift: {questions} asked again; answers moved by {self.mean:.4f} nat on average, "
            f"{self.largest:.4f} at most, {self.beyond:,} by more than {EXPECTED}; "
            f"{several(self.other_outcome, 'has', 'have')} another outcome"
        )

    def as_dict(self) -> dict[str, object]:
        """Write it out."""
        return asdict(self)


def measure(before: Sequence[tuple[str, float | None]], after: Sequence[Reply]) -> Drift:
    """Compare outcome and logit of the same questions, then and now."""
    moved = [
        abs(logit - reply.logit)
        for (_, logit), reply in zip(before, after, strict=True)
        if logit is not None and reply.logit is not None
    ]
    return Drift(
        questions=len(before),
        other_outcome=sum(outcome != reply.outcome for (outcome, _), reply in zip(before, after, strict=True)),
        compared=len(moved),
        mean=sum(moved) / len(moved) if moved else None,
        largest=max(moved, default=None),
        beyond=sum(distance > EXPECTED for distance in moved),
    )


def ask_again(judge: ImageJudge | ChatJudge, films: Mapping[str, Film], plan: Plan) -> dict[str, Sequence[Reply]]:
    """Ask every question about some images again; nothing is written."""
    if isinstance(judge, ChatJudge):
        return wait_for(_ask_lines(judge, films, plan))
    return {image_id: judge.ask(film, plan.questions) for image_id, film in films.items()}


async def _ask_lines(judge: ChatJudge, films: Mapping[str, Film], plan: Plan) -> dict[str, Sequence[Reply]]:
    size = min(judge.at_once, len(plan.questions))
    chunks = [plan.questions[at : at + size] for at in range(0, len(plan.questions), size)]
    answers: dict[str, Sequence[Reply]] = {}
    async with open_clients(plan.endpoints, plan.pace) as open_client:
        for image_id, film in films.items():
            parts = await asyncio.gather(*(judge.ask_line(film, chunk, open_client()) for chunk in chunks))
            answers[image_id] = [reply for part in parts for reply in part]
    return answers
