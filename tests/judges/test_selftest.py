"""The self-test: three faults stop a run, each with its own words; everything else is a warning on the card."""

import asyncio
import dataclasses
import json

import pytest

from bpals.errors import JudgeError
from bpals.findings import NIH
from bpals.judges.openai import OpenAIJudge
from bpals.judges.prompts import joint_label
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.transport import Endpoint
from bpals.judges.selftest import selftest
from bpals.testing import tiny_film
from world import chat_server
from world.chat_server import FaultyServer, answer
from world.words import mentions

FILMS = [tiny_film(seed=seed) for seed in range(3)]
JUDGE = OpenAIJudge(model=chat_server.MODEL)


def run_selftest(server, judge=JUDGE, films=FILMS):
    """Try a judge on a server, by the lines of a real run."""

    async def run():
        async with open_clients([Endpoint(url=server.url, deadline_s=10)]) as open_line:
            return await selftest(judge, films, judge.questions(NIH), open_line)

    return asyncio.run(run())


@pytest.fixture
def server():
    """A server that answers properly until it is told otherwise."""
    with FaultyServer() as running:
        yield running


def changed(change):
    """Answer, spoilt by a function of the call and its completion."""

    async def fault(call):
        if call.unknown_image:
            await answer()(call)
            return
        completion = call.completion()
        change(call, completion)
        await call.send(json.dumps(completion).encode())

    return fault


def drops_the_image(call):
    """Answer as if no image had come."""
    call.image = ""
    return answer()(call)


def swaps():
    """Give two requests that are open together each other's answer; a request alone is answered properly."""
    held = []

    async def fault(call):
        if held:
            other, done = held.pop()
            await call.send(json.dumps(other.completion()).encode())
            await other.send(json.dumps(call.completion()).encode())
            done.set()
            return
        mine = (call, asyncio.Event())
        held.append(mine)
        try:
            await asyncio.wait_for(mine[1].wait(), 0.03)
        except TimeoutError:
            held.remove(mine)
            await answer()(call)

    return fault


def test_a_good_server_passes_and_is_described(server):
    """What was seen is on the card: method, image tokens, cached tokens, repeats, order, calls."""
    observed = run_selftest(server)
    assert observed.judge.method == observed.method == "top_k"
    assert observed.image_tokens == 260
    assert observed.repeat == 0
    assert observed.between_images > 1
    assert observed.checked_order >= 4
    assert observed.calls == server.seen.requests
    assert observed.outcomes["answered"] == sum(observed.outcomes.values())
    assert observed.low_mass == 0
    assert observed.warnings == ()
    card = observed.judge.card
    assert card.observed["image_tokens"] == 260
    assert card.observed["warnings"] == []
    json.dumps(card.as_dict())


def test_the_same_server_gives_the_same_judge_again(server):
    """What was observed does not change who the judge is, so a run can be resumed after another self-test."""
    first, second = run_selftest(server).judge, run_selftest(server).judge
    assert first.card.fingerprint == second.card.fingerprint
    assert first.card.observed


def test_an_image_that_does_not_arrive_stops_the_run(server):
    """A server that drops the image gives black, noise and three films the same log-probs."""
    server.otherwise = drops_the_image
    with pytest.raises(JudgeError, match=r"does not arrive: 6 ") as caught:
        run_selftest(server)
    assert "no longer with an image" in str(caught.value)


def test_an_empty_image_in_place_of_the_film_stops_the_run(server):
    """The prompt grows, but the pixels make no difference."""

    async def empties(call):
        call.image = "empty" if call.image else ""
        await answer()(call)

    server.otherwise = empties
    with pytest.raises(JudgeError, match="the image does not arrive"):
        run_selftest(server)


def test_a_noisy_server_that_drops_the_image_is_found_by_its_tokens(server):
    """Replies differ by noise alone, and the prompt is as long without the image."""
    turn = iter(range(10_000))

    async def noisy(call):
        call.image = ""
        noise = next(turn) % 7 / 1000

        def shift(completion):
            for entry in completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
                entry["logprob"] -= noise

        await answer(shift)(call)

    server.otherwise = noisy
    with pytest.raises(JudgeError, match="the image does not arrive"):
        run_selftest(server)


def test_a_server_that_refuses_images_stops_the_run(server):
    """A model without an image part answers 400; that is said as what it is."""

    async def refuses(call):
        await (call.send(b'{"error": {"message": "no images"}}', status=400) if call.image else answer()(call))

    server.otherwise = refuses
    with pytest.raises(JudgeError, match=r"\(400: .*no images.*\)"):
        run_selftest(server)


def test_missing_logprobs_stop_a_run_that_was_promised_them(server):
    """A judge that is to be read by log-probs cannot be read without."""
    server.otherwise = chat_server.no_logprobs()
    with pytest.raises(JudgeError, match=r"log-probs .*: top_k") as caught:
        run_selftest(server, dataclasses.replace(JUDGE, method="top_k"))
    assert "--method sampled" in str(caught.value)


