"""A whole probe, from films to a sealed judge: resumable, honest about films that cannot be seen, and told apart."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import polars as pl
import pytest

import shape
from bpals.errors import UsageError
from bpals.store.shards import Shard
from bpals.store.workspace import Workspace
from bpals.tasks.judge import Order, run_judge
from bpals.tasks.judge_status import status_of
from bpals.tasks.probe import run_probe
from world import datasets, tiny_onnx
from world.words import mentions

FILMS = 260
CHILD = shape.ROOT / "tests" / "world" / "probe_child.py"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Films of the examples, drawn: enough for a probe to learn from; one is cut off."""
    made = datasets.write(tmp_path_factory.mktemp("small"), FILMS)
    # Patients of all five folds: a probe that is left without two of two has nothing to learn from.
    table = pl.read_csv(datasets.EXAMPLES / "films.csv").head(FILMS)
    table.write_csv(made.source.removeprefix("table:"))
    cut = made.images / made.image_ids[5]
    cut.write_bytes(cut.read_bytes()[:-100])
    return made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A backbone of 16 numbers."""
    return tiny_onnx.write(tmp_path_factory.mktemp("backbone") / "tiny.onnx")


def probe(tiny, small, home, **more):
    """Run the probe over the small dataset."""
    said = []
    order = Order(**({"source": small.source, "mapping": small.mapping, "workers": 0} | more))
    run = run_probe(f"probe:{tiny}", images=small.images, workspace=home, order=order, say=said.append)
    return run, said


@pytest.fixture(scope="module")
def whole(tiny, small, tmp_path_factory):
    """The probe, run to its end."""
    home = tmp_path_factory.mktemp("whole")
    return home, *probe(tiny, small, home)


def answers(home, name="probe-tiny"):
    """What the sealed judge says."""
    return Workspace(home).judge(name).answers()


def test_a_probe_is_sealed_as_any_judge_is(whole, small):
    """A row a film and finding; the film that is cut off is failed, and no evidence."""
    home, run, _ = whole
    assert (run.name, run.state, run.films) == ("probe-tiny", "done", FILMS)
    table = answers(home)
    assert table.height == FILMS * 3 == sum(run.counts.values())
    assert run.counts["failed"] == 3
    failed = table.filter(pl.col("outcome") == "failed")
    assert failed["image_id"].unique().to_list() == [small.image_ids[5]]
    assert failed["p_present"].null_count() == 3
    assert failed["why"].str.contains("ends early|bytes").all()
    assert run.counts["answered"] > FILMS
    card = Workspace(home).judge("probe-tiny").card
    assert (card["trained_on_target"], card["model"], card["kind"]) == ("yes", "tiny", "image")


def test_what_was_seen_is_not_looked_at_again(whole, tiny, small, tmp_path):
    """A second run reads no film and learns nothing, says so, and leaves the same table to the last byte."""
    home, first, told = whole
    assert any(sentence.startswith("fitting on ") for sentence in told)
    again = shutil.copytree(home, tmp_path / "again")
    seen = sorted(path.name for path in again.glob("features/*/*"))
    run, said = probe(tiny, small, again)
    assert run.tally.films_all == 0
    assert (run.counts, run.films, run.sealed) == (first.counts, first.films, again / "judgments" / "probe-tiny.json")
    assert any(sentence.startswith("nothing is new: ") for sentence in said)
    assert not any(sentence.startswith("fitting on ") for sentence in said)
    assert sorted(path.name for path in again.glob("features/*/*")) == seen
    for name in ("probe-tiny.parquet", "probe-tiny.json"):
        assert (again / "judgments" / name).read_bytes() == (home / "judgments" / name).read_bytes()


def test_a_probe_on_soft_targets_stands_beside_the_one_on_labels(whole, tiny, small, tmp_path):
    """--targets signal: another name, another card, other answers from the same features; a third kind is refused."""
    home = shutil.copytree(whole[0], tmp_path / "again")
    run, said = probe(tiny, small, home, options={"targets": "signal"})
    assert (run.name, run.tally.films_all, run.counts["failed"]) == ("probe-tiny-signal", 0, 3)
    assert run.card.settings["targets"] == "signal"
    assert any(sentence.startswith("making soft targets: 5 audits") for sentence in said)
    assert Workspace(home).judge_names() == ["probe-tiny", "probe-tiny-signal"]
    assert answers(home).equals(answers(whole[0]))
    again, said = probe(tiny, small, home, options={"targets": "signal"})
    assert again.counts == run.counts
    assert any(sentence.startswith("nothing is new: ") for sentence in said)
    with pytest.raises(UsageError, match="hunches"):
        probe(tiny, small, home, options={"targets": "hunches"})


def test_another_label_or_a_damaged_seal_is_learnt_from_anew(whole, tiny, small, tmp_path):
    """What was sealed stands for the same films and labels alone, and only where it is whole."""
    home = shutil.copytree(whole[0], tmp_path / "again")
    (home / "judgments" / "probe-tiny.parquet").write_bytes(b"not a table")
    _, said = probe(tiny, small, home)
    assert any(sentence.startswith("fitting on ") for sentence in said)
    assert answers(home).equals(answers(whole[0]))
    other = tmp_path / "other.csv"
    table = pl.read_csv(small.source.removeprefix("table:"))
    table.with_columns(Effusion=pl.col("Effusion").reverse()).write_csv(other)
    _, said = probe(tiny, small, home, source=f"table:{other}")
    assert any(sentence.startswith("fitting on ") for sentence in said)
    assert not answers(home).equals(answers(whole[0]))


def test_every_stage_counts_what_is_done_and_what_is_left(tiny, tmp_path):
    """Looking in films, fitting in per cent, altered copies in films: each to its end, with a time."""
    films = datasets.write(tmp_path, 220)
    table = pl.read_csv(films.source.removeprefix("table:"))
    table.with_columns(patient=pl.col("film")).write_csv(tmp_path / "films.csv")
    seen = []
    order = Order(source=films.source, mapping=films.mapping, workers=0)
    run_probe(f"probe:{tiny}", images=films.images, workspace=tmp_path / "home", order=order, watch=seen.append)
    stages = list(dict.fromkeys(each.stage.partition(",")[0] for each in seen))
    assert stages == ["", "fitting", "altered copies"]
    fitting = [each for each in seen if each.stage.startswith("fitting")]
    assert fitting[-1].stage == "fitting, 100% done"
    assert all(each.eta_s is not None for each in fitting)
    copies = [each for each in seen if each.stage == "altered copies"]
    assert [each.films_done for each in copies] == list(range(221))
    assert all(each.films_all == 220 for each in copies)
    assert (copies[0].eta_s, copies[-1].eta_s) == (None, 0)


def test_a_mended_film_is_looked_at_when_it_is_asked_for(whole, tiny, small, tmp_path):
    """A failure stands until --retry-failed; then the film is judged, and nothing failed."""
    home, _, _ = whole
    again, films = shutil.copytree(home, tmp_path / "again"), shutil.copytree(small.images, tmp_path / "films")
    (films / small.image_ids[5]).write_bytes(datasets.another_picture())
    order = {"source": small.source, "mapping": small.mapping, "workers": 0}
    before = run_probe(f"probe:{tiny}", images=films, workspace=again, order=Order(**order))
    assert before.counts["failed"] == 3
    after = run_probe(f"probe:{tiny}", images=films, workspace=again, order=Order(**order, retry_failed=True))
    assert (after.counts["failed"], after.films) == (0, FILMS)


def test_some_films_are_a_part_of_all(whole, tiny, small, tmp_path):
    """--limit-images draws films; too few to learn from are unsupported, and more of them go on from there."""
    run, _ = probe(tiny, small, tmp_path, limit_images=30)
    assert run.films == 30
    assert run.counts["answered"] == 0
    assert "at least 200" in run.why
    probe(tiny, small, tmp_path)
    assert answers(tmp_path).equals(answers(whole[0]))


def test_parts_of_several_machines_are_one_probe(whole, tiny, small, tmp_path):
    """--shard looks and learns nothing; the parts' features in one folder give the same judge as one run."""
    together = tmp_path / "together"
    for part in (1, 2):
        home = tmp_path / f"part{part}"
        run, said = probe(tiny, small, home, shard=Shard(part, 2))
        assert run.sealed is None
        assert 0 < run.films < FILMS
        assert "without --shard" in said[-1]
        assert run.looked == (run.films, run.films)
        (row,) = status_of(home)
        assert (row["judge"], row["state"], row["films"]) == ("probe-tiny", "looked at", run.films)
        assert mentions(row["next"], f"part {part}/2", "bpals judge merge")
        shutil.copytree(home / "features", together / "features", dirs_exist_ok=True)
    run, _ = probe(tiny, small, together)
    assert run.tally.films_all == 0
    assert answers(together).equals(answers(whole[0]))


