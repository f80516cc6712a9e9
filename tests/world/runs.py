"""What the tests of the runner share: small films, plain judges, and a run from the first film to its tally."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass, field

from bpals.judges.runner.messages import Plan
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import run
from bpals.judges.runner.transport import Endpoint
from bpals.store.ledger import Ledger
from bpals.types import BadReply, Film, JudgeCard, Question, Reply, Usage

FINDINGS = ("Atelectasis", "Effusion", "Mass")
QUESTIONS = tuple(
    Question(subject=finding, polarity=polarity, text=f"{finding} {polarity}?")
    for finding in FINDINGS
    for polarity in ("present", "absent")
)
QUICK = RunPolicy(first_wait_s=0.002, longest_wait_s=0.02, drain_s=5, watch_every_s=0.02, commit_every_s=0.005)
"""A pace for tests: the same rules with short waits."""


def image(number):
    """The bytes of a film: no picture, but nobody decodes it on the way."""
    return f"film {number}".encode()


def film(number):
    """A tiny film."""
    return Film(sha256=hashlib.sha256(image(number)).hexdigest(), png=image(number), width_px=1, height_px=1)


def films(count, start=0):
    """Many tiny films, each with its id."""
    return ((f"{number:05}", film(number)) for number in range(start, start + count))


@dataclass(frozen=True)
class Chat:
    """A judge behind an endpoint, as plain as can be: it reads the log-probs of `Yes` and `No`."""

    at_once: int = 1
    by_uuid: bool = False
    settings: dict = field(default_factory=dict)
    name: str = "chat"

    @property
    def card(self):
        """Say who this is."""
        return JudgeCard(judge=self.name, kind="image", version="1", model="org/stub-vlm", settings=self.settings)

    def questions(self, _vocabulary):
        """List what is asked."""
        return QUESTIONS

    async def ask_line(self, film, questions, line):
        """Ask one question after another."""
        return [await self._ask(film, question, line) for question in questions]

    async def _ask(self, film, question, line):
        body = request(film, question, by_uuid=self.by_uuid and line.image_sent, uuid=self.by_uuid)
        said = await line.post(body, read)
        line.image_sent = True
        return said


def request(film, question, *, by_uuid=False, uuid=False):
    """Write a request as an OpenAI-compatible server takes it."""
    url = {"url": "data:image/png;base64," + base64.b64encode(film.png).decode()} if film else None
    part = {"type": "image_url", "image_url": None if by_uuid else url} | ({"uuid": film.sha256} if uuid else {})
    content = [*([part] if film else []), {"type": "text", "text": question.text}]
    whole = {"model": "stub-vlm", "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    return json.dumps(whole | {"messages": [{"role": "user", "content": content}]}).encode()


def read(body):
    """Read the log-probs of a completion."""
    try:
        top = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadReply(f"no log-probs: {error!r}") from None
    p = {"yes": 0.0, "no": 0.0}
    for entry in top:
        word = entry["token"].strip().lower()
        if word in p:
            p[word] += math.exp(entry["logprob"])
    usage = body["usage"]
    return Reply(
        outcome="answered",
        logit=math.log(p["yes"] / p["no"]),
        mass=p["yes"] + p["no"],
        method="top_k",
        text=body["choices"][0]["message"]["content"],
        usage=Usage(
            prompt=usage["prompt_tokens"],
            cached=usage["prompt_tokens_details"]["cached_tokens"],
            output=usage["completion_tokens"],
        ),
    )


def begin(ledger, judge):
    """Enrol a judge, as whoever starts a run does."""
    return ledger.enrol(judge.card, QUESTIONS, "made-up")


def plan_of(ledger, judge, *urls, todo=0, pace=QUICK, deadline_s=5.0, **more):
    """Plan a run at some endpoints."""
    endpoints = tuple(Endpoint(url=url, deadline_s=deadline_s) for url in urls)
    judge_id = begin(ledger, judge)
    return Plan(judge_id=judge_id, questions=QUESTIONS, todo=todo, endpoints=endpoints, pace=pace, **more)


def ask(path, judge, shown, *urls, **more):
    """Run a judge over films with a ledger at a path, and give the tally."""
    with Ledger.open(path) as ledger, ledger.lock("a test"):
        shown = list(shown) if not hasattr(shown, "__next__") else shown
        watch = more.pop("watch", lambda _: None)
        return run(judge, shown, ledger, plan_of(ledger, judge, *urls, **more), watch=watch)


def answers(path, name="chat"):
    """Read every reply back: (image id, subject, polarity) -> row."""
    with Ledger.open(path, readonly=True) as ledger:
        judge_id = ledger.judge_id(name)
        assert ledger.verify() == []
        rows = ledger.replies(judge_id).to_dicts()
    return {(row["image_id"], row["subject"], row["polarity"]): row for row in rows}
