"""A shard in a process of its own, which may be killed in the middle: forked from a server that has imported all."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from bpals.judges.stub import StubJudge
from bpals.store.shards import Shard
from bpals.tasks.judge_status import asked_status
from world.datasets import ask


@dataclass(frozen=True)
class Dying:
    """The stub, until it is killed: once the ledger holds a film, and before the last one is asked about."""

    inner: StubJudge
    home: Path
    ledger: str | None

    @property
    def card(self):
        """Say that it is the stub."""
        return self.inner.card

    def questions(self, vocabulary):
        """Ask what the stub asks."""
        return self.inner.questions(vocabulary)

    def ask(self, film, questions):
        """Answer, or die without a word."""
        rows = asked_status(self.home, ledger=self.ledger)
        if any(row["films"] > 0 for row in rows):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)  # a slow judge: some film is always left when the first is stored
        return self.inner.ask(film, questions)


def go(small, home, shard, *, killed=False, ledger=None, seed=5):
    """Ask the stub about one shard."""
    judge = StubJudge(seed=seed)
    ask(Dying(judge, home, ledger) if killed else judge, small, home, shard=Shard.parse(shard), ledger=ledger)
