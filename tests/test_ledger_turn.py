"""Turns: first asked, first served; and nobody who gave up keeps the others waiting."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import shape
from bpals.errors import ContractBroken
from bpals.store.ledger.locks import Turn
from world.waiting import wait_until


def test_turns_are_given_in_the_order_of_asking():
    """A busy thread that asks again at once stands behind those who waited."""
    turn, order, threads = Turn(), [], []

    def take(name):
        with turn:
            order.append(name)

    with turn:
        for name in range(6):
            thread = threading.Thread(target=take, args=(name,))
            thread.start()
            threads.append(thread)
            wait_until(lambda name=name: len(turn._waiting) == name + 1)
    with turn:
        order.append("again")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 5, "again"]


def test_one_holds_it_at_a_time():
    """Many threads, many turns, never two inside."""
    turn, inside, most = Turn(), [], []

    def work():
        for _ in range(200):
            with turn:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 1600
    assert max(most) == 1


def test_a_turn_inside_a_turn_is_refused():
    """It would wait for itself; after an error it is free again."""
    turn = Turn()
    with pytest.raises(ContractBroken, match="inside another"), turn, turn:
        pass
    with contextlib.suppress(ZeroDivisionError), turn:
        _ = 1 / 0
    with turn:
        pass


INTERRUPTED = textwrap.dedent(
    """
    import threading, time
    from bpals.store.ledger.locks import Turn

    turn, leave, order = Turn(), threading.Event(), []

    def hold():
        with turn:
            leave.wait()

    def take():
        with turn:
            order.append("taken")

    holder = threading.Thread(target=hold)
    holder.start()
    while turn._holder is None:
        time.sleep(0.001)
    print("waiting", flush=True)
    try:
        with turn:
            order.append("never")
    except KeyboardInterrupt:
        pass
    taker = threading.Thread(target=take)
    taker.start()
    leave.set()
    taker.join()
    holder.join()
    print(order, len(turn._waiting), turn._holder)
    """
)


def test_who_is_interrupted_while_waiting_leaves_the_line():
    """Ctrl-C in the line: the next one is served."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], env={"PYTHONPATH": str(shape.SRC)}, **pipes) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)  # it stands in the line a moment after it has said so
        process.send_signal(signal.SIGINT)
        try:
            told, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert told == "['taken'] 0 None\n", errors
