"""Asking a judge from Python, end to end: films, self-test, controls, ledger, seal, on a small made-up dataset."""

import dataclasses
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import polars as pl
import pytest
from PIL import Image

import bpals
import shape
from bpals.errors import FilmError, JudgeError, Stopped, UsageError, WorkspaceError
from bpals.images.prepare import Preparation, prepare
from bpals.judges import selftest
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.transport import Endpoint
from bpals.judges.stub import StubJudge
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.datasets import load_source
from bpals.tasks.judge import Order, run_judge
from bpals.tasks.judge_status import status_of
from bpals.types import FILM_ANSWERS, OUTCOME, JudgeCard, Question, Reply
from world import datasets
from world.chat_server import answer, dead_port, status, true_logit
from world.datasets import QUICK, ask, order
from world.words import mentions

FILMS = datasets.SMALL
QUESTIONS = 10
"""Two polarities of three findings and of two topics."""
JUDGE = OpenAIJudge(model="stub-vlm")


@pytest.fixture
def own(tmp_path):
    """Six films of one's own, to be spoilt."""
    folder = tmp_path / "own"
    folder.mkdir()
    return datasets.write(folder, 6)


def stored(home, name):
    """Every reply about a film: (image id, subject, polarity) -> row; the ledger must add up."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.verify() == []
        rows = ledger.replies(ledger.judge_id(name)).to_dicts()
    return {(row["image_id"], row["subject"], row["polarity"]): row for row in rows}


def spoil(fault, *, when):
    """A server that misbehaves for some calls only."""

    async def serve(call):
        await (fault if when(call) else answer())(call)

    return serve


@bpals.judge("half-sure", findings=["Effusion"])
def half_sure(image, _finding):
    """Give a number for every second film or so."""
    return None if sum(image.histogram()[:128]) % 2 else 0.7


def test_a_decorated_judge_is_asked_counted_and_sealed(small, tmp_path):
    """An object is as good as a spec: every pair has one of six outcomes, and a number exactly if it answered."""
    done = ask(half_sure, small, tmp_path)
    assert (done.name, done.state, done.films) == ("half-sure", "done", FILMS)
    assert list(done.counts) == OUTCOME.categories.to_list()
    assert sum(done.counts.values()) == FILMS * 3
    assert done.counts["unsupported"] == FILMS * 2
    assert done.counts["answered"] > 0
    assert done.counts["abstained"] > 0
    table = Workspace(tmp_path).judge("half-sure").answers()
    assert table.height == FILMS * 3
    assert (table["p_present"].is_not_null() == (table["outcome"] == "answered")).all()
    assert Workspace(tmp_path).judge("half-sure").film_answers() is None
    assert done.tally.films_done == FILMS
    assert done.sealed == tmp_path / "judgments" / "half-sure.json"


def test_a_spec_makes_the_judge(small, tmp_path):
    """`stub:SEED` gives exactly the answers of that stub, film by film."""
    done = ask("stub:5", small, tmp_path)
    assert done.counts["answered"] == FILMS * 3
    hashes = stored_hashes(tmp_path, "stub")
    expected = StubJudge(seed=5).scores(list(hashes.values()), vocabulary()).sort("image_id", "finding")
    named = {sha256: image_id for image_id, sha256 in hashes.items()}
    expected = expected.with_columns(pl.col("image_id").replace_strict(named)).sort("image_id", "finding")
    got = Workspace(tmp_path).judge("stub").answers()
    assert got["logit_present"].to_list() == expected["logit_present"].to_list()
    assert got["p_present"].to_list() == pytest.approx(expected["p_present"].to_list())


def stored_hashes(home, name):
    """The hash of each film that was asked about."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        return ledger.done(ledger.judge_id(name))


def vocabulary():
    """The findings of the small dataset."""
    return load_source(f"table:{datasets.EXAMPLES / 'films.csv'}", str(datasets.EXAMPLES / "films.toml")).vocabulary


