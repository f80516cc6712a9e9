"""The runner: asks a judge about films, in bounded concurrency, and keeps every answer the moment it is whole.

Image-major: a film's first question goes alone, so that the server has read the image when the others come together.
A film is open until its replies are durable; a crash costs at most the open films, and they are asked again.

    films -> intake (a thread, a few ahead) -> lanes (this loop) -> writer (a thread, group commits) -> ledger
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from bpals.errors import BpalsError, JudgeError
from bpals.judges.books import Books
from bpals.judges.canary import Canary
from bpals.judges.endpoint import Endpoint, Wire
from bpals.judges.fold import fold
from bpals.judges.garbage import seldom_collected
from bpals.judges.heard import Heard, checked, failed
from bpals.judges.inside import Inside
from bpals.judges.intake import Intake
from bpals.judges.interrupt import interrupts
from bpals.judges.lane import Lane
from bpals.judges.line import Abandoned, FilmLine, GaveUp, Pin, Said, Switchboard, films_at_once
from bpals.judges.pace import Pace
from bpals.judges.protocol import ChatJudge, ImageJudge, Line, RequestRefused
from bpals.judges.shown import Open, Shown
from bpals.judges.snapshot import Meter, Snapshot, State, Tally
from bpals.judges.waiting import wait_for
from bpals.judges.writer import Note, Writer
from bpals.store.ledger import AskedFilm, Attempt, Ledger
from bpals.types import Film, Question, Refusal, Reply

T = TypeVar("T")
Judge = ImageJudge | ChatJudge
Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to do."""

    judge_id: int
    questions: tuple[Question, ...]
    """What every film is asked, in order."""
    todo: int
    """How many films will come."""
    endpoints: tuple[Endpoint, ...] = ()
    """Where a ChatJudge is asked."""
    pace: Pace = field(default_factory=Pace)
    known: Mapping[str, str] = field(default_factory=dict)
    """Image id -> sha256 of its file when it was last hashed: a film that has changed since is not judged."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """What else belongs into the record of the run: source, images, options as they were given."""
    environment: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    """What the server called itself in an earlier run of this judge, as Tally.model gave it."""

    def as_dict(self) -> dict[str, object]:
        """Write it out for the record; keys of endpoints stay out of it."""
        urls = [endpoint.url for endpoint in self.endpoints]
        return {"todo": self.todo, "endpoints": urls, "pace": asdict(self.pace), **self.settings}


def run(
    judge: Judge,
    films: Iterable[tuple[str, Film | Refusal]],
    ledger: Ledger,
    plan: Plan,
    *,
    watch: Watch = lambda _: None,
) -> Tally:
    """Ask the judge about every film and commit what it says; whoever calls this holds the ledger's lock.

    SIGINT or SIGTERM lets open films be finished and ends the run as `interrupted`; a second one ends it at once.
    Raises Stopped if it can go on later, and JudgeError if somebody must act first; what is committed stays.
    """
    shown = (Shown(image_id, film) for image_id, film in films)
    return wait_for(Session(judge, ledger, plan, watch).all(shown))


def ask_controls(
    judge: Judge, films: Iterable[tuple[str, Film | None]], ledger: Ledger, plan: Plan
) -> dict[str, tuple[Reply, ...]]:
    """Ask every question about some control films, each with its name; no film at all is a control, too."""
    session = Session(judge, ledger, plan, lambda _: None)
    if wait_for(session.all(Shown(name, film, control=name) for name, film in films)).state == "interrupted":
        raise KeyboardInterrupt
    return session.controls


@contextlib.asynccontextmanager
async def lines(endpoints: Sequence[Endpoint], pace: Pace | None = None) -> AsyncIterator[Callable[[], Line]]:
    """Give a function that opens a line, one a film, under the limits and retries of a run.

    A request that gets no answer, or is refused, ends in JudgeError unless it is caught inside.
    """
    pace = pace or Pace()
    async with Wire() as wire:
        meter = Meter(0, time.monotonic())
        board = Switchboard(wire, endpoints, pace, meter, Said("", lambda _kind, _detail: None))
        ahead = iter(range(2**62))
        try:
            yield lambda: FilmLine(board, Pin(board.servers[next(ahead) % len(board.servers)]), first=True)
        except GaveUp as error:
            raise JudgeError(f"{endpoints[0].url} cannot be asked: {error}. Check that the server runs") from None
        except RequestRefused as error:
            raise JudgeError(f"{endpoints[0].url} refused a request for good: {error}") from None
        finally:
            board.close()


class Book(Protocol):
    """What a run is written into: a ledger, or what a worker hands to the process that has one."""

    def begin(self, judge_id: int, plan: Mapping[str, object], environment: Mapping[str, object]) -> int:
        """Write down that a run begins, and give its id."""

    def end(self, run_id: int, state: str, counts: Mapping[str, object]) -> None:
        """Write down how a run ended."""

    def event(self, run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Write down what happened to a run."""

    def write(self, judge_id: int, run_id: int, films: Sequence[AskedFilm]) -> None:
        """Write whole films."""


