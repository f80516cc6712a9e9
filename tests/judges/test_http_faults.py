"""The catalogue of HTTP faults, H01 to H16: what one exchange makes of each, and what a whole run does.

Through the runner three things must be right whatever the server does: every stored value is the server's own function
of the image and the question, every question is there once, and every request that went out is counted.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import hashlib
import itertools
import math
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace

import polars as pl
import pytest
import trustme

from bpals.errors import JudgeError, Stopped
from bpals.findings import Vocabulary
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.messages import Plan
from bpals.judges.runner.progress import Tally
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import run
from bpals.judges.runner.transport import Endpoint, TransientError, Transport
from bpals.judges.selftest import selftest
from bpals.store.ledger import Ledger
from bpals.types import Film, RequestRefused
from world import chat_server
from world.chat_server import FaultyServer, answer, status, true_logit
from world.waiting import wait_until

KEY = "sk-canary-of-the-faults"
VOCABULARY = Vocabulary(name="two", findings=("Mass", "Hernia"))
PACE = RunPolicy(in_flight=8, first_wait_s=0.02, longest_wait_s=0.2, patience_s=20, drain_s=2)
OPEN_QUESTIONS = PACE.in_flight * 4
"""The questions of the films that can be open at once: as many may be under way when a run is told to stop."""
JUDGE = OpenAIJudge(model=chat_server.MODEL, method="top_k", topics=False)


# ---- one exchange


def ask(url, **options):
    """Ask once and give what came of it, with how long it took."""

    async def exchange():
        async with Transport() as transport:
            await transport.send(
                Endpoint(**{"url": url, "key": KEY, "deadline_s": 5, **options}), b'{"logprobs": true}'
            )

    began = time.perf_counter()
    with pytest.raises((TransientError, RequestRefused, JudgeError)) as caught:
        asyncio.run(exchange())
    return caught.value, time.perf_counter() - began


@pytest.fixture(scope="module")
def server():
    """A server for the tests of one exchange."""
    with FaultyServer() as running:
        yield running


@pytest.mark.parametrize("code", [401, 403, 404, 402, 405])
def test_h03_a_fault_of_the_user_stops_everything(server, code):
    """H03: a wrong key or address is permanent, and one line says what to check."""
    server.script(status(code, b'{"error": {"message": "no such thing"}}'))
    error, _ = ask(server.url)
    assert isinstance(error, JudgeError)
    assert f"{code}: no such thing" in str(error)
    assert ("BPALS_API_KEY" if code in {401, 403} else "--base-url") in str(error)


@pytest.mark.parametrize("code", [400, 413, 422])
def test_h03_a_refused_request_says_nothing_about_the_next(server, code):
    """H03: a film that is too large, or a request that is not understood, is marked; the server's words are kept."""
    server.script(status(code, b'{"error": {"message": "image too large"}}'))
    error, _ = ask(server.url)
    assert isinstance(error, RequestRefused)
    assert (error.status, error.message) == (code, "image too large")


@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_busy_or_broken_server_is_a_passing_fault(server, code):
    """H01, H02: these may be asked again, and the status and the wait are handed on."""
    server.script(status(code, Retry_After="3"))
    error, _ = ask(server.url)
    assert isinstance(error, TransientError)
    assert (error.status, error.retry_after_s) == (code, 3.0)
    assert error.kind == ("server" if code >= 500 else "busy")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (chat_server.html(), "garbled"),
        (chat_server.empty(), "garbled"),
        (chat_server.error_in_200(), "error"),
        (chat_server.invalid_utf8(), "garbled"),
        (chat_server.body(b'["a list"]'), "garbled"),
        (chat_server.body(b'{"choices": [NaN]}'), "garbled"),
        (chat_server.body(b'{"choices": [') , "garbled"),
        (chat_server.body(b'{"a":' * 100_000), "garbled"),
        (status(204, b""), "garbled"),
    ],
)  # fmt: skip
def test_h04_a_200_without_an_answer_is_a_passing_fault(server, fault, kind):
    """H04: a page, nothing, an error under 200, broken text: never an answer, always asked again."""
    server.script(fault)
    error, _ = ask(server.url)
    assert isinstance(error, TransientError)
    assert error.kind == kind