def test_workers_give_the_same_judge(whole, tiny, small, tmp_path):
    """Two processes, another order of arrival, other blocks: the same answers to the last bit."""
    probe(tiny, small, tmp_path, workers=2)
    assert answers(tmp_path).equals(answers(whole[0]))


def line(tiny, small, home):
    """The command line of the run."""
    return ["judge", "run", f"probe:{tiny}", *small.words, "--workspace", str(home)]


def blocks(home):
    """The blocks that are sealed."""
    return list(home.glob("features/*/*.parquet"))


def test_a_run_that_is_killed_goes_on_where_it_was(whole, tiny, small, tmp_path):
    """R02: SIGKILL while films are looked at: sealed blocks are kept, and the same command ends with the same judge."""
    words = [sys.executable, CHILD, tiny, small.source, small.mapping, small.images, tmp_path]
    child = subprocess.Popen([*map(str, words)], env=os.environ | {"PYTHONPATH": str(shape.SRC)})
    while len(blocks(tmp_path)) < 2:
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = pl.concat([pl.read_parquet(block, columns=["image_id"]) for block in blocks(tmp_path)])
    assert 8 <= kept.height < FILMS
    assert not (tmp_path / "judgments").exists()
    run, _ = probe(tiny, small, tmp_path)
    assert run.tally.films_all == FILMS - kept.height
    assert answers(tmp_path).equals(answers(whole[0]))


