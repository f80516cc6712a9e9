"""The throttle: so many tries in so much time."""

from bpals.room.people import sessions
from bpals.room.people.sessions import Throttle


class Clock:
    """A clock that moves when it is told to."""

    now = 100.0

    def __call__(self):
        """Say what time it is."""
        return self.now


def test_tries_are_counted_in_a_sliding_window():
    """The third is refused, and told how long to wait; then one more is allowed."""
    clock = Clock()
    tries = Throttle(2, 60, clock=clock)
    assert tries.wait_s("anna") == 0
    clock.now += 10
    assert tries.wait_s("anna") == 0
    assert tries.wait_s("anna") == 50
    assert tries.wait_s("berta") == 0
    clock.now += 50
    assert tries.wait_s("anna") == 0
    assert tries.wait_s("anna") == 10


def test_a_refused_try_does_not_prolong_the_wait():
    """Else anybody could lock another out for good by going on."""
    clock = Clock()
    tries = Throttle(1, 60, clock=clock)
    tries.wait_s("anna")
    clock.now += 59
    assert tries.wait_s("anna") == 1
    clock.now += 1
    assert tries.wait_s("anna") == 0


def test_what_was_right_is_not_counted():
    """One try, or all."""
    tries = Throttle(2, 60, clock=Clock())
    for _ in range(5):
        assert tries.wait_s("anna") == 0
        tries.take_back("anna")
    tries.wait_s("anna")
    tries.wait_s("anna")
    tries.forget("anna")
    assert tries.wait_s("anna") == 0
    tries.take_back("nobody")


def test_memory_is_bounded():
    """A million names do not fill it; the oldest go."""
    tries = Throttle(1, 60, clock=Clock())
    for number in range(sessions.MOST_KEYS + 500):
        tries.wait_s(str(number))
    assert len(tries._tries) == sessions.MOST_KEYS
    assert tries.wait_s("0") == 0
    assert tries.wait_s(str(sessions.MOST_KEYS + 499)) > 0
