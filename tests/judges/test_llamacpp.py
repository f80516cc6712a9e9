"""The judge against a real third-party server: llama.cpp, a small language model, a random image tower."""

import asyncio
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from bpals.errors import JudgeError
from bpals.findings import NIH
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.messages import to_judgments
from bpals.judges.runner.transport import Endpoint
from bpals.judges.selftest import control_images, selftest
from bpals.testing import tiny_film
from bpals.types import OUTCOME, Film
from world import llamacpp

SIDE_PX = 224


@pytest.fixture(scope="module")
def films(request):
    """Three real films where there is test data, else made-up ones."""
    try:
        folder = request.getfixturevalue("data_folder") / "images" / "originals"
    except pytest.skip.Exception:
        return [tiny_film(seed=seed, side_px=SIDE_PX) for seed in range(3)]
    return [real_film(file) for file in sorted(folder.glob("*.png"))[:3]]


def real_film(file):
    """Shrink a film as the runner would."""
    pixels = np.asarray(Image.open(file).convert("L").resize((SIDE_PX, SIDE_PX)))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Film(sha256=file.stem.ljust(64, "0"), png=buffer.getvalue(), width_px=SIDE_PX, height_px=SIDE_PX)


def with_lines(url, use):
    """Run a coroutine function that is handed a way to open lines."""

    async def run():
        async with open_clients([Endpoint(url=url)]) as open_line:
            return await use(open_line)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def observed(llamacpp_url, films):
    """The self-test on the real server."""
    judge = OpenAIJudge(model=llamacpp.MODEL)
    return with_lines(llamacpp_url, lambda open_line: selftest(judge, films, judge.questions(NIH), open_line))


def test_the_self_test_passes_on_a_real_server(observed):
    """The image arrives as 16 tokens, log-probs are there, replies are not swapped; the weak model is warned about."""
    assert observed.method == "top_k"
    assert observed.image_by == "bytes"
    assert observed.image_tokens == 16
    assert observed.cached_tokens >= 16
    assert observed.between_images > 0.1
    assert observed.checked_order >= 4
    assert observed.model == llamacpp.MODEL
    assert any("less than 0.9" in warning for warning in observed.warnings)


def test_every_question_gets_a_counted_reply(llamacpp_url, observed, films):
    """Whatever the model says, each of a film's questions ends in one of six outcomes, and each finding in one."""
    judge = observed.judge
    questions = judge.questions(NIH)

    async def ask(open_line):
        line = open_line()
        return [reply for question in questions for reply in await judge.ask_line(films[0], [question], line)]

    replies = with_lines(llamacpp_url, ask)
    assert all(reply.outcome in OUTCOME.categories for reply in replies)
    assert all((reply.logit is not None) == (reply.outcome == "answered") for reply in replies)
    assert all(len(reply.top) == 20 for reply in replies)
    assert replies[1].usage.cached > 16
    judgments = to_judgments(questions, replies)
    assert len(judgments) == 16
    assert all((judgment.p_present is not None) == (judgment.outcome == "answered") for judgment in judgments)


def test_films_and_controls_move_the_answer(llamacpp_url, observed, films):
    """Black, mean, noise, no film and real films are told apart by their log-probs."""
    judge = observed.judge
    question = judge.questions(NIH)[:1]

    async def ask(open_line):
        shown = [film for _, film in control_images(SIDE_PX)] + films
        return [(await judge.ask_line(film, question, open_line()))[0].top for film in shown]

    tops = with_lines(llamacpp_url, ask)
    assert len(set(tops)) == len(tops)


def test_samples_work_on_the_real_server(llamacpp_url, observed, films):
    """The fallback for servers without log-probs, on one that can do both."""
    judge = dataclasses.replace(observed.judge, method="sampled", samples=4)

    async def ask(open_line):
        return await judge.ask_line(films[0], judge.questions(NIH)[:1], open_line())

    (reply,) = with_lines(llamacpp_url, ask)
    assert (reply.method, reply.outcome in OUTCOME.categories) == ("sampled", True)
    assert reply.mass is not None


def test_the_joint_layout_is_read_or_unparsed_on_the_real_server(llamacpp_url, films):
    """A small model writes no JSON of that kind: every question is counted, and none has a made-up number."""
    judge = OpenAIJudge(model=llamacpp.MODEL, layout="joint")
    asked = judge.questions(NIH)[:4]

    async def ask(open_line):
        return await judge.ask_line(films[0], asked, open_line())

    replies = with_lines(llamacpp_url, ask)
    assert len(replies) == 4
    assert all((reply.logit is None) == (reply.outcome != "answered") for reply in replies)


def test_a_prompt_that_is_too_long_is_refused_and_said(llamacpp_url, films):
    """The real server's refusal reaches the user as what it is."""
    judge = OpenAIJudge(model=llamacpp.MODEL)
    question = dataclasses.replace(judge.questions(NIH)[0], text="word " * 3000)

    async def ask(open_line):
        return await judge.ask_line(films[0], [question], open_line())

    with pytest.raises(JudgeError, match=r"refused .*: 400"):
        with_lines(llamacpp_url, ask)