@pytest.mark.parametrize("fault", [chat_server.drip_body(), chat_server.drip_headers(), chat_server.silence()])
def test_h05_a_slow_drip_is_cut_at_the_total_deadline(server, fault):
    """H05, H06: a byte every 50 ms trips no read timeout; the deadline around the exchange does."""
    server.script(fault)
    error, took_s = ask(server.url, deadline_s=0.5)
    assert isinstance(error, TransientError)
    assert error.kind == "deadline"
    assert 0.4 < took_s < 20


def test_h06_a_server_that_never_accepts_is_cut_off():
    """H06: a connect that hangs, and a port where nobody is."""
    with chat_server.no_accept() as url:
        error, took_s = ask(url, deadline_s=0.5)
        assert isinstance(error, TransientError)
        assert took_s < 20
    with chat_server.dead_port() as url:
        error, _ = ask(url)
        assert isinstance(error, TransientError)
        assert error.kind == "connect"


@pytest.mark.parametrize(
    "fault",
    [
        chat_server.half_close(), chat_server.reset(), chat_server.truncated_chunks(),
        chat_server.wrong_length(7), chat_server.wrong_length(-7),
    ],
)  # fmt: skip
def test_h07_a_broken_connection_is_a_passing_fault(server, fault):
    """H07: half-close, RST, a truncated chunk, a length that is too large or too small."""
    server.script(fault)
    error, took_s = ask(server.url)
    assert isinstance(error, TransientError)
    assert error.kind in {"broken", "garbled"}
    assert took_s < 20


BOMBS = """
import asyncio, pathlib, re, resource, sys
from bpals.judges.runner.transport import Endpoint, TransientError, Transport
unit = 1 if sys.platform == "darwin" else 1024
status = pathlib.Path("/proc/self/status")
def peak():
    if status.exists():  # the other figure begins with the peak of the process that started this one
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
async def run():
    async with Transport() as transport:
        endpoint = Endpoint(url=sys.argv[1], deadline_s=20, max_bytes=int(sys.argv[2]))
        await transport.send(endpoint, b"{}")
        for _ in range(int(sys.argv[3])):
            before = peak()
            try: await transport.send(endpoint, b"{}")
            except TransientError as fault: print(fault.kind, round(peak() - before))
asyncio.run(run())
"""


def grow(server, *faults, max_bytes=4_000_000):
    """Ask in a process of its own and give each fault's kind with the megabytes by which its memory grew."""
    server.script(answer(), *faults)
    line = [sys.executable, "-c", BOMBS, server.url, str(max_bytes), str(len(faults))]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(kind, int(grown)) for kind, grown in (row.split() for row in done.stdout.splitlines())]


def test_h08_a_reply_without_end_is_cut_at_the_byte_limit(server):
    """H08: a gzip bomb, 1 GB announced or not, endless events in any disguise: cut, with less than 50 MB."""

    async def disguised(call):
        call.out.write(chat_server.head(200, content_type="application/json", transfer_encoding="chunked"))
        while True:
            call.out.write(b"10000\r\n" + b" " * 2**16 + b"\r\n")
            await call.out.drain()

    bombs = [
        chat_server.gzip_bomb(),
        chat_server.long_body(),
        chat_server.long_body(announced=True),
        chat_server.endless_events(),
        disguised,
    ]
    grown = grow(server, *bombs)
    assert [kind for kind, _ in grown] == ["too_long", "too_long", "too_long", "garbled", "too_long"]
    assert max(megabytes for _, megabytes in grown) < 50