def test_every_stored_value_is_what_the_server_thought(small, server, tmp_path):
    """Each reply belongs to its film and its question: the logit is the server's own for that image and those words."""
    done = ask(JUDGE, small, tmp_path, server)
    rows = stored(tmp_path, "stub-vlm")
    assert len(rows) == FILMS * QUESTIONS
    shown = prepared_hashes(small)
    texts = {(q.subject, q.polarity): JUDGE.pack.prompt(q) for q in JUDGE.questions(vocabulary())}
    for (image_id, subject, polarity), row in rows.items():
        assert row["logit"] == pytest.approx(true_logit(shown[image_id], texts[subject, polarity]), abs=1e-9)
    assert done.counts == dict.fromkeys(OUTCOME.categories, 0) | {"answered": FILMS * 3}


def prepared_hashes(small):
    """The hash of each film as it travels: prepared, encoded anew."""
    made = {name: prepare((small.images / name).read_bytes(), Preparation()).film.png for name in small.image_ids}
    return {name: hashlib.sha256(png).hexdigest() for name, png in made.items()}


def test_films_are_asked_about_devices_and_quality_and_that_is_sealed_too(small, server, tmp_path):
    """`judge.films.parquet` has a row a film and topic."""
    ask(JUDGE, small, tmp_path, server, limit_images=5)
    topics = Workspace(tmp_path).judge("stub-vlm").film_answers()
    assert topics.schema == FILM_ANSWERS
    assert sorted(topics["topic"].unique()) == ["devices", "quality"]
    assert topics.height == 5 * 2
    assert topics["outcome"].unique().to_list() == ["answered"]


def test_resuming_asks_nothing_twice(small, server, tmp_path):
    """A second run asks the self-test and what is missing; a third asks the self-test alone."""
    first = ask(JUDGE, small, tmp_path, server, limit_images=8)
    assert server.seen.requests == first.card.observed["calls"] + (4 + 8) * QUESTIONS
    before = server.seen.requests
    second = ask(JUDGE, small, tmp_path, server, limit_images=20)
    assert server.seen.requests - before == second.card.observed["calls"] + (20 - 8) * QUESTIONS
    before = server.seen.requests
    third = ask(JUDGE, small, tmp_path, server, limit_images=20)
    assert server.seen.requests - before == third.card.observed["calls"]
    assert (second.films, third.films, third.tally) == (20, 20, None)
    assert second.counts == third.counts


def test_controls_are_asked_once_and_their_offsets_are_sealed(small, server, tmp_path):
    """No film, black, mean and noise: what the judge says of them is averaged a subject and polarity."""
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    sealed = Workspace(tmp_path).judge("stub-vlm")
    with Ledger.open(tmp_path / "ledger.sqlite", readonly=True) as ledger:
        asked = ledger.replies(ledger.judge_id("stub-vlm"), control=True)
    assert sorted(asked["control"].unique()) == ["black", "mean", "noise", "none"]
    assert asked.height == 4 * QUESTIONS
    assert sealed.offsets == selftest.offsets(asked)
    assert set(sealed.offsets) == {*datasets.FINDINGS, "devices", "quality"}
    nothing = true_logit("", JUDGE.pack.prompt(JUDGE.questions(vocabulary())[0]))
    first = asked.filter(pl.col("control") == "none", pl.col("number") == 0)["logit"].item()
    assert first == pytest.approx(nothing)


def test_a_control_that_failed_is_asked_again_when_failures_are(small, server, tmp_path):
    """--retry-failed mends controls as it mends films."""
    noise = dict(selftest.control_images(128))["noise"].png
    server.otherwise = spoil(
        status(400), when=lambda call: b"free of" in call.body and b"effusion" in call.body and shows(call, noise)
    )
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    assert len(failed_controls(tmp_path)) == 1
    server.otherwise = answer()
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    assert len(failed_controls(tmp_path)) == 1
    ask(JUDGE, small, tmp_path, server, limit_images=2, retry_failed=True)
    assert failed_controls(tmp_path) == []


def shows(call, png):
    """Say whether a call shows that picture."""
    return call.image == hashlib.sha256(png).hexdigest()


