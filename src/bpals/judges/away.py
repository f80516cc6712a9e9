"""A run whose films are asked about elsewhere: workers ask, and this process alone keeps the books and the ledger.

In a worker the same runner asks the same judge, with the same retries, limits and outcomes; it only writes what it
heard on a sheet that travels back. When a run must stop, and what is written, is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bpals.errors import Stopped
from bpals.judges.engine import Results
from bpals.judges.heard import Heard
from bpals.judges.intake import Intake
from bpals.judges.protocol import ChatJudge, ImageJudge
from bpals.judges.run import Book, Plan, Session, Watch
from bpals.judges.shown import Open, Shown
from bpals.judges.snapshot import Tally
from bpals.judges.waiting import wait_for
from bpals.judges.writer import Note
from bpals.types import Film, Refusal

BLOCKS_AHEAD = 4
"""Answers that wait here to be written, in blocks of films."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardFilm:
    """What a worker heard about one film."""

    image_id: str
    sha256: str
    heard: Heard
    shown: bool
    """False where the film could not be shown."""


@dataclass(slots=True)
class Sheet:
    """What a worker heard about a block of films."""

    films: list[HeardFilm] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """Events of the run: limits, a server that went away, films that have changed."""
    changed: int = 0
    attempts: int = 0
    model: str = ""

    def begin(self, _judge_id: int, _plan: Mapping[str, object], _environment: Mapping[str, object]) -> int:
        """Number nothing: this is a part of a run."""
        return 0

    def end(self, _run_id: int, _state: str, _counts: Mapping[str, object]) -> None:
        """Write nothing down: the run goes on elsewhere."""

    def event(self, _run_id: int, kind: str, detail: Mapping[str, object] | str) -> None:
        """Note what happened."""
        self.notes.append((kind, str(detail)))

    def write(self, _judge_id: int, _run_id: int, _films: Sequence[object]) -> None:
        """Take no rows: films are put on the sheet as they are heard."""


def ask_block(judge: ImageJudge | ChatJudge, films: Iterable[tuple[str, Film | Refusal]], plan: Plan) -> Sheet:
    """Ask about a block of films in a worker, and give what was heard."""
    sheet = Sheet()
    session = _Worker(judge, sheet, plan)
    tally = wait_for(session.all(Shown(image_id, film) for image_id, film in films))
    if tally.state == "interrupted":
        raise Stopped("a worker was told to end before its films were done. Type the same command: it goes on")
    sheet.changed, sheet.attempts, sheet.model = tally.changed_films, tally.attempts, tally.model
    return sheet


def gather(
    judge: ImageJudge | ChatJudge,
    sheets: Results[Sheet],
    ledger: Book,
    plan: Plan,
    *,
    watch: Watch = lambda _: None,
) -> Tally:
    """Keep what workers heard, under the rules and in the words of a run in this process."""
    return wait_for(_Gathering(judge, ledger, plan, watch).all_of(sheets))


class _Worker(Session):
    """The runner in a worker: it judges nobody, and keeps nothing."""

    def __init__(self, judge: ImageJudge | ChatJudge, sheet: Sheet, plan: Plan) -> None:
        super().__init__(judge, sheet, plan, lambda _: None)
        self._sheet = sheet

    async def _keep(self, shown: Open, heard: Heard) -> asyncio.Future[None]:
        return await self._write(shown, heard)

    async def _write(self, shown: Shown | Open, heard: Heard) -> asyncio.Future[None]:
        film = HeardFilm(
            image_id=shown.image_id, sha256=shown.sha256, heard=heard, shown=not isinstance(shown.film, Refusal)
        )
        self._sheet.films.append(film)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written


class _Gathering(Session):
    """The runner here: what it is shown has been asked about already."""

    async def all_of(self, sheets: Results[Sheet]) -> Tally:
        """Keep everything that comes, and give the tally; raises what stopped the run."""
        self._sheets = sheets
        return await self.all(())

    async def _ask(self, _shown: Iterable[Shown]) -> None:
        await self._through(self._sheets, BLOCKS_AHEAD, self._take)

    async def _take(self, intake: Intake[Sheet]) -> None:
        while (sheet := await intake.get()) is not None:
            for kind, detail in sheet.notes:
                self._note(kind, detail)
            self._meter.attempts += sheet.attempts
            self._meter.changed_films += sheet.changed
            self._said.named(sheet.model)
            # A task of its own: a halt cancels the taking, and what was heard is still kept.
            await asyncio.wait([self._start(self._keep_all(sheet.films))])

    async def _keep_all(self, films: Sequence[HeardFilm]) -> None:
        for film in films:
            await self._keep_heard(film)

    async def _keep_heard(self, film: HeardFilm) -> None:
        asked = Open(film.image_id, None, "", film.sha256)
        self._meter.exchanged(sum(reply.latency_s for reply in film.heard.replies))
        if film.shown:
            await self._keep(asked, film.heard)
        else:
            self._meter.refused_films += 1
            await self._write(asked, film.heard)