def test_h08_the_measure_of_memory_can_see(server):
    """H08: without the limit the same bomb does fill the memory, and the test above would fail."""
    ((kind, megabytes),) = grow(server, chat_server.gzip_bomb(), max_bytes=2**30)
    assert kind == "garbled"
    assert megabytes > 100


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_h09_a_redirect_is_refused_and_the_key_stays(server, code):
    """H09: neither the metadata address nor another server is asked, so neither gets the key or the film."""
    with FaultyServer() as other:
        for to in ("http://169.254.169.254/latest/meta-data", f"{other.url}/chat/completions", "/v1/elsewhere", "//x"):
            server.script(chat_server.redirect(code, to))
            error, took_s = ask(server.url)
            assert isinstance(error, JudgeError)
            assert to in str(error)
            assert took_s < 20
        assert other.seen.connections == 0


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate authority of our own, and the file a user would name."""
    made = trustme.CA()
    file = tmp_path_factory.mktemp("tls") / "ca.pem"
    made.cert_pem.write_to_path(file)
    return made, str(file)


def tls(certificate):
    """What a server needs to show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def test_h10_a_ca_file_of_the_endpoint_is_believed(authority):
    """H10: a server with a certificate of the user's own authority works, and only where that file is named."""
    made, file = authority
    with FaultyServer(tls=tls(made.issue_cert("127.0.0.1"))) as secured:

        async def exchange():
            async with Transport() as transport:
                return await transport.send(Endpoint(url=secured.url, ca_file=file), b'{"logprobs": true}')

        assert asyncio.run(exchange()).status == 200
        error, _ = ask(secured.url)
        assert isinstance(error, JudgeError)
        assert "CA file" in str(error)
        assert secured.seen.keys == set()


@pytest.mark.parametrize("wrong", ["expired", "other host", "self-signed"])
def test_h10_a_certificate_that_does_not_hold_is_refused(authority, wrong):
    """H10: expired, of another host, or signed by nobody we know: refused, and no key is sent."""
    made, file = authority
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = {
        "expired": lambda: made.issue_cert("127.0.0.1", not_before=past, not_after=past + dt.timedelta(days=9)),
        "other host": lambda: made.issue_cert("other.example"),
        "self-signed": lambda: trustme.CA().issue_cert("127.0.0.1"),
    }[wrong]()
    with FaultyServer(tls=tls(certificate)) as secured:
        error, _ = ask(secured.url, ca_file=file)
        assert isinstance(error, JudgeError)
        assert {"expired": "expired", "other host": "not valid for", "self-signed": "certificate"}[wrong] in str(error)
        assert secured.seen.requests == 0


def test_h10_a_ca_file_that_is_none_is_told_in_one_line(tmp_path):
    """H10: a file that is missing or holds no certificate is named."""
    (tmp_path / "empty.pem").write_text("nothing")
    for file in ("missing.pem", "empty.pem"):
        error, _ = ask("https://127.0.0.1:1/v1", ca_file=str(tmp_path / file))
        assert isinstance(error, JudgeError)
        assert file in str(error)


def ask_https(greeting):
    """Ask, under https, a server that greets in plain words and closes."""

    async def exchange():
        async def greet(reader, out):
            await reader.read(1 if greeting else 0)
            out.write(greeting)
            out.close()

        listening = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, Transport() as transport:
            with pytest.raises((TransientError, JudgeError)) as caught:
                await transport.send(Endpoint(url=f"https://127.0.0.1:{port}/v1", deadline_s=5), b"{}")
        return caught.value

    return asyncio.run(exchange())


def test_h10_https_to_a_plain_server_is_the_users_to_mend():
    """H10: a mistake in the scheme is permanent."""
    assert isinstance(ask_https(b"HTTP/1.1 400 Bad Request\r\n\r\n"), JudgeError)


def test_h10_a_connection_cut_in_the_handshake_is_a_passing_fault():
    """H10: a server that is being restarted closes before TLS is set up; that is no wrong certificate."""
    error = ask_https(b"")
    assert isinstance(error, TransientError)
    assert error.kind in {"connect", "broken"}


# ---- through the runner


@dataclass
class Done:
    """A run that ended, and what is in its ledger."""

    tally: Tally | None
    error: Exception | None
    replies: pl.DataFrame
    counts: dict
    events: list[tuple[str, str]]


