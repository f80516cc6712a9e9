"""Waiting for an event loop's work, wherever one stands."""

import asyncio

import pytest

from bpals.judges.waiting import wait_for


async def work(answer=7):
    """Something that takes a turn of the loop."""
    await asyncio.sleep(0)
    if answer is None:
        raise ZeroDivisionError("of all things")
    return answer


def test_it_is_waited_for_outside_a_loop():
    """As on the command line."""
    assert wait_for(work()) == 7


def test_it_is_waited_for_inside_a_loop():
    """As in a notebook, whose loop is taken; what goes wrong is raised there, too."""

    async def notebook():
        with pytest.raises(ZeroDivisionError, match="of all things"):
            wait_for(work(None))
        return wait_for(work(8))

    assert asyncio.run(notebook()) == 8
