"""The self-test: three faults stop a run, the rest are warnings; the controls, and how far answers drift."""

import asyncio
import dataclasses
import io
import json

import numpy as np
import polars as pl
import pytest
from PIL import Image

from bpals.errors import JudgeError
from bpals.findings import NIH
from bpals.judges.openai import OpenAIJudge
from bpals.judges.prompts import joint_label
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.messages import Plan
from bpals.judges.runner.transport import Endpoint
from bpals.judges.selftest import EXPECTED, ask_again, control_images, measure, offsets, selftest
from bpals.judges.stub import StubJudge
from bpals.testing import tiny_film
from bpals.types import Reply
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


def pixels(film):
    """The pixels of a film."""
    return np.asarray(Image.open(io.BytesIO(film.png)))


def replies(*rows):
    """A table of replies to controls."""
    return pl.DataFrame(rows, schema=["control", "subject", "polarity", "logit"], orient="row")


def test_there_are_four_controls_in_the_size_of_the_films():
    """No film, black, a mean chest, noise; all grey and of the prepared size."""
    made = dict(control_images(64))
    assert list(made) == ["none", "black", "mean", "noise"]
    assert made["none"] is None
    for film in (made["black"], made["mean"], made["noise"]):
        assert (film.width_px, film.height_px) == (64, 64)
        assert pixels(film).shape == (64, 64)
        assert pixels(film).dtype == np.uint8
    assert len({film.sha256 for film in made.values() if film}) == 3


def test_the_controls_are_the_same_every_time_and_differ_by_size():
    """A control that was asked once is known by its hash and never asked again."""
    assert control_images(32) == control_images(32)
    assert {film.sha256 for _, film in control_images(32) if film}.isdisjoint(
        film.sha256 for _, film in control_images(33) if film
    )


def test_each_control_is_what_its_name_says():
    """Black is black, noise has no neighbourhood, the mean chest is smooth with dark lungs beside a bright middle."""
    made = {name: pixels(film).astype(float) for name, film in control_images(128) if film}
    assert made["black"].max() == 0
    assert np.abs(np.diff(made["noise"], axis=1)).mean() > 60
    chest = made["mean"]
    assert np.abs(np.diff(chest, axis=1)).max() < 12
    assert chest[58, 38] < chest[70, 66] - 60
    assert chest[58, 90] < chest[70, 66] - 60


def test_an_offset_is_the_mean_over_the_controls_that_answered():
    """A refusal or a judge that takes no text alone leaves its place empty, and is no zero."""
    said = replies(
        ("none", "Mass", "present", None), ("none", "Mass", "absent", 1.0),
        ("black", "Mass", "present", 2.0), ("black", "Mass", "absent", 3.0),
        ("noise", "Mass", "present", 4.0), ("noise", "Mass", "absent", None),
        ("none", "devices", "present", None), ("none", "devices", "absent", None),
    )  # fmt: skip
    assert offsets(said) == {"Mass": [3.0, 2.0], "devices": [None, None]}


def test_a_judge_asked_in_one_polarity_has_one_offset():
    """What was not asked has no offset."""
    assert offsets(replies(("black", "Mass", "present", 2.0))) == {"Mass": [2.0, None]}


def test_no_replies_give_no_offsets():
    """An empty table is no error."""
    nothing = replies().cast({"logit": pl.Float64})
    assert offsets(nothing) == {}


def answered(logit):
    """An answer."""
    return Reply(outcome="answered", logit=logit)


def test_the_distance_is_in_nats():
    """Mean, largest, and how many moved further than a steady server's."""
    before = [("answered", 1.0), ("answered", -2.0), ("answered", 0.5)]
    drift = measure(before, [answered(1.0), answered(-1.7), answered(0.5 + EXPECTED / 2)])
    assert drift.compared == 3
    assert drift.mean == pytest.approx((0.3 + EXPECTED / 2) / 3)
    assert drift.largest == pytest.approx(0.3)
    assert drift.beyond == 1
    assert "0.3000 at most" in drift.sentence


def test_another_outcome_is_counted_and_not_compared():
    """What was answered once and refused now has no distance."""
    drift = measure([("answered", 1.0), ("refused", None)], [Reply(outcome="refused"), answered(0.0)])
    assert (drift.questions, drift.other_outcome, drift.compared, drift.mean) == (2, 2, 0, None)
    assert "none answered both times" in drift.sentence


@pytest.mark.parametrize(
    ("asked", "words"), [(1, "drift: 1 question asked again; "), (2, "drift: 2 questions asked again; ")]
)
def test_one_question_is_no_plural(asked, words):
    """`--verify 1` asks one again; one with another outcome has it."""
    drift = measure([("answered", 1.0)] * asked, [answered(1.0)] * asked)
    assert drift.sentence.startswith(words)
    assert drift.sentence.endswith("; 0 have another outcome")
    one = measure([("answered", 1.0)] * 2, [answered(1.0), Reply(outcome="refused")])
    assert one.sentence.endswith("; 1 has another outcome")


def test_a_steady_judge_does_not_drift():
    """The same film asked again gives the same replies, for each film by its name."""
    judge = StubJudge(seed=3)
    films = {"a": tiny_film(seed=1), "b": tiny_film(seed=2)}
    plan = Plan(judge_id=1, questions=tuple(judge.questions(NIH)), todo=2)
    first, again = ask_again(judge, films, plan), ask_again(judge, films, plan)
    assert list(again) == ["a", "b"]
    before = [(reply.outcome, reply.logit) for reply in first["a"]]
    assert measure(before, again["a"]).largest == 0
    assert measure(before, again["b"]).beyond > 0
