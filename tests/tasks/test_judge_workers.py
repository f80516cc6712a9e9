"""A run whose films are asked about in workers, with a worker in this process: the same answers, books and outcomes."""

import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bpals.errors import JudgeError, Stopped
from bpals.images.collection import ImageIndex
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.executor import LocalExecutor
from bpals.judges.runner.transport import Endpoint
from bpals.judges.stub import StubJudge
from bpals.store.ledger import Ledger
from bpals.tasks.image_access import Block
from bpals.tasks.judge_status import asked_status
from bpals.types import JudgeCard, Question, Reply
from world import datasets
from world.chat_server import FaultyServer, answer, status
from world.datasets import QUICK, ask

FILMS = datasets.SMALL
BLOCKS = LocalExecutor(in_blocks=True)
"""Images travel in blocks, as to a cluster, to a worker in this process."""
JUDGE = OpenAIJudge(model="stub-vlm")


@pytest.fixture
def own(tmp_path):
    """Eight films of one's own, to be spoilt."""
    folder = tmp_path / "own"
    folder.mkdir()
    return datasets.write(folder, 8)


def sealed(home, name="stub"):
    """The bytes of a judge's sealed table."""
    return (home / "judgments" / f"{name}.parquet").read_bytes()


def test_the_same_answers_as_without_an_engine(small, tmp_path):
    """One judge, asked here and in a worker: the same bytes, and a tally of the same films."""
    plain = ask("stub:5", small, tmp_path / "plain")
    away = ask("stub:5", small, tmp_path / "away", engine=BLOCKS)
    assert sealed(tmp_path / "away") == sealed(tmp_path / "plain")
    assert (away.state, away.films, away.counts) == (plain.state, plain.films, plain.counts)
    assert (away.tally.films_done, away.tally.replies) == (plain.tally.films_done, plain.tally.replies)
    again = ask("stub:5", small, tmp_path / "away", engine=BLOCKS)
    assert again.tally is None


def test_a_judge_behind_two_endpoints_is_asked_with_retries_and_limits(small, tmp_path):
    """Several servers at once, one of which fails at times: every question is answered, tries are in the ledger."""
    calls = iter(range(10**6))

    async def flaky(call):
        await (status(503) if next(calls) % 7 == 0 else answer())(call)

    with FaultyServer() as first, FaultyServer() as second:
        ask(JUDGE, small, tmp_path / "plain", first)
        first.otherwise = flaky
        ends = tuple(Endpoint(url=server.url, deadline_s=5) for server in (first, second))
        pace = replace(QUICK, tries=6, patience_s=30)
        done = ask(JUDGE, small, tmp_path / "away", engine=BLOCKS, endpoints=ends, pace=pace)
        assert second.seen.requests > 0
    assert done.state == "done"
    assert sealed(tmp_path / "away", "stub-vlm") == sealed(tmp_path / "plain", "stub-vlm")
    with Ledger.open(tmp_path / "away" / "ledger.sqlite", readonly=True) as ledger:
        counts = ledger.counts(ledger.judge_id("stub-vlm"))
    assert counts["attempts"] > counts["replies"]["answered"]


def test_films_that_cannot_be_shown_or_have_changed_are_counted_the_same_way(own, tmp_path):
    """An unreadable film fails with its reason, a changed one is left alone, two of the same bytes are said."""
    names = own.image_ids
    (own.images / names[0]).write_bytes(b"no picture")
    shutil.copy(own.images / names[1], own.images / names[2])
    runs = {}
    for engine in (None, BLOCKS):
        home, said = tmp_path / str(engine is None), []
        ask(
            "stub:5", own, home, engine=engine, limit_images=len(names), said=said, pace=replace(QUICK, failure_share=1)
        )
        runs[engine is None] = (sealed(home), said)
    assert runs[True] == runs[False]
    assert any("cannot be shown" in sentence for sentence in runs[False][1])
    assert any("same bytes" in sentence for sentence in runs[False][1])


def test_a_changed_film_is_not_judged_again(own, tmp_path):
    """The worker hashes what it reads, and compares with what the ledger knows."""
    name = own.image_ids[3]
    whole = (own.images / name).read_bytes()
    (own.images / name).write_bytes(b"no picture")
    pace = replace(QUICK, failure_share=1)
    ask("stub:5", own, tmp_path / "home", engine=BLOCKS, pace=pace)
    (own.images / name).write_bytes(whole)
    with Ledger.open(tmp_path / "home" / "ledger.sqlite") as ledger:
        ledger.change(lambda connection: connection.exec_driver_sql(
            "UPDATE film SET sha256 = 'another' WHERE image_id = ?", (name,)))  # fmt: skip
    done = ask("stub:5", own, tmp_path / "home", engine=BLOCKS, retry_failed=True, pace=pace)
    assert (done.tally.changed_films, done.counts["failed"]) == (1, 3)


@dataclass(frozen=True)
class Breaks:
    """A judge whose own code fails."""

    @property
    def card(self):
        """Say who it is."""
        return JudgeCard(judge="breaks", kind="image", version="1")

    def questions(self, vocabulary):
        """Ask about every finding."""
        return tuple(Question(subject=finding) for finding in vocabulary.findings)

    def ask(self, film, questions):
        """Answer about no film at all."""
        if film is None:
            return [Reply(outcome="answered", logit=0.0) for _ in questions]
        raise ValueError("no such layer")


def test_a_judge_whose_code_fails_on_its_first_films_is_blamed_here(small, tmp_path):
    """The canary watches the whole run, not a block."""
    with pytest.raises(JudgeError, match="fails on each of its first 3 films: ValueError: no such layer"):
        ask(Breaks(), small, tmp_path, engine=BLOCKS)


