"""Tiny random models on disk, as anybody's are: a LLaVA, a Gemma 3, a CLIP and a SigLIP of a third of a megabyte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, processors

from bpals.judges.local_model import mend_torchvision

mend_torchvision()

WORDS = ("Yes", "No", "yes", "no", "YES", "NO")
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<image>", "<boi>", "<eoi>", "<user>", "<model>")
SIDE_PX = 56
PATCH_PX = 14
LAYER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.2,
}
CHAT = (
    "{{ bos_token }}{% for message in messages %}<user>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def save_llava(folder: Path, *, words: tuple[str, ...] = WORDS, chat: str | None = CHAT, seed: int = 1) -> Path:
    """Save a LLaVA: a CLIP tower of 16 patches in front of a Llama; the words are tokens, and what it likes to say."""
    text = make_tokenizer(words)
    torch.manual_seed(seed)
    model = _llava(text, LAYER)
    return _save(folder, _speak(model, text, words), _llava_processor(text, chat))


def save_served_llava(folder: Path, *, samples: bool, seed: int = 1) -> Path:
    """Save a LLaVA for servers: heads as wide as vLLM wants them, and one word said, it stops."""
    text = make_tokenizer(WORDS)
    torch.manual_seed(seed)
    ends = {"bos_token_id": text.bos_token_id, "eos_token_id": text.eos_token_id, "pad_token_id": text.pad_token_id}
    model = _llava(text, LAYER | {"hidden_size": 64}, **ends)
    model.generation_config = transformers.GenerationConfig(**ends, do_sample=samples)
    _save(folder, _stop_after(_speak(model, text, WORDS), text), _llava_processor(text, CHAT))
    # Published LLaVAs name their tower's weights so, and vLLM knows no other names.
    weights = load_file(folder / "model.safetensors")
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): weight for name, weight in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _llava(
    text: transformers.PreTrainedTokenizerFast, layer: Mapping[str, float], **ends: int
) -> transformers.LlavaForConditionalGeneration:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**layer, image_size=SIDE_PX, patch_size=PATCH_PX),
        text_config=transformers.LlamaConfig(**layer, **ends, vocab_size=len(text), num_key_value_heads=1),
        image_token_id=text.image_token_id,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config)


def _llava_processor(text: transformers.PreTrainedTokenizerFast, chat: str | None) -> transformers.LlavaProcessor:
    return transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(**_size()),
        tokenizer=text,
        patch_size=PATCH_PX,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat and chat.replace("IMAGE", "<image>"),
    )


def save_gemma(folder: Path, *, seed: int = 2) -> Path:
    """Save a Gemma 3: a SigLIP tower whose 16 patches become 4 tokens, full and sliding attention in turn."""
    text = make_tokenizer(WORDS)
    torch.manual_seed(seed)
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**LAYER, image_size=SIDE_PX, patch_size=PATCH_PX),
        text_config=transformers.Gemma3TextConfig(
            **LAYER, vocab_size=len(text), num_key_value_heads=1, head_dim=16, sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        ),
        mm_tokens_per_image=4,
        image_token_id=text.image_token_id,
        boi_token_index=text.boi_token_id,
        eoi_token_index=text.eoi_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.Gemma3ForConditionalGeneration(config)
    # It starts at zero, and then no film would matter.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    processor = transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessorPil(size={"height": SIDE_PX, "width": SIDE_PX}),
        tokenizer=text,
        image_seq_length=4,
        chat_template=CHAT.replace("IMAGE", "<boi>"),
    )
    return _save(folder, _speak(model, text, WORDS), processor)


def save_clip(folder: Path, *, seed: int = 3) -> Path:
    """Save a CLIP: two small towers and a scale."""
    text = make_tokenizer(WORDS, closed=True)
    torch.manual_seed(seed)
    ends = {"bos_token_id": text.bos_token_id, "eos_token_id": text.eos_token_id, "pad_token_id": text.pad_token_id}
    config = transformers.CLIPConfig(
        text_config={**LAYER, **ends, "vocab_size": len(text), "max_position_embeddings": 256},
        vision_config={**LAYER, "image_size": SIDE_PX, "patch_size": PATCH_PX},
        projection_dim=16,
    )
    image_processor = transformers.CLIPImageProcessorPil(**_size())
    processor = transformers.CLIPProcessor(image_processor=image_processor, tokenizer=text)
    return _save(folder, transformers.CLIPModel(config), processor)


def save_siglip(folder: Path, *, seed: int = 4) -> Path:
    """Save a SigLIP: like a CLIP, with a bias, and texts that are padded to full length."""
    text = make_tokenizer(WORDS, closed=True, length=128)
    torch.manual_seed(seed)
    config = transformers.SiglipConfig(
        text_config={**LAYER, "vocab_size": len(text), "max_position_embeddings": 128, "projection_size": 32},
        vision_config={**LAYER, "image_size": SIDE_PX, "patch_size": PATCH_PX},
    )
    image_processor = transformers.SiglipImageProcessorPil(size={"height": SIDE_PX, "width": SIDE_PX})
    processor = transformers.SiglipProcessor(image_processor=image_processor, tokenizer=text)
    return _save(folder, transformers.SiglipModel(config), processor)


def save_vit(folder: Path, *, seed: int = 0) -> Path:
    """Save a ViT of one layer for images of 32 px, without a pooling layer, as many are saved."""
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    shown = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    shown |= {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(shown))
    return folder


def make_tokenizer(
    words: tuple[str, ...], *, closed: bool = False, length: int = 512
) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of bytes, about 300 tokens, in which each of the words is one token, also after a blank."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in words:
        merges += [(word[:end], word[end]) for end in range(1, len(word))] + [("Ġ", word)]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(dict.fromkeys(merges))))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    ends = [(name, core.token_to_id(name)) for name in ("<bos>", "<eos>")]
    shape = "<bos> $A <eos>" if closed else "<bos> $A"
    core.post_processor = processors.TemplateProcessing(single=shape, special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        **{f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")},
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
        model_max_length=length,
    )


def _size() -> dict[str, dict[str, int]]:
    return {"size": {"height": SIDE_PX, "width": SIDE_PX}, "crop_size": {"height": SIDE_PX, "width": SIDE_PX}}


def _speak(
    model: transformers.PreTrainedModel, text: transformers.PreTrainedTokenizerFast, words: tuple[str, ...]
) -> transformers.PreTrainedModel:
    """Make the words for yes point away from those for no, and both loud, so that one of them is the top token."""
    head = model.get_output_embeddings().weight.data
    axis = torch.randn(head.shape[1])
    for word in words:
        for variant in (word, f" {word}"):
            [token] = text.encode(variant, add_special_tokens=False)
            sign = 1.0 if word.casefold() == "yes" else -1.0
            head[token] = 2 * sign * axis + 0.1 * torch.randn(head.shape[1])
    return model


def _stop_after(
    model: transformers.PreTrainedModel, text: transformers.PreTrainedTokenizerFast
) -> transformers.PreTrainedModel:
    """Give the answer words a direction of their own, which nothing but the end mark listens to."""
    head, embedding = model.get_output_embeddings().weight.data, model.get_input_embeddings().weight.data
    own = torch.nn.functional.normalize(torch.randn(head.shape[1]), dim=0)
    head -= torch.outer(head @ own, own)
    head[text.eos_token_id] = 3 * own
    for word in WORDS:
        for variant in (word, f" {word}"):
            [token] = text.encode(variant, add_special_tokens=False)
            embedding[token] = 50 * own
    return model


def _save(folder: Path, model: transformers.PreTrainedModel, processor: transformers.ProcessorMixin) -> Path:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
