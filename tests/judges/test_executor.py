"""The executor of this process."""

import asyncio
import threading

import pytest

from bpals.judges.runner.executor import LocalExecutor, ReadAhead, call


class Doubling:
    """A worker that knows whether it is closed."""

    closed = 0

    def __call__(self, task):
        """Double."""
        return 2 * task

    def close(self):
        """Count."""
        Doubling.closed += 1


def test_the_engine_of_this_process_pulls_tasks_as_it_needs_them():
    """Nothing is built first, and the worker is closed when the results are, read to their end or not."""
    pulled = []
    results = LocalExecutor().map((pulled.append(number) or number for number in range(5)), Doubling)
    assert next(results) == 0
    assert pulled == [0]
    before = Doubling.closed
    results.close()
    assert Doubling.closed == before + 1
    assert list(LocalExecutor().map(iter([1, 2]), Doubling)) == [2, 4]


def test_one_call_is_one_task():
    """Its value comes back, and so does its error."""
    assert call(LocalExecutor(), lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call(LocalExecutor(), lambda: 1 // 0)


def test_items_are_read_ahead_of_their_use_in_order_and_up_to_a_bound():
    """Two ahead are read, no third; after the last one there is nothing, however often it is asked for."""
    read = []

    async def take():
        feed = ReadAhead((read.append(number) or number for number in range(1, 5)), 2)
        taken = [await feed.get() for _ in range(2)]
        assert len(read) <= 4
        taken += [await feed.get() for _ in range(4)]
        await feed.close(1)
        return taken

    assert asyncio.run(take()) == [1, 2, 3, 4, None, None]


def test_an_error_while_reading_is_raised_where_the_item_is_taken():
    """The items before it come first."""

    def items():
        yield 1
        raise OSError("gone")

    async def take():
        feed = ReadAhead(items(), 3)
        assert await feed.get() == 1
        with pytest.raises(OSError, match="gone"):
            await feed.get()
        await feed.close(1)

    asyncio.run(take())


def test_closing_waits_for_the_item_that_is_being_read():
    """A wait for it that was cancelled does not hide that the thread is busy with it."""
    begun, free, done = threading.Event(), threading.Event(), threading.Event()

    def items():
        begun.set()
        free.wait(5)
        done.set()
        yield 1

    async def take():
        feed = ReadAhead(items(), 2)
        taking = asyncio.create_task(feed.get())
        await asyncio.to_thread(begun.wait, 5)
        taking.cancel()
        asyncio.get_running_loop().call_later(0.05, free.set)
        await feed.close(5)
        assert done.is_set()

    asyncio.run(take())