def test_ctrl_c_ends_a_run_and_leaves_nothing_half_written(whole, start_bpals, tiny, small, tmp_path):
    """R04: exit code 130, and the same command goes on."""
    child = start_bpals(*line(tiny, small, tmp_path))
    while not list(tmp_path.glob("features/*/.lock")):
        assert child.poll() is None, child.stderr.read()
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate()
    assert child.returncode == 130, errors
    assert re.search(r"probe-tiny: interrupted, \d+ of 260 ", out), out
    assert "asked nothing" not in out
    assert "bpals judge run" in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("features/*/.*.part"))
    probe(tiny, small, tmp_path)
    assert answers(tmp_path).equals(answers(whole[0]))


def test_an_interrupted_run_keeps_what_was_seen(tiny, small, tmp_path):
    """R04: the open block is sealed too; nothing is learnt from a part."""

    def interrupt(snapshot):
        if snapshot.films_done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    order = Order(source=small.source, mapping=small.mapping, workers=0)
    run = run_probe(f"probe:{tiny}", images=small.images, workspace=tmp_path, order=order, watch=interrupt)
    assert (run.state, run.films, run.sealed, run.looked) == ("interrupted", 1, None, (1, FILMS))
    assert [pl.read_parquet(block).height for block in blocks(tmp_path)] == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_command_says_what_became_of_it(start_bpals, tiny, small, tmp_path):
    """As JSON, for a program, on a machine without torch; what means nothing to a probe is refused."""
    words = line(tiny, small, tmp_path / "home")
    for name in ("torch", "torchvision", "transformers", "timm", "onnx"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not needed to run a probe')")
    without = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{shape.SRC}"}
    done = start_bpals(*words, "--limit-images", 40, "--json", environment=without)
    out, errors = done.communicate()
    assert done.returncode == 0, errors
    told = json.loads(out)
    assert (told["judge"], told["films"], told["card"]["trained_on_target"]) == ("probe-tiny", 40, "yes")
    refused = start_bpals(*words, "--side", 512)
    assert mentions(refused.communicate()[1], "--side", "probe")
    assert refused.returncode == 2


def test_a_name_that_another_judge_has_is_refused(whole, tiny, small, tmp_path):
    """A probe does not overwrite a table of scores."""
    home = shutil.copytree(whole[0], tmp_path / "again")
    (tmp_path / "scores.csv").write_text(f"image_id,Cardiomegaly\n{small.image_ids[0]},0.5\n")
    run_judge(f"table:{tmp_path / 'scores.csv'}", workspace=home, order=Order(name="mine"))
    with pytest.raises(UsageError, match="'mine' is already here"):
        probe(tiny, small, home, name="mine")


def test_a_probe_is_not_asked_question_by_question(tiny, small, tmp_path):
    """Who asks for it in Python by the other name is told the right one."""
    with pytest.raises(UsageError, match="run_probe"):
        run_judge(f"probe:{tiny}", images=small.images, workspace=tmp_path)
    with pytest.raises(UsageError, match="is no probe"):
        run_probe("stub:1", images=small.images, workspace=tmp_path)


def test_where_the_films_are_is_asked_for(tiny, tmp_path):
    """Before anything is made."""
    with pytest.raises(UsageError, match="--images PATH"):
        run_probe(f"probe:{tiny}", workspace=tmp_path)
