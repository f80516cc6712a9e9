"""The runner: asks a judge about images and keeps every answer as soon as it is whole.

    images -> ReadAhead (a thread) -> asker (this event loop, or a thread) -> Writer (a thread) -> ledger

An image is open until its replies are durable: a crash costs at most the open images, and the next run asks about
them again. On workers, the part up to the asker runs there, and batches of responses come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from bpals.errors import BpalsError, JudgeError, Stopped
from bpals.judges.runner.asking import ChatAsker, ThreadAsker
from bpals.judges.runner.dispatch import ServedModel, ServerPool
from bpals.judges.runner.executor import ReadAhead
from bpals.judges.runner.messages import Plan, Request, Response, RunEnding
from bpals.judges.runner.progress import Progress, Snapshot, State, Tally
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.transport import Transport
from bpals.judges.runner.writer import Batch, Writer
from bpals.store.ledger import Ledger
from bpals.types import ChatJudge, Film, ImageJudge, Refusal, Reply

T = TypeVar("T")
Judge = ImageJudge | ChatJudge
Images = Iterable[tuple[str, Film | Refusal]]
"""Image ids, each with its image or with the reason why there is none."""
Watch = Callable[[Snapshot], None]

# Batches from workers that wait here to be written.
BATCHES_AHEAD = 4
# A judge whose code fails on so many first images, or on all if there are fewer, is itself broken, not the images.
FIRST_IMAGES = 3
# GC threshold above the live objects of the images in flight; finished ones are freed by reference counting.
ALLOCATIONS = 20_000


def run(judge: Judge, images: Images, ledger: Ledger, plan: Plan, *, watch: Watch | None = None) -> Tally:
    """Ask the judge about every image and commit its answers; the caller holds the ledger's lock.

    SIGINT or SIGTERM lets open images finish and ends the run as `interrupted`; a second one ends it at once. Raises
    Stopped if the run can go on later, and JudgeError if the user must act first; what is committed stays.
    """
    return wait_for(Runner(judge, plan, ledger, watch).ask(images))


def collect(judge: Judge, batches: Iterable[Batch], ledger: Ledger, plan: Plan, *, watch: Watch | None = None) -> Tally:
    """Commit the responses of workers, under the rules of `run`."""
    return wait_for(Runner(judge, plan, ledger, watch).collect(batches))


def ask_block(judge: Judge, images: Images, plan: Plan) -> Batch:
    """Ask about a block of images in a worker; nothing is written there, and the run decides when to stop."""
    runner = Runner(judge, plan)
    if wait_for(runner.ask(images)).state == "interrupted":
        raise Stopped("a worker was told to end before its films were done. Type the same command: it goes on")
    return runner.batch


def ask_controls(
    judge: Judge, controls: Iterable[tuple[str, Film | None]], ledger: Ledger, plan: Plan
) -> dict[str, tuple[Reply, ...]]:
    """Ask every question about some control images, each with its name; no image at all is a control, too."""
    runner = Runner(judge, plan, ledger)
    if wait_for(runner.ask(controls, control=True)).state == "interrupted":
        raise KeyboardInterrupt
    return runner.controls


class StopRules:
    """When a run must stop: a judge that never works, too many failures, too many refusals, no tokens left."""

    def __init__(self, judge: str, todo: int, policy: RunPolicy) -> None:
        """Start with nothing spent."""
        self._judge = judge
        self._policy = policy
        self._most_held = max(1, min(FIRST_IMAGES, todo))
        self._held: list[Response] = []
        self._replies = 0
        self._failed = 0
        self._tokens = 0
        self._refused_in_a_row = 0
        self._has_answered = False

    def hold(self, response: Response) -> bool:
        """Hold a response back if the judge's code failed and has never worked; too many of them blame the judge.

        Until the first answer nobody knows whether the judge or the image is at fault.
        """
        if not response.broken or self._has_answered:
            return False
        self._held.append(response)
        if len(self._held) >= self._most_held:
            self.blame()
        return True

    def blame(self) -> None:
        """Raise JudgeError if a response is still held."""
        if self._held:
            count = len(self._held)
            images = "its first film" if count == 1 else f"each of its first {count} films"
            raise JudgeError(
                f"judge {self._judge!r} fails on {images}: {self._held[-1].broken}. Repair it, then type it again: "
                "nothing is stored"
            )

    def released(self) -> list[Response]:
        """Return what was held, once the judge has answered about another image."""
        if not self._has_answered:
            return []
        held, self._held = self._held, []
        return held

    def count(self, response: Response) -> tuple[State, BpalsError | None] | None:
        """Count a response, and return how the run must end, if it must."""
        failed = [reply for reply in response.replies if reply.outcome == "failed"]
        self._replies += len(response.replies)
        self._failed += len(failed)
        self._has_answered |= len(failed) < len(response.replies)
        self._tokens += sum(reply.usage.prompt + reply.usage.output for reply in response.replies)
        self._refused_in_a_row = self._refused_in_a_row + 1 if response.refused else 0
        policy, why = self._policy, failed[0].why if failed else ""
        if self._refused_in_a_row > policy.refused_in_a_row:
            return "stopped", JudgeError(f"{self._refused_in_a_row} films in a row were refused, the last one: {why}")
        if failed and self._replies >= policy.failure_floor and self._failed > policy.failure_share * self._replies:
            return "failures", Stopped(
                f"{self._failed:,} of {self._replies:,} replies failed, more than {policy.failure_share:.1%}; the "
                f"last: {why}. What is done is kept: repair it, then type the same command with --retry-failed"
            )
        if policy.budget_tokens is not None and self._tokens >= policy.budget_tokens:
            return "budget", None
        return None


class Runner:
    """One run, from its first image to its tally; without a ledger it collects a batch and has no rules to stop."""

    def __init__(self, judge: Judge, plan: Plan, ledger: Ledger | None = None, watch: Watch | None = None) -> None:
        """Keep what the run needs; nothing starts yet."""
        self._judge = judge
        self._plan = plan
        self._ledger = ledger
        self._watch = watch or (lambda _snapshot: None)
        self._progress = Progress(plan.todo, time.monotonic())
        self._rules = None if ledger is None else StopRules(judge.card.judge, plan.todo, plan.pace)
        self._served = ServedModel(judge.card.model, self._note, name=plan.model)
        self._state: State = "running"
        self._error: BaseException | None = None
        self._halted = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._consuming: asyncio.Task[None] | None = None
        self._pool: ServerPool | None = None
        self.batch = Batch()
        """The responses of a run without a ledger."""
        self.controls: dict[str, tuple[Reply, ...]] = {}

    async def ask(self, images: Iterable[tuple[str, Film | Refusal | None]], *, control: bool = False) -> Tally:
        """Ask about every image, or control, and return the tally; raises what stopped the run."""
        requests = (Request.of(name, image, control=name if control else "") for name, image in images)
        return await self._supervised(partial(self._ask_all, requests))

    async def collect(self, batches: Iterable[Batch]) -> Tally:
        """Keep the responses of workers, and return the tally; raises what stopped the run."""
        return await self._supervised(partial(self._pump, batches, BATCHES_AHEAD, self._consume_batches))

    async def _supervised(self, work: Callable[[], Awaitable[None]]) -> Tally:
        """Do the work with a writer, a watcher and signal handlers around it."""
        self._sink: Writer | Batch = self.batch
        if self._ledger is not None:
            self._sink = writer = Writer(self._ledger, self._plan, self._progress)
            writer.task.add_done_callback(partial(self._ended, now=True))
        watching = asyncio.create_task(self._keep_watching())
        with _signals(self._interrupt), _rare_collection():
            try:
                await work()
                if self._rules and self._state == "running":
                    self._rules.blame()
            except (BpalsError, OSError) as error:
                self._halt("stopped", error)
            finally:
                watching.cancel()
                # If the ledger takes nothing more, this raises: the end of the run cannot be written either.
                await self._sink.close()
        tally = self._tally()
        self._sink.finish(tally)
        self._watch(tally)
        if self._error:
            raise self._error
        return tally

    async def _ask_all(self, requests: Iterable[Request]) -> None:
        plan, judge = self._plan, self._judge
        async with contextlib.AsyncExitStack() as stack:
            asker: ChatAsker | ThreadAsker
            if isinstance(judge, ChatJudge):
                transport = await stack.enter_async_context(Transport())
                for endpoint in plan.endpoints:
                    transport.prepare(endpoint)
                self._pool = ServerPool(transport, plan.endpoints, plan.pace, self._progress, self._served)
                stack.callback(self._pool.close)
                asker = ChatAsker(judge, plan.questions, self._pool)
            else:
                asker = ThreadAsker(judge, plan.questions, self._progress)
                stack.callback(asker.close)
            await self._pump(requests, asker.ahead, partial(self._consume_requests, asker))

    async def _pump(
        self, items: Iterable[T], ahead: int, consume: Callable[[ReadAhead[T]], Coroutine[Any, Any, None]]
    ) -> None:
        """Consume items until there are no more or the run is halted, then let open images finish."""
        feed = ReadAhead(items, ahead)
        self._consuming = asyncio.create_task(consume(feed))
        if self._halted.is_set():
            self._consuming.cancel()
        try:
            await asyncio.wait([self._consuming])
            if not self._consuming.cancelled() and (error := self._consuming.exception()):
                self._halt("stopped", error)
            await self._drain()
        finally:
            await feed.close(self._plan.pace.drain_s)

    async def _consume_requests(self, asker: ChatAsker | ThreadAsker, feed: ReadAhead[Request]) -> None:
        waiting: list[Request] = []
        while (request := await feed.get()) is not None or waiting:
            if request and await self._accepts(request):
                waiting.append(request)
            if waiting and (request is None or len(waiting) >= asker.batch):
                # A task of its own: a halt cancels the consuming, and what is asked is still kept.
                slot = await asker.slot() if isinstance(asker, ChatAsker) else None
                task = self._start(self._ask(asker, waiting, slot))
                waiting = []
                if slot is None:  # one batch after another
                    await asyncio.wait([task])

    async def _consume_batches(self, feed: ReadAhead[Batch]) -> None:
        while (batch := await feed.get()) is not None:
            for kind, detail in batch.notes:
                self._note(kind, detail)
            self._progress.attempts += batch.tally.attempts
            self._progress.changed_films += batch.tally.changed_films
            self._served.check(batch.tally.model)
            # A task of its own: a halt cancels the consuming, and what came back is still kept.
            await asyncio.wait([self._start(self._keep_batch(batch))])

    async def _accepts(self, request: Request) -> bool:
        """Keep the reason of an image that cannot be shown, and leave one that has changed unjudged."""
        image, known = request.image, self._plan.known.get(request.image_id)
        if isinstance(image, Refusal):
            await self._keep(Response.failed(request, image.message, len(self._plan.questions)))
            return False
        if image is not None and known is not None and known != image.sha256:
            self._progress.changed_films += 1
            self._note("changed", f"{request.image_id}: sha256 was {known} and is {image.sha256}")
            return False
        return True

    async def _ask(self, asker: ChatAsker | ThreadAsker, requests: Sequence[Request], slot: Any) -> None:
        try:
            for response in await asker.ask(requests, slot):
                durable = await self._keep(response)
                if slot:
                    # The image stays open until it is durable: a crash costs the open images and no more.
                    await durable
        except RunEnding:
            pass
        except BpalsError as error:
            # Before another image takes the slot.
            self._halt("stopped", error)
        finally:
            if self._pool and slot:
                self._pool.free(slot)

    async def _keep_batch(self, batch: Batch) -> None:
        for response in batch.responses:
            self._progress.answered(sum(reply.latency_s for reply in response.replies))
            await self._keep(response)

    async def _keep(self, response: Response) -> asyncio.Future[None]:
        """Hand the response about one image to the writer, and check whether the run may go on."""
        request, rules = response.request, self._rules
        if isinstance(request.image, Refusal):
            # Says nothing about the judge, so no rule counts it.
            self._progress.refused_films += 1
            return await self._sink.put(response)
        if rules and rules.hold(response):
            return asyncio.ensure_future(asyncio.sleep(0))
        if request.control:
            self.controls[request.control] = tuple(response.replies)
        durable = await self._sink.put(response)
        if rules:
            if end := rules.count(response):
                self._halt(*end)
            for earlier in rules.released():
                await self._keep(earlier)
        return durable

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None], *, now: bool = False) -> None:
        self._open.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._halt("stopped", error, now=now)

    async def _drain(self) -> None:
        """Wait for open images; once the run is halted, for drain_s at most."""
        while self._open and not self._halted.is_set():
            halted = asyncio.ensure_future(self._halted.wait())
            await asyncio.wait([halted, *self._open], return_when=asyncio.FIRST_COMPLETED)
            halted.cancel()
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=self._plan.pace.drain_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _halt(self, state: State, error: BaseException | None = None, *, now: bool = False) -> None:
        """Take no more images; the first reason is kept."""
        if self._state == "running":
            self._state, self._error = state, error
        self._halted.set()
        if self._consuming:
            self._consuming.cancel()
        if self._pool:
            self._pool.drain()
        for task in self._open if now else ():
            task.cancel()

    def _interrupt(self) -> None:
        self._halt("interrupted", now=self._halted.is_set())

    def _note(self, kind: str, detail: str) -> None:
        self._sink.note(kind, detail)

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(self._plan.pace.watch_every_s)
            self._watch(self._snapshot())

    def _snapshot(self) -> Snapshot:
        # A judge in this process has no open requests, and no limit to them.
        servers = self._pool.servers if self._pool else []
        in_flight, limit = sum(server.in_flight for server in servers), sum(server.limit.now for server in servers)
        return self._progress.snapshot(time.monotonic(), in_flight=in_flight, limit=limit)

    def _tally(self) -> Tally:
        last = self._snapshot()
        return Tally(
            **{name: getattr(last, name) for name in Snapshot.__dataclass_fields__},
            state="done" if self._state == "running" else self._state,
            model=self._served.name,
            warnings=tuple(self._served.warnings),
        )


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also inside a notebook, where this thread's event loop is taken."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "bpals-run") as thread:
        return thread.submit(asyncio.run, work).result()


@contextlib.contextmanager
def _signals(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` for each SIGINT and SIGTERM instead of dying from it; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _rare_collection() -> Iterator[None]:
    """Let the garbage collector look less often: a reply has 25 objects, and looking took a tenth of the CPU."""
    before = gc.get_threshold()
    # 0 means that somebody has switched the collector off: it stays off.
    gc.set_threshold(max(before[0], ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
