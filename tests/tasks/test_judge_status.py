"""How far each judge is: while it runs, after it was killed, at the end."""

import numpy as np
import pytest

from bpals.cli.main import obey
from bpals.errors import UsageError
from bpals.images.stream import ImageFeatures
from bpals.judges.openai import OpenAIJudge
from bpals.store.features import FeatureCache, ProbePlan
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.judge import run_judge
from bpals.tasks.judge_status import status_of
from bpals.tasks.merge import merge
from world import datasets
from world.datasets import ask, order

FILMS = datasets.SMALL
QUESTIONS = 10
JUDGE = OpenAIJudge(model="stub-vlm")


def test_status_of_a_workspace_without_a_ledger_says_what_to_type(tmp_path):
    """Nothing was asked here: that is no traceback."""
    with pytest.raises(UsageError, match=r"bpals judge run"):
        status_of(tmp_path)


def test_status_says_how_far_each_judge_is(small, server, tmp_path):
    """Films, replies, tokens and requests of each judge, also of one that was asked for less than there is."""
    ask(JUDGE, small, tmp_path, server, limit_images=3)
    ask("stub:", small, tmp_path)
    first, second = status_of(tmp_path)
    assert (first["judge"], first["state"], first["films"], first["films_all"]) == ("stub-vlm", "done", 3, 3)
    assert first["replies"]["answered"] == 3 * QUESTIONS
    assert first["tokens"]["prompt"] == 300 * 3 * QUESTIONS
    assert 0.8 < first["cached_share"] < 1
    assert (second["judge"], second["films"], second["eta_s"]) == ("stub", FILMS, None)
    with pytest.raises(UsageError, match=r"'stub-vml'.*'stub-vlm'"):
        status_of(tmp_path, "stub-vml")


def test_a_killed_run_is_not_running_while_another_runs(small, tmp_path):
    """Whoever gets the lock knows that what was left as running is dead, and writes it down."""
    ask("stub:", small, tmp_path, limit_images=2)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger, ledger.lock("a test"):
        ledger.end(ledger.runs(ledger.judge_id("stub"))[-1]["run_id"], "running", {})
    assert status_of(tmp_path)[0]["state"] == "killed"
    seen = []
    run_judge("stub:1", images=small.images, workspace=tmp_path, order=order(small, name="other"),
              watch=lambda _: seen.append({row["judge"]: row["state"] for row in status_of(tmp_path)}))  # fmt: skip
    assert seen[0]["stub"] == "killed"


def test_a_judge_whose_controls_are_asked_and_no_film_is_unfinished(small, tmp_path):
    """The controls are a run of their own: that they are done does not mean that the judge is."""
    ask("stub:", small, tmp_path, limit_images=2)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger, ledger.lock("a test"):
        judge_id = ledger.judge_id("stub")
        ledger.end(ledger.begin(judge_id, {"films": 9, "films_before": 2}, {}), "done", {})
        assert status_of(tmp_path)[0]["state"] == "running"
    row = status_of(tmp_path)[0]
    assert (row["state"], row["films"], row["films_all"], row["eta_s"]) == ("unfinished", 2, 9, None)


def test_a_judge_that_was_enrolled_and_never_run(small, server, tmp_path):
    """No run, no film, and no division by nothing."""
    with pytest.raises(UsageError, match="--verify"):
        ask(JUDGE, small, tmp_path, server, verify=10)
    row = status_of(tmp_path)[0]
    assert (row["state"], row["films"], row["films_all"], row["films_per_s"]) == ("never run", 0, 0, 0.0)


def test_a_table_is_listed_beside_the_judges_that_were_asked(small, tmp_path):
    """Its scores were read and not asked for: all that `judge list` names is here, too."""
    scores = tmp_path / "scores.csv"
    scores.write_text("image_id,Effusion\n" + "".join(f"{image_id},0.5\n" for image_id in small.image_ids[:5]))
    home = tmp_path / "audit"
    run_judge(f"table:{scores}", workspace=home, order=order(small))
    (row,) = status_of(home)
    assert (row["judge"], row["state"], row["films"], row["films_all"]) == ("scores", "read from a table", 5, 5)
    assert row["replies"]["answered"] == 5
    ask("stub:", small, home, limit_images=2)
    asked, table = status_of(home)
    assert (asked["judge"], table) == ("stub", row)
    assert asked.keys() == row.keys()
    assert status_of(home, "scores") == [row]


