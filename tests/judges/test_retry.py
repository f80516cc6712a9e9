"""When a request is sent again, when a server is left alone, and how many requests are open at once.

The test holds the clock. The limit runs against servers that exist only as a formula: a day takes milliseconds.
"""

import heapq
import random
from dataclasses import dataclass

import pytest

from bpals.judges.runner.retry import COOL_DOWN_S, CircuitBreaker, ConcurrencyLimit, RunPolicy, is_server_state

PACE = RunPolicy(faults_to_open=3, first_wait_s=0.5, longest_wait_s=30.0)


def circuit():
    """A way to a server that has never failed."""
    return CircuitBreaker(PACE, random.Random(1))  # noqa: S311


def test_the_wait_is_drawn_up_to_a_bound_that_doubles():
    """Full jitter: anything from 0 to .5, 1, 2, 4 ... and never more than 30 seconds."""
    draw = random.Random(2)  # noqa: S311
    for attempt, bound in ((1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (7, 30.0), (40, 30.0)):
        waits = [RunPolicy().retry_wait_s(attempt, draw) for _ in range(500)]
        assert 0 <= min(waits) < 0.1 * bound
        assert 0.9 * bound < max(waits) <= bound


@pytest.mark.parametrize(
    ("kind", "status", "free"),
    [("connect", None, True), ("busy", 429, True), ("server", 503, True), ("server", 529, True),
     ("server", 500, False), ("broken", None, False), ("deadline", None, False), ("garbled", 200, False)],
)  # fmt: skip
def test_a_fault_of_the_server_alone_uses_up_no_try(kind, status, free):
    """A question that waits for a restart has done nothing; one that breaks the connection may be the reason."""
    assert is_server_state(kind, status) is free


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


# ---- the concurrency limit


@dataclass
class Formula:
    """A server: its latency alone, how many it works on at once, and how many it lets in before it says 429."""

    latency_s: float = 0.1
    workers: int = 10**9
    lets_in: int = 10**9
    noise: float = 0.0
    retry_after_s: float | None = None


def live(server, limit, seconds, *, start_s=0.0, seed=1, wanted=10**9):
    """Keep a server as busy as the limit allows and give (clock, limit, replies) at each reply, and the 429s."""
    draw = random.Random(seed)  # noqa: S311
    clock, line, replies, refusals, track = start_s, [], 0, [], []
    free = [clock] * min(server.workers, 4096)
    while clock < start_s + seconds:
        while len(line) < min(limit.now, wanted):
            limit.sent(clock, len(line) + 1)
            if len(line) >= server.lets_in:
                limit.throttled(clock, server.retry_after_s)
                refusals.append(clock)
                if len(line) >= limit.now:
                    break
                heapq.heappush(line, (clock + 0.5, clock, False))
                continue
            begins = max(clock, heapq.heappop(free))
            ends = begins + server.latency_s * (1 + server.noise * draw.uniform(-1, 1))
            heapq.heappush(free, ends)
            heapq.heappush(line, (ends, clock, True))
        clock, sent, good = heapq.heappop(line)
        if good:
            replies += 1
            limit.answered(clock, clock - sent)
            track.append((clock, limit.now, replies))
    return track, refusals


def settled(track):
    """The limits of the last third of a life."""
    return [now for _, now, _ in track[-len(track) // 3 :]]


def test_a_server_that_keeps_up_is_given_all_within_four_rounds():
    """64 in flight at 100 ms are reached in less than half a second: the bench must not wait for the limit."""
    track, _ = live(Formula(), ConcurrencyLimit(64), 5)
    assert next(clock for clock, now, _ in track if now == 64) < 0.5
    assert set(settled(track)) == {64}
    assert track[-1][2] > 0.93 * 640 * 5


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_server_that_keeps_up_is_given_all(seed):
    """Chance does not look like a full server."""
    track, _ = live(Formula(noise=0.9), ConcurrencyLimit(64), 10, seed=seed)
    assert min(settled(track)) >= 60


def test_a_ceiling_below_the_start_is_the_start():
    """A user who says 4 gets 4."""
    track, _ = live(Formula(), ConcurrencyLimit(4), 2)
    assert {now for _, now, _ in track} == {4}
    assert ConcurrencyLimit(1).now == 1


@pytest.mark.parametrize("workers", [24, 40, 100])
def test_it_holds_where_more_in_flight_brings_no_more_replies(workers):
    """A server that works on 24 at once is not sent 512; it is kept busy all the same."""
    track, _ = live(Formula(workers=workers), ConcurrencyLimit(512), 30)
    assert max(settled(track)) < 2.2 * workers
    late = [clock_replies for clock_replies in track if clock_replies[0] > 10]
    rate = (late[-1][2] - late[0][2]) / (late[-1][0] - late[0][0])
    assert rate > 0.9 * workers / 0.1


def test_a_server_that_grows_is_noticed():
    """What held on a small server goes on when the server becomes larger."""
    limit = ConcurrencyLimit(256)
    small, _ = live(Formula(workers=20), limit, 20)
    assert max(settled(small)) < 60
    large, _ = live(Formula(workers=1000), limit, 60, start_s=20)
    assert large[-1][1] > 200


def test_a_server_that_becomes_three_times_slower_is_cut():
    """Latency beyond three times its minimum means that the server has too much to do."""
    limit = ConcurrencyLimit(64)
    live(Formula(), limit, 5)
    slower, _ = live(Formula(latency_s=0.4), limit, 3, start_s=5)
    assert min(now for _, now, _ in slower) <= 51


def test_a_server_that_is_slower_for_good_is_believed():
    """It is not cut down to one request."""
    limit = ConcurrencyLimit(64)
    live(Formula(), limit, 5)
    slower, _ = live(Formula(latency_s=0.5), limit, 300, start_s=5)
    assert min(settled(slower)) > 24


def test_all_the_429s_of_an_episode_are_one_cut():
    """Sixty refusals in one second lower the limit once, by a fifth; then nothing moves for 15 s."""
    limit = ConcurrencyLimit(64, start=64)
    begun = [limit.throttled(100 + n / 60) for n in range(60)]
    assert begun == [True] + [False] * 59
    assert limit.now == 51
    for n in range(2000):
        limit.sent(101 + n / 1000, limit.now)
        limit.answered(101 + n / 1000, 0.1)
    assert limit.now == 51
    assert limit.throttled(100 + COOL_DOWN_S + 1)
    assert limit.now == 40


def test_the_cool_down_lasts_as_long_as_retry_after():
    """A server that says 60 s is not pressed after 15."""
    limit = ConcurrencyLimit(64, start=64)
    limit.throttled(0.0, 60.0)
    assert not limit.throttled(59.0)
    assert limit.throttled(61.0)


def test_a_server_with_a_quota_is_kept_near_it():
    """After the cuts the limit creeps up by a twentieth a round and is cut again: it stays about the quota."""
    track, refusals = live(Formula(lets_in=30), ConcurrencyLimit(256), 400)
    assert 20 <= sum(settled(track)) / len(settled(track)) <= 48
    assert refusals[-1] > 300


def test_an_idle_limit_does_not_grow():
    """Growth needs a round in which four fifths of the limit were used."""
    track, _ = live(Formula(), ConcurrencyLimit(512), 10, wanted=10)
    assert {now for _, now, _ in track} == {16}


def test_an_error_of_the_server_pauses_growth_and_cuts_nothing():
    """A 500 says nothing about how many may be in flight."""
    limit = ConcurrencyLimit(64)
    for n in range(200):
        limit.sent(n / 100, limit.now)
        limit.faulted()
        limit.answered(n / 100, 0.1)
    assert limit.now == 16
