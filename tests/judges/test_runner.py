"""The runner: every film asked, once, whatever happens on the way; and what it does when it cannot go on."""

import asyncio
import gc
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace

import pytest

from bpals.errors import ContractBroken, FilmError, JudgeError, Stopped, UsageError, WorkspaceError
from bpals.judges.runner.dispatch import images_at_once, open_clients
from bpals.judges.runner.messages import Request, Response, RetriesExhausted
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import FIRST_IMAGES, StopRules, ask_controls, run, wait_for
from bpals.judges.runner.transport import Endpoint
from bpals.store.ledger import Ledger
from bpals.store.ledger.sqlite import file_connection
from bpals.types import JudgeCard, Refusal, Reply, RequestRefused
from world import runs
from world.chat_server import (
    FaultyServer,
    another_model,
    answer,
    dead_port,
    empty,
    error_in_200,
    html,
    invalid_utf8,
    no_logprobs,
    reset,
    silence,
    status,
    true_logit,
)
from world.waiting import wait_until
from world.words import mentions

EACH = len(runs.QUESTIONS)
ONE = replace(runs.QUICK, in_flight=1)
"""One request at a time, so that a script of faults meets the requests in their order."""


@pytest.fixture
def path(tmp_path):
    """Where the ledger is."""
    return tmp_path / "ledger.sqlite"


def check(path, count, name="chat"):
    """Every reply is there once, and is what the server thinks of that film and question."""
    said = runs.answers(path, name)
    assert len(said) == count * EACH
    for (image_id, subject, polarity), row in said.items():
        sha256 = hashlib.sha256(runs.image(int(image_id))).hexdigest()
        assert row["outcome"] == "answered", row
        assert row["logit"] == pytest.approx(true_logit(sha256, f"{subject} {polarity}?"), abs=1e-9)


def events(path, name="chat"):
    """What happened in the runs, in words."""
    with Ledger.open(path, readonly=True) as ledger:
        return [
            (event["kind"], event["detail"]) for one in ledger.runs(ledger.judge_id(name)) for event in one["events"]
        ]


def counts(path, name="chat"):
    """What the ledger adds up to."""
    with Ledger.open(path, readonly=True) as ledger:
        return ledger.counts(ledger.judge_id(name))


# ---- a healthy server


def test_every_film_is_asked_everything_once(path):
    """A plain run: each value is the server's own, and the tally counts what is written."""
    seen = []
    with FaultyServer() as server:
        tally = runs.ask(path, runs.Chat(), runs.films(40), server.url, todo=40, watch=seen.append)
        assert server.seen.requests == 40 * EACH
        assert set(server.seen.asked.values()) == {1}
    check(path, 40)
    assert (tally.state, tally.films_done, tally.films_all) == ("done", 40, 40)
    assert tally.outcomes == {"answered": 40 * EACH}
    assert tally.attempts == tally.replies == 40 * EACH
    assert tally.model == "stub-vlm"
    assert tally.warnings == ()
    assert tally.tokens.prompt == 300 * 40 * EACH
    assert 0 < tally.p50_s <= tally.p95_s
    assert [snapshot.films_done for snapshot in seen] == sorted(snapshot.films_done for snapshot in seen)
    assert seen[-1] == tally


def test_the_limit_fills_the_server(path):
    """64 in flight are truly in flight at the server."""
    with FaultyServer(latency_s=0.05) as server:
        runs.ask(path, runs.Chat(), runs.films(80), server.url, todo=80, pace=replace(runs.QUICK, in_flight=32))
        assert 28 <= server.seen.most_in_flight <= 32


def test_a_films_first_question_goes_alone(path):
    """The server has read the film when the other questions come: they find it in its cache."""
    order = []

    async def note(call):
        order.append((call.image, call.question, server.seen.in_flight))
        await answer(after_s=0.01)(call)

    with FaultyServer() as server:
        server.otherwise = note
        runs.ask(path, runs.Chat(), runs.films(6), server.url, todo=6)
    firsts = {}
    for image, question, _ in order:
        firsts.setdefault(image, question)
    assert set(firsts.values()) == {runs.QUESTIONS[0].text}
    images = [image for image, _, _ in order]
    assert all(images.count(image) == EACH for image in set(images))
    assert max(in_flight for _, _, in_flight in order) > 3


def test_an_image_travels_once_where_the_server_keeps_it(path):
    """With a uuid, 1 of 6 questions carries the film's bytes."""
    with FaultyServer(keeps_images=True) as server:
        runs.ask(path, runs.Chat(by_uuid=True), runs.films(10), server.url, todo=10)
        assert set(server.seen.images.values()) == {1}
    check(path, 10)


