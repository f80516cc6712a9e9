"""A dual encoder answers with its own logit between two captions, whatever is batched with what."""

import functools
import io
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from bpals.errors import JudgeError
from bpals.findings import NIH, Vocabulary
from bpals.judges.hf import ContrastJudge, open_hf
from bpals.judges.runner.messages import to_judgments
from bpals.testing import check_image_judge, tiny_film
from world import tiny_models

FILMS = [tiny_film(seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The tiny dual encoders, made once; read them, do not change them."""
    folder = tmp_path_factory.mktemp("models")
    tiny_models.save_clip(folder / "clip")
    tiny_models.save_siglip(folder / "siglip")
    return folder


@functools.cache
def load_directly(folder):
    """The model without any of our code."""
    return transformers.AutoProcessor.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def ask_directly(folder, captions, film):
    """The similarities of one film with captions, by a plain forward pass."""
    processor, model = load_directly(folder)
    image = Image.open(io.BytesIO(film.png)).convert("RGB")
    padding = "max_length" if model.config.model_type == "siglip" else True
    inputs = processor(text=captions, images=image, return_tensors="pt", padding=padding)
    with torch.no_grad():
        return model(**inputs).logits_per_image[0].tolist()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_logit_is_the_difference_that_a_plain_forward_pass_gives(models, name, batch):
    """Film by film or four at a time, captions of different lengths, to 1e-4."""
    judge = open_hf(str(models / name), batch=batch)
    questions = judge.questions(NIH)
    assert len({len(question.text) for question in questions}) > 5
    said = judge.ask_batch(FILMS, questions) if batch > 1 else [judge.ask(film, questions) for film in FILMS]
    for film, replies in zip(FILMS, said, strict=True):
        for question, reply in zip(questions, replies, strict=True):
            present, absent = ask_directly(models / name, question.text.split("\n"), film)
            assert reply.outcome == "answered"
            assert reply.logit == pytest.approx(present - absent, abs=1e-4)
            assert (reply.method, reply.mass) == ("contrastive", None)


def test_films_and_captions_matter(models):
    """Another film moves the answer, and so does another finding."""
    judge = open_hf(str(models / "clip"))
    first, second = judge.ask_batch(FILMS[:2], judge.questions(NIH))
    assert max(abs(a.logit - b.logit) for a, b in zip(first, second, strict=True)) > 0.01
    assert len({round(reply.logit, 6) for reply in first}) == len(first)


def test_each_caption_is_read_once(models):
    """The texts do not change from film to film, so they are not read again."""
    judge = open_hf(str(models / "clip"))
    model = judge._transformer.model
    plain, read = model.get_text_features, []

    def count(**tokens):
        read.append(len(tokens["input_ids"]))
        return plain(**tokens)

    model.get_text_features = count
    for film in FILMS:
        judge.ask(film, judge.questions(NIH))
    assert sum(read) == 2 * len(judge.questions(NIH))


def test_a_question_is_its_two_captions(models):
    """The finding's phrase comes from the prompt pack; a finding that the pack does not know is named as it is."""
    judge = open_hf(str(models / "clip"))
    words = Vocabulary(name="own", findings=("Pleural Effusion", "Rib_Fracture"))
    effusion, fracture, devices = judge.questions(words)
    assert effusion.text.split("\n") == [
        "Frontal chest radiograph with pleural effusion.",
        "Frontal chest radiograph without pleural effusion.",
    ]
    assert fracture.text.startswith("Frontal chest radiograph with rib fracture.")
    assert (devices.subject, devices.about) == ("devices", "film")
    assert {question.polarity for question in judge.questions(NIH)} == {"present"}


def test_one_answer_is_a_whole_judgment(models):
    """There is no second polarity to wait for: p is the sigmoid of the one logit."""
    judge = open_hf(str(models / "clip"))
    questions = judge.questions(NIH)
    replies = judge.ask(FILMS[0], questions)
    judgments = to_judgments(questions, replies)
    assert judge.card.polarities == ("present",)
    assert [judgment.logit_present for judgment in judgments] == [reply.logit for reply in replies]
    assert {judgment.logit_absent for judgment in judgments} == {None}
    p = torch.sigmoid(torch.tensor(replies[0].logit, dtype=torch.float64)).item()
    assert judgments[0].p_present == pytest.approx(p, abs=1e-9)


def test_without_a_film_there_is_nothing_to_compare(models):
    """The no-image control is unsupported, also in the middle of a batch."""
    judge = open_hf(str(models / "clip"))
    questions = judge.questions(NIH)
    first, none, last = judge.ask_batch([FILMS[0], None, FILMS[1]], questions)
    assert {(reply.outcome, reply.logit) for reply in none} == {("unsupported", None)}
    assert all(reply.why for reply in none)
    for film, replies in ((FILMS[0], first), (FILMS[1], last)):
        alone = [reply.logit for reply in judge.ask(film, questions)]
        assert [reply.logit for reply in replies] == pytest.approx(alone, abs=1e-4)


def test_no_films_and_no_questions_are_no_answers(models):
    """Nothing in, nothing out."""
    judge = open_hf(str(models / "clip"))
    assert judge.ask_batch([], judge.questions(NIH)) == []
    assert [list(replies) for replies in judge.ask_batch(FILMS[:2], [])] == [[], []]


def test_a_broken_film_in_a_batch_is_an_error(models):
    """The runner then asks film by film, so that the others get their answers."""
    judge = open_hf(str(models / "clip"))
    with pytest.raises(ValueError, match="cannot be opened"):
        judge.ask_batch([FILMS[0], replace(FILMS[1], png=b"")], judge.questions(NIH))


def test_a_caption_that_the_model_cannot_read_whole_is_refused(models):
    """A caption that is cut would be another caption, and nobody would know."""
    long = ("with {phrase}" + " and so on" * 40, "without {phrase}")
    judge = open_hf(str(models / "clip"), captions=long)
    with pytest.raises(JudgeError, match=r"256 tokens .*caption"):
        judge.ask(FILMS[0], judge.questions(NIH))


def test_captions_are_part_of_who_it_is(models):
    """Other words are another judge; the batch is not."""
    plain = open_hf(str(models / "clip")).card
    other = open_hf(str(models / "clip"), captions=("{phrase}", "no {phrase}")).card
    assert other.settings["captions"] == ["{phrase}", "no {phrase}"]
    assert other.fingerprint != plain.fingerprint
    assert open_hf(str(models / "clip"), batch=1).card.fingerprint == plain.fingerprint


def test_a_number_that_is_none_is_an_error(models, tmp_path):
    """A NaN is never an answer."""
    folder = shutil.copytree(models / "clip", tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    judge = open_hf(str(folder))
    with pytest.raises(FloatingPointError, match="no finite number"):
        judge.ask(FILMS[0], judge.questions(NIH))


def test_a_siglip_keeps_the_contract_of_an_image_judge(models):
    """The same checks as for a judge that anybody writes."""
    judge = open_hf(str(models / "siglip"))
    assert isinstance(judge, ContrastJudge)
    check_image_judge(judge, again=open_hf(str(models / "siglip")), any_finding=True)


def test_a_question_of_another_judge_is_refused(models):
    """A sentence is not two captions."""
    judge = open_hf(str(models / "clip"))
    with pytest.raises(JudgeError, match="two captions"):
        judge.ask(FILMS[0], [replace(judge.questions(NIH)[0], text="Is there a mass?")])