def failed_controls(home):
    """The replies about controls that failed."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        rows = ledger.replies(ledger.judge_id("stub-vlm"), control=True)
    return rows.filter(pl.col("outcome") == "failed").to_dicts()


def test_a_changed_prompt_pack_under_the_same_name_is_refused(small, server, tmp_path):
    """R10: one changed word is another judge, and the message names the pack and the question."""
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    pack = tmp_path / "mine.toml"
    words = (shape.SRC / "bpals" / "judges" / "prompt_packs" / "chest-1.toml").read_text(encoding="utf-8")
    pack.write_text(words.replace("Does this radiograph show", "Do you see"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"'chest@1 sha256:.*Do you see.*--name"):
        ask("openai:stub-vlm", small, tmp_path, server, limit_images=2, options={"pack": pack})
    done = ask("openai:stub-vlm", small, tmp_path, server, limit_images=2, name="mine", options={"pack": pack})
    assert done.name == "mine"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"judge": OpenAIJudge(model="other-vlm", name="stub-vlm")}, "model was 'stub-vlm', is 'other-vlm'"),
        ({"preparation": Preparation(side_px=96)}, "preparation.side_px was 512, is 96"),
        ({"judge": OpenAIJudge(model="stub-vlm", revision="abc")}, "revision was nothing, is 'abc'"),
        ({"judge": OpenAIJudge(model="stub-vlm", method="sampled")}, "settings.method was 'top_k', is 'sampled'"),
    ],
)
def test_another_judge_under_the_same_name_is_refused(small, server, tmp_path, change, named):
    """R10: model, revision, decoding and preparation are part of who a judge is; nothing stored is touched."""
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    before = stored(tmp_path, "stub-vlm")
    with pytest.raises(UsageError, match=re.escape(named)):
        ask(change.get("judge", JUDGE), small, tmp_path, server, limit_images=4,
            **{key: value for key, value in change.items() if key != "judge"})  # fmt: skip
    assert stored(tmp_path, "stub-vlm") == before


def test_another_dataset_under_the_same_name_is_refused(small, server, tmp_path):
    """R10: the same judge about another dataset needs another name."""
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    mapping = tmp_path / "other.toml"
    words = (datasets.EXAMPLES / "films.toml").read_text(encoding="utf-8")
    mapping.write_text(words.replace('name = "films"', 'name = "others"'), encoding="utf-8")
    with pytest.raises(UsageError, match=r"dataset .*'films'.*'others'"):
        ask(JUDGE, small, tmp_path, server, limit_images=2, mapping=str(mapping))


def test_a_server_that_calls_itself_otherwise_stops_the_run_also_after_a_kill(small, server, tmp_path):
    """H11: the name in the first reply is remembered with the run, whatever became of that run."""
    ask(JUDGE, small, tmp_path, server, limit_images=2)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger, ledger.lock("a test"):
        for run in ledger.runs(ledger.judge_id("stub-vlm")):
            ledger.end(run["run_id"], "running", {})
    server.model = "quite-another"
    with pytest.raises(JudgeError, match=r"'stub-vlm' .*'quite-another'"):
        ask(JUDGE, small, tmp_path, server, limit_images=4)


def test_missing_films_and_strangers_are_counted_and_the_run_goes_on(own, tmp_path):
    """F19: both counts are said; --require-all refuses before anything is asked."""
    (own.images / own.image_ids[0]).unlink()
    (own.images / own.image_ids[1]).unlink()
    (own.images / "stranger.png").write_bytes(datasets.another_picture())
    said = []
    with pytest.raises(UsageError, match=r"--require-all: 2 .*own/films"):
        ask("stub:", own, tmp_path / "audit", require_all=True)
    done = ask("stub:", own, tmp_path / "audit", said=said)
    assert (done.state, done.films) == ("done", 4)
    assert any(mentions(line, "2 of 6", "000_0.png") for line in said)
    assert any(mentions(line, "1 film", "not in the dataset") for line in said)
    assert {notice.code: notice.count for notice in done.notices} == {"films_missing": 2, "films_unasked": 1}


def test_two_ids_with_the_same_bytes_are_both_judged_and_it_is_said(own, tmp_path):
    """F21: nothing is merged, and the duplicate is named."""
    shutil.copy(own.images / own.image_ids[0], own.images / own.image_ids[1])
    said = []
    done = ask("stub:", own, tmp_path / "audit", said=said)
    assert done.films == 6
    assert any(mentions(line, "1 film", "same bytes") for line in said)
    answers = Workspace(tmp_path / "audit").judge("stub").answers()
    twins = [answers.filter(pl.col("image_id") == name)["p_present"].to_list() for name in own.image_ids[:2]]
    assert twins[0] == twins[1]


def test_a_film_that_has_changed_since_it_was_hashed_is_not_judged(own, server, tmp_path):
    """F22: a failed film whose file is another one now is left as it was, counted and said."""
    victim = own.image_ids[3]
    hashed = prepared_hashes(own)[victim]
    server.otherwise = spoil(status(400), when=lambda call: call.image == hashed and b"effusion" in call.body)
    done = ask(JUDGE, own, tmp_path / "audit", server, pace=dataclasses.replace(QUICK, failure_share=1))
    assert done.counts["failed"] == 1
    before = stored(tmp_path / "audit", "stub-vlm")
    (own.images / victim).write_bytes(datasets.another_picture())
    server.otherwise = answer()
    said = []
    again = ask(JUDGE, own, tmp_path / "audit", server, retry_failed=True, said=said)
    assert again.tally.changed_films == 1
    assert any(mentions(line, "1 image", "changed") for line in said)
    assert stored(tmp_path / "audit", "stub-vlm") == before


def test_a_reply_that_failed_is_mended_and_nothing_else_changes(own, server, tmp_path):
    """--retry-failed asks the film again and replaces the failed answers only."""
    server.otherwise = spoil(status(400), when=lambda call: b"effusion" in call.body and b"free of" in call.body)
    done = ask(JUDGE, own, tmp_path / "audit", server)
    assert done.counts["failed"] == 6
    before = stored(tmp_path / "audit", "stub-vlm")
    assert {row["outcome"] for key, row in before.items() if key[1:] == ("Effusion", "absent")} == {"failed"}
    server.otherwise = answer()
    plain = ask(JUDGE, own, tmp_path / "audit", server)
    assert plain.counts["failed"] == 6
    mended = ask(JUDGE, own, tmp_path / "audit", server, retry_failed=True)
    assert mended.counts == dict.fromkeys(OUTCOME.categories, 0) | {"answered": 18}
    after = stored(tmp_path / "audit", "stub-vlm")
    kept = [key for key in before if key[1] != "Effusion"]
    assert [after[key]["logit"] for key in kept] == [before[key]["logit"] for key in kept]
    assert all(row["outcome"] == "answered" for row in after.values())


def test_unreadable_films_are_failed_rows_and_a_mended_one_is_asked(own, tmp_path):
    """One film never stops a run: each broken one has rows with its reason, and the run ends done."""
    whole = (own.images / own.image_ids[1]).read_bytes()
    (own.images / own.image_ids[1]).write_bytes(whole[: len(whole) // 2])
    (own.images / own.image_ids[4]).write_text("<html>not found</html>")
    said = []
    done = ask("stub:", own, tmp_path / "audit", said=said, workers=1)
    assert (done.state, done.films, done.counts["failed"], done.counts["answered"]) == ("done", 6, 6, 12)
    assert any(mentions(line, "2 images", "failed") for line in said)
    assert any("1 truncated" in line and "1 not_an_image" in line for line in said)
    table = Workspace(tmp_path / "audit").judge("stub").answers()
    reasons = table.filter(pl.col("image_id") == own.image_ids[4])["why"].unique().to_list()
    assert [mentions(reason, "web page") for reason in reasons] == [True]
    (own.images / own.image_ids[1]).write_bytes(whole)
    mended = ask("stub:", own, tmp_path / "audit", retry_failed=True)
    assert (mended.films, mended.counts["failed"], mended.counts["answered"]) == (6, 3, 15)


def test_what_is_odd_about_films_is_counted(own, tmp_path):
    """A colour film is shown in grey, and the user reads how many there were."""
    picture = Image.open(own.images / own.image_ids[2]).convert("RGB")
    picture.putpixel((3, 3), (255, 0, 0))
    picture.save(own.images / own.image_ids[2])
    said = []
    done = ask("stub:", own, tmp_path / "audit", said=said)
    assert {notice.code: notice.count for notice in done.notices} == {"films_colour": 1}
    assert any(mentions(line, "1 image", ".299 red, .587 green") for line in said)


def test_a_budget_ends_a_run_and_what_is_sealed_is_whole(small, server, tmp_path):
    """The tokens of the controls count; the same order goes on where it stopped, and in the end nothing is missing."""
    pace = dataclasses.replace(QUICK, in_flight=1, budget_tokens=20_000)
    done = ask(JUDGE, small, tmp_path, server, pace=pace)
    assert done.state == "budget"
    assert done.films in (4, 5)
    assert Workspace(tmp_path).judge("stub-vlm").answers().height == done.films * 3
    assert Workspace(tmp_path).judge("stub-vlm").record["state"] == "budget"
    only_controls = dataclasses.replace(QUICK, in_flight=1, budget_tokens=100)
    nothing = ask(JUDGE, small, tmp_path / "other", server, pace=only_controls)
    assert (nothing.state, nothing.films, nothing.sealed) == ("budget", 0, None)
    assert Workspace(tmp_path / "other").judge_names() == []
    whole = ask(JUDGE, small, tmp_path, server)
    assert (whole.state, whole.films, whole.counts["answered"]) == ("done", FILMS, FILMS * 3)


def test_asking_again_finds_no_drift_on_a_steady_server(small, server, tmp_path):
    """--verify asks some stored questions again, leaves the answers, and keeps the drift with the judge."""
    ask(JUDGE, small, tmp_path, server, limit_images=6)
    before = stored(tmp_path, "stub-vlm")
    done = ask(JUDGE, small, tmp_path, server, limit_images=6, verify=25)
    assert (done.drift.questions, done.drift.compared) == (30, 30)
    assert (done.drift.mean, done.drift.largest, done.drift.beyond, done.drift.other_outcome) == (0, 0, 0, 0)
    assert stored(tmp_path, "stub-vlm") == before
    assert Workspace(tmp_path).judge("stub-vlm").record["drift"]["questions"] == 30
    assert (done.state, done.films) == ("verified", 6)
    assert Workspace(tmp_path).judge("stub-vlm").record["state"] == "done"


def test_asking_again_measures_how_far_a_server_drifts(small, server, tmp_path):
    """A server whose log-probs moved by .2 nat is found out; and the seal still has it after the next run."""
    ask(JUDGE, small, tmp_path, server, limit_images=3)
    server.otherwise = answer(lean)
    done = ask(JUDGE, small, tmp_path, server, limit_images=3, verify=10)
    assert done.drift.mean == pytest.approx(0.2)
    assert done.drift.beyond == done.drift.compared == 10
    ask(JUDGE, small, tmp_path, server, limit_images=3)
    assert Workspace(tmp_path).judge("stub-vlm").record["drift"]["mean"] == pytest.approx(0.2)


def lean(completion):
    """Move every no down by .2 nat."""
    for choice in completion["choices"]:
        for entry in choice["logprobs"]["content"][0]["top_logprobs"]:
            entry["logprob"] -= 0.2 if "no" in entry["token"].lower() else 0


def test_asking_again_needs_something_stored(small, server, tmp_path):
    """--verify before any run, or about other films, says so."""
    with pytest.raises(UsageError, match="--verify: no stored"):
        ask(JUDGE, small, tmp_path, server, verify=10)


def test_a_second_writer_is_refused_and_told_the_process_of_the_first(small, tmp_path):
    """R11: whoever holds the lock is named by its pid."""
    ask("stub:", small, tmp_path, limit_images=2)
    with (
        Ledger.open(tmp_path / "ledger.sqlite") as first,
        first.lock("judge run"),
        pytest.raises(WorkspaceError, match=rf"judge run .*{os.getpid()}.*writing"),
    ):
        ask("stub:", small, tmp_path)
    assert ask("stub:", small, tmp_path, limit_images=3).films == 3


def test_scores_of_a_table_are_sealed_without_a_film(small, tmp_path):
    """A wide table with a column a finding; a film that it leaves out is counted, and what is odd is said."""
    file = tmp_path / "scores.csv"
    pl.DataFrame({"film": small.image_ids[:20], "Effusion": [0.25] * 20, "Weather": [1] * 20}).write_csv(file)
    said = []
    done = ask(f"table:{file}", small, tmp_path / "audit", name="elsewhere", said=said)
    assert (done.name, done.state, done.films) == ("elsewhere", "done", 20)
    assert done.counts["answered"] == 20
    assert sum(done.counts.values()) == 60
    sealed = Workspace(tmp_path / "audit").judge("elsewhere")
    assert sealed.answers()["p_present"].drop_nulls().unique().to_list() == [0.25]
    assert set(sealed.answers()["judge"]) == {"elsewhere"}
    assert any("Weather" in line for line in said)
    assert not (tmp_path / "audit" / "ledger.sqlite").exists()


def test_a_table_and_an_asked_judge_do_not_share_a_name(small, tmp_path):
    """R10: neither may take the other's place, and both messages offer a name."""
    file = tmp_path / "scores.csv"
    pl.DataFrame({"film": small.image_ids, "Effusion": [0.25] * FILMS}).write_csv(file)
    home = tmp_path / "audit"
    ask("stub:", small, home, limit_images=2)
    with pytest.raises(UsageError, match=r"'bpals stub'.*'table of scores'.*--name"):
        ask(f"table:{file}", small, home, name="stub")
    ask(f"table:{file}", small, home, name="mine")
    ask(f"table:{file}", small, home, name="mine")
    with pytest.raises(UsageError, match=r"'table of scores'.*'bpals stub'"):
        ask("stub:", small, home, name="mine")


