"""How far each judge is: while it runs, after it was killed, at the end."""

import pytest
import smallset
from faultyserver import FaultyServer
from smallset import ask, order

from bpals.errors import UsageError
from bpals.judges.openai import OpenAIJudge
from bpals.judgestatus import status_of
from bpals.judging import run_judge
from bpals.ledger import Ledger

FILMS = 24
QUESTIONS = 10
JUDGE = OpenAIJudge(model="stub-vlm")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two dozen films; read them, do not change them."""
    return smallset.write(tmp_path_factory.mktemp("small"), FILMS)


@pytest.fixture
def server():
    """A server whose answers are a function of the image and the question."""
    with FaultyServer() as running:
        yield running


def test_status_of_a_workspace_without_a_ledger_says_what_to_type(tmp_path):
    """Nothing was asked here: that is no traceback."""
    with pytest.raises(UsageError, match=r"no judge was asked here\. Type: bpals judge run"):
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
    with pytest.raises(UsageError, match=r"no asked judge is called 'stub-vml'\. Did you mean 'stub-vlm'"):
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
