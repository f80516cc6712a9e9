"""A judge behind an OpenAI-compatible endpoint: what it sends, and what it makes of what comes back."""

import asyncio
import base64
import copy
import dataclasses
import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpals.errors import UnknownName, UsageError
from bpals.findings import NIH
from bpals.judges.cards import default_model
from bpals.judges.openai import FILMS_KEPT, OpenAIJudge, make, read_completion
from bpals.judges.prompts import joint_label
from bpals.testing import tiny_film
from bpals.types import BadReply, ChatJudge, Film, RequestRefused
from world.words import mentions

FILM = tiny_film(seed=1)
YES = [("Yes", -0.1), ("No", -2.5)]


def completion(text="Yes", *, top=YES, finish="length", **message):
    """A chat completion as servers send it."""
    entries = [{"token": token, "logprob": value} for token, value in top or ()]
    return {
        "model": "org/served",
        "choices": [
            {
                "message": {"role": "assistant", "content": text, **message},
                "logprobs": {"content": [{**entries[0], "top_logprobs": entries}]} if entries else None,
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 73, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 24}},
    }


class ScriptedLine:
    """A line whose far end is a function from request to reply."""

    def __init__(self, reply=lambda _: completion()):
        """Begin with nothing sent."""
        self.image_sent = False
        self.reply = reply
        self.sent = []

    async def post(self, body, read):
        """Remember the request and read the reply."""
        self.sent.append(body)
        return read(self.reply(json.loads(body)))

    @property
    def bodies(self):
        """The requests, parsed."""
        return [json.loads(body) for body in self.sent]


def ask(judge, line, *, film=FILM, questions=None):
    """Ask one film's questions; by default the first one, or all of them where they travel together."""
    asked = questions or judge.questions(NIH)[: judge.at_once]
    return asyncio.run(judge.ask_line(film, asked, line))


@pytest.fixture
def judge():
    """The judge with its defaults."""
    return OpenAIJudge(model="org/model")


def test_it_is_a_chat_judge(judge):
    """It keeps the protocol that the runner knows."""
    assert isinstance(judge, ChatJudge)
    assert judge.at_once == 1
    assert len(judge.questions(NIH)) == 32


