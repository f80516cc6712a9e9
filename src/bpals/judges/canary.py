"""The canary: a judge whose own code fails on each of its first films has a mistake, and stops; one bad film does not.

Until the judge has answered once, nobody knows whose fault a failure is: such films are held back and not written.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from bpals.errors import JudgeError

T = TypeVar("T")

FILMS = 3
"""On so many films in a row, or on all where there are fewer, the judge's code must fail before it is blamed."""


class Canary(Generic[T]):
    """The films on which a judge's own code has failed before it ever answered."""

    def __init__(self, judge: str, todo: int) -> None:
        """Hold nothing yet."""
        self._judge = judge
        self._most = max(1, min(FILMS, todo))
        self._held: list[T] = []
        self._why = ""

    def hold(self, film: T, why: str) -> None:
        """Hold a film back; one too many is the judge's fault."""
        self._held.append(film)
        self._why = why
        if len(self._held) >= self._most:
            self.check()

    def check(self) -> None:
        """Blame the judge if a film is still held."""
        if self._held:
            count = len(self._held)
            films = "its first film" if count == 1 else f"each of its first {count} films"
            raise JudgeError(
                f"judge {self._judge!r} fails on {films}: {self._why}. Mend it, then type it again: nothing is stored"
            )

    def release(self) -> list[T]:
        """Give the films that were held: the judge has answered about another one."""
        held, self._held = self._held, []
        return held
