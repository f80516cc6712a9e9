"""The judge against a real third-party server: llama.cpp, a small language model, a random image tower."""

import asyncio
import dataclasses
import io
import json
import signal
import tarfile

import numpy as np
import polars as pl
import pytest
from PIL import Image

from bpals.errors import JudgeError
from bpals.findings import NIH
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.dispatch import open_clients
from bpals.judges.runner.messages import to_judgments
from bpals.judges.runner.transport import Endpoint
from bpals.judges.selftest import control_images, selftest
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.judge_status import status_of
from bpals.testing import tiny_film
from bpals.types import OUTCOME, Film
from world import datasets, llamacpp
from world.waiting import wait_until

SIDE_PX = 224


@pytest.fixture(scope="module")
def films(request):
    """Three real films where there is test data, else made-up ones."""
    try:
        folder = request.getfixturevalue("data_folder") / "images" / "originals"
    except pytest.skip.Exception:
        return [tiny_film(seed=seed, side_px=SIDE_PX) for seed in range(3)]
    return [real_film(file) for file in sorted(folder.glob("*.png"))[:3]]


def real_film(file):
    """Shrink a film as the runner would."""
    pixels = np.asarray(Image.open(file).convert("L").resize((SIDE_PX, SIDE_PX)))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Film(sha256=file.stem.ljust(64, "0"), png=buffer.getvalue(), width_px=SIDE_PX, height_px=SIDE_PX)


def with_lines(url, use):
    """Run a coroutine function that is handed a way to open lines."""

    async def run():
        async with open_clients([Endpoint(url=url)]) as open_line:
            return await use(open_line)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def observed(llamacpp_url, films):
    """The self-test on the real server."""
    judge = OpenAIJudge(model=llamacpp.MODEL)
    return with_lines(llamacpp_url, lambda open_line: selftest(judge, films, judge.questions(NIH), open_line))


def test_the_self_test_passes_on_a_real_server(observed):
    """The image arrives as 16 tokens, log-probs are there, replies are not swapped; the weak model is warned about."""
    assert observed.method == "top_k"
    assert observed.image_by == "bytes"
    assert observed.image_tokens == 16
    assert observed.cached_tokens >= 16
    assert observed.between_images > 0.1
    assert observed.checked_order >= 4
    assert observed.model == llamacpp.MODEL
    assert any("less than 0.9" in warning for warning in observed.warnings)


def test_every_question_gets_a_counted_reply(llamacpp_url, observed, films):
    """Whatever the model says, each of a film's questions ends in one of six outcomes, and each finding in one."""
    judge = observed.judge
    questions = judge.questions(NIH)

    async def ask(open_line):
        line = open_line()
        return [reply for question in questions for reply in await judge.ask_line(films[0], [question], line)]

    replies = with_lines(llamacpp_url, ask)
    assert all(reply.outcome in OUTCOME.categories for reply in replies)
    assert all((reply.logit is not None) == (reply.outcome == "answered") for reply in replies)
    assert all(len(reply.top) == 20 for reply in replies)
    assert replies[1].usage.cached > 16
    judgments = to_judgments(questions, replies)
    assert len(judgments) == 16
    assert all((judgment.p_present is not None) == (judgment.outcome == "answered") for judgment in judgments)


def test_films_and_controls_move_the_answer(llamacpp_url, observed, films):
    """Black, mean, noise, no film and real films are told apart by their log-probs."""
    judge = observed.judge
    question = judge.questions(NIH)[:1]

    async def ask(open_line):
        shown = [film for _, film in control_images(SIDE_PX)] + films
        return [(await judge.ask_line(film, question, open_line()))[0].top for film in shown]

    tops = with_lines(llamacpp_url, ask)
    assert len(set(tops)) == len(tops)


def test_samples_work_on_the_real_server(llamacpp_url, observed, films):
    """The fallback for servers without log-probs, on one that can do both."""
    judge = dataclasses.replace(observed.judge, method="sampled", samples=4)

    async def ask(open_line):
        return await judge.ask_line(films[0], judge.questions(NIH)[:1], open_line())

    (reply,) = with_lines(llamacpp_url, ask)
    assert (reply.method, reply.outcome in OUTCOME.categories) == ("sampled", True)
    assert reply.mass is not None