class Bench:
    """A ledger, some films, and a judge to be asked about them as often as a test likes."""

    def __init__(self, folder, *, films=10, judge=JUDGE):
        """Make films whose pixels are made up: the server only hashes them."""
        self.path = folder / "ledger.sqlite"
        self.judge = judge
        self.questions = judge.questions(VOCABULARY)
        names = [f"{place:03}.png" for place in range(films)]
        self.films = {name: make_film(name) for name in names}

    def run(self, *servers, pace=PACE, model="", **options):
        """Ask about every film that is not done, and give what came of it."""
        urls = [server if isinstance(server, str) else server.url for server in servers]
        endpoints = tuple(Endpoint(**{"url": url, "key": KEY, "deadline_s": 5, **options}) for url in urls)
        with Ledger.open(self.path) as ledger, ledger.lock("test"):
            judge_id = ledger.enrol(self.judge.card, self.questions, "made up")
            todo = {name: film for name, film in self.films.items() if name not in ledger.done(judge_id)}
            plan = Plan(judge_id=judge_id, questions=self.questions, todo=len(todo), endpoints=endpoints,
                               pace=pace, model=model)  # fmt: skip
            tally = error = None
            try:
                tally = run(self.judge, todo.items(), ledger, plan)
            except (JudgeError, Stopped) as stopped:
                error = stopped
            events = [(event["kind"], str(event["detail"])) for event in ledger.runs(judge_id)[-1]["events"]]
            return Done(tally, error, ledger.replies(judge_id), ledger.counts(judge_id), events)

    def wrong(self, replies):
        """Name every stored reply that is not what the server thinks of that image and question."""
        texts = {(q.subject, q.polarity): self.judge.pack.prompt(q) for q in self.questions}
        found = []
        for image_id, subject, polarity, outcome, logit in replies.select(
            "image_id", "subject", "polarity", "outcome", "logit"
        ).iter_rows():
            image = hashlib.sha256(self.films[image_id].png).hexdigest()
            true = true_logit(image, texts[subject, polarity])
            if outcome == "answered" and not math.isclose(logit, true, abs_tol=1e-4):
                found.append((image_id, subject, polarity, logit, true))
        return found

    def check(self, done, *servers):
        """See that all is there once, all is right, and all requests are counted."""
        assert done.error is None
        assert done.tally.state == "done"
        assert self.wrong(done.replies) == []
        keys = done.replies.select("image_id", "subject", "polarity")
        assert keys.height == keys.n_unique() == len(self.films) * len(self.questions)
        assert set(done.replies["outcome"]) == {"answered"}
        assert done.tally.attempts == done.counts["attempts"]
        if servers:
            assert done.tally.attempts == sum(server.seen.requests for server in servers)


def make_film(name):
    """A film of its own."""
    png = b"\x89PNG" + hashlib.sha256(name.encode()).digest() * 40
    return Film(sha256=hashlib.sha256(name.encode()).hexdigest(), png=png, width_px=8, height_px=8)


@pytest.fixture
def bench(tmp_path):
    """Ten films and four questions."""
    return Bench(tmp_path)


def test_a_run_without_faults_stores_what_the_server_thinks(bench):
    """What the other tests build on: forty questions, forty requests, forty right values."""
    with FaultyServer() as server:
        done = bench.run(server)
        bench.check(done, server)
        assert server.seen.requests == 40
        assert set(server.seen.images) == {hashlib.sha256(film.png).hexdigest() for film in bench.films.values()}


def dated(seconds):
    """Headers that ask for a wait until a date."""
    now = time.time()
    return {
        "Date": email.utils.formatdate(now, usegmt=True),
        "Retry_After": email.utils.formatdate(now + seconds, usegmt=True),
    }


THROTTLES = [({"Retry_After": "1"}, 0.9), (dated(2), 0.9), ({"Retry_After": "soon"}, 0), ({}, 0)]


