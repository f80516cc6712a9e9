"""The openai: judge on two more real servers, because servers differ in what they silently ignore.

`transformers serve` ignores log-probs, several samples, the temperature, and an image without bytes; vLLM gives
log-probs of tokens by name, keeps images by uuid and says how many tokens it had already read.
"""

import asyncio
import dataclasses
import json

import polars as pl
import pytest
import transformers

import bpals
from bpals.errors import JudgeError
from bpals.findings import NIH
from bpals.judges.hf import open_hf
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.transport import Endpoint
from bpals.judges.selftest import selftest
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.testing import tiny_film
from world import datasets, tiny_models, vlm_servers
from world.words import mentions

pytestmark = pytest.mark.servers

FILMS = [tiny_film(seed=seed, side_px=224) for seed in range(3)]
COUNT = 6
"""Films of the small dataset; each is asked ten questions: two polarities of three findings and of two topics."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One tiny LLaVA, twice: by its generation_config.json the one is sampled from and the other is not."""
    folder = tmp_path_factory.mktemp("models")
    for name, samples in (("greedy", False), ("sampling", True)):
        tiny_models.save_served_llava(folder / name, samples=samples)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A few films with a table; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), COUNT)


@pytest.fixture(scope="module")
def hf_url(tmp_path_factory):
    """The base URL of `transformers serve`."""
    yield from serve(vlm_servers.transformers_serve(), tmp_path_factory.mktemp("transformers"))


@pytest.fixture(scope="module")
def vllm_url(models, tmp_path_factory):
    """The base URL of vLLM with the tiny LLaVA."""
    yield from serve(vlm_servers.vllm(models / "greedy"), tmp_path_factory.mktemp("vllm"))


def serve(server, folder):
    """Start a server, or skip."""
    if not (python := server.python()):
        needs = ", ".join(server.needs)
        pytest.skip(f"no {server.name}: set BPALS_SERVERS_PYTHON to an interpreter that has {needs} (make servers)")
    with vlm_servers.running(server, python, folder) as url:
        yield url


def with_lines(url, use):
    """Run a coroutine function that is handed a way to open lines."""

    async def run():
        async with open_clients([Endpoint(url=url)]) as open_line:
            return await use(open_line)

    return asyncio.run(run())


def try_out(url, judge):
    """Put a judge through the self-test."""
    return with_lines(url, lambda open_line: selftest(judge, FILMS, judge.questions(NIH), open_line))


def ask_all(url, judge, film, count=6):
    """Ask the first questions about a film, in a row."""

    async def ask(open_line):
        line = open_line()
        return [reply for question in judge.questions(NIH)[:count] for reply in
                await judge.ask_line(film, [question], line)]  # fmt: skip

    return with_lines(url, ask)


def run(judge, small, home, url, said=None, **more):
    """Ask a judge about the small dataset, end to end."""
    order = bpals.Order(source=small.source, mapping=small.mapping, endpoints=(Endpoint(url=url),), workers=0,
                        name="served", **more)  # fmt: skip
    say = (lambda _: None) if said is None else said.append
    return bpals.run_judge(judge, images=small.images, workspace=home, order=order, say=say)


def stored(home):
    """Every reply of a run, from the ledger, which must add up."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.verify() == []
        return ledger.replies(ledger.judge_id("served"))


def read_strictly(file):
    """Read JSON as other programs do, which know no Infinity."""

    def refuse(constant):
        raise AssertionError(f"{file.name} has {constant}, which is no JSON")

    return json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)


def spellings(folder):
    """The tokens of the answer words, by their ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = [variant for word in tiny_models.WORDS for variant in (word, f" {word}")]
    return tuple(tokenizer.encode(word, add_special_tokens=False)[0] for word in words)


