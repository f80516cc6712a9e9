"""Workers answer for one film at a time; which film ended one is never in doubt."""

import os
import signal

import pytest

from bpals.images.prepare import Preparation, Prepared
from bpals.images.stream import Crew

SMALL = Preparation(side_px=64)


@pytest.fixture
def crew():
    """Two workers, ended after the test."""
    workers = Crew(2, SMALL)
    yield workers
    workers.close()


def test_workers_do_not_listen_to_ctrl_c(crew, film):
    """R04: Ctrl-C goes to every process of a terminal; the run alone decides."""
    crew.give(0, film())
    assert [number for number, made in crew.wait() if isinstance(made, Prepared)] == [0]
    for pid in crew.pids:
        os.kill(pid, signal.SIGINT)
    crew.give(1, film())
    assert [number for number, made in crew.wait() if isinstance(made, Prepared)] == [1]


def test_a_worker_that_dies_names_its_film_and_is_replaced(crew, film):
    """R09: the other worker's film is not touched."""
    crew.give(7, film(1))
    assert dict(crew.wait()).keys() == {7}
    before = crew.pids
    os.kill(before[0], signal.SIGSTOP)
    crew.give(8, film(2))
    crew.give(9, film(3))
    os.kill(before[0], signal.SIGKILL)
    got = {}
    while crew.busy:
        got |= dict(crew.wait())
    assert got[8] is None
    assert isinstance(got[9], Prepared)
    assert crew.pids[0] != before[0]
    assert crew.pids[1] == before[1]
    assert (crew.size, crew.busy) == (2, 0)