def test_all_questions_in_one_request_keep_the_server_as_busy(path):
    """A judge that asks everything at once has as many films open as requests may be in flight."""
    assert images_at_once(64, 28) == 8
    assert images_at_once(64, 1) == 64
    assert images_at_once(1, 28) == 1
    with FaultyServer(latency_s=0.02) as server:
        runs.ask(
            path, runs.Chat(at_once=EACH), runs.films(60), server.url, todo=60, pace=replace(runs.QUICK, in_flight=16)
        )
        assert server.seen.most_in_flight >= 14
    check(path, 60)


def test_films_are_pulled_only_as_they_are_needed(path):
    """Nothing is built first: at most twice the open films, and one being read, are ahead of the asking."""
    pulled, ahead = [0], []

    def counted():
        for shown in runs.films(120):
            pulled[0] += 1
            yield shown

    def look(snapshot):
        ahead.append(pulled[0] - snapshot.films_done)

    with FaultyServer(latency_s=0.01) as server:
        runs.ask(path, runs.Chat(), counted(), server.url, todo=120, pace=replace(runs.QUICK, in_flight=16), watch=look)
    lanes = images_at_once(16, EACH)
    assert pulled[0] == 120
    assert max(ahead) <= 3 * lanes + 2


def test_a_run_works_where_an_event_loop_is_running(path):
    """In a notebook this thread's loop is taken."""

    async def cell():
        return runs.ask(path, runs.Chat(), runs.films(3), server.url, todo=3)

    with FaultyServer() as server:
        assert asyncio.run(cell()).state == "done"
    check(path, 3)


def test_a_second_run_asks_only_what_is_left(path):
    """R21: resumed in pieces, tokens and tries add up to those of one run without a break."""
    with FaultyServer() as server:
        for _ in range(4):
            with Ledger.open(path) as ledger, ledger.lock("a test"):
                plan = runs.plan_of(ledger, runs.Chat(), server.url, todo=10)
                done = ledger.done(plan.judge_id)
                left = [(image_id, film) for image_id, film in runs.films(24) if image_id not in done]
                run(runs.Chat(), left[:7], ledger, plan)
        whole = path.with_name("whole.sqlite")
        runs.ask(whole, runs.Chat(), runs.films(24), server.url, todo=24)
        assert set(server.seen.asked.values()) == {2}
    in_pieces, at_once = counts(path), counts(whole)
    for figure in ("films", "replies", "judgments", "tokens", "attempts"):
        if figure != "tokens":
            assert in_pieces[figure] == at_once[figure], figure
    assert in_pieces["tokens"]["prompt"] == at_once["tokens"]["prompt"] == 300 * 24 * EACH
    check(path, 24)


# ---- films that cannot be shown


def test_a_film_that_cannot_be_shown_is_a_row_with_its_reason(path):
    """One bad film never stops a run, and is no failure of the server."""
    shown = [*runs.films(5), ("bad", Refusal(code="truncated", message="it ends after 50 %")), *runs.films(5, start=5)]
    with FaultyServer() as server:
        tally = runs.ask(path, runs.Chat(), shown, server.url, todo=11, pace=replace(runs.QUICK, failure_floor=1))
        assert server.seen.requests == 10 * EACH
    said = runs.answers(path)
    bad = [row for (image_id, _, _), row in said.items() if image_id == "bad"]
    assert [(row["outcome"], row["logit"], row["why"]) for row in bad] == [
        ("failed", None, "it ends after 50 %")
    ] * EACH
    assert (tally.films_done, tally.refused_films, tally.outcomes["failed"]) == (11, 1, EACH)


def test_a_film_that_changed_since_it_was_hashed_is_not_judged(path):
    """F22: the bytes are no longer those that were hashed."""
    with FaultyServer() as server:
        known = {"00001": "another", "00002": runs.film(2).sha256}
        tally = runs.ask(path, runs.Chat(), runs.films(4), server.url, todo=4, known=known)
    assert (tally.films_done, tally.changed_films) == (3, 1)
    assert {image_id for image_id, _, _ in runs.answers(path)} == {"00000", "00002", "00003"}
    assert any(kind == "changed" and "00001" in detail for kind, detail in events(path))