def test_without_logprobs_auto_falls_back_to_samples_and_says_so(server):
    """Nothing was promised: each question is asked several times instead."""
    server.otherwise = chat_server.no_logprobs()
    observed = run_selftest(server)
    assert observed.judge.method == "sampled"
    assert mentions(observed.warnings[0], "log-probs", "8 times")
    assert observed.outcomes == {"answered": sum(observed.outcomes.values())}


def speaks(say):
    """Answer in words alone, as a function of the call; log-probs, a count of samples and the seed are ignored."""

    def change(call, completion):
        message = {"role": "assistant", "content": say(call)}
        completion["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]

    return changed(change)


def test_a_server_that_does_not_sample_is_seen_by_its_samples(server):
    """Eight times the same answer to every question looks like a sure model, and may be a temperature ignored."""
    server.otherwise = speaks(lambda call: "Yes" if chat_server.true_logit(call.image, "") > 0 else "No")
    alike = "all 8 samples of each of 18 questions are the same"
    assert any(alike in warning for warning in run_selftest(server).warnings)
    server.otherwise = chat_server.no_logprobs()
    assert not any("are the same" in warning for warning in run_selftest(server).warnings)


def test_films_of_which_some_are_answered_leave_no_infinity_on_the_card(server):
    """How far an answer is from none is no number of nats, and JSON has no infinity."""
    server.otherwise = speaks(lambda call: "Yes" if chat_server.true_logit(call.image, "") > 0 else "Perhaps so")
    observed = run_selftest(server)
    assert {"answered", "unparsed"} <= set(observed.outcomes)
    assert observed.between_images is None
    json.dumps(observed.judge.card.as_dict(), allow_nan=False)
    json.dumps(observed.as_dict(), allow_nan=False)


def test_a_server_that_answers_only_now_and_then_is_said_to_be_unsteady(server):
    """In one JSON a film, a reply that fails the second time is a warning in words, with no number."""
    judge = dataclasses.replace(JUDGE, layout="joint")
    labels = [joint_label(question) for question in judge.questions(NIH)]
    answers = json.dumps(dict.fromkeys(labels, 0.5))
    asked = set()

    def say(call):
        known = call.asked in asked
        asked.add(call.asked)
        return "I forgot" if known else answers

    server.otherwise = speaks(say)
    observed = run_selftest(server, judge)
    assert observed.repeat is None
    assert any(mentions(line, "same request", "repeated") for line in observed.warnings)
    json.dumps(observed.as_dict(), allow_nan=False)


def test_a_server_that_refuses_several_samples_is_asked_one_by_one(server):
    """Some servers refuse n instead of ignoring it."""

    async def one_only(call):
        if "n" in call.json:
            await call.send(b'{"error": {"message": "only one choice"}}', status=400)
        else:
            await chat_server.no_logprobs()(call)

    server.otherwise = one_only
    assert run_selftest(server).judge.several is False


def test_swapped_replies_stop_the_run(server):
    """H16: known and different answers, asked for all at once, come back to the wrong questions."""
    server.otherwise = swaps()
    with pytest.raises(JudgeError, match=r"^replies are swapped: of \d"):
        run_selftest(server)


def test_named_tokens_are_used_where_the_server_knows_them(server):
    """With token ids given, auto takes the exact log-probs; a server that refuses them is read from its list."""
    judge = dataclasses.replace(JUDGE, token_ids=(9454, 2753))
    assert run_selftest(server, judge).judge.method == "token_ids"

    async def refuses(call):
        unknown = "logprob_token_ids" in call.json
        await (call.send(b'{"error": {"message": "unknown"}}', status=400) if unknown else answer()(call))

    server.otherwise = refuses
    assert run_selftest(server, judge).judge.method == "top_k"
    with pytest.raises(JudgeError, match="sends none: token_ids"):
        run_selftest(server, dataclasses.replace(judge, method="token_ids"))


@pytest.mark.parametrize("wanted", ["auto", "uuid"])
def test_a_server_that_keeps_images_is_sent_them_once(wanted):
    """The uuid is used where the answer without bytes is the same."""
    with FaultyServer(keeps_images=True) as server:
        server.otherwise = answer(lambda completion: completion.update(prompt_logprobs=None))
        observed = run_selftest(server, dataclasses.replace(JUDGE, image_by=wanted))
    assert observed.judge.image_by == observed.image_by == "uuid"
    assert observed.warnings == ()


def test_a_server_that_keeps_no_image_gets_the_bytes(server):
    """A refusal of the uuid is no fault of the run: bytes it is, and a warning if you asked for the uuid."""
    server.otherwise = answer(lambda completion: completion.update(prompt_logprobs=None))
    assert run_selftest(server, dataclasses.replace(JUDGE, image_by="auto")).judge.image_by == "bytes"
    observed = run_selftest(server, dataclasses.replace(JUDGE, image_by="uuid"))
    assert observed.judge.image_by == "bytes"
    assert "keeps no image by its uuid" in observed.warnings[0]


def test_only_a_server_like_vllm_is_tried_with_a_uuid():
    """Others answer an image without bytes with an error that looks like a broken server."""
    with FaultyServer(keeps_images=True) as server:
        assert run_selftest(server).judge.image_by == "bytes"
        assert not server.kept


def test_a_server_that_takes_a_uuid_and_sees_nothing_is_not_believed(server):
    """Ignored silently, the uuid would make every answer one without a film."""

    async def ignores(call):
        call.unknown_image = False
        await answer(lambda completion: completion.update(prompt_logprobs=None))(call)

    server.otherwise = ignores
    assert run_selftest(server, dataclasses.replace(JUDGE, image_by="auto")).judge.image_by == "bytes"
    with pytest.raises(JudgeError, match="arrive by its uuid"):
        run_selftest(server, dataclasses.replace(JUDGE, image_by="uuid"))


def weak(_call, completion):
    """Put a third of the probability on yes and no."""
    for entry in completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        entry["logprob"] -= 1.1


def unsteady():
    """Move the log-probs of every second reply."""
    turn = iter(range(10_000))

    def change(_call, completion):
        for entry in completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            entry["logprob"] -= 0.13 * (next(turn) % 3)

    return change


def spelled(_call, completion):
    """Write the answer in two pieces."""
    for entry in completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        entry["token"] = {"Yes": "Y", "No": "N"}.get(entry["token"], entry["token"])


WARNINGS = {
    "mass": (weak, "less than 0.9 of their probability on yes and no"),
    "cache": (lambda _, said: said["usage"].pop("prompt_tokens_details"), "found 0 tokens already read"),
    "repeats": (unsteady(), "the same request gave log-probs that differ by"),
    "pieces": (spelled, "answer words are not single tokens here: a reply began with"),
    "model": (lambda _, said: said.update(model="/models/other.gguf"), "replies name other.gguf"),
    "no usage": (lambda _, said: said.pop("usage"), "found 0 tokens already read"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WARNINGS.values(), ids=WARNINGS)
def test_what_is_odd_is_written_on_the_card_and_stops_nothing(server, change, said):
    """H11 for the name: the run goes on, and whoever reads the card can see it."""
    server.otherwise = changed(change)
    observed = run_selftest(server)
    assert any(said in warning for warning in observed.warnings)
    assert observed.judge.card.observed["warnings"] == list(observed.warnings)


def test_without_a_count_of_tokens_the_image_is_known_by_the_replies(server):
    """A server that counts nothing passes if films make a difference, and stops if they make none."""
    server.otherwise = changed(lambda _, said: said.pop("usage"))
    assert run_selftest(server).image_tokens is None

    def blind(call, said):
        call.image = ""
        said.update(call.completion())
        said.pop("usage")

    server.otherwise = changed(blind)
    with pytest.raises(JudgeError, match="the image does not arrive"):
        run_selftest(server)


def test_the_joint_layout_is_tried_too(server):
    """One JSON a film: the image is told by its numbers, and the order of replies is checked."""
    judge = dataclasses.replace(JUDGE, layout="joint")
    labels = [joint_label(question) for question in judge.questions(NIH)]

    def speak(call, said):
        asked = [label for label in labels if f"\n{label}: " in call.question]
        p = {label: 1 / (1 + 2 ** chat_server.true_logit(call.image, label)) for label in asked}
        said["choices"][0].update(message={"role": "assistant", "content": json.dumps(p)}, finish_reason="stop")

    server.otherwise = changed(speak)
    observed = run_selftest(server, judge)
    assert observed.method == "joint"
    assert observed.checked_order >= 4
    assert set(observed.outcomes) == {"answered"}


def test_a_server_that_never_answers_the_question_only_warns(server):
    """All replies off format are six outcomes' business, not a reason to stop."""

    def chatty(_call, said):
        for entry in said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            entry["token"] = {"Yes": "This", "No": "That"}.get(entry["token"], entry["token"])

    server.otherwise = changed(chatty)
    observed = run_selftest(server)
    assert observed.outcomes["unparsed"]


def test_it_can_be_run_without_a_film(server):
    """The controls alone are three different images."""
    assert run_selftest(server, films=[]).image_tokens == 260


def test_a_dead_server_is_said_to_be_dead(server):
    """No self-test hides that nobody is there."""
    server.otherwise = chat_server.status(401)
    with pytest.raises(JudgeError, match="401"):
        run_selftest(server)
