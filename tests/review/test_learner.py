"""The learner: lessons in the background, in a process of their own; a failure is shown and costs nothing."""

import os
import signal
import threading
import time

import pytest

from bpals.errors import WorkspaceError
from bpals.room.background import LAST_IN_LINE, Learner, NoticeBoard, Numbers, Steps
from world.waiting import wait_until
from world.words import mentions

PATIENCE_S = 60


def double(number):
    """Learn: give the double, the process that did it, and how it stands for the processor."""
    return number * 2, os.getpid(), os.nice(0)


def fail_at_two(number):
    """Fail as an audit fails whose workspace somebody else is writing to."""
    if number == 2:
        raise WorkspaceError("another audit is writing to here. Wait for it")
    return number


def sleep(_number):
    """Take longer than anybody waits."""
    time.sleep(PATIENCE_S)


def die(_number):
    """Be killed, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


class Lessons:
    """Steps that note what they were given."""

    def __init__(self, learn):
        """Begin with nothing noted."""
        self.gathered, self.followed, self.learn = 0, [], learn

    def gather(self):
        """Count the lessons."""
        self.gathered += 1
        return self.gathered

    def follow(self, learned):
        """Note what was learned."""
        self.followed.append(learned)
        return {"version": f"v{len(self.followed)}"}

    def learner(self, every, behind=0):
        """Give a learner of these steps."""
        return Learner(Steps(gather=self.gather, learn=self.learn, follow=self.follow), every=every, behind=behind)


@pytest.fixture
def closing():
    """Close what was opened, in the end."""
    opened = []
    yield lambda thing: opened.append(thing) or thing
    for thing in opened:
        thing.close()


def test_a_lesson_is_given_after_so_many_readings_in_another_process(closing):
    """The fourth reading waits for the next lesson; the process stands behind everything else."""
    lessons = Lessons(double)
    learner = closing(lessons.learner(3))
    for _ in range(2):
        learner.tell()
    assert learner.state()["waiting"] == 2
    assert not learner.state()["running"]
    learner.tell()
    learner.tell()
    wait_until(lambda: learner.state()["lessons"] == 1)
    ((made, process, nice),) = lessons.followed
    assert made == 2
    assert process != os.getpid()
    assert nice == min(19, os.nice(0) + LAST_IN_LINE)
    state = learner.state()
    assert state["last"]["version"] == "v1"
    assert state["last"]["took_s"] > 0
    assert (state["waiting"], state["failure"], state["running"]) == (1, None, False)


def test_telling_it_never_waits(closing):
    """A reader's lock returns at once while a lesson is given, and what came meanwhile makes the next one due."""
    lessons = Lessons(double)
    learner = closing(lessons.learner(2))
    learner.tell()
    learner.tell()
    began = time.monotonic()
    for _ in range(500):
        learner.tell()
    assert time.monotonic() - began < 5
    wait_until(lambda: len(lessons.followed) == 2)
    assert learner.state()["waiting"] == 0


def test_a_failure_is_kept_shown_and_forgotten_after_the_next_lesson(closing):
    """The second lesson fails; its words are for the page, and the third goes on from the ledger."""
    lessons = Lessons(fail_at_two)
    learner = closing(lessons.learner(1))
    for number in (1, 2):
        learner.tell()
        wait_until(lambda number=number: learner.state()["lessons"] == number)
    state = learner.state()
    assert mentions(state["failure"], "WorkspaceError:", "another audit")
    assert state["last"]["version"] == "v1"
    learner.tell()
    wait_until(lambda: learner.state()["lessons"] == 3)
    assert learner.state()["failure"] is None
    assert lessons.followed == [1, 3]


def test_a_process_that_is_killed_is_a_failure_too(closing):
    """Nothing hangs, and the room goes on."""
    learner = closing(Lessons(die).learner(1))
    learner.tell()
    wait_until(lambda: learner.state()["lessons"] == 1)
    assert learner.state()["failure"].startswith("BrokenProcessPool")


def test_closing_breaks_a_lesson_off(closing):
    """A room that is closed does not wait for a lesson."""
    learner = closing(Lessons(sleep).learner(1))
    learner.tell()
    wait_until(lambda: learner.state()["running"])
    time.sleep(0.2)  # the lesson is in the middle of its work, wherever that is
    began = time.monotonic()
    learner.close()
    assert time.monotonic() - began < 20
    learner.tell()
    assert not learner.state()["running"]


def test_what_was_left_over_counts():
    """A room that opens with readings that no lesson has heard begins with them; learning can be left off."""
    learner = Lessons(double).learner(0, behind=7)
    learner.tell()
    assert learner.state() == {
        "every": 0, "waiting": 8, "lessons": 0, "running": False, "running_s": None, "last": None, "failure": None,
    }  # fmt: skip
    learner.close()


def test_the_notice_board_shows_the_last_numbers_at_once(closing):
    """It works new ones out only when something has changed, in another process."""
    state, told, seen = [0], threading.Event(), []

    def gather():
        return state[0]

    def then(numbers):
        seen.append(numbers["double"])
        told.set()

    board = closing(NoticeBoard(Numbers(state=lambda: state[0] // 10, gather=gather, work=in_a_table, then=then)))
    first = board.look()
    assert (first["ready"], first["fresh"], first["failure"]) == (False, False, None)
    assert told.wait(PATIENCE_S)
    wait_until(lambda: board.look()["fresh"])
    assert board.look()["double"] == 0
    state[0] = 9
    assert board.look()["fresh"]
    state[0] = 25
    stale = board.look()
    assert (stale["double"], stale["ready"], stale["fresh"]) == (0, True, False)
    wait_until(lambda: board.look()["fresh"])
    assert board.look()["double"] == 50
    assert seen == [0, 50]


def in_a_table(number):
    """Work a number out."""
    return {"double": double(number)[0]}