def test_what_goes_wrong_while_films_are_read_is_raised_and_the_rest_kept(path):
    """A folder that vanishes stops the run with its own words; films that were open are finished."""

    def shown():
        yield from runs.films(10)
        raise FilmError("the folder is gone")

    with FaultyServer() as server, pytest.raises(FilmError, match="the folder is gone"):
        runs.ask(path, runs.Chat(), shown(), server.url, todo=20)
    check(path, 10)


# ---- servers that fail for a while


@pytest.mark.parametrize(
    "fault",
    [status(500), status(502), status(503), status(529), status(408), status(429), html(), empty(), error_in_200(),
     invalid_utf8(), reset(), no_logprobs()],
)  # fmt: skip
def test_a_passing_fault_is_asked_again_and_counted(path, fault):
    """H02 H04 H07 H15: each kind is retried; the tries are in the ledger, and no answer is missing."""
    with FaultyServer() as server:
        server.script(answer(), fault, fault, answer(), fault)
        tally = runs.ask(path, runs.Chat(), runs.films(4), server.url, todo=4, pace=ONE)
        assert tally.attempts == server.seen.requests == 4 * EACH + 3
    check(path, 4)
    assert counts(path)["attempts"] == 4 * EACH + 3


def test_a_silent_server_is_cut_at_the_deadline_and_asked_again(path):
    """H06: silence costs one deadline, and the limit is lowered."""
    with FaultyServer() as server:
        server.script(answer(), silence())
        runs.ask(path, runs.Chat(), runs.films(2), server.url, todo=2, pace=ONE, deadline_s=0.3)
        assert server.seen.requests == 2 * EACH + 1
    check(path, 2)


def test_a_question_that_never_gets_an_answer_fails_alone(path):
    """After six tries it is a failed row with its reason; the film's other questions stand."""

    async def hates_mass(call):
        await (status(500) if "Mass present" in call.question else answer())(call)

    with FaultyServer() as server:
        server.otherwise = hates_mass
        tally = runs.ask(path, runs.Chat(), runs.films(3), server.url, todo=3, pace=replace(runs.QUICK, in_flight=2))
        assert server.seen.requests == 3 * (EACH - 1 + 6)
    said = runs.answers(path)
    lost = {key: row for key, row in said.items() if row["outcome"] != "answered"}
    assert {(subject, polarity) for _, subject, polarity in lost} == {("Mass", "present")}
    assert all("no usable reply in 6 tries" in row["why"] and row["attempts"] == 6 for row in lost.values())
    assert (tally.outcomes["failed"], tally.outcomes["answered"]) == (3, 3 * (EACH - 1))


def test_a_film_whose_first_question_never_gets_an_answer_is_not_asked_the_others(path):
    """A film that kills the server would kill it 28 times: six tries, and it is marked."""

    async def hates_a_film(call):
        poison = hashlib.sha256(runs.image(1)).hexdigest()
        await (reset() if call.image == poison else answer())(call)

    with FaultyServer() as server:
        server.otherwise = hates_a_film
        runs.ask(path, runs.Chat(), runs.films(4), server.url, todo=4, pace=replace(runs.QUICK, in_flight=2))
        assert server.seen.requests == 3 * EACH + 6
    said = runs.answers(path)
    assert {image_id for (image_id, _, _), row in said.items() if row["outcome"] == "failed"} == {"00001"}
    assert "first question" in said["00001", "Mass", "absent"]["why"]


def test_retry_after_is_waited_for(path):
    """H01: a server that says 1 second is left alone for it by everybody, and its limit is cut once."""
    with FaultyServer() as server:
        server.script(answer(), status(429, Retry_After="1"))
        runs.ask(path, runs.Chat(), runs.films(6), server.url, todo=6, pace=replace(runs.QUICK, in_flight=2))
        gaps = [later - sooner for sooner, later in zip(server.seen.times_s, server.seen.times_s[1:], strict=False)]
        assert max(gaps) >= 0.95
    check(path, 6)
    assert len([kind for kind, _ in events(path) if kind == "limit"]) == 1


def test_a_retry_after_of_an_hour_stops_the_run_with_words(path):
    """H01: nobody waits an hour; what is done is kept, and the same command goes on."""
    with FaultyServer() as server:
        server.script(*[answer()] * (2 * EACH), status(429, Retry_After="3600"))
        with pytest.raises(Stopped, match="left alone for 3600 s"):
            runs.ask(path, runs.Chat(), runs.films(4), server.url, todo=4, pace=ONE)
        check(path, 2)
        with Ledger.open(path, readonly=True) as ledger:
            assert ledger.runs(1)[-1]["state"] == "stopped"
        runs.ask(path, runs.Chat(), runs.films(2, start=2), server.url, todo=2)
    check(path, 4)