def test_no_film_is_found(small, tmp_path):
    """An empty folder, a folder of strangers, no folder: each is one sentence."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for images, words in ((empty, "holds no film"), (tmp_path / "nowhere", "is no folder and no file")):
        with pytest.raises(FilmError, match=words):
            ask("stub:", dataclasses.replace(small, images=images), tmp_path / "audit")
    (empty / "stranger.png").write_bytes(datasets.another_picture())
    with pytest.raises(FilmError, match=r"1 is there.*000_0\.png"):
        ask("stub:", dataclasses.replace(small, images=empty), tmp_path / "audit")


def test_what_is_missing_is_asked_for(small, tmp_path):
    """No endpoint, no films, no dataset, no judge: each message has the words to type."""
    with pytest.raises(UsageError, match="--base-url http://"):
        ask(JUDGE, small, tmp_path)
    with pytest.raises(UsageError, match=r"--images PATH"):
        run_judge("stub:", workspace=tmp_path, order=order(small))
    with pytest.raises(UsageError, match=r"no image judge.*@bpals\.judge"):
        ask(print, small, tmp_path)
    with pytest.raises(UsageError, match="'ooenai'"):
        ask("ooenai:x", small, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"name": "My Judge"}, "cannot be called 'My Judge'.*Call it 'my-judge'"),
        ({"name": "record"}, "cannot be called 'record'"),
        ({"name": "../up"}, "cannot be called"),
        ({"limit_images": 0}, "0 images cannot be asked about"),
        ({"limit_images": -1}, "-1 images cannot be asked about"),
        ({"verify": -1}, "-1 questions cannot be asked again"),
    ],
)
def test_an_order_that_cannot_be_is_refused(wish, words):
    """Before anything is read, and with what to type."""
    with pytest.raises(UsageError, match=words):
        Order(**wish)


def test_a_name_is_made_of_the_models(small, server, tmp_path):
    """An organisation and capitals are no part of a file's name."""
    done = ask(OpenAIJudge(model="Org/Stub-VLM 7B!"), small, tmp_path, server, limit_images=1)
    assert done.name == "stub-vlm-7b"
    assert done.card.model == "Org/Stub-VLM 7B!"