def test_transformers_serve_ignores_logprobs_and_is_read_by_samples(hf_url, models):
    """`auto` falls back and says so; the image arrives as 16 tokens; `n` is ignored too, so each sample is a call."""
    judge = OpenAIJudge(model=str(models / "sampling"), samples=4)
    observed = try_out(hf_url, judge)
    assert observed.judge.method == "sampled"
    assert mentions(observed.warnings[0], "log-probs", "4 times")
    assert observed.image_tokens == 16
    assert observed.image_by == "bytes"
    assert observed.outcomes["answered"] > 0
    assert observed.calls == 1 + 4 * sum(observed.outcomes.values())
    assert not any("are the same" in warning for warning in observed.warnings)
    json.dumps(observed.as_dict(), allow_nan=False)


@pytest.mark.parametrize("wanted", [{"method": "top_k"}, {"method": "token_ids", "token_ids": (1, 2)}])
def test_transformers_serve_stops_a_run_that_was_promised_logprobs(hf_url, models, wanted):
    """Named tokens are refused there, the plain list is ignored: neither can be read."""
    judge = OpenAIJudge(model=str(models / "sampling"), **wanted)
    with pytest.raises(JudgeError, match=f"log-probs .*{wanted['method']}"):
        try_out(hf_url, judge)


def test_transformers_serve_ignores_the_temperature_and_that_is_seen(hf_url, models):
    """A model that is not sampled from by its own settings gives the same answer every time, whatever is asked for."""
    observed = try_out(hf_url, OpenAIJudge(model=str(models / "greedy"), samples=4))
    assert any("all 4 samples of each of" in warning and "do_sample" in warning for warning in observed.warnings)


def test_transformers_serve_answers_without_an_image_that_has_only_a_uuid(hf_url, models):
    """It takes the request and drops the image: asked for, that stops the run."""
    judge = OpenAIJudge(model=str(models / "sampling"), samples=2, image_by="uuid")
    with pytest.raises(JudgeError, match="arrive by its uuid"):
        try_out(hf_url, judge)


def test_a_run_through_transformers_serve(hf_url, models, small, tmp_path):
    """Every question has one of six outcomes, read by samples; what is odd is said and on the card; once is enough."""
    said = []
    judge = OpenAIJudge(model=str(models / "sampling"), samples=2)
    done = run(judge, small, tmp_path, hf_url, said)
    assert (done.state, done.films, sum(done.counts.values())) == ("done", COUNT, 3 * COUNT)
    assert done.counts["answered"] > 0
    assert any("sends no log-probs" in sentence for sentence in said)
    replies = stored(tmp_path)
    assert replies.height == 10 * COUNT
    assert set(replies["method"]) == {"sampled"}
    assert (replies["logit"].is_not_null() == (replies["outcome"] == "answered")).all()
    card = Workspace(tmp_path).judge("served").card
    assert card["settings"]["method"] == "sampled"
    assert any("sends no log-probs" in warning for warning in card["observed"]["warnings"])
    read_strictly(done.sealed)
    again = run(judge, small, tmp_path, hf_url)
    assert again.tally is None or again.tally.films_done == 0


def test_vllm_passes_the_self_test_with_nothing_ignored(vllm_url, models):
    """Log-probs, an image of 16 tokens, tokens found in the cache, images by uuid, no reply swapped."""
    observed = try_out(vllm_url, OpenAIJudge(model=str(models / "greedy")))
    assert (observed.method, observed.image_by, observed.model) == ("top_k", "uuid", "greedy")
    assert observed.image_tokens == 16
    assert observed.cached_tokens >= 16
    assert observed.repeat < 0.01
    assert observed.between_images > 0.1
    assert observed.checked_order >= 4
    assert not [warning for warning in observed.warnings if "less than 0.9" not in warning]


