"""`openai:`, any OpenAI-compatible endpoint as a judge: the image first, a constant line, the question last.

So all that comes before the question is the same for every question about an image, and the server need read it only
once. The judge writes requests and reads replies; the client that it is given sends them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bpals.errors import UnknownName, UsageError
from bpals.findings import Vocabulary
from bpals.judges import prompts
from bpals.judges.cards import CardOptions, default_model, known_models, stated
from bpals.judges.prompts import Pack, PackOptions, Reading, load_pack
from bpals.registry import ASKING, AskOptions, ImageOptions, JudgeKind, ServerOptions, option
from bpals.types import BadReply, Client, Film, JudgeCard, Question, R, ReadReply, Reply, RequestRefused, Trained, Usage

VERSION = "1"
SEED = 20171
# What vLLM and OpenAI give at most; an answer word below the twentieth place has next to no probability.
TOP_LOGPROBS = 20
# Room for the answer word, its full stop and an end mark; a sentence is cut, and a cut reply is no answer.
SAMPLE_TOKENS = 8
# Room for the braces, and for a name and a number per question.
JOINT_TOKENS = (64, 24)
# Requests of that many images are kept ready: more than are open at once, and about 10 MB.
FILMS_KEPT = 64
# The parts of every request: these cannot be passed as extra parameters.
OURS = ("model", "messages", "stream", "n")

Layout = Literal["single", "joint"]
Method = Literal["auto", "token_ids", "top_k", "sampled"]
ImageBy = Literal["auto", "bytes", "uuid"]


class _Opening(NamedTuple):
    """The beginning of every request about one image, as bytes: all that comes before the question."""

    png: bytes
    with_bytes: bytes
    with_uuid: bytes
    """The same without the image, for a server that keeps it by uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIJudge:
    """A model behind an OpenAI-compatible endpoint."""

    model: str
    revision: str = ""
    name: str = ""
    """What it is called in a workspace; by default the last part of the model's name."""
    pack: Pack = field(default_factory=lambda: load_pack("chest"))
    layout: Layout = "single"
    """`single`: one question per request, read from log-probs. `joint`: all in one request, answered as one JSON."""
    method: Method = "auto"
    """How a single question is read; the self-test turns `auto` into what the server can do."""
    samples: int = 8
    """How often a question is asked where the server has no log-probs."""
    token_ids: tuple[int, ...] = ()
    """The ids of the answer words' spellings, for a server that gives exact log-probs of tokens you name (vLLM)."""
    image_by: ImageBy = "auto"
    """`uuid` sends an image once and then its hash, to a server that keeps images (vLLM); `auto` is `bytes` until the
    self-test has found such a server."""
    several: bool = True
    """Whether the server gives several samples in one reply."""
    topics: bool = True
    """Whether there are questions about the image itself: support devices and quality."""
    preparation: Mapping[str, object] = field(default_factory=dict)
    licence: str = ""
    trained_on_target: Trained | None = None
    evidence: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Extra parameters of every request; null leaves one of ours out."""
    observed: Mapping[str, object] = field(default_factory=dict)
    """What the self-test found; it goes on the card."""
    _openings: dict[str, _Opening] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse settings that no request can have."""
        for name, kind in (("layout", Layout), ("method", Method), ("image_by", ImageBy)):
            if getattr(self, name) not in get_args(kind):
                raise UnknownName.of(name, str(getattr(self, name)), get_args(kind))
        if not 1 <= self.samples <= 128:
            raise UsageError(f"samples is {self.samples}; 1 to 128 can be asked for. Type --samples 8")
        if self.method == "token_ids" and not self.token_ids:
            raise UsageError("the method token_ids needs the ids of the answer words. Leave --method out, or name them")
        if len(self.token_ids) > TOP_LOGPROBS:
            raise UsageError(f"{len(self.token_ids)} token ids are given; a server lists {TOP_LOGPROBS} at most")
        if taken := next((key for key in OURS if key in self.parameters), None):
            raise UsageError(f"the parameter {taken!r} is what a request is made of. Leave it out")

    @property
    def at_once(self) -> int:
        """How many questions travel in one request."""
        return sys.maxsize if self.layout == "joint" else 1

    @property
    def sampled(self) -> bool:
        """Whether a question is asked several times and the answers are counted."""
        return self.layout == "single" and self.method == "sampled"

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
        return JudgeCard(
            judge=self.name or self.model.rstrip("/").rsplit("/", 1)[-1],
            kind="image",
            version=VERSION,
            model=self.model,
            revision=self.revision,
            engine="openai-compatible",
            pack=self.pack.label,
            preparation=dict(self.preparation),
            settings=self._settings(),
            observed=dict(self.observed),
            **stated(self.model, (self.licence, self.trained_on_target, self.evidence)),
        )

    def _settings(self) -> dict[str, object]:
        method: dict[str, object] = {} if self.layout == "joint" else {"method": self.method}
        if self.sampled:
            method["samples"] = self.samples
        if self.method == "token_ids":
            method["token_ids"] = list(self.token_ids)
        return {"layout": self.layout, **method, **self._request()}

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List the questions about every image, in order."""
        return self.pack.questions(vocabulary, topics=self.topics, reply=self.layout == "single")

    async def ask_line(self, film: Film | None, questions: Sequence[Question], line: Client) -> Sequence[Reply]:
        """Answer up to `at_once` questions about one image through the client, one reply each, in order."""
        try:
            if self.layout == "joint":
                return await self._ask_joint(film, questions, line)
            ask = self._ask_sampled if self.sampled else self._ask_logprobs
            return [await ask(film, question, line) for question in questions]
        except RequestRefused as refusal:
            if film is not None:
                raise
            why = f"the endpoint takes no question without an image: {refusal}"
            return [Reply(outcome="unsupported", why=why)] * len(questions)

    async def _ask_logprobs(self, film: Film | None, question: Question, client: Client) -> Reply:
        return await self._post(film, self.pack.prompt(question), client, self._read_logprobs)

    async def _ask_sampled(self, film: Film | None, question: Question, client: Client) -> Reply:
        prompt = self.pack.prompt(question)
        choices: list[Choice] = []
        while len(choices) < self.samples:
            wanted = self.samples - len(choices) if self.several else 1
            extra = {"n": wanted} if wanted > 1 else {}
            extra["seed"] = SEED + len(choices)
            choices += await self._post(film, prompt, client, read_completion, extra)
        kept = choices[: self.samples]
        refused = next((choice.refusal for choice in kept if choice.refusal), "")
        reading = prompts.read_samples([None if choice.cut else choice.text for choice in kept], self.pack.answers)
        if refused and reading.outcome != "answered":
            reading = Reading("refused", mass=reading.mass, why=refused)
        return _reply(reading, kept[0], "sampled", text="\n".join(choice.text for choice in kept))

    async def _ask_joint(self, film: Film | None, questions: Sequence[Question], client: Client) -> list[Reply]:
        labels = [prompts.joint_label(question) for question in questions]
        room = {"max_tokens": JOINT_TOKENS[0] + JOINT_TOKENS[1] * len(labels)}
        choices = await self._post(film, self.pack.joint_prompt(questions), client, read_completion, room)
        choice = choices[0]
        if choice.refusal:
            readings = [Reading("refused", why=choice.refusal)] * len(labels)
        elif choice.cut:
            readings = [Reading("unparsed", why="the reply was cut at the length limit")] * len(labels)
        else:
            readings = prompts.read_joint(choice.text, labels)
        first = [_reply(reading, choice, "joint") for reading in readings[:1]]
        rest = [_reply(reading, Choice(text=choice.text), "joint") for reading in readings[1:]]
        return first + rest

    def _read_logprobs(self, body: Mapping[str, Any]) -> Reply:
        choice = read_completion(body)[0]
        method = "token_ids" if self.method == "token_ids" else "top_k"
        if choice.refusal:
            return _reply(Reading("refused", why=choice.refusal), choice, method)
        reading = prompts.read_logprobs(choice.top, self.pack.answers, text=choice.text, exact=method == "token_ids")
        return _reply(reading, choice, method)

    async def _post(
        self,
        film: Film | None,
        prompt: str,
        client: Client,
        read: ReadReply[R],
        extra: Mapping[str, object] | None = None,
    ) -> R:
        """Send one request, with the bytes of the image or, where the server has them, its uuid alone."""
        ending = _ending(prompt, {key: value for key, value in (extra or {}).items() if key not in self.parameters})
        if film is None:
            return await client.post(self._head() + ending, read)
        opening = self._opening(film)
        if self.image_by == "uuid" and client.image_sent:
            try:
                return await client.post(opening.with_uuid + ending, read)
            except RequestRefused:
                client.image_sent = False  # the server has dropped the image: it gets it again
        response = await client.post(opening.with_bytes + ending, read)
        client.image_sent = True
        return response

    def _opening(self, film: Film) -> _Opening:
        """Write the beginning of an image's requests once, not once per question: it is 100 KB in base64."""
        kept = self._openings.get(film.sha256)
        if kept is not None and kept.png is film.png:
            return kept
        while len(self._openings) >= FILMS_KEPT:
            del self._openings[next(iter(self._openings))]
        head = self._head()
        url = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,' + base64.b64encode(film.png) + b'"}'
        # The uuid names the pixels, not the file: the same file prepared otherwise is another image to the server.
        uuid = b',"uuid":"' + hashlib.sha256(film.png).hexdigest().encode() + b'"' if self.image_by == "uuid" else b""
        by_uuid = head + b'{"type":"image_url","image_url":null' + uuid + b"},"
        opening = _Opening(film.png, head + url + uuid + b"},", by_uuid)
        self._openings[film.sha256] = opening
        return opening

    def _head(self) -> bytes:
        written = json.dumps({"model": self.model, **self._request()})[:-1].encode()
        return written + b',"messages":[{"role":"user","content":['

    def _request(self) -> dict[str, object]:
        """Give the parameters of every request."""
        if self.layout == "joint":
            ours: dict[str, object] = {"temperature": 0, "seed": SEED}
        elif self.sampled:
            ours = {"temperature": 1, "max_tokens": SAMPLE_TOKENS}
        else:
            ours = {"temperature": 0, "seed": SEED, "max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
            ours |= {"logprob_token_ids": list(self.token_ids)} if self.method == "token_ids" else {}
        whole = ours | dict(self.parameters)
        return {key: value for key, value in whole.items() if value is not None}


def _ending(prompt: str, extra: Mapping[str, object]) -> bytes:
    """Write what follows the image: the words, and the parameters that only this request has."""
    more = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in extra.items())
    return f'{{"type":"text","text":{json.dumps(prompt)}}}]}}]{more}}}'.encode()