def test_a_server_that_goes_away_stops_the_run_and_what_is_done_is_sealed(small, server, tmp_path):
    """Stopped says what to do; the films that were asked about are sealed whole, and the next run goes on."""
    calls = []

    async def then_silence(call):
        calls.append(1)
        await (answer() if len(calls) <= 130 else status(503))(call)

    server.otherwise = then_silence
    pace = dataclasses.replace(QUICK, in_flight=2, tries=50)
    with pytest.raises(Stopped, match="What is done is kept"):
        ask(JUDGE, small, tmp_path, server, pace=pace)
    sealed = Workspace(tmp_path).judge("stub-vlm")
    assert sealed.record["state"] == "stopped"
    assert 0 < sealed.answers().height < FILMS * 3
    assert sealed.answers().height % 3 == 0
    assert status_of(tmp_path)[0]["state"] == "stopped"
    server.otherwise = answer()
    assert ask(JUDGE, small, tmp_path, server).counts["answered"] == FILMS * 3


def test_nobody_listens(small, tmp_path):
    """A dead port is one sentence with the address, before anything is asked for good."""
    with dead_port() as url, pytest.raises((JudgeError, Stopped), match=re.escape(url.removesuffix("/v1"))):
        run_judge(JUDGE, images=small.images, workspace=tmp_path,
                  order=order(small, endpoints=(Endpoint(url=url),)))  # fmt: skip
    assert Workspace(tmp_path).judge_names() == []