def test_a_server_that_is_restarted_is_waited_for(path):
    """H13: while nobody listens, nothing fails and nothing is lost."""
    with FaultyServer(latency_s=0.005) as server:

        def restart():
            wait_until(lambda: server.seen.requests >= 10)
            server.stop()
            time.sleep(0.5)  # as long as a restart takes: it is the fault
            server.start()

        worker = threading.Thread(target=restart)
        worker.start()
        tally = runs.ask(
            path, runs.Chat(), runs.films(150), server.url, todo=150, pace=replace(runs.QUICK, in_flight=16)
        )
        worker.join()
    check(path, 150)
    assert tally.attempts > 150 * EACH
    assert [kind for kind, _ in events(path) if kind == "circuit"]


def test_a_server_that_does_not_come_back_stops_the_run(path):
    """P4: a dead endpoint is one clear sentence after the patience is used up, and the run can be resumed."""
    pace = replace(runs.QUICK, patience_s=0.4)
    with dead_port() as nobody, pytest.raises(Stopped, match="no endpoint has answered for"):
        runs.ask(path, runs.Chat(), runs.films(5), nobody, todo=5, pace=pace)
    assert runs.answers(path) == {}


def test_the_films_of_a_dead_endpoint_move(path):
    """H14: one endpoint is dead, one is slow, one is quick: all films are asked, and most by the quick one."""
    with FaultyServer(latency_s=0.05) as slow, FaultyServer() as quick, dead_port() as nobody:
        urls = [slow.url, nobody, quick.url]
        runs.ask(path, runs.Chat(), runs.films(60), *urls, todo=60, pace=replace(runs.QUICK, in_flight=8))
        assert quick.seen.requests > slow.seen.requests > 0
        assert quick.seen.requests + slow.seen.requests == 60 * EACH
    check(path, 60)


def test_an_endpoint_that_dies_on_the_way_gives_its_films_away(path):
    """H14: the image is sent again, because the other server has not seen it."""
    with (
        FaultyServer(latency_s=0.01, keeps_images=True) as dying,
        FaultyServer(latency_s=0.01, keeps_images=True) as well,
    ):
        worker = threading.Thread(target=stop_when_asked, args=(dying, 20))
        worker.start()
        judge = UuidChat()
        runs.ask(path, judge, runs.films(80), dying.url, well.url, todo=80, pace=replace(runs.QUICK, in_flight=8))
        worker.join()
        assert dying.seen.requests < 80 * EACH
    check(path, 80)


def stop_when_asked(server, requests):
    """Stop a server when it has had some requests."""
    wait_until(lambda: server.seen.requests >= requests)
    server.stop()


class UuidChat(runs.Chat):
    """Sends the bytes again where the server has dropped them."""

    async def _ask(self, film, question, line):
        if line.image_sent:
            try:
                return await line.post(runs.request(film, question, by_uuid=True, uuid=True), runs.read)
            except RequestRefused:
                line.image_sent = False
        said = await line.post(runs.request(film, question, uuid=True), runs.read)
        line.image_sent = True
        return said


# ---- ends that somebody must mend


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_server_that_refuses_us_stops_the_run_at_once(path, code):
    """H03: a wrong key is not asked with 28 times; what was whole before is kept."""
    with FaultyServer() as server:
        server.script(*[answer()] * (3 * EACH))
        server.otherwise = status(code)
        with pytest.raises(JudgeError):
            runs.ask(path, runs.Chat(), runs.films(50), server.url, todo=50, pace=ONE)
        assert server.seen.requests <= 3 * EACH + 2
    check(path, 3)


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_refused_request_marks_its_film(path, code):
    """H03: too large is this film's business; it is not asked again, and the run goes on."""

    async def too_large(call):
        await (status(code) if call.image == hashlib.sha256(runs.image(2)).hexdigest() else answer())(call)

    with FaultyServer() as server:
        server.otherwise = too_large
        runs.ask(path, runs.Chat(), runs.films(6), server.url, todo=6)
        assert server.seen.requests == 5 * EACH + 1
    bad = {image_id for (image_id, _, _), row in runs.answers(path).items() if row["outcome"] == "failed"}
    assert bad == {"00002"}