def test_the_film_comes_first_and_the_question_last(judge):
    """The request is the image as a data URL, the constant line, the question; one token, with log-probs."""
    line = ScriptedLine()
    ask(judge, line)
    (body,) = line.bodies
    image, text = body["messages"][0]["content"]
    assert image == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(FILM.png).decode()},
    }
    assert text["text"].startswith("Frontal chest radiograph.\nDoes this radiograph show atelectasis (")
    asked = {"temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    assert asked.items() <= body.items()
    assert isinstance(body["seed"], int)
    assert len(body["messages"]) == 1


def test_all_but_the_question_is_the_same_for_every_question(judge):
    """A server that keeps what it has read needs to read the film once."""
    line = ScriptedLine()
    for question in judge.questions(NIH):
        ask(judge, line, questions=[question])
    texts = [body["messages"][0]["content"][1]["text"] for body in line.bodies]
    assert len(set(texts)) == 32
    shared = min(sent.index(b"Frontal chest radiograph.") for sent in line.sent)
    assert len({sent[:shared] for sent in line.sent}) == 1


def test_nothing_of_the_file_is_sent_but_its_pixels(judge):
    """No name and no hash of the file leaves the machine."""
    line = ScriptedLine()
    ask(judge, line, film=dataclasses.replace(FILM, sha256="f00d" * 16))
    assert b"f00d" not in line.sent[0]


def test_the_reply_carries_its_evidence(judge):
    """Logit, mass, tokens and what was used are kept with the outcome."""
    (reply,) = ask(judge, ScriptedLine())
    assert (reply.outcome, reply.method, reply.text) == ("answered", "top_k", "Yes")
    assert reply.logit == pytest.approx(2.4)
    assert reply.mass == pytest.approx(math.exp(-0.1) + math.exp(-2.5))
    assert reply.top == tuple(YES)
    assert (reply.usage.prompt, reply.usage.cached, reply.usage.output) == (73, 24, 1)


@pytest.mark.parametrize(
    ("reply", "outcome", "why"),
    [
        (completion(top=None), "unparsed", "promised log-probs are missing"),
        (completion("This", top=[("This", -0.2), ("Yes", -2)]), "unparsed", "'This'"),
        (completion("", top=None, finish="content_filter"), "refused", "content filter"),
        (completion(None, top=None, refusal="I can't do that."), "refused", "I can't do that."),
        (completion("Sorry", top=[("Sorry", -0.2), ("Yes", -2)]), "refused", "'Sorry'"),
        (completion(finish="stop"), "answered", ""),
        (completion(finish="length"), "answered", ""),
    ],
)
def test_one_token_is_answered_or_not(judge, reply, outcome, why):
    """H12: missing log-probs are no answer; to end at the length of one token is the normal end."""
    (got,) = ask(judge, ScriptedLine(lambda _: reply))
    assert got.outcome == outcome
    assert why in got.why
    assert (got.logit is not None) == (outcome == "answered")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": {"message": "engine is not ready"}},
        {"error": "nope"},
        {"choices": []},
        {"choices": "Yes"},
        {"choices": [None]},
        {"choices": [{"text": "Yes"}]},
        {"choices": [{"message": "Yes"}]},
    ],
)
def test_a_200_that_is_no_completion_is_a_bad_reply(judge, body):
    """H04: it is asked again like any passing fault, and is never an answer."""
    with pytest.raises(BadReply):
        ask(judge, ScriptedLine(lambda _: body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=300, deadline=1000)
@given(data=st.data())
def test_no_json_breaks_the_reading(data):
    """F24: a completion with any part of it replaced is read, or is a BadReply; nothing else comes out."""
    body = copy.deepcopy(completion())
    spots = [body, body["choices"][0], body["choices"][0]["message"], body["usage"]]
    content = body["choices"][0]["logprobs"]
    spots += [content, content["content"][0], content["content"][0]["top_logprobs"][0]]
    for _ in range(data.draw(st.integers(1, 3))):
        spot = data.draw(st.sampled_from(spots))
        spot[data.draw(st.sampled_from(sorted(spot)))] = data.draw(json_values)
    judge = OpenAIJudge(model="m")
    try:
        reply = judge._read_logprobs(body)
    except BadReply:
        return
    assert (reply.logit is not None and math.isfinite(reply.logit)) == (reply.outcome == "answered")


def test_a_film_is_encoded_once_for_all_its_questions(judge):
    """100 KB films at 32 questions each cost less than .5 ms of CPU a call, reading the reply included."""
    films = [Film(sha256=f"{n:064x}", png=bytes([n]) * 100_000, width_px=512, height_px=512) for n in range(8)]
    questions = judge.questions(NIH)
    reply = completion(top=[("Yes", -0.1), ("No", -2.5), *((f"token{n}", -5.0 - n) for n in range(18))])

    class Far:
        image_sent = False

        async def post(self, body, read):
            assert len(body) > 133_000
            return read(reply)

    async def run():
        for film in films:
            line = Far()
            for question in questions:
                await judge.ask_line(film, [question], line)

    started = time.process_time()
    asyncio.run(run())
    assert (time.process_time() - started) / (len(films) * len(questions)) < 0.0005


def test_what_is_kept_of_films_is_bounded(judge):
    """A run of a hundred thousand films holds a few dozen."""
    line = ScriptedLine()
    for seed in range(FILMS_KEPT + 20):
        ask(judge, line, film=tiny_film(seed=seed, side_px=8))
    assert len(judge._openings) == FILMS_KEPT


def test_the_same_film_prepared_otherwise_is_another_image(judge):
    """What is kept is known by its pixels as well as by its file."""
    line = ScriptedLine()
    for film in (FILM, dataclasses.replace(tiny_film(seed=2), sha256=FILM.sha256)):
        ask(judge, line, film=film)
    urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in line.bodies]
    assert urls[0] != urls[1]


