"""When a run must stop by its own books: too many failures, too many refusals in a row, no tokens left."""

from __future__ import annotations

from bpals.errors import BpalsError, JudgeError, Stopped
from bpals.judges.heard import Heard
from bpals.judges.pace import Pace
from bpals.judges.snapshot import State


class Books:
    """What a run has spent and lost."""

    def __init__(self, pace: Pace) -> None:
        """Begin with nothing spent."""
        self._pace = pace
        self._asked = 0
        self._failed = 0
        self._tokens = 0
        self._refused_in_a_row = 0
        self.films_with_answers = 0

    def enter(self, heard: Heard) -> tuple[State, BpalsError | None] | None:
        """Enter a film, and say how the run must end, if it must."""
        self._asked += len(heard.replies)
        lost = [reply for reply in heard.replies if reply.outcome == "failed"]
        self._failed += len(lost)
        self.films_with_answers += len(lost) < len(heard.replies)
        self._tokens += sum(reply.usage.prompt + reply.usage.output for reply in heard.replies)
        self._refused_in_a_row = self._refused_in_a_row + 1 if heard.refused else 0
        pace, why = self._pace, lost[0].why if lost else ""
        if self._refused_in_a_row > pace.refused_in_a_row:
            return "stopped", JudgeError(f"{self._refused_in_a_row} films in a row were refused, the last one: {why}")
        if lost and self._asked >= pace.failure_floor and self._failed > pace.failure_share * self._asked:
            return "failures", Stopped(
                f"{self._failed:,} of {self._asked:,} replies failed, more than {pace.failure_share:.1%}; the last: "
                f"{why}. What is done is kept: mend it, then type the same command with --retry-failed"
            )
        if pace.budget_tokens is not None and self._tokens >= pace.budget_tokens:
            return "budget", None
        return None