def test_more_than_twenty_refusals_in_a_row_stop_the_run(path):
    """H03: then it is not the film."""
    pace = replace(ONE, failure_floor=10**6)
    with FaultyServer() as server:
        server.script(*[answer()] * EACH)
        server.otherwise = status(400)
        with pytest.raises(JudgeError, match="21 films in a row"):
            runs.ask(path, runs.Chat(), runs.films(60), server.url, todo=60, pace=pace)
        assert server.seen.requests == EACH + 21
    assert counts(path)["films"] == 22


def test_too_many_failures_stop_the_run(path):
    """Beyond the stated share nobody should pay for more; it can be resumed with --retry-failed."""
    turn = iter(range(10**6))

    async def half(call):
        await (answer() if next(turn) % 2 else status(500))(call)

    pace = replace(runs.QUICK, tries=1, in_flight=4, failure_floor=60)
    with FaultyServer() as server:
        server.otherwise = half
        with pytest.raises(Stopped, match=r"0\.5%.*--retry-failed"):
            runs.ask(path, runs.Chat(), runs.films(500), server.url, todo=500, pace=pace)
        assert server.seen.requests < 200
        server.otherwise = answer()
        with Ledger.open(path) as ledger, ledger.lock("a test"):
            plan = runs.plan_of(ledger, runs.Chat(), server.url, todo=500)
            assert ledger.runs(plan.judge_id)[-1]["state"] == "failures"
            good = ledger.done(plan.judge_id, retry_failed=True)
            run(runs.Chat(), [(i, film) for i, film in runs.films(60) if i not in good], ledger, plan)
    check(path, 60)


def test_another_model_on_the_way_stops_the_run(path):
    """H11: two judges are never mixed; a path before the name is no change."""
    with FaultyServer(model="/models/stub-vlm") as server:
        server.script(*[answer()] * EACH, another_model("stub-vlm"), another_model("C:\\m\\stub-vlm"))
        runs.ask(path, runs.Chat(), runs.films(3), server.url, todo=3, pace=ONE)
        server.script(*[answer()] * EACH)
        server.otherwise = another_model("other-vlm")
        with pytest.raises(JudgeError, match=r"'stub-vlm' .*'other-vlm'"):
            runs.ask(path, runs.Chat(), runs.films(30, start=3), server.url, todo=30, pace=ONE)
    check(path, 4)


def test_a_model_that_differs_from_the_last_run_stops_the_run(path):
    """H11: the name that an earlier run heard is held against this one."""
    with FaultyServer(model="other") as server, pytest.raises(JudgeError, match="'stub-vlm' and now 'other'"):
        runs.ask(path, runs.Chat(), runs.films(3), server.url, todo=3, model="stub-vlm")


def test_a_model_that_is_called_otherwise_is_a_warning(path):
    """H11: servers name models as they like; it is said, and the run goes on."""
    with FaultyServer(model="my-alias") as server:
        tally = runs.ask(path, runs.Chat(), runs.films(2), server.url, todo=2)
    assert tally.model == "my-alias"
    assert [mentions(line, "'org/stub-vlm'", "'my-alias'") for line in tally.warnings] == [True]
    assert ("model", "my-alias") in events(path)


def test_a_budget_of_tokens_ends_the_run(path):
    """Films that are open are finished; no more are taken."""
    pace = replace(runs.QUICK, budget_tokens=10 * EACH * 301, in_flight=8)
    with FaultyServer() as server:
        tally = runs.ask(path, runs.Chat(), runs.films(100), server.url, todo=100, pace=pace)
    assert tally.state == "budget"
    assert 10 <= tally.films_done <= 10 + images_at_once(8, EACH)
    check(path, tally.films_done)


def test_a_resume_with_another_judge_is_refused(path):
    """R10: another setting under the same name is named, not mixed."""
    with FaultyServer() as server:
        runs.ask(path, runs.Chat(settings={"side_px": 512}), runs.films(2), server.url, todo=2)
        with pytest.raises(UsageError, match=r"side_px .*512.*1024.*--name"):
            runs.ask(path, runs.Chat(settings={"side_px": 1024}), runs.films(2, start=2), server.url, todo=2)
        assert server.seen.requests == 2 * EACH
    check(path, 2)


def test_a_second_run_on_one_ledger_is_refused(path):
    """R11: the lock names the process that holds it, and is free again after it."""
    with FaultyServer(latency_s=0.01) as server:
        refused = pytest.raises(WorkspaceError, match=f"judge run .process {os.getpid()} on")
        with Ledger.open(path) as ledger, ledger.lock("judge run"), refused:
            runs.ask(path, runs.Chat(), runs.films(2), server.url, todo=2)
        assert server.seen.requests == 0
        runs.ask(path, runs.Chat(), runs.films(2), server.url, todo=2)
    check(path, 2)