def test_by_uuid_the_bytes_travel_once(judge):
    """The first request brings image and uuid, the others the uuid alone: 1/20 of the bytes and less."""
    kept = dataclasses.replace(judge, image_by="uuid")
    line = ScriptedLine()
    film = Film(sha256="0" * 64, png=b"x" * 100_000, width_px=512, height_px=512)
    for question in kept.questions(NIH):
        ask(kept, line, film=film, questions=[question])
    images = [body["messages"][0]["content"][0] for body in line.bodies]
    assert images[0]["image_url"]["url"].startswith("data:")
    assert all(image["image_url"] is None for image in images[1:])
    assert len({image["uuid"] for image in images}) == 1
    assert sum(map(len, line.sent)) < 32 * len(line.sent[0]) / 20


def test_an_image_that_the_server_dropped_is_sent_again(judge):
    """A miss is refused by the server; the judge sends the bytes once more and goes on."""
    kept = dataclasses.replace(judge, image_by="uuid")

    def forgetful(body):
        if body["messages"][0]["content"][0]["image_url"] is None:
            raise RequestRefused(400, "no such image")
        return completion()

    line = ScriptedLine(forgetful)
    line.image_sent = True
    (reply,) = ask(kept, line)
    assert reply.outcome == "answered"
    assert line.image_sent
    assert len(line.sent) == 2


def test_a_refusal_is_the_runners_business(judge):
    """The judge swallows no error about a film."""

    def refuse(_):
        raise RequestRefused(413, "too large")

    with pytest.raises(RequestRefused):
        ask(judge, ScriptedLine(refuse))


def test_without_a_film_the_question_goes_alone(judge):
    """The no-image control is the text alone; a server that takes none makes it unsupported."""
    line = ScriptedLine()
    ask(judge, line, film=None)
    assert [part["type"] for part in line.bodies[0]["messages"][0]["content"]] == ["text"]

    def refuse(_):
        raise RequestRefused(400, "an image is needed")

    (reply,) = ask(judge, ScriptedLine(refuse), film=None)
    assert reply.outcome == "unsupported"
    assert "an image is needed" in reply.why


def test_named_tokens_are_asked_for_by_id(judge):
    """Servers such as vLLM give the exact log-probs of the tokens that are named."""
    exact = dataclasses.replace(judge, method="token_ids", token_ids=(9454, 2753))
    line = ScriptedLine()
    (reply,) = ask(exact, line)
    assert line.bodies[0]["logprob_token_ids"] == [9454, 2753]
    assert reply.method == "token_ids"
    (half,) = ask(exact, ScriptedLine(lambda _: completion(top=YES[:1])))
    assert half.outcome == "unparsed"


def several(*texts, cut=()):
    """A completion of several choices."""
    parts = [completion(text, top=None, finish="length" if text in cut else "stop") for text in texts]
    return parts[0] | {"choices": [part["choices"][0] for part in parts]}