@pytest.mark.parametrize(("headers", "least_s"), THROTTLES)
def test_h01_a_throttled_run_waits_as_told_and_goes_slower(bench, headers, least_s):
    """H01: after a 429 nothing is sent until the time the server gave, the limit is lowered, and all is answered."""
    with FaultyServer() as server:
        server.script(*[answer()] * 12, status(429, **headers))
        done = bench.run(server)
        bench.check(done, server)
        sent = server.seen.times_s
        gaps = [later - earlier for earlier, later in itertools.pairwise(sent)]
        assert max(gaps[12 : 12 + PACE.in_flight + 1]) >= least_s
        assert "limit" in {kind for kind, _ in done.events}
        assert done.tally.limit < PACE.in_flight
        assert done.replies["attempts"].max() == 2


def test_h01_a_wait_of_an_hour_stops_the_run_which_goes_on_later(bench):
    """H01: a wait beyond the cap is not slept through: the run stops, says so, and the same command finishes it."""
    with FaultyServer() as server:
        server.script(*[answer()] * 12, status(429, Retry_After="3600"))
        stopped = bench.run(server)
        assert isinstance(stopped.error, Stopped)
        assert "3600 s" in str(stopped.error)
        assert bench.wrong(stopped.replies) == []
        done = bench.run(server)
        assert done.error is None
        assert bench.wrong(done.replies) == []
        assert done.counts["replies"]["answered"] == 40


def test_h02_a_burst_of_faults_opens_the_circuit_and_a_probe_closes_it(bench):
    """H02: 500, 502, 503, 529 in a burst: the server is left alone but for one probe at a time, then all is well."""
    alone = []

    def failing(code):
        async def fault(call):
            alone.append(call.server.seen.in_flight)
            await asyncio.sleep(0.01)  # a slow fault: others may come meanwhile, and are counted
            await call.send(b"{}", status=code)

        return fault

    with FaultyServer() as server:
        server.script(*[answer()] * 8, *(failing(code) for code in [500, 502, 503, 529] * 6))
        done = bench.run(server, pace=replace(PACE, tries=30))
        bench.check(done, server)
        told = [detail for kind, detail in done.events if kind == "circuit"]
        assert any("left alone" in detail for detail in told)
        assert any("answers again" in detail for detail in told)
        assert alone[-3:] == [1, 1, 1]
        assert done.tally.attempts == 40 + 24


@pytest.mark.parametrize("code", [401, 403, 404])
def test_h03_a_run_stops_at_once_where_the_user_must_act(tmp_path, code):
    """H03: nothing is retried and no new film begun; what is done is kept, and the run goes on once all is mended."""
    bench = Bench(tmp_path, films=40)
    with FaultyServer() as server:
        server.script(*[answer()] * 40)
        server.otherwise = status(code)
        stopped = bench.run(server)
        assert isinstance(stopped.error, JudgeError)
        assert server.seen.requests <= 40 + OPEN_QUESTIONS
        assert max(server.seen.asked.values()) == 1
        assert bench.wrong(stopped.replies) == []
        server.otherwise = answer()
        assert bench.run(server).counts["replies"]["answered"] == 160


@pytest.mark.parametrize("code", [400, 413])
def test_h03_a_refused_film_is_marked_and_the_run_goes_on(bench, code):
    """H03: one film that the server will not take is failed, with its words, and the nine others are answered."""
    bad = hashlib.sha256(bench.films["004.png"].png).hexdigest()

    async def picky(call):
        good = answer() if call.image != bad else status(code, b'{"error": {"message": "too large"}}')
        await good(call)

    with FaultyServer() as server:
        server.otherwise = picky
        done = bench.run(server)
        assert done.error is None
        assert bench.wrong(done.replies) == []
        failed = done.replies.filter(pl.col("outcome") == "failed")
        assert set(failed["image_id"]) == {"004.png"}
        assert f"{code}: too large" in failed["why"][0]
        assert failed["logit"].null_count() == failed.height == 4
        assert done.counts["replies"]["answered"] == 36


def test_h04_to_h07_faults_of_every_kind_are_retried_and_counted(bench):
    """H04, H05, H06, H07: each is asked again, none becomes an answer, and the books show every request."""
    faults = [
        chat_server.html(), chat_server.empty(), chat_server.error_in_200(), chat_server.invalid_utf8(),
        chat_server.half_close(), chat_server.reset(), chat_server.truncated_chunks(), chat_server.wrong_length(9),
        chat_server.body(b'{"choices": []}'), chat_server.drip_body(), chat_server.silence(),
    ]  # fmt: skip
    with FaultyServer() as server:
        spread = [step for fault in faults for step in (fault, answer(), answer())]
        server.script(*spread)
        done = bench.run(server, deadline_s=0.5)
        bench.check(done, server)
        assert done.tally.attempts == 40 + len(faults)


