"""One chat completion, taken apart: what an OpenAI-compatible server says, as far as a judge wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpals.judges.protocol import BadReply
from bpals.types import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a completion."""

    text: str = ""
    cut: bool = False
    """It ended at the length limit."""
    refusal: str = ""
    """Who refused, in words: the model by its own field, or a content filter."""
    top: tuple[tuple[str, float], ...] = ()
    """The first token's likeliest tokens, each with its log-prob; the one that was chosen is among them."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the whole request, on its first choice."""


def read_completion(body: Mapping[str, Any]) -> list[Choice]:
    """Read every choice of a completion; raises BadReply if the body is none."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        error = body.get("error")
        said = error.get("message") if isinstance(error, dict) else error
        raise BadReply(f"the reply is no chat completion: {str(said or list(body))[:200]}")
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
    return Usage(
        prompt=_count(usage.get("prompt_tokens")), cached=_count(cached), output=_count(usage.get("completion_tokens"))
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