def mounted(folder, *options):
    """Mount a disk in memory, or make it larger; say whether this machine lets us."""
    mount = shutil.which("mount")
    words = [mount or "mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)]
    return mount is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


def unmount(folder):
    """Take the disk away."""
    subprocess.run([shutil.which("umount"), str(folder)], check=True)


def may_mount():
    """Say whether a disk can be mounted here: by root alone, and not in every container."""
    with tempfile.TemporaryDirectory() as folder:
        may = mounted(folder, "size=64k")
        if may:
            unmount(folder)
    return may


@pytest.fixture(params=["pages", *(["disk"] if may_mount() else [])])
def tight(request, tmp_path):
    """Where a ledger has little room, how to connect to it there, and how to make room."""
    if request.param == "pages":
        path = tmp_path / "ledger.sqlite"

        def small():
            connection = file_connection(path, readonly=False)
            connection.execute("PRAGMA max_page_count=120")
            return connection

        Ledger.open(path).close()
        yield path, {"connect": small}, lambda: None
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    assert mounted(disk, "size=1m")
    yield disk / "ledger.sqlite", {}, lambda: mounted(disk, "remount", "size=64m")
    unmount(disk)


def test_a_full_disk_stops_the_run_and_freed_space_resumes_it(tight):
    """R06, by a limit of pages and on a real small disk: what was committed is whole; the same command completes it."""
    path, connect, make_room = tight
    with FaultyServer() as server:
        ledger = Ledger.open(path, **connect)
        with ledger, ledger.lock("a test"), pytest.raises(OSError, match="No space left on device"):
            run(runs.Chat(), runs.films(5000), ledger, runs.plan_of(ledger, runs.Chat(), server.url, todo=5000))
        make_room()
        with Ledger.open(path) as ledger, ledger.lock("a test"):
            plan = runs.plan_of(ledger, runs.Chat(), server.url, todo=5000)
            done = ledger.done(plan.judge_id)
            assert 20 < len(done) < 1000
            whole = len(done) + 30
            run(runs.Chat(), [(i, f) for i, f in runs.films(whole) if i not in done], ledger, plan)
            still = {i for i, _ in runs.films(whole)} - set(ledger.done(plan.judge_id))
    assert not still


# ---- controls and the self-test


def test_controls_are_asked_and_kept_apart(path):
    """What a judge says without a film is stored as a control, and is no judgment."""
    with FaultyServer() as server, Ledger.open(path) as ledger, ledger.lock("a test"):
        plan = runs.plan_of(ledger, runs.Chat(), server.url, todo=2)
        said = ask_controls(runs.Chat(), [("none", None), ("black", runs.film(0))], ledger, plan)
        assert {name: len(replies) for name, replies in said.items()} == {"none": EACH, "black": EACH}
        assert said["none"][0].logit == pytest.approx(true_logit("", runs.QUESTIONS[0].text))
        assert (ledger.counts(plan.judge_id)["films"], ledger.counts(plan.judge_id)["controls"]) == (0, 2)
        assert ledger.done(plan.judge_id) == {}


def test_lines_for_the_self_test_retry_like_a_run():
    """A line of its own for each film; what cannot be had is a JudgeError with the reason."""

    async def try_out(url):
        async with open_clients([Endpoint(url=url)], runs.QUICK) as open_line:
            first, second = open_line(), open_line()
            first.image_sent = True
            assert not second.image_sent
            return await runs.Chat().ask_line(runs.film(1), runs.QUESTIONS, second)

    with FaultyServer() as server:
        server.script(status(500), html())
        assert len(asyncio.run(try_out(server.url))) == EACH
        assert server.seen.requests == EACH + 2
        server.otherwise = status(500)
        with pytest.raises(JudgeError, match="no usable reply in 6"):
            asyncio.run(try_out(server.url))
        server.otherwise = status(400)
        with pytest.raises(JudgeError, match=r"refused .*: 400"):
            asyncio.run(try_out(server.url))


def test_a_line_may_give_up_inside(path):  # noqa: ARG001
    """Whoever tries something out may catch it."""

    async def try_out(url):
        async with open_clients([Endpoint(url=url)], replace(runs.QUICK, tries=2)) as open_line:
            with pytest.raises(RetriesExhausted):
                await runs.Chat().ask_line(runs.film(1), runs.QUESTIONS[:1], open_line())
            return await runs.Chat().ask_line(runs.film(1), runs.QUESTIONS[:1], open_line())

    with FaultyServer() as server:
        server.script(status(500), status(500))
        assert len(asyncio.run(try_out(server.url))) == 1


# ---- judges in this process


class Plain:
    """A judge in this process that answers by the film's number."""

    def __init__(self, spoil=lambda _film, replies: replies):
        """Say what is done to the replies before they are given."""
        self.spoil = spoil
        self.threads = set()

    @property
    def card(self):
        """Say who this is."""
        return JudgeCard(judge="plain", kind="image", version="1")

    def questions(self, _vocabulary):
        """List what is asked."""
        return runs.QUESTIONS

    def ask(self, film, questions):
        """Answer everything with the length of the film's name."""
        self.threads.add(threading.get_ident())
        replies = [Reply(outcome="answered", logit=float(len(film.png)), method="score") for _ in questions]
        return self.spoil(film, replies)


class Batching(Plain):
    """The same, several films at once."""

    batch = 4

    def __init__(self, *words):
        """Keep the sizes of the batches."""
        super().__init__(*words)
        self.sizes = []

    def ask_batch(self, films, questions):
        """Answer for several films."""
        self.sizes.append(len(films))
        return [self.ask(film, questions) for film in films]


def fail_on(*numbers):
    """Fail on some films, as anybody's code may."""
    bad = {runs.image(number) for number in numbers}

    def spoil(film, replies):
        if film.png in bad:
            raise ZeroDivisionError("of all things")
        return replies

    return spoil


def test_a_judge_in_this_process_is_asked_in_one_thread(path):
    """One film at a time, never in the thread of whoever started it."""
    judge = Plain()
    tally = runs.ask(path, judge, runs.films(30), todo=30)
    assert tally.outcomes == {"answered": 30 * EACH}
    assert len(judge.threads) == 1
    assert threading.get_ident() not in judge.threads
    assert len(runs.answers(path, "plain")) == 30 * EACH


def test_a_judge_that_takes_batches_gets_them(path):
    """Four at once, and the rest at the end."""
    judge = Batching()
    runs.ask(path, judge, runs.films(10), todo=10)
    assert judge.sizes == [4, 4, 2]
    assert len(runs.answers(path, "plain")) == 10 * EACH


def test_a_failing_batch_is_asked_film_by_film(path):
    """One film does not spoil three others."""
    judge = Batching(fail_on(5))
    tally = runs.ask(path, judge, runs.films(12), todo=12, pace=replace(runs.QUICK, failure_share=0.5))
    said = runs.answers(path, "plain")
    assert {image_id for (image_id, _, _), row in said.items() if row["outcome"] == "failed"} == {"00005"}
    assert said["00005", "Mass", "present"]["why"].endswith("ZeroDivisionError: of all things")
    assert tally.outcomes == {"answered": 11 * EACH, "failed": EACH}


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_a_judge_that_fails_on_its_first_films_stops_the_run(path, count):
    """The canary: on three in a row, or on all, the failure is an error of the judge, with the reason, and no row."""
    with pytest.raises(JudgeError, match=r"first .*ZeroDivisionError"):
        runs.ask(path, Plain(fail_on(*range(count))), runs.films(count), todo=count)
    assert runs.answers(path, "plain") == {}


def test_a_first_film_that_alone_breaks_the_judge_is_a_failed_one(path):
    """It would stop every run for ever; the film has a row with the reason, and the run goes on."""
    tally = runs.ask(path, Plain(fail_on(0, 1)), runs.films(10), todo=10)
    assert tally.outcomes == {"answered": 8 * EACH, "failed": 2 * EACH}
    said = runs.answers(path, "plain")
    whys = {row["why"] for (image_id, *_), row in said.items() if image_id in {"00000", "00001"}}
    assert [why.partition(": ")[2] for why in whys] == ["ZeroDivisionError: of all things"]


def test_films_that_cannot_be_shown_do_not_hide_a_judge_that_fails(path):
    """Two were announced, one can be shown, and the judge fails on it."""
    shown = [("broken", Refusal(code="cut", message="cut off")), *runs.films(1)]
    with pytest.raises(JudgeError, match=r"first .*ZeroDivisionError"):
        runs.ask(path, Plain(fail_on(0)), shown, todo=2)


def test_a_chat_judge_whose_own_code_fails_is_treated_the_same(path):
    """A bug in a judge is a failed reply with its reason, unless it is there from the start."""

    class Broken(runs.Chat):
        async def ask_line(self, film, questions, line):
            if film.png == runs.image(3) or broken_from_the_start:
                raise KeyError("top_logprobs")
            return await super().ask_line(film, questions, line)

    with FaultyServer() as server:
        broken_from_the_start = True
        with pytest.raises(JudgeError, match=r"first 3 .*KeyError"):
            runs.ask(path, Broken(), runs.films(3), server.url, todo=3)
        broken_from_the_start = False
        pace = replace(runs.QUICK, in_flight=1)
        tally = runs.ask(path, Broken(), runs.films(5), server.url, todo=5, pace=pace)
    assert tally.outcomes == {"answered": 4 * EACH, "failed": EACH}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda _, replies: replies[:-1], "gave 5 replies to 6 questions"),
        (lambda _, replies: [replace(replies[0], logit=None), *replies[1:]], "'answered' with the logit None"),
        (lambda _, replies: [replace(replies[0], logit=float("nan")), *replies[1:]], "with the logit nan"),
        (lambda _, replies: [replace(replies[0], logit=float("inf")), *replies[1:]], "with the logit inf"),
        (lambda _, replies: [replace(replies[0], outcome="refused"), *replies[1:]], "'refused' with the logit"),
    ],
)
def test_a_judge_that_breaks_its_promise_stops_the_run(path, spoil, words):
    """A number exactly if it answered, a reply a question: what is not so is never stored."""
    with pytest.raises(ContractBroken, match=words):
        runs.ask(path, Plain(spoil), runs.films(3), todo=3)
    assert runs.answers(path, "plain") == {}


