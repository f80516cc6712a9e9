"""`hf:MODEL[@REVISION]`: a model of Hugging Face transformers that sees images and text, run in this process.

A model that writes gets the image and a question once; its answer is read from all probabilities of the first token,
so nothing is estimated and nothing is sampled. A dual encoder such as CLIP compares the image with two captions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jinja2

from bpals.errors import JudgeError
from bpals.findings import Vocabulary, fold
from bpals.judges import local_model
from bpals.judges.cards import default_model, known_models
from bpals.judges.local_model import HfOptions, ModelFolder, Transformer, picture
from bpals.judges.prompts import SIDES, AnswerWords, Pack, Side, is_refusal, load_pack
from bpals.registry import AskOptions, ImageOptions, JudgeKind
from bpals.types import Film, JudgeCard, Outcome, Polarity, Question, Reply, Usage

# Tokens that are kept with an answer.
TOP = 20
# Models that were trained on texts padded to full length, and answer otherwise without it.
FULL_LENGTH = ("siglip", "siglip2")
# Characters of a token that could still be an answer word with the marks around it.
LONGEST_WORD = 16
# Dual encoders that transformers does not list as classifiers of images.
OTHER_DUAL_ENCODERS: Mapping[str, str] = {"vision-text-dual-encoder": "VisionTextDualEncoderModel"}


def open_hf(model: str = "", revision: str = "", **options: Any) -> HfJudge | ContrastJudge:
    """Open a folder, or a model of the hub at a pinned commit; its configuration decides which judge it is.

    Without a model it is the default one. The options are the fields of HfOptions.
    """
    chosen = HfOptions(**options)
    pack = load_pack(chosen.pack)
    name = model or default_model().model
    known = known_models().get(name)
    pinned = revision or (known.revision if known else "")
    origin = local_model.find_model(name, pinned, allow_code_revision=chosen.allow_code_revision, cache=chosen.cache)
    if _is_dual_encoder(origin):
        return ContrastJudge(local_model.load_transformer(origin, chosen, auto="AutoModel"), pack, chosen)
    return HfJudge(local_model.load_transformer(origin, chosen, auto="AutoModelForImageTextToText"), pack, chosen)


def _is_dual_encoder(origin: ModelFolder) -> bool:
    """Tell the two kinds of model apart; one that is neither is refused."""
    modeling_auto = local_model.import_package("transformers.models.auto.modeling_auto", origin.model)
    kind = str(origin.config.get("model_type", ""))
    dual = {**modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES, **OTHER_DUAL_ENCODERS}
    talking = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    own_code = origin.config.get("auto_map", {}) if origin.runs_code else {}
    if origin.architecture == talking.get(kind) or "AutoModelForImageTextToText" in own_code:
        return False
    if kind in dual or "AutoModel" in own_code:
        return True
    if kind in talking:
        return False
    named = origin.architecture or kind or "nothing"
    raise JudgeError(
        f"hf:{origin.model}: its configuration names {named}, which neither answers questions about an image nor "
        f"compares images with texts. Name an image-text-to-text model or a dual encoder like CLIP"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """Which tokens of a model mean an answer."""

    yes: tuple[int, ...]
    no: tuple[int, ...]
    abstain: tuple[int, ...] = ()
    read_by: Literal["whole word", "first piece"] = "whole word"
    """Where no single token is the word, its first piece stands for it, if that can mean nothing else."""

    def side(self, token: int) -> Side | None:
        """Return the side that a token is on."""
        return next((side for side in SIDES if token in getattr(self, side)), None)


class HfJudge:
    """A model that takes an image and a question; the whole distribution of its first token is read."""

    def __init__(self, transformer: Transformer, pack: Pack, options: HfOptions) -> None:
        """Find the model's tokens for yes and no; a model without them is refused."""
        self._transformer = transformer
        self._pack = pack
        self._options = options
        self._layout = _layout(transformer.processor)
        transformer.model.generation_config = _first_token_only(transformer)
        self._answers = find_answers(transformer.processor.tokenizer, pack.answers, model=transformer.origin.model)

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
        settings = {
            "layout": self._layout,
            "answers_read_by": self._answers.read_by,
            "yes_tokens": list(self._answers.yes),
            "no_tokens": list(self._answers.no),
        }
        both: tuple[Polarity, ...] = ("present", "absent")
        return self._transformer.card(self._pack, self._options, settings=settings, polarities=both)

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List the questions about every image: each finding in both polarities, then the topics."""
        return self._pack.questions(vocabulary)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one image; without one the model gets the words alone."""
        image = None if film is None else picture(film)
        texts = [self._pack.prompt(question) for question in questions]
        size = self._options.batch
        groups = [texts[start : start + size] for start in range(0, len(texts), size)]
        return [reply for group in groups for reply in self._ask_group(image, group)]

    def _ask_group(self, image: Any, texts: Sequence[str]) -> list[Reply]:
        """Answer as many as fit into memory at once: half as many where they do not."""
        started = time.perf_counter()
        try:
            inputs = self._inputs(image, texts)
            with self._transformer.torch.inference_mode():
                # `generate`, because it numbers the positions as each kind of model wants them.
                made = self._transformer.model.generate(**inputs)
            logprobs = made.logits[0].double().log_softmax(dim=-1).cpu()
        except self._transformer.torch.OutOfMemoryError:
            if len(texts) == 1:
                raise JudgeError(
                    f"hf:{self._transformer.origin.model} has no memory for one question on this device. "
                    f"Type --dtype bfloat16, or --device cpu"
                ) from None
            half = len(texts) // 2
            return self._ask_group(image, texts[:half]) + self._ask_group(image, texts[half:])
        except (ValueError, TypeError, AttributeError, jinja2.TemplateError) as error:
            if image is not None:
                raise
            why = f"the model cannot be asked without an image: {str(error)[:100]}"
            return [Reply(outcome="unsupported", method="exact", why=why) for _ in texts]
        each_s = (time.perf_counter() - started) / len(texts)
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        return [self._read(row, length, each_s) for row, length in zip(logprobs, lengths, strict=True)]

    def _inputs(self, image: Any, texts: Sequence[str]) -> Any:
        """Write the prompts as the model was trained to read them, and fill them up on the left to one length."""
        processor = self._transformer.processor
        prompts = [self._prompt(text, with_image=image is not None) for text in texts]
        begin = processor.tokenizer.bos_token
        images = {} if image is None else {"images": [[image] for _ in texts]}
        inputs = processor(
            text=prompts,
            **images,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            add_special_tokens=not (begin and prompts[0].startswith(begin)),
        )
        return self._transformer.place(inputs)

    def _prompt(self, text: str, *, with_image: bool) -> str:
        processor = self._transformer.processor
        if self._layout == "plain":
            return f"{processor.image_token}\n{text}\n" if with_image else f"{text}\n"
        return _render(processor, text, with_image=with_image)

    def _read(self, logprobs: Any, length: int, each_s: float) -> Reply:
        """Read the distribution of the first token."""
        listed = logprobs.topk(min(TOP, len(logprobs)))
        decode = self._transformer.processor.tokenizer.decode
        top = tuple(
            (decode([token]), value)
            for token, value in zip(listed.indices.tolist(), listed.values.tolist(), strict=True)
        )
        yes, no = (logprobs[list(side)].logsumexp(dim=0).item() for side in (self._answers.yes, self._answers.no))
        if not (math.isfinite(yes) and math.isfinite(no)):
            raise FloatingPointError(f"the model gave no finite number in {self._transformer.placement['dtype']}")
        outcome, why = _outcome(self._answers.side(listed.indices[0].item()), top[0][0])
        return Reply(
            outcome=outcome,
            logit=yes - no if outcome == "answered" else None,
            mass=min(math.exp(yes) + math.exp(no), 1.0),
            method="exact",
            why=why,
            text=top[0][0],
            top=top,
            usage=Usage(prompt=int(length), output=1),
            latency_s=each_s,
        )