def test_samples_come_in_one_request_where_the_server_can(judge):
    """Eight samples at temperature 1, counted."""
    sampled = dataclasses.replace(judge, method="sampled")
    line = ScriptedLine(lambda body: several(*["Yes", "No"] * (body["n"] // 2)))
    (reply,) = ask(sampled, line)
    assert (len(line.sent), line.bodies[0]["n"], line.bodies[0]["temperature"]) == (1, 8, 1)
    assert "logprobs" not in line.bodies[0]
    assert (reply.outcome, reply.method, reply.logit) == ("answered", "sampled", 0.0)


def test_a_server_that_ignores_n_is_asked_again_with_other_seeds(judge):
    """Eight samples are eight samples, and not eight times the same."""
    sampled = dataclasses.replace(judge, method="sampled")
    line = ScriptedLine(lambda _: several("Yes"))
    (reply,) = ask(sampled, line)
    assert len(line.sent) == 8
    assert len({body["seed"] for body in line.bodies}) == 8
    assert reply.logit == pytest.approx(math.log(8.5 / 0.5))


def test_a_sample_that_was_cut_is_no_sample(judge):
    """H12: the length limit is a cut here, even if what is left reads like an answer."""
    sampled = dataclasses.replace(judge, method="sampled", samples=3)
    (reply,) = ask(sampled, ScriptedLine(lambda _: several("Yes", "Yes.", "Yes", cut=("Yes",))))
    assert reply.outcome == "unparsed"
    assert "cut" in reply.why
    (refused,) = ask(sampled, ScriptedLine(lambda _: completion("", top=None, finish="content_filter")))
    assert refused.outcome == "refused"


def joint_reply(judge, **changes):
    """What a model says that answers every question with .8."""
    said = {joint_label(question): 0.8 for question in judge.questions(NIH)} | changes
    return json.dumps({label: value for label, value in said.items() if value != "left out"})


def test_the_joint_layout_asks_everything_at_once(judge):
    """One request, one JSON object, a reply a question; the tokens are counted once."""
    joint = dataclasses.replace(judge, layout="joint")
    changes = {"Mass/present": None, "Hernia/absent": "left out", "Edema/present": 1.5}
    line = ScriptedLine(lambda _: completion(joint_reply(joint, **changes), top=None, finish="stop"))
    replies = ask(joint, line)
    questions = joint.questions(NIH)
    assert (len(line.sent), len(replies)) == (1, len(questions))
    found = {joint_label(question): reply.outcome for question, reply in zip(questions, replies, strict=True)}
    assert found["Mass/present"] == "abstained"
    assert found["Hernia/absent"] == found["Edema/present"] == "unparsed"
    assert list(found.values()).count("answered") == len(questions) - 3
    assert replies[0].logit == pytest.approx(math.log(4))
    assert sum(reply.usage.prompt for reply in replies) == 73
    assert "logprobs" not in line.bodies[0]


def test_a_joint_reply_that_was_cut_is_unparsed_as_a_whole(judge):
    """H12: `length` means cut here, even where the object happens to be whole."""
    joint = dataclasses.replace(judge, layout="joint")
    replies = ask(joint, ScriptedLine(lambda _: completion(joint_reply(joint), top=None, finish="length")))
    assert {reply.outcome for reply in replies} == {"unparsed"}
    assert "length limit" in replies[0].why


def test_a_joint_refusal_refuses_every_question(judge):
    """A content filter or a refusal is no `no`."""
    joint = dataclasses.replace(judge, layout="joint")
    for reply in (
        completion("", top=None, finish="content_filter"),
        completion("I'm sorry, I can't.", top=None, finish="stop"),
    ):
        assert {got.outcome for got in ask(joint, ScriptedLine(lambda _, reply=reply: reply))} == {"refused"}


def test_the_fingerprint_is_who_it_is_and_not_how_it_travels(judge):
    """Another pack, layout, method or parameter is another judge; a name or a way of sending images is not."""
    same = [{"name": "other"}, {"image_by": "uuid"}, {"observed": {"calls": 3}}, {"licence": "MIT"}]
    other = [
        {"layout": "joint"}, {"method": "sampled"}, {"parameters": {"top_p": 0.5}}, {"revision": "a" * 40},
        {"pack": dataclasses.replace(judge.pack, sha256="0" * 64)}, {"preparation": {"side_px": 336}},
    ]  # fmt: skip
    own = judge.card.fingerprint
    assert {dataclasses.replace(judge, **change).card.fingerprint for change in same} == {own}
    assert len({own, *(dataclasses.replace(judge, **change).card.fingerprint for change in other)}) == len(other) + 1


def test_the_card_says_what_may_be_done_with_the_answers():
    """The licence of a known model is on its card, and whether it forbids commercial use; what you say wins."""
    assert OpenAIJudge(model="Qwen/Qwen2.5-VL-7B-Instruct").card.commercial_use == "yes"
    research = OpenAIJudge(model="Qwen/Qwen2.5-VL-3B-Instruct").card
    assert (research.licence, research.commercial_use) == ("Qwen Research License", "no")
    unknown = OpenAIJudge(model="org/new").card
    assert (unknown.licence, unknown.commercial_use, unknown.trained_on_target) == ("unknown", "unknown", "unknown")
    said = OpenAIJudge(model="org/new", licence="CC-BY-NC-4.0", trained_on_target="yes", evidence="its paper").card
    assert (said.commercial_use, said.trained_on_target, said.evidence) == ("no", "yes", "its paper")
    assert said.judge == "new"


def test_the_default_model_is_open_and_pinned():
    """Without a model the judge is the default one: Apache-2.0, at a commit of 40 hex digits, with its command."""
    known = default_model()
    assert known.licence == "Apache-2.0"
    assert len(known.revision) == 40
    assert int(known.revision, 16)
    assert known.revision in known.serve
    assert known.model in known.serve
    assert known.why
    judge = make()
    assert (judge.model, judge.revision) == (known.model, known.revision)
    assert make("org/other", "abc").card.revision == "abc"
    assert make(known.model).revision == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layout": "jiont"}, "no layout is called 'jiont'. Did you mean 'joint'?"),
        ({"method": "topk"}, "no method is called 'topk'. Did you mean 'top_k'?"),
        ({"image_by": "url"}, "no image_by is called 'url'"),
        ({"samples": 0}, "samples is 0; 1 to 128"),
        ({"method": "token_ids"}, "needs the ids of the answer words"),
        ({"token_ids": tuple(range(21))}, "21 token ids are given"),
        ({"parameters": {"messages": []}}, "'messages' is what a request is made of"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(wrong, said):
    """Before anything is sent, in one line."""
    with pytest.raises((UsageError, UnknownName)) as caught:
        OpenAIJudge(model="m", **wrong)
    assert said in str(caught.value)


def test_parameters_of_your_own_go_with_every_request(judge):
    """They win over ours, and null leaves one of ours out: hosted models differ in what they take."""
    own = {"max_tokens": None, "max_completion_tokens": 1, "seed": 7, "top_k": 1}
    line = ScriptedLine()
    ask(dataclasses.replace(judge, parameters=own), line)
    assert "max_tokens" not in line.bodies[0]
    assert {"max_completion_tokens": 1, "seed": 7, "top_k": 1}.items() <= line.bodies[0].items()
    sampled = dataclasses.replace(judge, parameters=own, method="sampled", samples=1)
    line = ScriptedLine(lambda _: several("Yes"))
    ask(sampled, line)
    assert line.sent[0].count(b'"seed"') == 1


def body(message=None, *, token=("Yes", -0.1), top=(("Yes", -0.1), ("No", -2.5)), **choice):
    """A completion of one choice."""
    entries = [{"token": word, "logprob": value} for word, value in top]
    first = {"token": token[0], "logprob": token[1], "top_logprobs": entries}
    return {
        "choices": [{"message": message or {"content": "Yes"}, "logprobs": {"content": [first]}, **choice}],
        "usage": {"prompt_tokens": 73, "completion_tokens": 1},
    }


def test_the_first_token_is_read_with_its_alternatives():
    """Text, alternatives, usage; not cut, not refused."""
    (choice,) = read_completion(body(finish_reason="stop"))
    assert (choice.text, choice.cut, choice.refusal) == ("Yes", False, "")
    assert choice.top == (("Yes", -0.1), ("No", -2.5))
    assert (choice.usage.prompt, choice.usage.cached) == (73, 0)


def test_a_chosen_token_outside_the_list_counts():
    """Servers that list the tokens you named give the chosen one beside them."""
    assert read_completion(body(token=("The", -0.2)))[0].top[-1] == ("The", -0.2)


def test_a_logprob_of_null_is_left_out():
    """Some servers write null for minus infinity; that token cannot come."""
    assert read_completion(body(top=(("Yes", -0.1), ("No", None))))[0].top == (("Yes", -0.1),)


def test_usage_is_counted_once_however_many_choices():
    """Eight samples of one request have read the film once."""
    whole = body()
    whole["choices"] *= 8
    choices = read_completion(whole)
    assert len(choices) == 8
    assert sum(choice.usage.prompt for choice in choices) == 73


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "73"}, {"prompt_tokens": -1}, {"prompt_tokens": True}])
def test_a_count_that_is_none_is_zero(usage):
    """A server that counts nothing, or nonsense, costs no error."""
    assert read_completion(body() | {"usage": usage})[0].usage.prompt == 0


def test_a_refusal_is_told_from_a_filter():
    """Both are refused; the words say by whom."""
    refusing = read_completion(body({"content": None, "refusal": "I will not."}))[0]
    assert mentions(refusing.refusal, "refused", "'I will not.'")
    assert "content filter" in read_completion(body(finish_reason="content_filter"))[0].refusal


def test_an_error_in_a_200_is_quoted():
    """H04: what the server said stands in the fault."""
    with pytest.raises(BadReply, match="engine is not ready"):
        read_completion({"error": {"message": "engine is not ready"}})
