"""Waiting for something to be so, and no longer; after a limit the test fails."""

import asyncio
import time


def wait_until(condition, timeout=60.0, *, every=0.005):
    """Look again and again until a condition holds, and give what it gave."""
    ends = time.monotonic() + timeout
    while not (seen := condition()):
        assert time.monotonic() < ends, f"it did not come to pass within {timeout} s: {condition}"
        time.sleep(every)
    return seen


async def until(condition, seconds=60.0, *, every=0.005):
    """Do the same in an event loop, which goes on meanwhile."""
    ends = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < ends, f"it did not come to pass within {seconds} s: {condition}"
        await asyncio.sleep(every)
    return seen