def _first_token_only(transformer: Transformer) -> Any:
    """Let the model write one token, without the settings that it ships: beams, penalties, temperature."""
    shipped, tokenizer = transformer.model.generation_config, transformer.processor.tokenizer
    ids = {name: getattr(shipped, name, None) for name in ("bos_token_id", "eos_token_id", "decoder_start_token_id")}
    return transformer.transformers.GenerationConfig(
        **ids,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        max_new_tokens=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )


def _outcome(side: str | None, likeliest: str) -> tuple[Outcome, str]:
    """Give the outcome that the likeliest token makes of the reply, and why."""
    if side in {"yes", "no"}:
        return "answered", ""
    if side == "abstain":
        return "abstained", f"the model said {likeliest.strip()!r}"
    why = f"the likeliest token is {likeliest[:40]!r}, which is no answer word"
    return ("refused" if is_refusal(likeliest) else "unparsed"), why


def find_answers(tokenizer: Any, words: AnswerWords, *, model: str) -> AnswerTokens:
    """Find every token that is an answer word, in any case and with what a tokenizer writes before it."""
    found: dict[str, list[int]] = {"yes": [], "no": [], "abstain": []}
    special = set(tokenizer.all_special_ids)
    for written, token in tokenizer.get_vocab().items():
        if len(written) <= LONGEST_WORD and token not in special and (side := words.side(tokenizer.decode([token]))):
            found[side].append(token)
    whole = bool(found["yes"] and found["no"])
    if not whole:
        # The first piece of a word stands for it where the word is no token; both sides must begin differently.
        for name, spelled in (("yes", words.yes), ("no", words.no)):
            found[name] = list(set(found[name] or _begin(tokenizer, spelled)))
        if set(found["yes"]) & set(found["no"]) or not (found["yes"] and found["no"]):
            raise JudgeError(
                f"hf:{model}: its tokenizer writes {words.yes[0]!r} and {words.no[0]!r} with the same first token, so "
                f"one token cannot tell them apart. Name other [answers] in a prompt pack of your own"
            )
    yes, no, abstain = (tuple(sorted(found[name])) for name in SIDES)
    return AnswerTokens(yes=yes, no=no, abstain=abstain, read_by="whole word" if whole else "first piece")


