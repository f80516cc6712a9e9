"""Films for the tests of the ledger: a small judge, and what it said."""

import math

from bpals.findings import NIH
from bpals.store.ledger import AskedFilm
from bpals.types import JudgeCard, Judgment, Question, Reply, Usage

CARD = JudgeCard(judge="stub", kind="image", version="1", model="a/b", preparation={"side": 1024})
SUBJECTS = (("finding", "Effusion"), ("finding", "Pneumothorax"), ("film", "devices"))
QUESTIONS = tuple(
    Question(subject=subject, about=about, polarity=polarity, text=f"{polarity}: {subject}?")
    for about, subject in SUBJECTS
    for polarity in ("present", "absent")
)
NIH_QUESTIONS = tuple(Question(subject=finding) for finding in NIH.findings)


def enrolled(ledger):
    """The small judge and a run of it."""
    judge = ledger.enrol(CARD, QUESTIONS, "nih")
    return judge, ledger.begin(judge, {"films": 1}, {})


def asked(image_id, *, logit=1.0, sha256=None, p_present=None):
    """A film about which everything was answered."""
    top = (("Yes", math.log(0.9)), ("No", math.log(0.1)))
    replies = [
        Reply(
            outcome="answered",
            logit=logit if question.polarity == "present" else -logit,
            mass=0.98,
            method="top_k",
            text="Yes",
            top=top,
            usage=Usage(prompt=100, cached=50, output=1),
            latency_s=0.25,
        )
        for question in QUESTIONS
    ]
    p = 1 / (1 + math.exp(-logit)) if p_present is None else p_present
    judgments = [
        Judgment(
            subject=subject,
            about=about,
            outcome="answered",
            p_present=p,
            logit_present=logit,
            logit_absent=-logit,
            mass=0.98,
        )
        for about, subject in SUBJECTS
    ]
    return AskedFilm(image_id=image_id, sha256=sha256 or f"bytes of {image_id}", replies=replies, judgments=judgments)


def failed(image_id, *, why="timed out", sha256=None):
    """A film about which nothing came back."""
    replies = [Reply(outcome="failed", why=why, attempts=6) for _ in QUESTIONS]
    judgments = [
        Judgment(subject=subject, about=about, outcome="failed", p_present=None, why=why) for about, subject in SUBJECTS
    ]
    hashed = f"bytes of {image_id}" if sha256 is None else sha256
    return AskedFilm(image_id=image_id, sha256=hashed, replies=replies, judgments=judgments)


def snapshot(ledger, judge):
    """All that can be seen of a judge's answers."""
    tables = (ledger.judgments(judge, NIH), ledger.film_answers(judge), ledger.replies(judge))
    return [table.rows() for table in tables], ledger.counts(judge), ledger.done(judge)
