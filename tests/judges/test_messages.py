"""From replies to judgments: both polarities or none, and a failure is never evidence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpals.judges.runner.messages import GRAVEST, to_judgments
from bpals.types import OUTCOME, Question, Reply

PAIR = (Question(subject="Effusion"), Question(subject="Effusion", polarity="absent"))


def answered(logit, mass=None):
    """An answer."""
    return Reply(outcome="answered", logit=logit, mass=mass)


def test_two_answers_make_one_probability():
    """P = sigmoid((present - absent) / 2), and the smaller mass stands for the pair."""
    (judgment,) = to_judgments(PAIR, [answered(3.0, 0.8), answered(-1.0, 0.95)])
    assert judgment.outcome == "answered"
    assert judgment.p_present == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert (judgment.logit_present, judgment.logit_absent, judgment.mass) == (3.0, -1.0, 0.8)
    assert judgment.why is None


def test_a_judge_with_one_polarity_is_taken_at_its_word():
    """A classifier's logit is its evidence."""
    (judgment,) = to_judgments(PAIR[:1], [answered(2.0)])
    assert judgment.p_present == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert judgment.logit_absent is None


@pytest.mark.parametrize("bad", GRAVEST)
def test_half_a_pair_is_no_evidence(bad):
    """Whatever is missing, the pair has no probability and says why."""
    (judgment,) = to_judgments(PAIR, [answered(9.0), Reply(outcome=bad, why="because")])
    assert (judgment.outcome, judgment.p_present, judgment.why) == (bad, None, "because")
    assert judgment.logit_present == 9.0


def test_of_two_failures_the_graver_names_the_pair():
    """Failed comes before refused, refused before abstained."""
    (judgment,) = to_judgments(PAIR, [Reply(outcome="abstained", why="b"), Reply(outcome="refused", why="a")])
    assert (judgment.outcome, judgment.why) == ("refused", "a")


def test_subjects_keep_their_order_and_topics_stay_apart():
    """A topic of the film that is called like a finding is another subject."""
    questions = (Question(subject="Mass"), Question(subject="Mass", about="film"), Question(subject="Edema"))
    judgments = to_judgments(questions, [answered(1.0), answered(2.0), answered(3.0)])
    assert [(judgment.about, judgment.subject) for judgment in judgments] == [
        ("finding", "Mass"),
        ("film", "Mass"),
        ("finding", "Edema"),
    ]


OUTCOMES = OUTCOME.categories.to_list()
REPLIES = st.one_of(
    st.floats(-1e6, 1e6).map(answered),
    st.sampled_from(OUTCOMES[1:]).map(lambda word: Reply(outcome=word)),
)


@given(st.lists(REPLIES, min_size=2, max_size=2))
def test_a_probability_exists_exactly_if_both_answered(replies):
    """For all replies: six outcomes, a number between 0 and 1 if answered and none otherwise."""
    (judgment,) = to_judgments(PAIR, replies)
    assert (judgment.outcome == "answered") == all(reply.outcome == "answered" for reply in replies)
    assert (judgment.p_present is not None) == (judgment.outcome == "answered")
    assert judgment.p_present is None or 0 <= judgment.p_present <= 1