def test_a_run_leaves_the_process_as_it_was(path):
    """Signal handlers and the collector's threshold are borrowed, in the main thread and in any other."""
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.get_threshold())
    runs.ask(path, Plain(), runs.films(2), todo=2)
    worker = threading.Thread(target=lambda: runs.ask(path, Plain(), runs.films(2, start=2), todo=2))
    worker.start()
    worker.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.get_threshold()) == before
    assert len(runs.answers(path, "plain")) == 4 * EACH


# ---- whose fault it is when a judge fails before it ever answered


def rules_of(todo):
    """The rules of a run over so many images."""
    return StopRules("mine", todo, RunPolicy())


def broken_response(name, why):
    """The response of a judge whose code failed."""
    return Response.failed(Request.of(name, runs.film(1)), "the judge failed", 2, broken=why)


def answered():
    """A response with an answer."""
    return Response(Request.of("b", runs.film(2)), [Reply(outcome="answered", logit=1.0)])


def test_a_film_alone_is_held_until_the_judge_answers():
    """Then it is given back, to be written as failed, and nothing is held any more."""
    stop, first = rules_of(10), broken_response("a", "KeyError: 1")
    assert stop.hold(first)
    assert stop.released() == []
    assert not stop.hold(answered())
    assert stop.count(answered()) is None
    assert stop.released() == [first]
    assert stop.released() == []
    stop.blame()


