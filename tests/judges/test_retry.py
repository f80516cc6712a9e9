"""When a request is sent again, and when a server is left alone: by the clock that the test holds."""

import random

import pytest

from bpals.judges.pace import Pace
from bpals.judges.retry import Circuit, blameless

PACE = Pace(faults_to_open=3, first_wait_s=0.5, longest_wait_s=30.0)


def circuit():
    """A way to a server that has never failed."""
    return Circuit(PACE, random.Random(1))  # noqa: S311


def test_the_wait_is_drawn_up_to_a_bound_that_doubles():
    """Full jitter: anything from 0 to .5, 1, 2, 4 ... and never more than 30 seconds."""
    draw = random.Random(2)  # noqa: S311
    for attempt, bound in ((1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (7, 30.0), (40, 30.0)):
        waits = [Pace().retry_wait_s(attempt, draw) for _ in range(500)]
        assert 0 <= min(waits) < 0.1 * bound
        assert 0.9 * bound < max(waits) <= bound


@pytest.mark.parametrize(
    ("kind", "status", "free"),
    [("connect", None, True), ("busy", 429, True), ("server", 503, True), ("server", 529, True),
     ("server", 500, False), ("broken", None, False), ("deadline", None, False), ("garbled", 200, False)],
)  # fmt: skip
def test_a_fault_of_the_server_alone_uses_up_no_try(kind, status, free):
    """A question that waits for a restart has done nothing; one that breaks the connection may be the reason."""
    assert blameless(kind, status) is free


def test_a_circuit_opens_after_faults_in_a_row_and_lets_one_probe_through():
    """H02: closed, open, half-open, closed again."""
    way = circuit()
    assert [way.faulted(10.0), way.faulted(10.1)] == [False, False]
    assert way.most_now(10.2, 64) == 64
    assert way.faulted(10.2)
    assert way.is_open
    assert way.most_now(10.3, 64) == 0
    later = 10.2 + way.wait_s(10.2) + 0.001
    assert way.most_now(later, 64) == 1
    assert way.answered()
    assert way.most_now(later, 64) == 64


def test_a_reply_between_two_faults_keeps_it_closed():
    """Only faults in a row count."""
    way = circuit()
    for clock in range(100):
        way.faulted(clock)
        way.faulted(clock)
        way.answered()
    assert not way.is_open


def test_failed_probes_come_less_and_less_often():
    """A server that starts is asked after 1, 2, 4 ... and at most 30 seconds, and never twice at once."""
    way, clock, rests = circuit(), 0.0, []
    for _ in range(2):
        way.faulted(clock)
    for _ in range(12):
        way.faulted(clock)
        rests.append(way.wait_s(clock))
        clock += rests[-1] + 0.001
    assert 0.5 <= rests[0] <= 1.0
    assert all(15 <= rest <= 30 for rest in rests[-5:])


def test_what_fails_late_is_no_failed_probe():
    """Sixty requests that were under way when the server died do not lengthen the rest."""
    way = circuit()
    for _ in range(63):
        way.faulted(5.0)
    assert way.wait_s(5.0) <= 1.0


def test_being_told_to_go_slower_opens_nothing_but_counts_as_no_reply():
    """A 429 is the limit's business; a server that says nothing else for minutes is another matter."""
    way = circuit()
    for clock in range(100):
        assert not way.faulted(clock, throttled=True)
    assert not way.is_open
    assert way.ill_for_s(100.0) == 100.0
    way.answered()
    assert way.ill_for_s(101.0) == 0.0


def test_a_server_is_left_alone_as_long_as_it_asks():
    """Retry-After holds for everybody who waits."""
    way = circuit()
    way.pause(0.0, 7.0)
    way.pause(1.0, 2.0)
    assert way.most_now(6.9, 64) == 0
    assert way.most_now(7.1, 64) == 64
