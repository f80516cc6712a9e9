"""Who calls whom: the call stacks of real runs at named moments, as lists of module:function.

    python tests/world/walks.py          write the lists into docs/architecture.md
    python tests/world/walks.py TITLE    print one of them as JSON

A moment is caught from outside: an audit event of Python for a file that is opened, a profile event for a function
that returns, a wrapped method of the HTTP client, an event of the database library for a commit. Read then are the
stack of the thread that works, that of the main thread, and where one of them is cut off, what called it: the stack
on which a task was made, and the requests that wait for a thread.
"""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "scripts")]

import shape  # noqa: E402  found by the line above

OPENING, CLOSING = "<!-- made by tests/world/walks.py -->", "<!-- end of walks -->"
FEW_IMAGES = 1500


class Walk:
    """What was on the call stacks at the moments of one run."""

    def __init__(self):
        """Begin with no moment."""
        self.moments = {}

    def at(self, moment, *, again=True):
        """Keep the stacks of now under a name; the latest counts, or the first if `again` is false."""
        if again or moment not in self.moments:
            self.moments[moment] = list(dict.fromkeys(self.steps()))

    @staticmethod
    def steps():
        """Read the stacks, the outermost call first."""
        frames = sys._current_frames()
        main, here = (frames.get(each.ident) for each in (threading.main_thread(), threading.current_thread()))
        if main is not here:
            yield from named(outwards(main))
            for loop in {frame.f_locals["self"] for each in frames.values() for frame in outwards(each)
                         if frame.f_code.co_name == "run_forever"}:  # fmt: skip
                for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
                    yield from named(awaiting(task.get_coro()))
        with contextlib.suppress(RuntimeError):
            yield from MAKERS.get(asyncio.current_task(), ())
        yield from named(outwards(here))

    @property
    def path(self):
        """Every step once, in the order of the moments."""
        return list(dict.fromkeys(step for steps in self.moments.values() for step in steps))

    @property
    def modules(self):
        """The modules that the walk goes through."""
        return list(dict.fromkeys(step.partition(":")[0] for step in self.path))


def outwards(frame):
    """Give the callers of a frame and the frame itself, the outermost first."""
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return reversed(stack)


def awaiting(coroutine):
    """Go from a coroutine to what it waits for."""
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        yield coroutine.cr_frame
        coroutine = coroutine.cr_await


def named(frames):
    """Name the frames of our own code: module:function, without what stands inside the function."""
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] == "bpals":
            yield f"{module.removeprefix('bpals.')}:{frame.f_code.co_qualname.partition('.<locals>')[0]}"


MAKERS = weakref.WeakKeyDictionary()
"""Task -> the steps on the stack where it was made: its own stack begins at the event loop."""


@contextlib.contextmanager
def tasks_know_their_makers():
    """Remember where each task of an event loop is made."""
    make = asyncio.BaseEventLoop.create_task

    def remembered(loop, coroutine, **more):
        task = make(loop, coroutine, **more)
        with contextlib.suppress(RuntimeError):
            MAKERS[task] = [*MAKERS.get(asyncio.current_task(), ()), *named(outwards(sys._getframe(1)))]
        return task

    asyncio.BaseEventLoop.create_task = remembered
    try:
        yield
    finally:
        asyncio.BaseEventLoop.create_task = make


def audit_walk(folder):
    """`bpals audit` with no option, on a part of the embedded record."""
    import polars as pl

    from bpals.cli.main import obey
    from bpals.sources import nih

    walk, whole = Walk(), nih.read_embedded

    def some(name, folder=None):
        part = io.BytesIO()
        pl.read_parquet(io.BytesIO(whole(name, folder))).head(FEW_IMAGES).write_parquet(part)
        return part.getvalue()

    def returned(frame, event, value):
        module = frame.f_globals.get("__name__", "") if event == "return" else ""
        if module.startswith("bpals.signal") and isinstance(value, pl.DataFrame) and "trust" in value.columns:
            walk.at("the signal is computed", again=False)
        if module.startswith("bpals.report") and isinstance(value, str) and "<html" in value[:1000].lower():
            walk.at("the report is made", again=False)

    def opened(event, arguments):
        if event == "open" and str(arguments[0]).endswith(nih.ENTRIES):
            walk.at("the record is read", again=False)
        if event == "open" and Path(str(arguments[0])).match(".staging-*/report.html"):
            walk.at("the report is written", again=False)

    sys.addaudithook(opened)
    nih.read_embedded = some
    sys.setprofile(returned)
    assert obey(["audit", "--workspace", str(folder / "audit")]) == 0
    sys.setprofile(None)
    return walk


def question_walk(folder):
    """One question to a VLM: `bpals judge run openai:` against a server that speaks HTTP."""
    import aiohttp

    from bpals.cli.main import obey
    from world import datasets
    from world.chat_server import FaultyServer

    walk, send = Walk(), aiohttp.ClientSession._request
    small = datasets.write(folder, 2)

    async def watched(session, method, address, **more):
        if str(address).endswith("/chat/completions"):
            walk.at("a request is sent")
        return await send(session, method, address, **more)

    aiohttp.ClientSession._request = watched
    try:
        with FaultyServer() as server, tasks_know_their_makers():
            words = ["judge", "run", "openai:stub-vlm", "--base-url", server.url, *small.words]
            assert obey([*words, "--workspace", str(folder / "judged")]) == 0
    finally:
        aiohttp.ClientSession._request = send
    return walk


def verdict_walk(folder):
    """One verdict: a reader locks a reading of the room, through the web application."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    from world import rooms

    walk, written = Walk(), set()

    def executed(connection, _cursor, statement, *_more):
        if statement.lstrip().upper().startswith("INSERT INTO REVIEW"):
            written.add(id(connection))

    def committed(connection):
        if id(connection) in written:
            walk.at("the verdict is committed")

    with rooms.open_room(folder / "audit" / "ledger.sqlite") as opened:
        reader = opened.browser("ann")
        reading = reader.next()["reading"]
        event.listen(Engine, "before_cursor_execute", executed)
        event.listen(Engine, "commit", committed)
        try:
            done = reader.lock(reading)
            assert done.status_code == 200, done.text
        finally:
            event.remove(Engine, "before_cursor_execute", executed)
            event.remove(Engine, "commit", committed)
    return walk


WALKS = {
    "`bpals audit`": (audit_walk, 12),
    "One question to a VLM": (question_walk, 12),
    "One verdict": (verdict_walk, 10),
}
"""Title -> how to derive it, and the most modules it may go through."""


def derive(title):
    """Run one of them in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "audit").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            return WALKS[title][0](Path(folder))


def derived(title):
    """Derive a walk in a process of its own: what watches a process cannot be taken out of it again."""
    command = [sys.executable, __file__, title]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    walk = Walk()
    walk.moments = json.loads(done.stdout)
    return walk


def written(title, walk):
    """Write a walk as it stands in docs/architecture.md."""
    lines = [f"**{title}**: {len(walk.modules)} modules", ""]
    before = []
    for moment, steps in walk.moments.items():
        lines += [f"- {moment}", *(f"  - `{step}`" for step in steps if step not in before)]
        before += steps
    return "\n".join(lines)


def write():
    """Write all walks into the page."""
    page = shape.PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(OPENING)
    tail = rest.partition(CLOSING)[2]
    text = "\n\n".join(written(title, derived(title)) for title in WALKS)
    shape.PAGE.write_text(f"{head}{OPENING}\n{text}\n\n{CLOSING}{tail}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(derive(sys.argv[1]).moments))
        sys.stdout.flush()
        os._exit(0)  # threads of a server may still be there
    write()