def test_vllm_gives_the_same_by_named_tokens_and_by_its_list(vllm_url, models):
    """With all spellings named, log-odds are exact: the list of twenty gives the same to .01 and the same outcomes."""
    listed = OpenAIJudge(model=str(models / "greedy"), method="top_k")
    named = dataclasses.replace(listed, method="token_ids", token_ids=spellings(models / "greedy"))
    assert try_out(vllm_url, dataclasses.replace(named, method="auto")).judge.method == "token_ids"
    pairs = list(zip(ask_all(vllm_url, listed, FILMS[0]), ask_all(vllm_url, named, FILMS[0]), strict=True))
    assert all(one.outcome == other.outcome for one, other in pairs)
    assert any(one.outcome == "answered" for one, _ in pairs)
    assert all(abs(one.mass - other.mass) < 0.01 for one, other in pairs)
    assert {len(other.top) for _, other in pairs} <= {12, 13}


def test_vllm_says_what_the_same_model_says_in_this_process(vllm_url, models):
    """The pixels, the prompt and the log-probs are those of `hf:` on the same folder, but for what is too sure to tell:
    of a server, log-probs below -30 are read as -30.
    """
    served = OpenAIJudge(model=str(models / "greedy"), method="token_ids", token_ids=spellings(models / "greedy"))
    local = open_hf(str(models / "greedy"))
    compared = 0
    for film in FILMS:
        there = ask_all(vllm_url, served, film)
        here = local.ask(film, served.questions(NIH)[:6])
        assert [reply.outcome for reply in there] == [reply.outcome for reply in here]
        both = [(a.logit, b.logit) for a, b in zip(there, here, strict=True) if a.logit and abs(a.logit) < 25]
        compared += len(both)
        assert all(abs(one - other) < 0.02 for one, other in both)
    assert compared >= 6


def test_vllm_refuses_a_uuid_it_does_not_know_and_gets_the_bytes(vllm_url, models):
    """A film the server has dropped costs one more request, and the answer is the same."""
    film = tiny_film(seed=77, side_px=224)
    judge = OpenAIJudge(model=str(models / "greedy"), method="top_k", image_by="uuid")
    question = judge.questions(NIH)[:1]

    async def ask(open_line):
        line = open_line()
        line.image_sent = True
        missed = await judge.ask_line(film, question, line)
        assert line.image_sent
        kept = await judge.ask_line(film, question, line)
        plain = await dataclasses.replace(judge, image_by="bytes").ask_line(film, question, open_line())
        return missed[0], kept[0], plain[0]

    missed, kept, plain = with_lines(vllm_url, ask)
    assert missed.usage.prompt == kept.usage.prompt == plain.usage.prompt
    assert dict(missed.top) == pytest.approx(dict(plain.top), abs=0.01)
    assert dict(kept.top) == pytest.approx(dict(plain.top), abs=0.01)


def test_vllm_gives_several_samples_in_one_reply(vllm_url, models):
    """Asked for samples though it has log-probs, it needs one call a question, and its samples differ."""
    observed = try_out(vllm_url, OpenAIJudge(model=str(models / "greedy"), method="sampled", samples=4))
    assert observed.calls == sum(observed.outcomes.values())
    assert not any("are the same" in warning for warning in observed.warnings)
    json.dumps(observed.as_dict(), allow_nan=False)


def test_a_run_through_vllm_and_its_drift(vllm_url, models, small, tmp_path):
    """End to end by log-probs and uuid; asked again, the answers have not moved."""
    judge = OpenAIJudge(model=str(models / "greedy"))
    done = run(judge, small, tmp_path, vllm_url)
    assert (done.state, done.films, sum(done.counts.values())) == ("done", COUNT, 3 * COUNT)
    assert done.counts["answered"] > 0
    assert done.tally.tokens.cached > 0
    replies = stored(tmp_path)
    assert replies.height == 10 * COUNT
    assert set(replies["method"]) == {"top_k"}
    assert replies.filter(pl.col("outcome") == "answered")["mass"].is_between(0, 1).all()
    card = read_strictly(done.sealed)
    assert json.dumps(card).count('"uuid"') == 1
    drift = run(judge, small, tmp_path, vllm_url, verify=20).drift
    assert drift.questions >= 20
    assert drift.other_outcome == 0
    assert drift.largest is None or drift.largest < 0.06