def test_several_films_are_the_judges_fault():
    """The last reason is named, and what to do."""
    stop = rules_of(10)
    for number in range(FIRST_IMAGES - 1):
        stop.hold(broken_response(str(number), "KeyError: 1"))
    with pytest.raises(JudgeError, match=r"judge 'mine' fails on each of its first 3 films: KeyError: 2\. Repair it"):
        stop.hold(broken_response("last", "KeyError: 2"))


def test_where_there_is_one_film_it_is_enough():
    """There is no other one to tell whose fault it is."""
    with pytest.raises(JudgeError, match="fails on its first film: KeyError"):
        rules_of(1).hold(broken_response("a", "KeyError"))


def test_a_film_that_is_still_held_at_the_end_is_the_judges_fault():
    """Others were announced and could not be shown."""
    stop = rules_of(3)
    stop.hold(broken_response("a", "KeyError"))
    with pytest.raises(JudgeError, match="fails on its first film"):
        stop.blame()


# ---- an event loop's work, waited for outside and inside a loop


async def work(answer=7):
    """Something that takes a turn of the loop."""
    await asyncio.sleep(0)
    if answer is None:
        raise ZeroDivisionError("of all things")
    return answer


def test_it_is_waited_for_outside_a_loop():
    """As on the command line."""
    assert wait_for(work()) == 7


def test_it_is_waited_for_inside_a_loop():
    """As in a notebook, whose loop is taken; what goes wrong is raised there, too."""

    async def notebook():
        with pytest.raises(ZeroDivisionError, match="of all things"):
            wait_for(work(None))
        return wait_for(work(8))

    assert asyncio.run(notebook()) == 8
