"""A dual encoder such as CLIP or SigLIP: is a film nearer to "with the finding" or to "without it"?

The answer is the difference of two scaled similarities, which is the model's own logit between the two captions. It
is one number a finding, so there is no second polarity; and without a film there is nothing to compare.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from bpals.errors import JudgeError
from bpals.findings import Vocabulary, fold
from bpals.judges.pack import Pack
from bpals.judges.transformer import HfOptions, Transformer, picture
from bpals.types import Film, JudgeCard, Question, Reply

FULL_LENGTH = ("siglip", "siglip2")
"""Models that were trained on texts padded to full length, and must be asked so."""


class ContrastJudge:
    """A model that compares films with captions; the captions are read once."""

    def __init__(self, transformer: Transformer, pack: Pack, options: HfOptions) -> None:
        """Find the model's scale; a model without one is no dual encoder that can be asked."""
        self._transformer = transformer
        self._pack = pack
        self._options = options
        self._scale = _scale(transformer)
        self._read: dict[str, Any] = {}
        self.batch = options.batch
        """Films that go through the model at once."""

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        settings = {"captions": list(self._options.captions)}
        return self._transformer.card(self._pack, self._options, settings=settings, polarities=("present",))

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List what every film is asked: a question is its two captions, a line each.

        A topic that the pack asks in sentences of its own has no phrase to make a caption of, and is left out.
        """
        findings = [self._question(finding, self._phrase(finding, vocabulary)) for finding in vocabulary.findings]
        topics = [self._question(topic.name, topic.phrase, film=True) for topic in self._pack.topics if topic.phrase]
        return (*findings, *topics)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one film."""
        return self.ask_batch([film], questions)[0]

    def ask_batch(self, films: Sequence[Film | None], questions: Sequence[Question]) -> list[Sequence[Reply]]:
        """Answer the questions about each of several films, which go through the model together."""
        shown = [film for film in films if film is not None]
        answers = iter(self._answer(shown, questions) if shown and questions else [[] for _ in shown])
        return [_unsupported(questions) if film is None else next(answers) for film in films]

    def _question(self, subject: str, phrase: str, *, film: bool = False) -> Question:
        text = "\n".join(caption.replace("{phrase}", phrase) for caption in self._options.captions)
        return Question(subject=subject, about="film" if film else "finding", polarity="present", text=text)

    def _phrase(self, finding: str, vocabulary: Vocabulary) -> str:
        spellings = [finding, *(alias for alias, meant in vocabulary.aliases.items() if meant == finding)]
        known = [self._pack.findings[fold(word)].phrase for word in spellings if fold(word) in self._pack.findings]
        return next(filter(None, known), fold(finding))

    def _answer(self, films: Sequence[Film], questions: Sequence[Question]) -> list[list[Reply]]:
        started = time.perf_counter()
        captions = [caption for question in questions for caption in _captions(question)]
        images = [picture(film) for film in films]
        with self._transformer.torch.inference_mode():
            texts = self._texts(captions)
            pixels = self._transformer.processor.image_processor(images=images, return_tensors="pt")
            seen = _unit(self._transformer.model.get_image_features(**self._transformer.place(pixels)))
            similar = (self._scale * seen @ texts.T).cpu()
        pairs = similar.reshape(len(films), len(questions), 2)
        differences = (pairs[..., 0] - pairs[..., 1]).tolist()
        each_s = (time.perf_counter() - started) / (len(films) * len(questions))
        return [
            [self._reply(value, pair.tolist(), each_s) for value, pair in zip(row, film_pairs, strict=True)]
            for row, film_pairs in zip(differences, pairs, strict=True)
        ]

    def _reply(self, difference: float, pair: Sequence[float], each_s: float) -> Reply:
        if not math.isfinite(difference):
            raise FloatingPointError(f"the model gave no finite number in {self._transformer.placement['dtype']}")
        top = (("present", pair[0]), ("absent", pair[1]))
        return Reply(outcome="answered", logit=difference, method="contrastive", top=top, latency_s=each_s)

    def _texts(self, captions: Sequence[str]) -> Any:
        """Give the captions' directions; one that was read before is not read again."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._read]
        for start in range(0, len(new), self.batch):
            some = new[start : start + self.batch]
            read = _unit(self._transformer.model.get_text_features(**self._tokens(some)))
            self._read |= dict(zip(some, read, strict=True))
        return self._transformer.torch.stack([self._read[caption] for caption in captions])

    def _tokens(self, captions: list[str]) -> Any:
        tokenizer, config = self._transformer.processor.tokenizer, self._transformer.model.config
        text = getattr(config, "text_config", config)
        longest = min(tokenizer.model_max_length, getattr(text, "max_position_embeddings", None) or 2**31)
        filled = (
            {"padding": "max_length", "max_length": longest} if config.model_type in FULL_LENGTH else {"padding": True}
        )
        inputs = tokenizer(captions, return_tensors="pt", **filled)
        if inputs["input_ids"].shape[1] > longest:
            cut = max(captions, key=len)
            raise JudgeError(
                f"hf:{self._transformer.origin.model} reads {longest} tokens and the caption {cut!r} has more. "
                f"Shorten its phrase in a prompt pack of your own"
            )
        return inputs.to(self._transformer.model.device)


def _captions(question: Question) -> tuple[str, str]:
    present, line, absent = question.text.partition("\n")
    if not line:
        raise JudgeError(f"{question.text!r} is not two captions, a line each. Ask what questions() gives")
    return present, absent


def _unsupported(questions: Sequence[Question]) -> list[Reply]:
    why = "a model that compares a film with captions cannot be asked without a film"
    return [Reply(outcome="unsupported", method="contrastive", why=why) for _ in questions]


def _unit(features: Any) -> Any:
    """Give each row length 1, in float32; newer versions of transformers wrap the features."""
    rows = getattr(features, "pooler_output", features).float()
    return rows / rows.norm(dim=-1, keepdim=True)


def _scale(transformer: Transformer) -> float:
    """Read by what the model multiplies its similarities; SigLIP's bias falls out of a difference."""
    model = transformer.model
    wanted = ("get_image_features", "get_text_features")
    if all(hasattr(model, name) for name in wanted):
        if hasattr(model, "logit_scale"):
            return math.exp(model.logit_scale.item())
        if hasattr(model, "temperature"):
            return float(1 / model.temperature.item())
    raise JudgeError(
        f"hf:{transformer.origin.model}: {type(model).__name__} gives no features of images and texts with a scale, "
        f"so that a film cannot be compared with a caption. Name a dual encoder like CLIP or SigLIP"
    )