def look_at(home, small, names, shard=""):
    """Keep features of some films under the plan of a probe, as one does that is interrupted."""
    Workspace(home).remember_dataset(small.source, small.mapping)
    cache = FeatureCache(home, "tiny", "sha256:" + "ab" * 32, 3)
    plan = ProbePlan(
        judge="probe-tiny", spec="probe:tiny.onnx", films=FILMS, part=FILMS // 2 if shard else FILMS, shard=shard
    )
    plan.keep(cache.path)
    with cache.writing() as writer:
        for name in names:
            writer.put(ImageFeatures(image_id=name, sha256=f"of {name}", width_px=4, height_px=4, notes=(),
                            features=np.ones(3, np.float32), thumbnail=np.zeros((32, 32), np.uint8)))  # fmt: skip
    return cache


def test_a_probe_that_has_only_looked_says_how_far_it_is(capsys, small, tmp_path):
    """While it looks, after Ctrl-C, and when all is seen: films kept, of how many, and what to type."""
    cache = look_at(tmp_path, small, small.image_ids[:9])
    (row,) = status_of(tmp_path)
    assert (row["judge"], row["state"], row["films"], row["films_all"]) == ("probe-tiny", "unfinished", 9, FILMS)
    again = f"Type: bpals judge run probe:tiny.onnx --workspace {tmp_path}"
    assert row["next"].endswith(again)
    with cache.writing():
        assert status_of(tmp_path)[0]["state"] == "looking"
    for command, words in (("status", "probe-tiny: "), ("list", "not finished yet: ")):
        assert obey(["judge", command, "--workspace", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert f"{words}unfinished, 9 of 24 images\n" in shown
        assert again in shown
        assert "none yet" not in shown
    look_at(tmp_path, small, small.image_ids)
    (row,) = status_of(tmp_path, "probe-tiny")
    assert (row["state"], row["films"]) == ("looked at", FILMS)
    assert row["next"].endswith(again)
    with cache.writing():
        assert status_of(tmp_path)[0]["state"] == "learning"


def test_the_parts_of_a_probe_are_counted_before_and_after_they_are_merged(small, tmp_path):
    """A shard is half of the films; the merged workspace has all of them, and says what to type there."""
    for part, names in (("1/2", small.image_ids[: FILMS // 2]), ("2/2", small.image_ids[FILMS // 2 :])):
        look_at(tmp_path / part[0], small, names, part)
        (row,) = status_of(tmp_path / part[0])
        assert (row["state"], row["films"], row["films_all"]) == ("looked at", FILMS // 2, FILMS // 2)
        assert f"part {part} is looked at" in row["next"]
    done = merge([tmp_path / "1", tmp_path / "2"], workspace=tmp_path / "all")
    again = f"bpals judge run probe:tiny.onnx --workspace {tmp_path / 'all'}"
    assert [notice.message.endswith(again) for notice in done.notices if notice.code == "features_merged"] == [True]
    (row,) = status_of(tmp_path / "all")
    assert (row["state"], row["films"], row["films_all"]) == ("looked at", FILMS, FILMS)
    assert row["next"].endswith(again)


def test_half_of_the_parts_of_a_probe_are_half_of_its_films(small, tmp_path):
    """One part alone is merged: the rest is missed, not forgotten."""
    look_at(tmp_path / "1", small, small.image_ids[: FILMS // 2], "1/2")
    merge([tmp_path / "1"], workspace=tmp_path / "all")
    (row,) = status_of(tmp_path / "all")
    assert (row["state"], row["films"], row["films_all"]) == ("unfinished", FILMS // 2, FILMS)