class Impatient:
    """A judge during which somebody presses Ctrl-C, at the fifth film."""

    card = JudgeCard(judge="impatient", kind="image", version="1", polarities=("present",))

    def __init__(self, *, at):
        """Say at which film."""
        self.left = at

    def questions(self, vocabulary):
        """Ask one thing a finding."""
        return tuple(Question(subject=finding) for finding in vocabulary.findings)

    def ask(self, film, questions):
        """Answer, and at the film in question interrupt the process."""
        if film is not None and film.sha256 not in CONTROLS:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return [Reply(outcome="answered", logit=0.5)] * len(questions)


CONTROLS = {film.sha256 for _, film in selftest.control_images(128) if film}


def test_ctrl_c_ends_a_run_and_what_is_sealed_is_whole(small, tmp_path):
    """R04: open films are finished and sealed, three rows each; the same order goes on to the end."""
    done = ask(Impatient(at=5), small, tmp_path)
    assert done.state == "interrupted"
    assert 5 <= done.films < FILMS
    assert Workspace(tmp_path).judge("impatient").answers().height == done.films * 3
    assert status_of(tmp_path)[0]["state"] == "interrupted"
    whole = ask(Impatient(at=0), small, tmp_path)
    assert (whole.state, whole.films) == ("done", FILMS)