class Session:
    """One run, from its first film to its tally."""

    def __init__(self, judge: Judge, ledger: Book, plan: Plan, watch: Watch) -> None:
        """Hold what a run needs; nothing is started."""
        self._judge = judge
        self._ledger = ledger
        self._plan = plan
        self._watch = watch
        self._name = judge.card.judge
        self._meter = Meter(plan.todo, time.monotonic())
        self._books = Books(plan.pace)
        self._canary: Canary[tuple[Open, Heard]] = Canary(self._name, plan.todo)
        self._said = Said(judge.card.model, self._note, model=plan.model)
        self._state: State = "running"
        self._error: BaseException | None = None
        self._halted = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._board: Switchboard | None = None
        self.controls: dict[str, tuple[Reply, ...]] = {}

    async def all(self, shown: Iterable[Shown]) -> Tally:
        """Ask about everything that is shown, and give the tally; raises what stopped the run."""
        self._run_id = self._ledger.begin(self._plan.judge_id, self._plan.as_dict(), dict(self._plan.environment))
        self._writer: Writer[AskedFilm] = Writer(self._commit, self._wrote, self._plan.pace)
        self._writer.on_failure(lambda error: self._halt("stopped", error, now=True))
        watching = asyncio.create_task(self._keep_watching())
        with interrupts(self._interrupt), seldom_collected():
            try:
                await self._ask(shown)
                if self._state == "running":
                    self._canary.check()
            except (BpalsError, OSError) as error:
                self._halt("stopped", error)
            finally:
                watching.cancel()
                # If the ledger takes nothing more, this raises: the end of the run cannot be written either.
                await self._writer.close()
        tally = self._tally()
        self._ledger.end(self._run_id, tally.state, tally.as_dict())
        self._watch(tally)
        if self._error:
            raise self._error
        return tally

    async def _ask(self, shown: Iterable[Shown]) -> None:
        """Ask about everything that is shown."""
        judge = self._judge
        await (self._ask_chat(judge, shown) if isinstance(judge, ChatJudge) else self._ask_inside(judge, shown))

    async def _ask_chat(self, judge: ChatJudge, shown: Iterable[Shown]) -> None:
        """Ask a judge behind endpoints: as many films are open as fill the servers."""
        plan = self._plan
        lane = Lane(judge=judge, questions=plan.questions, hear=self._hear)
        async with Wire() as wire:
            self._board = board = Switchboard(wire, plan.endpoints, plan.pace, self._meter, self._said)
            for endpoint in plan.endpoints:
                wire.prepare(endpoint)

            async def ask(some: Open, pin: Pin) -> None:
                try:
                    heard = await lane.ask(some.film, board, pin)
                    # The film stays open until it is durable: a crash costs the open films and no more.
                    await (await self._keep(some, heard))
                except Abandoned:
                    pass
                except BpalsError as error:
                    # Before the film's place is given to another.
                    self._halt("stopped", error)
                finally:
                    board.leave(pin)

            async def take(intake: Intake[Shown]) -> None:
                while (item := await intake.get()) is not None:
                    if some := await self._openable(item):
                        self._start(ask(some, await board.place(lane.requests)))

            try:
                lanes = films_at_once(plan.pace.in_flight, lane.requests) * len(plan.endpoints)
                await self._through(shown, 2 * lanes, take)
            finally:
                board.close()

    async def _ask_inside(self, judge: ImageJudge, shown: Iterable[Shown]) -> None:
        """Ask a judge in this process, one batch at a time."""
        inside = Inside(judge, self._plan.questions, self._hear, _or_reason)

        async def ask(some: Sequence[Open]) -> None:
            for open_film, heard in zip(some, await inside.ask([one.film for one in some]), strict=True):
                self._meter.exchanged(sum(reply.latency_s for reply in heard.replies))
                await self._keep(open_film, heard)

        async def take(intake: Intake[Shown]) -> None:
            item: Shown | None
            some: list[Open] = []
            while (item := await intake.get()) is not None or some:
                if item and (one := await self._openable(item)):
                    some.append(one)
                if some and (item is None or len(some) >= inside.batch):
                    # A task of its own: a halt cancels the taking, and what is asked is still kept.
                    await asyncio.wait([self._start(ask(some))])
                    some = []

        try:
            await self._through(shown, 2 * inside.batch + 2, take)
        finally:
            inside.close()

    async def _through(
        self, shown: Iterable[T], ahead: int, take: Callable[[Intake[T]], Coroutine[Any, Any, None]]
    ) -> None:
        """Take films in until there are no more or the run is halted, then let open ones end."""
        intake = Intake(shown, ahead)
        self._taking = asyncio.create_task(take(intake))
        if self._halted.is_set():
            self._taking.cancel()
        try:
            await asyncio.wait([self._taking])
            if not self._taking.cancelled() and (error := self._taking.exception()):
                self._halt("stopped", error)
            await self._drain()
        finally:
            await intake.close(self._plan.pace.drain_s)

    async def _drain(self) -> None:
        while self._working and not self._halted.is_set():
            halted = asyncio.ensure_future(self._halted.wait())
            await asyncio.wait([halted, *self._working], return_when=asyncio.FIRST_COMPLETED)
            halted.cancel()
        if self._working:
            _, late = await asyncio.wait(self._working, timeout=self._plan.pace.drain_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._halt("stopped", error)

    def _halt(self, state: State, error: BaseException | None = None, *, now: bool = False) -> None:
        """Take no more films; the first reason stands."""
        if self._state == "running":
            self._state, self._error = state, error
        self._halted.set()
        if self._taking:
            self._taking.cancel()
        if self._board:
            self._board.drain()
        for task in self._working if now else ():
            task.cancel()

    def _interrupt(self) -> None:
        self._halt("interrupted", now=self._halted.is_set())

    async def _openable(self, shown: Shown) -> Open | None:
        """Keep the reason of a film that cannot be shown, and leave one that has changed unjudged."""
        film = shown.film
        if isinstance(film, Refusal):
            self._meter.refused_films += 1
            await self._write(shown, Heard(failed(film.message, len(self._plan.questions))))
            return None
        known = self._plan.known.get(shown.image_id)
        if film is not None and known is not None and known != film.sha256:
            self._meter.changed_films += 1
            self._note("changed", f"{shown.image_id}: sha256 was {known} and is {film.sha256}")
            return None
        return Open(shown.image_id, film, shown.control, shown.sha256)

    async def _hear(self, asking: Awaitable[Sequence[Reply]], questions: Sequence[Question]) -> Heard:
        """Give a reply a question; what could not be had is a failed reply with its reason."""
        count = len(questions)
        try:
            said = await _or_reason(asking)
        except RequestRefused as error:
            return Heard(failed(f"the server refused the request: {error}", count), refused=True, lost=True)
        except GaveUp as error:
            return Heard(failed(str(error), count), lost=True)
        if not isinstance(said, str):
            return Heard(checked(self._name, said, questions))
        return Heard(failed(f"the judge failed: {said}", count), broken=said)

    async def _keep(self, shown: Open, heard: Heard) -> asyncio.Future[None]:
        """Hand a whole film to the writer, and see whether the run may go on."""
        if heard.broken and not self._books.films_with_answers:
            self._canary.hold((shown, heard), heard.broken)
            return asyncio.ensure_future(asyncio.sleep(0))
        written = await self._write(shown, heard)
        if end := self._books.enter(heard):
            self._halt(*end)
        for early in self._canary.release() if self._books.films_with_answers else ():
            await self._keep(*early)
        return written

    async def _write(self, shown: Shown | Open, heard: Heard) -> asyncio.Future[None]:
        if shown.control:
            self.controls[shown.control] = tuple(heard.replies)
        asked = AskedFilm(
            image_id=shown.image_id,
            sha256=shown.sha256,
            control=shown.control,
            replies=heard.replies,
            judgments=() if shown.control else fold(self._plan.questions, heard.replies),
            failures=[
                Attempt(number=number, attempt=send, kind=fault.kind, status=fault.status, message=fault.message)
                for number, send, fault in heard.faults
            ],
        )
        return await self._writer.put(asked, len(heard.replies))

    def _commit(self, films: Sequence[AskedFilm], notes: Sequence[Note]) -> None:
        """Write whole films, in the writer's thread; they are durable when this returns."""
        if films:
            self._ledger.write(self._plan.judge_id, self._run_id, films)
        for kind, detail in notes:
            self._ledger.event(self._run_id, kind, detail)

    def _wrote(self, film: AskedFilm) -> None:
        self._meter.wrote(film.replies, film.judgments)

    def _note(self, kind: str, detail: str) -> None:
        self._writer.note(kind, detail)

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(self._plan.pace.watch_every_s)
            self._watch(self._snapshot())

    def _snapshot(self) -> Snapshot:
        board = self._board
        # A judge in this process has nothing in flight, and no limit to it.
        in_flight, limit = (board.in_flight, board.limit) if board else (0, 0)
        return self._meter.snapshot(time.monotonic(), in_flight=in_flight, limit=limit)

    def _tally(self) -> Tally:
        last = self._snapshot()
        return Tally(
            **{name: getattr(last, name) for name in Snapshot.__dataclass_fields__},
            state="done" if self._state == "running" else self._state,
            model=self._said.model,
            warnings=tuple(self._said.warnings),
        )


async def _or_reason(asking: Awaitable[T]) -> T | str:
    """Wait for what a judge gives; where its own code fails, give the reason."""
    try:
        return await asking
    except (BpalsError, Abandoned, RequestRefused, GaveUp):
        raise
    except Exception as error:  # noqa: BLE001
        # The one broad `except`: a judge is anybody's code, and its failure is a reply with a reason, never evidence.
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
