"""The hf: judges answer what a plain forward pass of their model gives, and loading one runs nothing else."""

import functools
import io
import json
import math
import shutil
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

import shape
from bpals.errors import JudgeError, UnknownName, UsageError, install_line
from bpals.findings import NIH, Vocabulary
from bpals.judges.hf import ContrastJudge, HfJudge, find_answers, open_hf
from bpals.judges.local_model import HfOptions
from bpals.judges.prompts import AnswerWords
from bpals.judges.runner.messages import to_judgments
from bpals.registry import find
from bpals.testing import check_image_judge, tiny_film
from bpals.types import ImageJudge
from world import tiny_models
from world.words import mentions

FILM, OTHER_FILM = tiny_film(), tiny_film(seed=1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIANTS = {"yes": ("Yes", "yes", "YES", " Yes", " yes", " YES"), "no": ("No", "no", "NO", " No", " no", " NO")}
IMAGE_MARK = {"llava": "<image>", "gemma": "<boi>"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The tiny models, made once; read them, do not change them."""
    folder = tmp_path_factory.mktemp("models")
    tiny_models.save_llava(folder / "llava")
    tiny_models.save_gemma(folder / "gemma")
    tiny_models.save_clip(folder / "clip")
    return folder


@pytest.fixture
def llava(models, tmp_path):
    """A LLaVA of the test's own, to be changed."""
    return shutil.copytree(models / "llava", tmp_path / "llava")


@pytest.fixture(scope="module")
def ask_directly(models):
    """Ask a model one question by a plain forward pass, with none of our code: the log-probs of its first token."""

    @functools.cache
    def load(name):
        processor = transformers.AutoProcessor.from_pretrained(models / name)
        return processor, transformers.AutoModelForImageTextToText.from_pretrained(models / name).eval()

    def ask(name, prompt, film):
        processor, model = load(name)
        shown = {} if film is None else {"images": [Image.open(io.BytesIO(film.png)).convert("RGB")]}
        inputs = processor(text=[prompt], **shown, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            return model(**inputs).logits[0, -1].log_softmax(dim=-1), processor.tokenizer

    return ask


def summed(logprobs, tokenizer, side):
    """The log-probability of an answer, over all its spellings."""
    tokens = [tokenizer.encode(word, add_special_tokens=False) for word in VARIANTS[side]]
    assert all(len(token) == 1 for token in tokens)
    return torch.logsumexp(logprobs[[token[0] for token in tokens]], dim=0).item()


# ---- the numbers


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", ["llava", "gemma"])
def test_the_log_probs_are_those_of_a_plain_forward_pass(models, ask_directly, name, batch):
    """Batched or not, filled up to one length or not, to 1e-4: the logit, the mass and the 20 likeliest tokens."""
    judge = open_hf(str(models / name), batch=batch)
    questions = judge.questions(NIH)[:7]
    assert len({len(question.text) for question in questions}) > 3
    replies = judge.ask(FILM, questions)
    for question, reply in zip(questions, replies, strict=True):
        prompt = f"<bos><user>{IMAGE_MARK[name]}Frontal chest radiograph.\n{question.text}<model>"
        logprobs, tokenizer = ask_directly(name, prompt, FILM)
        yes, no = summed(logprobs, tokenizer, "yes"), summed(logprobs, tokenizer, "no")
        assert reply.outcome == "answered"
        assert reply.logit == pytest.approx(yes - no, abs=1e-4)
        assert reply.mass == pytest.approx(math.exp(yes) + math.exp(no), abs=1e-4)
        best = logprobs.topk(20)
        assert [value for _, value in reply.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert reply.text == reply.top[0][0] == tokenizer.decode([best.indices[0].item()])
        assert reply.method == "exact"


@pytest.mark.parametrize("name", ["llava", "gemma"])
def test_batches_of_any_size_give_the_same(models, name):
    """32 questions at once, in threes, or one at a time; the longest is 30 tokens longer than the shortest."""
    whole, threes, ones = (
        judge.ask(FILM, judge.questions(NIH))
        for judge in (open_hf(str(models / name), batch=size) for size in (32, 3, 1))
    )
    lengths = [reply.usage.prompt for reply in ones]
    assert len(ones) == 32
    assert max(lengths) - min(lengths) > 30
    for one, three, many in zip(ones, threes, whole, strict=True):
        assert one.outcome == three.outcome == many.outcome
        assert one.usage == three.usage == many.usage
        for other in (three, many):
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)


@pytest.mark.parametrize("name", ["llava", "gemma", "clip"])
def test_the_film_matters_and_chance_does_not(models, name):
    """Another film gives other numbers; the same film gives the same, also from a judge that is opened again."""
    first, again = open_hf(str(models / name)), open_hf(str(models / name))
    questions = first.questions(NIH)
    said = [reply.logit for reply in first.ask(FILM, questions)]
    assert [reply.logit for reply in first.ask(FILM, questions)] == said
    assert [reply.logit for reply in again.ask(FILM, questions)] == said
    moved = [reply.logit for reply in first.ask(OTHER_FILM, questions)]
    assert max(abs(a - b) for a, b in zip(said, moved, strict=True) if a is not None and b is not None) > 0.01


@pytest.mark.parametrize("name", ["llava", "gemma"])
def test_without_a_film_the_model_is_asked_in_words_alone(models, ask_directly, name):
    """The no-image control is a prompt without an image token."""
    judge = open_hf(str(models / name))
    question = judge.questions(NIH)[0]
    [reply] = judge.ask(None, [question])
    prompt = f"<bos><user>Frontal chest radiograph.\n{question.text}<model>"
    logprobs, _ = ask_directly(name, prompt, None)
    assert [value for _, value in reply.top] == pytest.approx(logprobs.topk(20).values.tolist(), abs=1e-4)


def test_a_model_that_wants_an_image_is_unsupported_without_one(tmp_path):
    """Its own template refuses; that is no failure and no answer."""
    picky = tiny_models.CHAT.replace("{{ bos_token }}", "{{ bos_token }}{% if messages[0]['content'] | length < 2 %}"
                                    "{{ raise_exception('an image is wanted') }}{% endif %}")  # fmt: skip
    judge = open_hf(str(tiny_models.save_llava(tmp_path / "picky", chat=picky)))
    replies = judge.ask(None, judge.questions(NIH))
    assert {(reply.outcome, reply.logit) for reply in replies} == {("unsupported", None)}
    assert "an image is wanted" in replies[0].why
    assert judge.ask(FILM, judge.questions(NIH)[:1])[0].outcome != "unsupported"


def test_a_model_without_a_chat_template_is_given_its_image_token(tmp_path):
    """The image first, the words after it, and the card says that it was asked so."""
    folder = tiny_models.save_llava(tmp_path / "plain", chat=None)
    judge = open_hf(str(folder))
    assert judge.card.settings["layout"] == "plain"
    [question, *_] = judge.questions(NIH)
    [reply] = judge.ask(FILM, [question])
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    image = Image.open(io.BytesIO(FILM.png)).convert("RGB")
    inputs = processor(text=f"<image>\nFrontal chest radiograph.\n{question.text}\n", images=image, return_tensors="pt")
    with torch.no_grad():
        direct = model(**inputs).logits[0, -1].log_softmax(dim=-1)
    assert [value for _, value in reply.top] == pytest.approx(direct.topk(20).values.tolist(), abs=1e-4)


def test_a_models_own_habits_of_writing_do_not_touch_the_numbers(models, llava, capfd):
    """Temperature, penalties and lengths that a model ships for chatting change what it writes, not what it holds."""
    habits = {"do_sample": True, "temperature": 0.1, "top_p": 0.5, "top_k": 3, "repetition_penalty": 1.5,
              "max_length": 20, "min_new_tokens": 1, "num_beams": 2}  # fmt: skip
    (llava / "generation_config.json").write_text(json.dumps(habits))
    plain, chatty = open_hf(str(models / "llava")), open_hf(str(llava))
    questions = plain.questions(NIH)[:3]
    for one, other in zip(plain.ask(FILM, questions), chatty.ask(FILM, questions), strict=True):
        assert one.top == other.top
        assert one.logit == other.logit
    assert capfd.readouterr() == ("", "")


def test_a_likeliest_token_that_is_no_answer_word_has_no_number(llava):
    """The model wants to say something else: unparsed, with what it said and how much of an answer was in it."""
    weights = load_file(llava / "model.safetensors")
    head = next(name for name in weights if name.endswith("lm_head.weight"))
    token = transformers.AutoTokenizer.from_pretrained(llava).encode("Q", add_special_tokens=False)[0]
    weights[head] = weights[head] * 0.01
    weights[head][token] = weights[head].sum(dim=0) + 5.0
    weights[head][token + 1] = -weights[head][token]
    save_file(weights, llava / "model.safetensors", metadata={"format": "pt"})
    judge = open_hf(str(llava))
    reply = judge.ask(FILM, judge.questions(NIH)[:1])[0]
    assert (reply.outcome, reply.logit) == ("unparsed", None)
    assert reply.text in {"Q", "R"}
    assert repr(reply.text) in reply.why
    assert 0 < reply.mass < 0.9


def test_a_model_that_gives_no_number_is_an_error(llava):
    """Weights with a hole in them make NaN, and NaN is never an answer."""
    weights = load_file(llava / "model.safetensors")
    head = next(name for name in weights if name.endswith("lm_head.weight"))
    weights[head][0] = math.nan
    save_file(weights, llava / "model.safetensors", metadata={"format": "pt"})
    judge = open_hf(str(llava))
    with pytest.raises(FloatingPointError, match="no finite number in float32"):
        judge.ask(FILM, judge.questions(NIH)[:1])


@pytest.mark.parametrize("png", [b"", b"not a film", FILM.png[:-200]], ids=["empty", "text", "cut"])
@pytest.mark.parametrize("name", ["llava", "clip"])
def test_a_broken_film_is_an_error_that_names_it(models, name, png):
    """It is the runner that counts it as failed and goes on; the judge says nothing about it."""
    judge = open_hf(str(models / name))
    with pytest.raises(ValueError, match=f"film {FILM.sha256[:12]} cannot be opened"):
        judge.ask(replace(FILM, png=png), judge.questions(NIH))


def test_too_large_a_batch_is_halved(models):
    """A device without memory for eight questions is asked four, then two; one that cannot take one is an error."""
    judge = open_hf(str(models / "llava"), batch=8)
    questions = judge.questions(NIH)[:8]
    fits = [reply.logit for reply in judge.ask(FILM, questions)]
    model = judge._transformer.model
    whole, asked = model.generate, []

    def generate(*, room, **inputs):
        asked.append(len(inputs["input_ids"]))
        if asked[-1] > room:
            raise torch.OutOfMemoryError("no memory")
        return whole(**inputs)

    model.generate = lambda **inputs: generate(room=2, **inputs)
    assert [reply.logit for reply in judge.ask(FILM, questions)] == pytest.approx(fits, abs=1e-4)
    assert asked == [8, 4, 2, 2, 4, 2, 2]
    model.generate = lambda **inputs: generate(room=0, **inputs)
    with pytest.raises(JudgeError, match="no memory for one question"):
        judge.ask(FILM, questions)


# ---- the answer words


def test_every_spelling_of_an_answer_counts():
    """Yes, yes and YES, with a blank before them and without."""
    tokenizer = tiny_models.make_tokenizer(tiny_models.WORDS)
    found = find_answers(tokenizer, AnswerWords(), model="tiny")
    spelled = {side: {tokenizer.decode([token]) for token in getattr(found, side)} for side in ("yes", "no")}
    assert spelled == {side: set(words) for side, words in VARIANTS.items()}
    assert found.read_by == "whole word"


def test_words_that_mean_cannot_tell_are_on_neither_side():
    """A pack may offer them; they are no answer."""
    tokenizer = tiny_models.make_tokenizer((*tiny_models.WORDS, "unsure"))
    found = find_answers(tokenizer, AnswerWords(abstain=("unsure",)), model="tiny")
    assert {tokenizer.decode([token]) for token in found.abstain} == {"unsure", " unsure"}
    assert found.side(found.abstain[0]) == "abstain"
    assert found.side(tokenizer.encode("x", add_special_tokens=False)[0]) is None


def test_a_word_of_several_tokens_is_read_by_its_first_and_the_card_says_so(tmp_path):
    """Y and N differ, so they can stand for Yes and No."""
    judge = open_hf(str(tiny_models.save_llava(tmp_path / "pieces", words=())))
    tokenizer = tiny_models.make_tokenizer(())
    assert judge.card.settings["answers_read_by"] == "first piece"
    assert {tokenizer.decode([token]) for token in judge.card.settings["yes_tokens"]} == {"Y", "y"}
    assert {tokenizer.decode([token]) for token in judge.card.settings["no_tokens"]} == {"N", "n"}


def test_words_that_begin_alike_cannot_be_told_apart():
    """Then one token says nothing, and the judge is refused instead of guessing."""
    words = AnswerWords(yes=("present",), no=("pristine",))
    with pytest.raises(JudgeError, match="'present' and 'pristine'"):
        find_answers(tiny_models.make_tokenizer(()), words, model="tiny")


# ---- who it is


@pytest.mark.parametrize("name", ["llava", "gemma", "clip"])
def test_each_keeps_the_contract_of_an_image_judge(models, name):
    """The same checks as for a judge that anybody writes."""
    judge, again = open_hf(str(models / name)), open_hf(str(models / name))
    assert isinstance(judge, ImageJudge)
    check_image_judge(judge, again=again, any_finding=True)


def test_the_configuration_decides_how_a_model_is_asked(models):
    """One spec for both kinds."""
    assert isinstance(open_hf(str(models / "gemma")), HfJudge)
    assert isinstance(open_hf(str(models / "clip")), ContrastJudge)


def test_the_spec_opens_it(models):
    """What `bpals judge run hf:FOLDER --batch 2` makes."""
    judge = find("hf")(str(models / "llava"), "", batch=2)
    assert isinstance(judge, HfJudge)


def test_the_card_says_what_runs_it(models):
    """Engine and versions, device, number format, the prompt pack, both polarities; a name is no part of who it is."""
    card = open_hf(str(models / "llava"), device="cpu").card
    assert card.engine == f"transformers {transformers.__version__} / torch {torch.__version__}"
    assert (card.settings["device"], card.settings["dtype"]) == ("cpu", "float32")
    assert card.polarities == ("present", "absent")
    assert card.pack.startswith("chest@1 sha256:")
    named = open_hf(str(models / "llava"), name="ours", batch=3).card
    assert (named.judge, named.fingerprint) == ("ours", card.fingerprint)
    half = open_hf(str(models / "llava"), dtype="bfloat16")
    assert half.card.settings["dtype"] == "bfloat16"
    assert half.card.fingerprint != card.fingerprint
    assert half.ask(FILM, half.questions(NIH)[:1])[0].top


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json", "chat_template.jinja", "tokenizer.json"])
def test_other_weights_or_settings_are_another_judge(llava, changed):
    """The revision of a folder is the hash of what could change an answer; where it lies does not matter."""
    before = open_hf(str(llava)).card
    if changed == "model.safetensors":
        weights = load_file(llava / changed)
        name = min(weights)
        save_file(weights | {name: weights[name] + 0.001}, llava / changed, metadata={"format": "pt"})
    else:
        (llava / changed).write_text((llava / changed).read_text() + " ")
    after = open_hf(str(llava)).card
    assert after.revision != before.revision
    assert after.fingerprint != before.fingerprint


def test_a_folder_may_be_pinned_too(models, llava):
    """`hf:FOLDER@sha256:...` refuses a folder that has changed; a copy elsewhere is the same model."""
    revision = open_hf(str(models / "llava")).card.revision
    assert open_hf(str(llava), revision).card.fingerprint == open_hf(str(models / "llava")).card.fingerprint
    (llava / "config.json").write_text((llava / "config.json").read_text() + " ")
    with pytest.raises(JudgeError, match=f"not {revision}"):
        open_hf(str(llava), revision)


@pytest.mark.parametrize(
    ("front", "licence", "commercial"),
    [
        ("license: apache-2.0", "apache-2.0", "yes"),
        ("tags:\n- chest\nlicense: 'cc-by-nc-4.0'", "cc-by-nc-4.0", "no"),
        ("license: gemma", "gemma", "unknown"),
        ("license: other\nlicense_name: health-ai-developer-foundations", "health-ai-developer-foundations", "unknown"),
        ("tags: chest", "unknown", "unknown"),
    ],
)
def test_the_licence_is_what_the_model_card_says(llava, front, licence, commercial):
    """Commercial use is yes or no where the licence's name says it, and else unknown."""
    (llava / "README.md").write_text(f"---\n{front}\n---\n# A model\nlicense: mit\n")
    card = open_hf(str(llava)).card
    assert (card.licence, card.commercial_use) == (licence, commercial)
    card = open_hf(str(llava), licence="MIT", trained_on_target="yes", evidence="its paper says so").card
    assert (card.licence, card.commercial_use) == ("MIT", "yes")
    assert (card.trained_on_target, card.evidence) == ("yes", "its paper says so")


def test_loading_and_asking_write_nothing_to_the_screen(models, capfd):
    """No bars, no warnings of transformers; and its settings are as they were."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    judge = open_hf(str(models / "llava"))
    judge.ask(FILM, judge.questions(NIH)[:2])
    assert capfd.readouterr() == ("", "")
    assert (transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()) == (level, bars)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"device": "gpu"}, UnknownName), ({"dtype": "int8"}, UnknownName), ({"batch": 0}, UsageError),
     ({"trained_on_target": "maybe"}, UnknownName),
     ({"captions": ("with it", "without {phrase}")}, UsageError)],
)  # fmt: skip
def test_options_that_no_model_can_be_run_with_are_refused(options, error):
    """Before anything is loaded."""
    with pytest.raises(error):
        HfOptions(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_refused(models):
    """And the message says what to type."""
    with pytest.raises(UsageError, match=r"cuda .*--device cpu"):
        open_hf(str(models / "llava"), device="cuda")


# ---- loading runs nothing and calls nobody

PAYLOAD = """
import pathlib
import transformers
pathlib.Path({marker!r}).write_text("ran")
class TinyModel(transformers.LlavaForConditionalGeneration):
    pass
"""


@pytest.fixture
def with_code(llava, tmp_path):
    """A LLaVA with code of its own, which leaves a marker when it runs."""
    marker = tmp_path / "marker"
    (llava / "modeling_tiny.py").write_text(PAYLOAD.format(marker=str(marker)))
    config = json.loads((llava / "config.json").read_text())
    config["auto_map"] = {"AutoModelForImageTextToText": "modeling_tiny.TinyModel"}
    (llava / "config.json").write_text(json.dumps(config))
    # Names of older weights are translated for transformers' own classes only.
    weights = load_file(llava / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("language_model.lm_head.weight")
    save_file(weights, llava / "model.safetensors", metadata={"format": "pt"})
    return llava, marker


def test_m04_code_of_the_repository_is_not_run(with_code):
    """M04: it is refused, in words that name the flag and the pin, and nothing of it has run."""
    folder, marker = with_code
    for given in ("", COMMIT):
        with pytest.raises(JudgeError, match=r"modeling_tiny\.TinyModel.*--allow-code-revision [0-9a-f]{40} "):
            open_hf(str(folder), allow_code_revision=given)
    assert not marker.exists()


def test_m04_code_that_is_pinned_is_run_and_changed_code_is_not(with_code, tmp_path, monkeypatch):
    """M04: the pin is the hash of the code, so that one changed letter is refused again."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, marker = with_code
    with pytest.raises(JudgeError) as refused:
        open_hf(str(folder))
    pin = str(refused.value).split("--allow-code-revision ")[1][:40]
    judge = open_hf(str(folder), allow_code_revision=pin)
    assert marker.read_text() == "ran"
    assert judge.ask(FILM, judge.questions(NIH)[:1])[0].top
    marker.unlink()
    with (folder / "modeling_tiny.py").open("a") as code:
        code.write("# other code\n")
    with pytest.raises(JudgeError, match="which is other code"):
        open_hf(str(folder), allow_code_revision=pin)
    assert not marker.exists()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "processor_config.json"])
def test_m04_code_for_a_tokenizer_or_a_processor_is_code_too(llava, file):
    """M04: code hides in other files than config.json."""
    config = json.loads((llava / file).read_text()) | {"auto_map": {"AutoTokenizer": ["tokens.Slow", None]}}
    (llava / file).write_text(json.dumps(config))
    with pytest.raises(JudgeError, match=r"tokens\.Slow.*--allow-code-revision"):
        open_hf(str(llava))


def test_m04_code_of_another_repository_is_never_run(with_code):
    """M04: no pin of this repository says what lies in another."""
    folder, _ = with_code
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForImageTextToText": "other/repo--modeling_tiny.TinyModel"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(JudgeError, match="code of another repository"):
        open_hf(str(folder), allow_code_revision=COMMIT)


@pytest.fixture
def no_network(monkeypatch):
    """Every way out is closed, and what tried it is listed."""
    tried = []

    def refuse(*given, **_):
        tried.append(given)
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@pytest.mark.parametrize("name", ["llava", "gemma", "clip"])
def test_m08_a_folder_is_loaded_and_asked_without_a_call(models, no_network, name):
    """M08: network off, model on disk: the run works and nobody tried to call out."""
    judge = open_hf(str(models / name))
    assert judge.ask(FILM, judge.questions(NIH)[:1])
    assert no_network == []


def test_m08_a_commit_in_the_cache_is_loaded_without_a_call(models, tmp_path, no_network):
    """M08: a model of the hub that was downloaded before, under its commit."""
    shutil.copytree(models / "llava", tmp_path / "models--tiny--llava" / "snapshots" / COMMIT)
    judge = open_hf("tiny/llava", COMMIT, cache=tmp_path)
    assert (judge.card.judge, judge.card.model, judge.card.revision) == ("llava", "tiny/llava", COMMIT)
    assert judge.ask(FILM, judge.questions(NIH)[:1])[0].outcome == "answered"
    assert no_network == []


def test_a_model_that_is_not_here_says_how_to_get_it(tmp_path, no_network, monkeypatch):
    """M08: with Hugging Face set to offline nobody is called; one line, with the command that fetches it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(JudgeError, match=f"hf download tiny/llava --revision {COMMIT}") as raised:
        open_hf("tiny/llava", COMMIT, cache=tmp_path)
    assert "\n" not in str(raised.value)
    assert no_network == []


@pytest.mark.parametrize("revision", ["", "main", "v1.0", COMMIT[:12]])
def test_a_model_of_the_hub_is_pinned_by_its_commit(revision, no_network):
    """A branch moves; a commit does not."""
    with pytest.raises(UsageError, match="pinned by its commit"):
        open_hf("tiny/llava", revision)
    assert no_network == []


# ---- folders that are no model


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{"}, "is not JSON"),
        ({"config.json": "[]"}, "JSON but no object"),
        ({"config.json": "{}"}, "has no weights"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "only pytorch_model.bin, which is a pickle"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path, files, says):
    """What is wrong, and where."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(JudgeError, match=says) as raised:
        open_hf(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_path_that_is_not_there_is_refused():
    """It looks like no name of the hub, so nobody is asked."""
    with pytest.raises(JudgeError, match="there is no such folder"):
        open_hf("/no/such/model")


@pytest.mark.parametrize("kind", ["bert", "nobody-knows", None])
def test_a_model_that_sees_no_image_is_refused(llava, kind):
    """A language model, an unknown one, one without a name."""
    (llava / "config.json").write_text(json.dumps({"model_type": kind} if kind else {}))
    with pytest.raises(JudgeError, match="questions about an image"):
        open_hf(str(llava))


def test_a_configuration_that_does_not_fit_the_weights_is_refused(llava):
    """Weights of another shape would be replaced by random numbers."""
    config = json.loads((llava / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 48
    (llava / "config.json").write_text(json.dumps(config))
    with pytest.raises(JudgeError, match="hf:llava"):
        open_hf(str(llava))


def test_weights_with_a_part_missing_are_refused(llava):
    """The gap would be filled at random, and the model would answer."""
    weights = load_file(llava / "model.safetensors")
    gone = next(name for name in weights if name.endswith("lm_head.weight"))
    save_file({name: value for name, value in weights.items() if name != gone}, llava / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    with pytest.raises(JudgeError, match=r" 1 is missing.*random"):
        open_hf(str(llava))


def test_a_folder_without_its_tokenizer_is_refused(llava):
    """A half-copied model is an error of one line, with the folder in it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "processor_config.json"):
        (llava / name).unlink()
    with pytest.raises(JudgeError, match="cannot be loaded from"):
        open_hf(str(llava))


class Bomb:
    """What a pickle can do."""

    def __init__(self, marker):
        """Remember where to leave the mark."""
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (Path(self.marker),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.safetensors"])
def test_m01_a_pickle_is_never_loaded(llava, tmp_path, name):
    """M01: whatever it is called; the marker that its payload would leave is not there."""
    (llava / "model.safetensors").unlink()
    torch.save(Bomb(str(tmp_path / "marker")), llava / name)
    with pytest.raises(JudgeError, match=name.replace(".", r"\.")):
        open_hf(str(llava))
    assert not (tmp_path / "marker").exists()


def header(tensors):
    """The bytes of a safetensors file with a header of our own and 64 bytes of data."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**60) + b"{}",
        header({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]},
                "b": {"dtype": "F32", "shape": [8], "data_offsets": [16, 48]}}),
        header({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}),
        b"",
    ],
    ids=["huge header", "overlapping", "cut", "empty"],
)  # fmt: skip
def test_m03_safetensors_that_are_not_whole_are_refused(llava, content):
    """M03: a header that is too long, tensors that overlap, data that ends early."""
    (llava / "model.safetensors").write_bytes(content)
    with pytest.raises(JudgeError, match="not a whole safetensors file"):
        open_hf(str(llava))


# ---- what is not installed


def in_another_process(code, *arguments, path=()):
    """Run a few lines with our package, and perhaps other folders before everything else on the path."""
    import_path = ":".join(map(str, (*path, shape.SRC)))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": import_path, "PATH": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["torch", "transformers", "safetensors"])
def test_a_missing_package_is_answered_with_the_line_that_installs_it(models, package):
    """A core install has none of them."""
    code = """
import sys
sys.modules[sys.argv[1]] = None
from bpals.errors import MissingExtra
from bpals.judges.hf import open_hf
try:
    open_hf(sys.argv[2])
except MissingExtra as error:
    print(error)
"""
    assert install_line("torch") in in_another_process(code, package, models / "llava")


def test_a_torchvision_that_does_not_fit_is_named(models, tmp_path):
    """Its CUDA build on a CPU torch breaks transformers' processors; the message says what to do about it."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    info = tmp_path / "torchvision-0.28.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    code = """
import sys
from bpals.errors import JudgeError
from bpals.judges.hf import open_hf
try:
    open_hf(sys.argv[1])
except JudgeError as error:
    print(error)
"""
    said = in_another_process(code, models / "llava", path=[tmp_path])
    assert mentions(said, "torchvision", "torch")
    assert "pip uninstall torchvision" in said


def test_a_torchvision_for_cuda_is_survived(models):
    """Whichever build is installed beside torch, a model is opened in a process that has done nothing about it."""
    code = """
import sys
from bpals.judges.hf import open_hf
print(open_hf(sys.argv[1]).card.kind)
"""
    assert in_another_process(code, models / "clip") == "image\n"


FILMS = [tiny_film(seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def dual_encoders(tmp_path_factory):
    """The tiny dual encoders, made once; read them, do not change them."""
    folder = tmp_path_factory.mktemp("dual_encoders")
    tiny_models.save_clip(folder / "clip")
    tiny_models.save_siglip(folder / "siglip")
    return folder


@functools.cache
def load_directly(folder):
    """The model without any of our code."""
    return transformers.AutoProcessor.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def compare_directly(folder, captions, film):
    """The similarities of one film with captions, by a plain forward pass."""
    processor, model = load_directly(folder)
    image = Image.open(io.BytesIO(film.png)).convert("RGB")
    padding = "max_length" if model.config.model_type == "siglip" else True
    inputs = processor(text=captions, images=image, return_tensors="pt", padding=padding)
    with torch.no_grad():
        return model(**inputs).logits_per_image[0].tolist()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_logit_is_the_difference_that_a_plain_forward_pass_gives(dual_encoders, name, batch):
    """Film by film or four at a time, captions of different lengths, to 1e-4."""
    judge = open_hf(str(dual_encoders / name), batch=batch)
    questions = judge.questions(NIH)
    assert len({len(question.text) for question in questions}) > 5
    said = judge.ask_batch(FILMS, questions) if batch > 1 else [judge.ask(film, questions) for film in FILMS]
    for film, replies in zip(FILMS, said, strict=True):
        for question, reply in zip(questions, replies, strict=True):
            present, absent = compare_directly(dual_encoders / name, question.text.split("\n"), film)
            assert reply.outcome == "answered"
            assert reply.logit == pytest.approx(present - absent, abs=1e-4)
            assert (reply.method, reply.mass) == ("contrastive", None)


def test_films_and_captions_matter(dual_encoders):
    """Another film moves the answer, and so does another finding."""
    judge = open_hf(str(dual_encoders / "clip"))
    first, second = judge.ask_batch(FILMS[:2], judge.questions(NIH))
    assert max(abs(a.logit - b.logit) for a, b in zip(first, second, strict=True)) > 0.01
    assert len({round(reply.logit, 6) for reply in first}) == len(first)


def test_each_caption_is_read_once(dual_encoders):
    """The texts do not change from film to film, so they are not read again."""
    judge = open_hf(str(dual_encoders / "clip"))
    model = judge._transformer.model
    plain, read = model.get_text_features, []

    def count(**tokens):
        read.append(len(tokens["input_ids"]))
        return plain(**tokens)

    model.get_text_features = count
    for film in FILMS:
        judge.ask(film, judge.questions(NIH))
    assert sum(read) == 2 * len(judge.questions(NIH))


def test_a_question_is_its_two_captions(dual_encoders):
    """The finding's phrase comes from the prompt pack; a finding that the pack does not know is named as it is."""
    judge = open_hf(str(dual_encoders / "clip"))
    words = Vocabulary(name="own", findings=("Pleural Effusion", "Rib_Fracture"))
    effusion, fracture, devices = judge.questions(words)
    assert effusion.text.split("\n") == [
        "Frontal chest radiograph with pleural effusion.",
        "Frontal chest radiograph without pleural effusion.",
    ]
    assert fracture.text.startswith("Frontal chest radiograph with rib fracture.")
    assert (devices.subject, devices.about) == ("devices", "film")
    assert {question.polarity for question in judge.questions(NIH)} == {"present"}


def test_one_answer_is_a_whole_judgment(dual_encoders):
    """There is no second polarity to wait for: p is the sigmoid of the one logit."""
    judge = open_hf(str(dual_encoders / "clip"))
    questions = judge.questions(NIH)
    replies = judge.ask(FILMS[0], questions)
    judgments = to_judgments(questions, replies)
    assert judge.card.polarities == ("present",)
    assert [judgment.logit_present for judgment in judgments] == [reply.logit for reply in replies]
    assert {judgment.logit_absent for judgment in judgments} == {None}
    p = torch.sigmoid(torch.tensor(replies[0].logit, dtype=torch.float64)).item()
    assert judgments[0].p_present == pytest.approx(p, abs=1e-9)


def test_without_a_film_there_is_nothing_to_compare(dual_encoders):
    """The no-image control is unsupported, also in the middle of a batch."""
    judge = open_hf(str(dual_encoders / "clip"))
    questions = judge.questions(NIH)
    first, none, last = judge.ask_batch([FILMS[0], None, FILMS[1]], questions)
    assert {(reply.outcome, reply.logit) for reply in none} == {("unsupported", None)}
    assert all(reply.why for reply in none)
    for film, replies in ((FILMS[0], first), (FILMS[1], last)):
        alone = [reply.logit for reply in judge.ask(film, questions)]
        assert [reply.logit for reply in replies] == pytest.approx(alone, abs=1e-4)


def test_no_films_and_no_questions_are_no_answers(dual_encoders):
    """Nothing in, nothing out."""
    judge = open_hf(str(dual_encoders / "clip"))
    assert judge.ask_batch([], judge.questions(NIH)) == []
    assert [list(replies) for replies in judge.ask_batch(FILMS[:2], [])] == [[], []]


def test_a_broken_film_in_a_batch_is_an_error(dual_encoders):
    """The runner then asks film by film, so that the others get their answers."""
    judge = open_hf(str(dual_encoders / "clip"))
    with pytest.raises(ValueError, match="cannot be opened"):
        judge.ask_batch([FILMS[0], replace(FILMS[1], png=b"")], judge.questions(NIH))


def test_a_caption_that_the_model_cannot_read_whole_is_refused(dual_encoders):
    """A caption that is cut would be another caption, and nobody would know."""
    long = ("with {phrase}" + " and so on" * 40, "without {phrase}")
    judge = open_hf(str(dual_encoders / "clip"), captions=long)
    with pytest.raises(JudgeError, match=r"256 tokens .*caption"):
        judge.ask(FILMS[0], judge.questions(NIH))


def test_captions_are_part_of_who_it_is(dual_encoders):
    """Other words are another judge; the batch is not."""
    plain = open_hf(str(dual_encoders / "clip")).card
    other = open_hf(str(dual_encoders / "clip"), captions=("{phrase}", "no {phrase}")).card
    assert other.settings["captions"] == ["{phrase}", "no {phrase}"]
    assert other.fingerprint != plain.fingerprint
    assert open_hf(str(dual_encoders / "clip"), batch=1).card.fingerprint == plain.fingerprint


def test_a_number_that_is_none_is_an_error(dual_encoders, tmp_path):
    """A NaN is never an answer."""
    folder = shutil.copytree(dual_encoders / "clip", tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    judge = open_hf(str(folder))
    with pytest.raises(FloatingPointError, match="no finite number"):
        judge.ask(FILMS[0], judge.questions(NIH))


def test_a_siglip_keeps_the_contract_of_an_image_judge(dual_encoders):
    """The same checks as for a judge that anybody writes."""
    judge = open_hf(str(dual_encoders / "siglip"))
    assert isinstance(judge, ContrastJudge)
    check_image_judge(judge, again=open_hf(str(dual_encoders / "siglip")), any_finding=True)


def test_a_question_of_another_judge_is_refused(dual_encoders):
    """A sentence is not two captions."""
    judge = open_hf(str(dual_encoders / "clip"))
    with pytest.raises(JudgeError, match="two captions"):
        judge.ask(FILMS[0], [replace(judge.questions(NIH)[0], text="Is there a mass?")])