def test_the_joint_layout_is_read_or_unparsed_on_the_real_server(llamacpp_url, films):
    """A small model writes no JSON of that kind: every question is counted, and none has a made-up number."""
    judge = OpenAIJudge(model=llamacpp.MODEL, layout="joint")
    asked = judge.questions(NIH)[:4]

    async def ask(open_line):
        return await judge.ask_line(films[0], asked, open_line())

    replies = with_lines(llamacpp_url, ask)
    assert len(replies) == 4
    assert all((reply.logit is None) == (reply.outcome != "answered") for reply in replies)


def test_a_prompt_that_is_too_long_is_refused_and_said(llamacpp_url, films):
    """The real server's refusal reaches the user as what it is."""
    judge = OpenAIJudge(model=llamacpp.MODEL)
    question = dataclasses.replace(judge.questions(NIH)[0], text="word " * 3000)

    async def ask(open_line):
        return await judge.ask_line(films[0], [question], open_line())

    with pytest.raises(JudgeError, match=r"refused .*: 400"):
        with_lines(llamacpp_url, ask)


IN_FLIGHT = 4
"""As many as the server has slots."""


def stored(home, name):
    """Every reply about a film: (image id, number of the question) -> outcome and logit; the ledger must add up."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.verify() == []
        rows = ledger.replies(ledger.judge_id(name)).select("image_id", "number", "outcome", "logit").rows()
    found = {row[:2]: row[2:] for row in rows}
    assert len(found) == len(rows)
    return found


def films_done(home):
    """How many films are safely written, in all."""
    return sum(row["films"] for row in status_of(home)) if (home / "ledger.sqlite").exists() else 0


class Asked:
    """A workspace, and the way to ask the real server into it."""

    def __init__(self, start_bpals, home, url, *source):
        """Say where, and about which dataset."""
        self.start_bpals = start_bpals
        self.home = home
        self.words = ("judge", "run", f"openai:{llamacpp.MODEL}", "--base-url", url, "--workspace", home,
                      "--in-flight", IN_FLIGHT, "--json", *source)  # fmt: skip

    def ask(self, *words):
        """Run to the end, and give what it printed."""
        process = self.start_bpals(*self.words, *words)
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        return json.loads(out)

    def kill(self, *words, at):
        """Kill the run when some more films are done, and give what was stored then."""
        process = self.start_bpals(*self.words, *words)
        wanted = films_done(self.home) + at
        wait_until(lambda: process.poll() is not None or films_done(self.home) >= wanted, 600, every=0.05)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        return films_done(self.home)


def check(home, done, *, films, findings, topics=2):
    """All that was asked is stored once; all six outcomes are counted and add up; what is sealed is what is stored."""
    name = done["judge"]
    replies = stored(home, name)
    assert len({image_id for image_id, _ in replies}) == films
    assert len(replies) == films * 2 * (findings + topics)
    assert done["state"] == "done"
    assert list(done["counts"]) == OUTCOME.categories.to_list()
    assert sum(done["counts"].values()) == films * findings
    sealed = Workspace(home).judge(name)
    table = sealed.answers()
    counted = dict(table["outcome"].cast(pl.String).value_counts().iter_rows())
    assert {outcome: count for outcome, count in done["counts"].items() if count} == counted
    assert (table["p_present"].is_not_null() == (table["outcome"] == "answered")).all()
    assert sealed.film_answers().height == films * topics
    tally = sealed.record["tally"]
    assert sum(tally["replies"].values()) == len(replies)
    assert tally["controls"] == 4
    assert table["p_present"].drop_nulls().n_unique() > films
    return replies


@pytest.fixture(scope="module")
def three_findings(data_folder, tmp_path_factory):
    """A table of 600 real films with made-up labels for three findings, so that a film takes 10 questions, not 32."""
    names = [file.name for file in sorted((data_folder / "images" / "originals").glob("*.png"))]
    with tarfile.open(data_folder / "images" / "nih_256_000.tar") as archive:
        others = (f"{name.rpartition('/')[2].rpartition('.')[0]}.png" for name in archive.getnames())
        names += [name for name in others if len(name) > 4 and name not in set(names)]
    table = tmp_path_factory.mktemp("table") / "films.csv"
    films = pl.read_csv(datasets.FILMS)
    films.with_columns(film=pl.Series(names[: films.height])).write_csv(table)
    return ("--source", f"table:{table}", "--mapping", datasets.EXAMPLES / "films.toml")


def test_real_films_and_a_real_server(start_bpals, llamacpp_url, data_folder, three_findings, tmp_path):
    """Killed, resumed, and asked for more out of tars that nobody unpacked: nothing is lost, doubled or changed."""
    home = tmp_path / "audit"
    asked = Asked(start_bpals, home, llamacpp_url, *three_findings)
    originals = ("--images", data_folder / "images" / "originals", "--limit-images", 3)
    assert 1 <= asked.kill(*originals, at=1) <= 3
    before = stored(home, "smollm2-135m-instruct")
    assert status_of(home)[0]["state"] == "killed"
    assert Workspace(home).judge_names() == []
    resumed = asked.ask(*originals)
    replies = check(home, resumed, films=3, findings=3)
    assert {key: replies[key] for key in before} == before
    tarred = asked.ask("--images", data_folder / "images", "--limit-images", 1)
    more = check(home, tarred, films=tarred["films"], findings=3)
    assert tarred["films"] in (3, 4)
    assert {key: more[key] for key in replies} == replies
    assert any("more than once" in notice for notice in tarred["notices"])
    audit_beside_the_record(start_bpals, home, *three_findings)


def audit_beside_the_record(start_bpals, home, *source):
    """Audit with every judge of the workspace: each is named with its weight, and devices are read from the VLM."""
    process = start_bpals("audit", "--workspace", home, *source)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    audit = Workspace(home).open()
    names = Workspace(home).judge_names()
    judges = {entry["judge"]: entry for entry in audit.run["judges"]}
    assert set(judges) == {"record", *names}
    assert judges[names[0]]["counts"] == Workspace(home).judge(names[0]).record["counts"]
    signal_table = audit.table("signal.parquet")
    asked = Workspace(home).judge(names[0]).answers()["image_id"].unique().to_list()
    seen = signal_table.filter(pl.col("image_id").is_in(asked))
    assert seen.filter(pl.col("says") != "uncertain")["answered"].max() >= 1
    assert set(signal_table.filter(~pl.col("image_id").is_in(asked))["devices"]) <= {"unknown", "present", "absent"}
    assert names[0] in (home / "report.html").read_text(encoding="utf-8")
    return judges


@pytest.mark.sweep
def test_thirty_films_twice_and_the_audit_of_nih(start_bpals, llamacpp_url, data_folder, tmp_path):
    """32 questions a film: the originals, killed once and resumed; 30 films out of the tars; the NIH audit beside."""
    home = tmp_path / "audit"
    asked = Asked(start_bpals, home, llamacpp_url)
    originals = ("--images", data_folder / "images" / "originals", "--name", "originals")
    assert asked.kill(*originals, at=8) < 30
    before = stored(home, "originals")
    replies = check(home, asked.ask(*originals), films=30, findings=14)
    assert {key: replies[key] for key in before} == before
    tarred = ("--images", data_folder / "images", "--name", "tarred", "--limit-images", 30)
    assert asked.kill(*tarred, at=8) < 60
    before = stored(home, "tarred")
    replies = check(home, asked.ask(*tarred), films=30, findings=14)
    assert {key: replies[key] for key in before} == before
    judges = audit_beside_the_record(start_bpals, home)
    for name in ("originals", "tarred"):
        assert len(judges[name]["skill"]) == 14
        assert judges[name]["effective_weight"] < 0.05