KILLED_WHILE_SEALING = """
import os, signal, sys
from bpals.tasks.judge import Order
from bpals.tasks.judge import run_judge

home, images, source, mapping, nth = sys.argv[1:]
renames = 0

def watch(event, arguments):
    global renames
    if event == "os.rename" and "judgments" in str(arguments[1]):
        renames += 1
        if renames == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
run_judge("stub:", images=images, workspace=home,
          order=Order(source=source, mapping=mapping, limit_images=9, workers=0))
"""


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("sealed_before", [False, True])
def test_a_run_killed_while_sealing_loses_nothing(small, tmp_path, nth, sealed_before):
    """Before each move of a file: the old judge, or an error that says what to do, never a mixture; a rerun heals."""
    if sealed_before:
        ask("stub:", small, tmp_path, limit_images=4)
    line = [sys.executable, "-c", KILLED_WHILE_SEALING, tmp_path, small.images, small.source, small.mapping, str(nth)]
    killed = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(shape.SRC)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    home = Workspace(tmp_path)
    if not sealed_before:
        assert home.judge_names() == []
    elif nth == 1:
        assert home.judge("stub").answers().height == 4 * 3
    else:
        with pytest.raises(WorkspaceError, match="Run that judge again"):
            home.judge("stub")
    healed = ask("stub:", small, tmp_path, limit_images=9)
    assert (healed.films, healed.tally) == (9, None)
    assert home.judge("stub").answers().height == 9 * 3


def test_the_key_is_in_no_file_and_in_no_word(small, server, tmp_path, capfd):
    """S23: the key goes to the server and nowhere else: not into the workspace, what is said, or an error."""
    canary = "sk-canary-4417-do-not-write"
    endpoint = Endpoint(url=server.url, key=canary, deadline_s=5)
    said = []
    done = ask(JUDGE, small, tmp_path, server, endpoints=(endpoint,), limit_images=3, said=said)
    assert server.seen.keys == {f"Bearer {canary}"}
    server.otherwise = status(401, json.dumps({"error": {"message": f"invalid key {canary}"}}).encode())
    with pytest.raises(JudgeError) as refused:
        ask(JUDGE, small, tmp_path, server, endpoints=(endpoint,), limit_images=5, said=said)
    words = " ".join((*said, repr(done), str(refused.value), repr(endpoint), json.dumps(status_of(tmp_path))))
    assert canary not in words + "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path for path in files if canary.encode() in path.read_bytes()]


