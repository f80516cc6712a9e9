"""The crew: a few worker processes that treat films; one that dies is replaced."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Generic

from bpals.errors import FilmError
from bpals.films.refused import MOST_BYTES
from bpals.films.work import M, Work
from bpals.films.worker import READY, terms, unpack
from bpals.types import Refusal

MEMORY_BYTES = 2 << 30
"""What one film may need: 50 million pixels in 16-bit colour take 1 GB."""
GONE = (EOFError, OSError)
"""What a channel raises whose other end is gone."""
GARBLED = (ValueError, TypeError, LookupError, RuntimeError, struct.error)
"""What an answer raises that no sound worker gives."""


class _Worker:
    """One process and the channel to it."""

    def __init__(self, work: str, memory_bytes: int) -> None:
        self.channel, theirs = Pipe()
        words = [str(theirs.fileno()), work, str(memory_bytes)]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109  as Python itself reads it
        self.process = subprocess.Popen(  # noqa: S603  ourselves
            [sys.executable, "-P", "-m", "bpals.films.worker", *words],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # decoders print what they find in a film, and it may name a patient
            env=os.environ | {"PYTHONPATH": path, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.ready = False
        self.film: int | None = None
        """The number of the film it has."""

    def close(self) -> None:
        """End it at once; it holds nothing that is not also here."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


class Crew(Generic[M]):
    """Workers, each with at most one film: which film ended a worker is never in doubt."""

    def __init__(self, size: int, work: Work[M], memory_bytes: int = MEMORY_BYTES) -> None:
        """Start the workers; they come up while the first films are read."""
        self._work = work
        self._terms = (terms(work), memory_bytes)
        self._started = False
        self._workers = [_Worker(*self._terms) for _ in range(size)]

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def busy(self) -> int:
        """How many have a film."""
        return sum(worker.film is not None for worker in self._workers)

    @property
    def idle(self) -> int:
        """How many have none."""
        return len(self._workers) - self.busy

    @property
    def pids(self) -> list[int]:
        """The processes, for whoever watches them."""
        return [worker.process.pid for worker in self._workers]

    def give(self, number: int, content: bytes) -> None:
        """Hand a film to a worker that has none."""
        worker = next(worker for worker in self._workers if worker.film is None)
        worker.film = number
        try:
            self._meet(worker)
            worker.channel.send_bytes(content)
        except GONE:  # noticed again, and dealt with, where its answer is waited for
            return

    def wait(self) -> Iterator[tuple[int, M | Refusal | None]]:
        """Wait for at least one worker: the number of its film with what came of it, none if the worker died."""
        channels: dict[object, _Worker] = {w.channel: w for w in self._workers if w.film is not None}
        for channel in wait([w.channel for w in channels.values()]):
            worker = channels[channel]
            number = worker.film
            assert number is not None  # noqa: S101  only those with a film are waited for
            try:
                result = unpack(self._work, worker.channel.recv_bytes(MOST_BYTES))
            except (*GONE, *GARBLED):
                self._replace(worker)
                yield number, None
                continue
            worker.film = None
            yield number, result

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().close()

    def _meet(self, worker: _Worker) -> None:
        """Wait until a new worker says that it is up."""
        if worker.ready:
            return
        try:
            worker.ready = self._started = worker.channel.recv_bytes(len(READY)) == READY
        except GONE:
            if self._started:
                raise
            raise FilmError("the process that reads films does not start. Type: bpals doctor") from None

    def _replace(self, worker: _Worker) -> None:
        worker.close()
        self._workers[self._workers.index(worker)] = _Worker(*self._terms)