def _reply(reading: Reading, choice: Choice, method: str, *, text: str | None = None) -> Reply:
    return Reply(
        outcome=reading.outcome,
        logit=reading.logit,
        mass=reading.mass,
        method=method,
        why=reading.why,
        text=choice.text if text is None else text,
        top=choice.top,
        usage=choice.usage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a completion."""

    text: str = ""
    cut: bool = False
    """It ended at the length limit."""
    refusal: str = ""
    """Why there is no answer: the model refused by its own field, or a content filter did."""
    top: tuple[tuple[str, float], ...] = ()
    """The first token's likeliest tokens, each with its log-prob; the one that was chosen is among them."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the whole request, on its first choice."""


def read_completion(body: Mapping[str, Any]) -> list[Choice]:
    """Read every choice of a completion; raises BadReply if the body is none."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        error = body.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        raise BadReply(f"the reply is no chat completion: {str(message or list(body))[:200]}")
    usage = _usage(body.get("usage"))
    return [_choice(choice, usage if place == 0 else Usage()) for place, choice in enumerate(choices)]


def _choice(choice: Any, usage: Usage) -> Choice:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise BadReply(f"a choice of the reply has no message: {str(choice)[:200]}")
    text = message.get("content")
    refusal = message.get("refusal")
    reason = choice.get("finish_reason")
    if isinstance(refusal, str) and refusal:
        refusal = f"the model refused: {refusal[:200]!r}"
    elif reason == "content_filter":
        refusal = "the endpoint's content filter stopped the reply"
    return Choice(
        text=text if isinstance(text, str) else "",
        cut=reason == "length",
        refusal=refusal if isinstance(refusal, str) else "",
        top=_first_token(choice.get("logprobs")),
        usage=usage,
    )


def _first_token(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Give the first token's alternatives with the chosen one among them; nothing where there are no log-probs."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict):
        return ()
    listed = first.get("top_logprobs")
    pairs = [_pair(entry) for entry in listed] if isinstance(listed, list) else []
    top = tuple(pair for pair in pairs if pair)
    chosen = _pair(first)
    if chosen and top and chosen[0] not in [token for token, _ in top]:
        return (*top, chosen)
    return top


def _pair(entry: Any) -> tuple[str, float] | None:
    """Read a token with its log-prob; servers write null for minus infinity."""
    token = entry.get("token") if isinstance(entry, dict) else None
    logprob = entry.get("logprob") if isinstance(entry, dict) else None
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, int | float):
        return None
    return (token, float(logprob)) if logprob == logprob else None  # noqa: PLR0124


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    return Usage(prompt=prompt, cached=_count(cached), output=output)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def make(target: str = "", revision: str = "", *, pack: str | Path | Pack = "chest", **options: Any) -> OpenAIJudge:
    """Make the judge of `openai:MODEL@REVISION`; without a model, the default one at its pinned revision."""
    known = known_models().get(target) if target else default_model()
    return OpenAIJudge(
        model=target or default_model().model,
        revision=revision or (known.revision if known and not target else ""),
        pack=pack if isinstance(pack, Pack) else load_pack(pack),
        **options,
    )


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions(PackOptions, CardOptions):
    """The options of `openai:`; Python may give `make` any other field of OpenAIJudge, too."""

    layout: Layout = option("single", "single or joint (one JSON for all questions).", reads=str, panel=ASKING)
    method: Method = option("auto", "auto, top_k, token_ids or sampled.", reads=str, panel=ASKING)
    samples: int = option(8, "Samples where there are no log-probs.", panel=ASKING)


JUDGE = JudgeKind(
    name="openai",
    form="openai:[MODEL[@REVISION]]",
    summary="any OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp, Ollama, a hosted one",
    open=make,
    extra="vlm",
    packages=("aiohttp", "orjson"),
    options=OpenAIOptions,
    takes=(ImageOptions, AskOptions, ServerOptions),
    page="byo-vlm.md",
)