def test_a_workspace_that_cannot_be_is_one_sentence(small, tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "audit").write_text("mine")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        ask("stub:", small, tmp_path / "audit")


def test_a_finding_that_the_pack_has_no_words_for_is_named(own, server, tmp_path):
    """It is asked about in its own words, and the user reads which."""
    mapping, table = tmp_path / "other.toml", tmp_path / "other.csv"
    words = (datasets.EXAMPLES / "films.toml").read_text(encoding="utf-8")
    mapping.write_text(words.replace('"Effusion"', '"Gibbus"'), encoding="utf-8")
    films = pl.read_csv(own.source.removeprefix("table:")).rename({"Effusion": "Gibbus"})
    films.write_csv(table)
    other = dataclasses.replace(own, source=f"table:{table}", mapping=str(mapping))
    said = []
    done = ask(JUDGE, other, tmp_path / "audit", server, limit_images=2, said=said)
    assert any("has no phrase for 'Gibbus'" in line for line in said)
    assert done.counts["answered"] == 6


def test_options_belong_to_a_spec(small, server, tmp_path):
    """What an object is asked with is its own: options beside it would be ignored, and are refused."""
    with pytest.raises(UsageError, match="pack: options are for a spec"):
        ask(JUDGE, small, tmp_path, server, options={"pack": "chest"})
    with pytest.raises(UsageError, match="is no image judge"):
        ask(StubJudge, small, tmp_path)


def test_a_judge_that_fails_on_some_films_can_be_asked_again(small, tmp_path):
    """--verify leaves out the films whose answers failed: there is nothing to compare."""
    wild = dataclasses.replace(QUICK, failure_share=1)
    done = ask("stub:seed=2,failed=.3", small, tmp_path, pace=wild)
    assert 0 < done.counts["failed"] < FILMS * 3
    again = ask("stub:seed=2,failed=.3", small, tmp_path, pace=wild, verify=10_000)
    assert (again.drift.questions, again.drift.largest) == ((FILMS * 3 - done.counts["failed"]) * 2, 0)


def test_asking_again_leaves_out_a_film_that_is_another_file_now(own, tmp_path):
    """Its old answers are about other pixels: that would be no drift."""
    ask("stub:", own, tmp_path / "audit")
    (own.images / own.image_ids[2]).write_bytes(datasets.another_picture())
    done = ask("stub:", own, tmp_path / "audit", verify=10_000)
    assert (done.drift.questions, done.drift.largest) == (5 * 6, 0)


def test_a_local_model_is_asked_the_same_way(small, tmp_path):
    """`hf:FOLDER` of a tiny CLIP: asked in batches, sealed with its topics, and steady when asked again."""
    pytest.importorskip("torch")
    tiny_models = importlib.import_module("world.tiny_models")
    tiny_models.save_clip(tmp_path / "clip")
    done = ask(f"hf:{tmp_path / 'clip'}", small, tmp_path / "audit", limit_images=5)
    assert (done.state, done.films, done.counts["answered"]) == ("done", 5, 15)
    assert Workspace(tmp_path / "audit").judge("clip").film_answers()["image_id"].n_unique() == 5
    again = ask(f"hf:{tmp_path / 'clip'}", small, tmp_path / "audit", limit_images=5, verify=20)
    assert again.drift.largest < 1e-4


def test_the_audit_is_of_the_dataset_that_the_judges_were_asked_about(small, tmp_path):
    """Without --source an audit beside sealed judges never takes another dataset, which would replace theirs."""
    ask(StubJudge(seed=3), small, tmp_path)
    run = bpals.audit(workspace=tmp_path)
    assert run.record["source"]["name"] != "nih"
    assert run.record["values"]["source"]["reason"] == "the dataset of this workspace"