def test_too_many_failures_stop_the_run_and_keep_what_was_heard(small, tmp_path):
    """The share of failures is that of the run."""
    with pytest.raises(Stopped, match="replies failed, more than"):
        ask(StubJudge(seed=1, shares={"failed": 0.3}), small, tmp_path, engine=BLOCKS,
            pace=replace(QUICK, failure_floor=60))  # fmt: skip
    with Ledger.open(tmp_path / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.done(ledger.judge_id("stub"))


@dataclass(frozen=True)
class Forgetful:
    """An engine whose worker opens another judge than the one here, or one that answers otherwise."""

    seed: int
    workers: int = 1
    in_blocks: bool = True

    def map(self, tasks, make_worker):
        """Hire a worker for another judge."""
        begin = replace(make_worker.begin, judge=StubJudge(seed=self.seed), fingerprint=self.fingerprint(make_worker))
        return BLOCKS.map(tasks, replace(make_worker, begin=begin))

    def fingerprint(self, make_worker):
        """The one that is asked for."""
        return make_worker.begin.fingerprint


def test_a_worker_with_another_judge_asks_nothing(small, tmp_path):
    """Its fingerprint is not the one that was enrolled."""
    with pytest.raises(JudgeError, match="opens another judge"):
        ask("stub:5", small, tmp_path, engine=Forgetful(seed=6))


@dataclass(frozen=True)
class Otherwise(Forgetful):
    """The worker's judge claims to be the same, and answers otherwise."""

    def fingerprint(self, make_worker):
        """Its own."""
        del make_worker
        return StubJudge(seed=self.seed).card.fingerprint


def test_the_self_test_runs_in_every_worker(small, tmp_path):
    """A control film is shown first: a device that computes nonsense is found out before a film is asked about."""
    with pytest.raises(JudgeError, match="control image"):
        ask("stub:5", small, tmp_path, engine=Otherwise(seed=6))
    with Ledger.open(tmp_path / "ledger.sqlite", readonly=True) as ledger:
        assert not ledger.done(ledger.judge_id("stub"))


class Elsewhere(ImageIndex):
    """An index whose folder is on another machine."""

    @property
    def paths(self):
        """Where its films lie, over there."""
        return (Path("/nowhere/on/this/machine"),)


@dataclass
class Remote:
    """An engine whose workers do not see the folder of the films."""

    workers: int = 1
    in_blocks: bool = True
    carried: int = 0

    def map(self, tasks, make_worker):
        """Send blocks to another machine."""
        return BLOCKS.map((self.sent(block) for block in tasks), make_worker)

    def sent(self, block):
        """What arrives there of a block."""
        self.carried += not block.index.paths
        if not block.index.paths:
            return block
        moved = Elsewhere([], {}, (), ())
        return Block(index=moved, image_ids=block.image_ids, known=block.known)


def test_films_travel_as_bytes_where_a_worker_does_not_see_them(small, tmp_path):
    """A worker without the folder says so, and gets the films sent: the same answers."""
    ask("stub:5", small, tmp_path / "plain")
    engine = Remote()
    done = ask("stub:5", small, tmp_path / "away", engine=engine)
    assert engine.carried > 0
    assert done.state == "done"
    assert sealed(tmp_path / "away") == sealed(tmp_path / "plain")


def test_a_table_is_read_by_a_worker(small, tmp_path):
    """Scores that were computed elsewhere: the same table."""
    lines = ["image_id,Effusion", *(f"{name},0.25" for name in small.image_ids)]
    (tmp_path / "scores.csv").write_text("\n".join(lines), encoding="utf-8")
    spec = f"table:{tmp_path / 'scores.csv'}"
    for name, engine in (("plain", None), ("away", BLOCKS)):
        ask(spec, small, tmp_path / name, engine=engine)
    assert sealed(tmp_path / "away", "scores") == sealed(tmp_path / "plain", "scores")


@dataclass(frozen=True)
class Interrupted(StubJudge):
    """The stub, which sends a Ctrl-C once some of its answers are in the ledger."""

    home: Path = Path()

    @property
    def card(self):
        """Say that it is the stub."""
        return StubJudge(seed=self.seed).card

    def ask(self, film, questions):
        """Answer, and interrupt."""
        if film is not None and any(row["films"] for row in asked_status(self.home)):
            os.kill(os.getpid(), signal.SIGINT)
        return StubJudge(seed=self.seed).ask(film, questions)


def test_ctrl_c_keeps_what_was_heard_and_the_same_command_goes_on(small, tmp_path):
    """The blocks that are under way are let go; nothing is lost, and nothing is asked twice."""
    first = ask(Interrupted(seed=5, home=tmp_path / "away"), small, tmp_path / "away", engine=BLOCKS)
    assert (first.state, 0 < first.films < FILMS) == ("interrupted", True)
    second = ask("stub:5", small, tmp_path / "away", engine=BLOCKS)
    assert (second.state, second.tally.films_done) == ("done", FILMS - first.films)
    ask("stub:5", small, tmp_path / "plain")
    assert sealed(tmp_path / "away") == sealed(tmp_path / "plain")


def test_a_budget_ends_a_run_of_workers_too(small, tmp_path):
    """The tokens are counted here; what was heard is kept, and the same command goes on."""
    with FaultyServer() as server:
        pace = replace(QUICK, budget_tokens=25_000)
        done = ask(JUDGE, small, tmp_path, server, engine=BLOCKS, pace=pace)
        assert (done.state, 0 < done.films < FILMS) == ("budget", True)
        whole = ask(JUDGE, small, tmp_path, server, engine=BLOCKS)
    assert (whole.state, whole.films) == ("done", FILMS)