def test_h04_a_server_that_only_talks_nonsense_ends_in_failures_not_in_answers(bench):
    """H04: after all the tries a question has failed, with the reason; nothing is scored."""
    with FaultyServer() as server:
        server.otherwise = chat_server.error_in_200()
        done = bench.run(server, pace=replace(PACE, tries=2, failure_floor=8, faults_to_open=1000))
        assert done.error is not None
        assert set(done.replies["outcome"]) <= {"failed"}
        assert done.replies["logit"].null_count() == done.replies.height


def test_h09_a_run_stops_at_a_redirect(bench):
    """H09: the run ends, and the other server has seen nobody."""
    with FaultyServer() as server, FaultyServer() as other:
        server.otherwise = chat_server.redirect(307, f"{other.url}/chat/completions")
        done = bench.run(server)
        assert isinstance(done.error, JudgeError)
        assert other.seen.connections == 0


def test_h11_the_name_of_the_model_is_recorded_and_its_change_stops_the_run(bench):
    """H11: the base name of the first reply is kept, another than asked for is a warning, a change stops the run."""
    with FaultyServer(model="/srv/models/another-vlm") as server:
        done = bench.run(server)
        bench.check(done, server)
        assert done.tally.model == "another-vlm"
        assert any("another-vlm" in warning for warning in done.tally.warnings)
        assert ("model", "another-vlm") in done.events


def test_h11_another_model_in_the_middle_of_a_run_stops_it(tmp_path):
    """H11: answers of two models are not mixed, within a run or from one to the next."""
    bench = Bench(tmp_path, films=40)
    with FaultyServer() as server:
        server.script(*[answer()] * 40)
        server.otherwise = chat_server.another_model("other-vlm")
        stopped = bench.run(server)
        assert isinstance(stopped.error, JudgeError)
        assert "other-vlm" in str(stopped.error)
        assert server.seen.requests <= 40 + OPEN_QUESTIONS
        assert len(stopped.replies) <= 40
        again = bench.run(server, model=chat_server.MODEL)
        assert isinstance(again.error, JudgeError)
        assert len(again.replies) == len(stopped.replies)


def test_h12_missing_log_probs_are_no_answer_and_length_is_the_normal_end(bench):
    """H12: one token is always cut at its length and counts; without log-probs there is no number to count."""
    with FaultyServer() as server:
        server.script(*[answer()] * 12, *[chat_server.no_logprobs()] * 3)
        done = bench.run(server)
        assert done.error is None
        assert bench.wrong(done.replies) == []
        silent = done.replies.filter(pl.col("outcome") != "answered")
        assert silent.height == 3
        assert silent["logit"].null_count() == 3
        assert silent["why"].null_count() == 0
        assert done.counts["replies"]["answered"] == 37


@pytest.mark.parametrize("layout", ["joint", "sampled"])
def test_h12_a_reply_that_is_cut_is_no_answer_where_words_are_read(tmp_path, layout):
    """H12: in the one-JSON and the sampled layout `finish_reason=length` means that the answer is not whole."""
    change = {"layout": "joint"} if layout == "joint" else {"method": "sampled", "samples": 2}
    bench = Bench(tmp_path, films=3, judge=replace(JUDGE, **change))
    with FaultyServer() as server:
        server.otherwise = chat_server.cut_short()
        done = bench.run(server, pace=replace(PACE, failure_floor=1000))
        assert done.error is None
        assert set(done.replies["outcome"]) == {"unparsed"}
        assert done.replies["logit"].null_count() == done.replies.height == 12