def _begin(tokenizer: Any, words: Iterable[str]) -> Iterable[int]:
    """Give the first tokens of a word in its usual spellings."""
    for word in words:
        for spelled in (word, word.capitalize(), word.upper()):
            yield from tokenizer.encode(spelled, add_special_tokens=False)[:1]


def _layout(processor: Any) -> Literal["chat", "plain"]:
    """Return whether the model has a chat template that takes an image; without one its image token is written."""
    template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
    mark = getattr(processor, "image_token", None)
    if template and (mark is None or mark in _render(processor, "?", with_image=True)):
        return "chat"
    if mark is None:
        raise JudgeError("the model has neither a chat template nor an image token, so it cannot be shown a film")
    return "plain"


def _render(processor: Any, text: str, *, with_image: bool) -> str:
    """Write one prompt by the model's own chat template: the image first, the words last, no thinking aloud."""
    template = processor.chat_template or processor.tokenizer.chat_template
    words = {"type": "text", "text": text}
    content = [{"type": "image"}, words] if with_image else [words]
    quiet = {"enable_thinking": False} if "enable_thinking" in str(template) else {}
    conversation = [{"role": "user", "content": content}]
    written: str = processor.apply_chat_template(
        conversation, chat_template=None if processor.chat_template else template, add_generation_prompt=True, **quiet
    )
    return written


class ContrastJudge:
    """A model that compares images with captions; the text encoder sees each caption once."""

    def __init__(self, transformer: Transformer, pack: Pack, options: HfOptions) -> None:
        """Find the model's scale; a model without one is refused."""
        self._transformer = transformer
        self._pack = pack
        self._options = options
        self._scale = _scale(transformer)
        self._features: dict[str, Any] = {}
        self.batch = options.batch
        """Images that go through the model at once."""

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
        settings = {"captions": list(self._options.captions)}
        return self._transformer.card(self._pack, self._options, settings=settings, polarities=("present",))

    def questions(self, vocabulary: Vocabulary) -> tuple[Question, ...]:
        """List the questions about every image: a question is its two captions, one per line.

        A topic that the pack asks in sentences of its own has no phrase to make a caption of, and is left out.
        """
        known = {finding: self._pack.subjects(finding, vocabulary) for finding in vocabulary.findings}
        phrases = [
            (name, next((subject.phrase for subject in subjects if subject.phrase), fold(name)))
            for name, subjects in known.items()
        ]
        findings = [self._question(name, phrase, "finding") for name, phrase in phrases]
        topics = [self._question(topic.name, topic.phrase, "film") for topic in self._pack.topics if topic.phrase]
        return (*findings, *topics)

    def ask(self, film: Film | None, questions: Sequence[Question]) -> Sequence[Reply]:
        """Answer the questions about one image."""
        return self.ask_batch([film], questions)[0]

    def ask_batch(self, films: Sequence[Film | None], questions: Sequence[Question]) -> list[Sequence[Reply]]:
        """Answer the questions about each of several images, which go through the model together."""
        given = [film for film in films if film is not None]
        answers = iter(self._answer(given, questions) if given and questions else [[] for _ in given])
        why = "a model that compares a film with captions cannot be asked without a film"
        without = Reply(outcome="unsupported", method="contrastive", why=why)
        return [[without] * len(questions) if film is None else next(answers) for film in films]

    def _question(self, subject: str, phrase: str, about: Literal["finding", "film"]) -> Question:
        text = "\n".join(caption.replace("{phrase}", phrase) for caption in self._options.captions)
        return Question(subject=subject, about=about, polarity="present", text=text)

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
        """Give the directions of the captions; a known one is not computed again."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._features]
        for start in range(0, len(new), self.batch):
            some = new[start : start + self.batch]
            made = _unit(self._transformer.model.get_text_features(**self._tokens(some)))
            self._features |= dict(zip(some, made, strict=True))
        return self._transformer.torch.stack([self._features[caption] for caption in captions])

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


def _unit(features: Any) -> Any:
    """Give each row length 1, in float32; newer versions of transformers wrap the features."""
    rows = getattr(features, "pooler_output", features).float()
    return rows / rows.norm(dim=-1, keepdim=True)


def _scale(transformer: Transformer) -> float:
    """Read the factor of the model's similarities; SigLIP's bias falls out of a difference."""
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


JUDGE = JudgeKind(
    name="hf",
    form="hf:[MODEL[@REVISION]]",
    summary="a local Hugging Face model: image-text-to-text, or a dual encoder like CLIP",
    open=open_hf,
    extra="torch",
    packages=("torch", "transformers"),
    options=HfOptions,
    takes=(ImageOptions, AskOptions),
    page="hf.md",
)
