"""Where responses go: group commits into the ledger, or a batch that travels from a worker to the run."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bpals.judges.runner.messages import Plan, Response, to_judgments
from bpals.judges.runner.progress import Progress, Tally
from bpals.store.ledger import AskedFilm, Ledger

Note = tuple[str, str]
"""The kind of an event and its detail."""


class Writer:
    """Commits whole images to the ledger, many at a time, in one thread; its queue is the back-pressure of a run."""

    def __init__(self, ledger: Ledger, plan: Plan, progress: Progress) -> None:
        """Begin a run in the ledger."""
        self._ledger = ledger
        self._plan = plan
        self._progress = progress
        self._queue: list[tuple[AskedFilm, asyncio.Future[None]]] = []
        self._notes: list[Note] = []
        self._rows = 0
        self._closing = False
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._run_id = ledger.begin(plan.judge_id, plan.as_dict(), dict(plan.environment))
        self._thread = ThreadPoolExecutor(1, "bpals-ledger")
        self.task = asyncio.create_task(self._write_all())
        """Ends early only if the thread cannot write."""

    async def put(self, response: Response) -> asyncio.Future[None]:
        """Wait for room in the queue and take a response; the future is done when it is durable."""
        request = response.request
        image = AskedFilm(
            image_id=request.image_id,
            sha256=request.sha256,
            control=request.control,
            replies=response.replies,
            judgments=() if request.control else to_judgments(self._plan.questions, response.replies),
            failures=response.failures,
        )
        while self._rows >= self._plan.pace.queue_rows and not self.task.done():
            self._room.clear()
            await self._room.wait()
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for this one: its error is raised by close().
        durable.add_done_callback(lambda future: future.cancelled() or future.exception())
        if self.task.done():
            durable.cancel()
            return durable
        self._queue.append((image, durable))
        self._rows += len(image.replies)
        self._some.set()
        return durable

    def note(self, kind: str, detail: str) -> None:
        """Queue an event; it is written with the next images."""
        self._notes.append((kind, detail))
        self._some.set()

    async def close(self) -> None:
        """Write what is queued and stop; raises what went wrong in the thread."""
        self._closing = True
        self._some.set()
        try:
            await self.task
        finally:
            self._thread.shutdown(wait=False)

    def finish(self, tally: Tally) -> None:
        """Record in the ledger how the run ended."""
        self._ledger.end(self._run_id, tally.state, tally.as_dict())

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._closing or self._queue or self._notes:
                await self._some.wait()
                await self._gather(loop.time() + self._plan.pace.commit_every_s)
                self._some.clear()
                # Taken before the commit: what arrives meanwhile belongs to the next one.
                queue, self._queue = self._queue, []
                notes, self._notes = self._notes, []
                await loop.run_in_executor(self._thread, self._commit, [image for image, _ in queue], notes)
                for image, durable in queue:
                    self._progress.written(image.replies, image.judgments)
                    self._rows -= len(image.replies)
                    if not durable.done():
                        durable.set_result(None)
                self._room.set()
        finally:
            # If the thread failed, nobody may wait for it any longer.
            self._room.set()
            for _, durable in self._queue:
                durable.cancel()

    def _commit(self, images: list[AskedFilm], notes: list[Note]) -> None:
        """Write whole images, in the writer's thread; they are durable when this returns."""
        if images:
            self._ledger.write(self._plan.judge_id, self._run_id, images)
        for kind, detail in notes:
            self._ledger.event(self._run_id, kind, detail)

    async def _gather(self, until_s: float) -> None:
        """Let images gather for a while, unless there are enough of them or the run ends."""
        # One commit per image would be an fsync per image: on a slow disk that is slower than the servers.
        loop = asyncio.get_running_loop()
        while self._rows < self._plan.pace.commit_rows and not self._closing and (left_s := until_s - loop.time()) > 0:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._some.wait()


@dataclass(slots=True)
class Batch:
    """The responses of a worker about a block of images, on their way to the run."""

    responses: list[Response] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """Events of the run: limits, a server that went away, images that have changed."""
    tally: Tally = field(default_factory=Tally)

    async def put(self, response: Response) -> asyncio.Future[None]:
        """Take a response; the run makes it durable later."""
        self.responses.append(response.without_pixels())
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def note(self, kind: str, detail: str) -> None:
        """Take an event."""
        self.notes.append((kind, detail))

    async def close(self) -> None:
        """Do nothing: there is nothing to write."""

    def finish(self, tally: Tally) -> None:
        """Keep the counts, which the run adds up."""
        self.tally = tally