def test_h13_a_server_that_restarts_costs_a_wait_and_no_answer(tmp_path):
    """H13: the server dies in the middle of a run with all its connections, comes back, and nothing is lost."""
    bench = Bench(tmp_path, films=40)
    with FaultyServer(latency_s=0.02) as server:

        def restart():
            wait_until(lambda: server.seen.requests >= 40)
            server.stop()
            time.sleep(0.6)  # as long as a restart takes: it is the fault
            server.start()

        thread = threading.Thread(target=restart)
        thread.start()
        done = bench.run(server)
        thread.join()
        bench.check(done)
        assert done.tally.attempts > 160
        assert any("answers again" in detail for kind, detail in done.events if kind == "circuit")


def test_h14_work_moves_away_from_a_slow_and_from_a_dead_endpoint(tmp_path):
    """H14: of three endpoints one is slow and one is dead: the third does the most, and the total is right."""
    bench = Bench(tmp_path, films=60)
    with FaultyServer(latency_s=0.01) as quick, FaultyServer(latency_s=0.4) as slow, chat_server.dead_port() as dead:
        done = bench.run(quick, slow, dead)
        bench.check(done)
        assert quick.seen.requests > 2 * slow.seen.requests
        assert quick.seen.requests + slow.seen.requests == 240


def test_h14_an_endpoint_that_dies_in_the_middle_loses_its_films_to_the_other(tmp_path):
    """H14: one of two endpoints is gone for good after a third of the work; the other finishes it."""
    bench = Bench(tmp_path, films=40)
    with FaultyServer(latency_s=0.02) as stays, FaultyServer(latency_s=0.02) as dies:

        def kill():
            wait_until(lambda: dies.seen.requests >= 30)
            dies.stop()

        thread = threading.Thread(target=kill)
        thread.start()
        done = bench.run(stays, dies)
        thread.join()
        bench.check(done)
        assert stays.seen.requests > 80


def test_h15_an_attempt_that_was_billed_and_never_came_back_is_counted(bench):
    """H15: five requests time out after the server had worked on them: the books count what went out, not what came."""
    with FaultyServer() as server:
        server.script(*[answer()] * 8, *[answer(after_s=2)] * 5)
        done = bench.run(server, deadline_s=0.4)
        bench.check(done, server)
        assert server.seen.requests == done.tally.attempts == 45
        assert done.replies["attempts"].sum() == 45
        assert done.counts["attempts"] == 45


def test_h16_the_fake_catches_replies_that_were_swapped(bench):
    """H16: in a run nobody can see a swap from outside, which is a stated limit; the fake sees every one."""
    with FaultyServer() as server:
        server.script(*[answer()] * 12)
        server.otherwise = chat_server.swapped()
        done = bench.run(server)
        assert done.error is None
        assert bench.wrong(done.replies)


def test_h16_the_self_test_stops_at_a_server_that_swaps_replies(bench):
    """H16: the self-test knows the replies of a few requests and sends them at once: swapped ones stop the run."""
    films = list(bench.films.values())

    async def attempt(server):
        async with open_clients([Endpoint(url=server.url)], PACE) as open_line:
            return await selftest(JUDGE, films, bench.questions, open_line)

    with FaultyServer() as server:
        assert asyncio.run(attempt(server)).checked_order >= 2
        swap = chat_server.swapped()

        async def when_crowded(call):
            await (swap if call.server.seen.in_flight > 1 else answer(after_s=0.02))(call)

        server.otherwise = when_crowded
        with pytest.raises(JudgeError, match=r"swap|another"):
            asyncio.run(attempt(server))


def test_neither_key_nor_image_is_in_the_ledger(bench):
    """S23 for this part: a server that echoes what it got leaves neither key nor image in the stored reasons."""

    async def echoing(call):
        await status(400, call.headers["authorization"].encode() + b" " + call.body)(call)

    with FaultyServer() as server:
        server.script(*[answer()] * 12, *[echoing] * 3)
        done = bench.run(server)
        assert done.counts["replies"]["failed"]
    written = bench.path.read_bytes() + b"".join(file.read_bytes() for file in bench.path.parent.glob("ledger*"))
    assert KEY.encode() not in written
    assert b"iVBORw" not in written
