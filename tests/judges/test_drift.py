"""Drift: whether a judge still says what it said."""

import pytest

from bpals.findings import NIH
from bpals.judges.runner.messages import Plan
from bpals.judges.selftest import EXPECTED, ask_again, measure
from bpals.judges.stub import StubJudge
from bpals.testing import tiny_film
from bpals.types import Reply


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
