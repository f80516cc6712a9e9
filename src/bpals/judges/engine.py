"""Engines: where work on films is done, block by block: in this process, or in those of a cluster.

A worker is a pure function of its task. It holds no state that could be lost, may be killed at any moment, and its
task is then done again elsewhere. Whoever runs the engine alone writes anything down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Worker(Protocol[T_contra, R_co]):
    """Does tasks, one at a time."""

    def __call__(self, task: T_contra, /) -> R_co:
        """Do one task."""
        ...

    def close(self) -> None:
        """Let go of what was opened; a worker that is killed lets go of it, too."""
        ...


Hire = Callable[[], Worker[T, R]]
"""Makes a worker, once in each process: it travels there, and what is heavy is opened when it is called."""


class Results(Protocol[R_co]):
    """What comes back, in any order, each task once; close it, or read it to its end."""

    def __iter__(self) -> Iterator[R_co]:
        """Give itself."""
        ...

    def __next__(self) -> R_co:
        """Give the next result."""
        ...

    def close(self) -> None:
        """Let the workers go; what they are at is lost."""
        ...


class Engine(Protocol):
    """A way to have tasks done."""

    @property
    def workers(self) -> int:
        """How many tasks are done at one time."""
        ...

    def run(self, tasks: Iterator[T], hire: Hire[T, R]) -> Results[R]:
        """Have tasks done; they are pulled as they are needed, never all at once. What a worker raises is raised."""
        ...


class Here:
    """This process, one task after another."""

    workers = 1

    def run(self, tasks: Iterator[T], hire: Hire[T, R]) -> Results[R]:
        """Do the tasks."""
        return _done(tasks, hire)


def _done(tasks: Iterator[T], hire: Hire[T, R]) -> Generator[R, None, None]:
    with contextlib.closing(hire()) as work:
        for task in tasks:
            yield work(task)
