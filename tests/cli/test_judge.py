"""`bpals judge run | status | list | card` at the command line: what they print, and how they end."""

import json
import re
import signal

import pytest
from typer.main import get_command

from bpals.cli.main import app, obey
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.types import OUTCOME
from world import datasets
from world.chat_server import FaultyServer, answer, status
from world.waiting import wait_until
from world.words import mentions

FILMS = 24
COMMANDS = sorted(get_command(app).commands["judge"].commands)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two dozen made-up films."""
    return datasets.write(tmp_path_factory.mktemp("small"), FILMS)


@pytest.fixture
def server():
    """A server that answers by the image and the question."""
    with FaultyServer() as running:
        yield running


def refusal(capsys, *arguments, code=2):
    """The one line on stderr of a command that cannot go on."""
    assert obey(["judge", *map(str, arguments)]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith("bpals: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    return shown.err


def run_words(small, home, spec="stub:", *more):
    """The words that ask a judge about the small dataset."""
    return ["judge", "run", spec, *small.words, "--workspace", str(home), *map(str, more)]


def test_a_run_ends_with_all_six_outcomes_and_what_to_type_next(capsys, small, tmp_path):
    """The counts stand on stdout, each outcome by name, and so do the next two commands."""
    assert obey(run_words(small, tmp_path)) == 0
    shown = capsys.readouterr()
    assert "stub: done, 24 images, 72" in shown.out
    assert mentions(shown.out, "answered 72", "abstained 0", "refused 0", "unparsed 0", "unsupported 0", "failed 0")
    assert f"bpals judge card stub --workspace {tmp_path}" in shown.out
    assert f"bpals audit --workspace {tmp_path}" in shown.out
    assert shown.err == ""


def test_a_run_for_a_program(capsys, small, server, tmp_path):
    """--json gives one object on stdout: state, six counts that add up, card, tally."""
    assert obey(run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url,
                          "--limit-images", "5", "--json")) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (found["judge"], found["state"], found["films"]) == ("stub-vlm", "done", 5)
    assert list(found["counts"]) == OUTCOME.categories.to_list()
    assert sum(found["counts"].values()) == 15
    assert found["card"]["observed"]["method"] == "top_k"
    assert found["tally"]["films_done"] == 5
    assert found["sealed"] == str(tmp_path / "judgments" / "stub-vlm.json")
    assert found["drift"] is None


def test_what_is_odd_is_noted_on_stderr(capsys, small, server, tmp_path):
    """Another model's name in the replies, and films that are not there: a line each."""
    words = run_words(small, tmp_path, "openai:my-model", "--base-url", server.url, "--limit-images", "2")
    assert obey([*words, "--source", f"table:{datasets.EXAMPLES / 'films.csv'}"]) == 0
    shown = capsys.readouterr()
    assert mentions(shown.err, "note:", "my-model", "stub-vlm")
    assert shown.err.count("my-model") == 1
    assert mentions(shown.err, "576 of 600")


def test_asking_again_prints_the_drift(capsys, small, server, tmp_path):
    """--verify prints one sentence with the distance in nats."""
    words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--limit-images", "3")
    assert obey(words) == 0
    assert obey([*words, "--verify", "20"]) == 0
    assert mentions(capsys.readouterr().out, "drift: 20", "0.0000 nat")


def test_the_key_comes_from_the_environment_and_is_printed_nowhere(capsys, monkeypatch, small, server, tmp_path):
    """S23: BPALS_API_KEY is sent to the endpoint and stands in no output, also not in that of a refusal."""
    canary = "sk-canary-9041-do-not-print"
    monkeypatch.setenv("BPALS_API_KEY", canary)
    words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--limit-images", "2")
    assert obey([*words, "--json"]) == 0
    assert server.seen.keys == {f"Bearer {canary}"}
    server.otherwise = status(403, f"no entry for {canary}".encode())
    assert obey(words) == 2
    assert obey(["judge", "status", "--workspace", str(tmp_path), "--json"]) == 0
    assert canary not in "".join(capsys.readouterr())


def test_a_spent_budget_is_exit_code_3(capsys, small, server, tmp_path):
    """The run can go on: the code says so to a script, and the words to a user."""
    words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--limit-images", "6")
    assert obey([*words, "--in-flight", "1", "--budget-tokens", "15000"]) == 3
    shown = capsys.readouterr()
    assert "stub-vlm: budget, " in shown.out
    assert "tokens are spent" in shown.err
    assert obey(words) == 0
    assert "done, 6 images, 18 pairs" in capsys.readouterr().out


def test_too_many_failures_are_exit_code_3(capsys, small, server, tmp_path):
    """Refused questions beyond the share stop the run in one line that says how to go on."""

    async def refuse_some(call):
        await (status(400) if b"effusion" in call.body else answer())(call)

    server.otherwise = refuse_some
    words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url)
    assert obey(words) == 3
    assert re.search(r"\d+ of \d+ .*0\.5%.*--retry-failed", capsys.readouterr().err)
    assert obey(["judge", "status", "--workspace", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "failures"
    assert Workspace(tmp_path).judge("stub-vlm").record["state"] == "stopped"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "nonsense:x"], "no kind of judge is called 'nonsense'"),
        (["run", "openai:m", "--images", "films"], "Type: --base-url http://127.0.0.1:8000/v1"),
        (["run", "stub:"], "where are the images? Type: --images PATH"),
        (["run", "stub:", "--images", "nowhere"], "--images {here}/nowhere is no folder and no file"),
        (["run", "stub:", "--name", "A Judge"], "Call it 'a-judge'"),
        (["run", "stub:", "--limit-images", "0"], "Invalid value for '--limit-images'"),
        (["run", "stub:", "--base-url", "http://127.0.0.1:1/v1"], "--base-url means nothing to a judge of kind stub"),
        (["run", "stub:", "--layout", "joint"], "--layout means nothing to a judge of kind stub"),
        (["run", "table:x.csv", "--images", "films"], "--images means nothing to a judge of kind table"),
        (["run", "table:x.csv", "--device", "cpu"], "--device means nothing to a judge of kind table"),
        (["run", "openai:m", "--device", "cpu"], "--device means nothing to a judge of kind openai"),
        (["run", "openai:m", "--card", "x.toml"], "--card means nothing to a judge of kind openai"),
        (["run", "hf:m", "--layout", "joint"], "--layout means nothing to a judge of kind hf"),
        (["run", "python:x.py", "--pack", "x"], "--pack means nothing to a judge of kind python"),
        (["status"], "no judge was asked here"),
        (["card", "nobody"], "no finished judge is called 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_one_line(capsys, small, tmp_path, monkeypatch, words, told):
    """Exit code 2, nothing on stdout, and the line says what to type."""
    monkeypatch.chdir(tmp_path)
    source = small.words[:4] if words[0] == "run" else []
    assert told.format(here=tmp_path) in refusal(capsys, *words, *source, "--workspace", tmp_path / "audit")


def test_a_list_before_anything_was_asked(capsys, tmp_path):
    """Every kind of judge is listed with what it is, and how to begin."""
    assert obey(["judge", "list", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("openai:", "hf:", "table:", "python:", "stub:"))
    assert "bpals judge run SPEC" in shown


def test_a_list_names_each_judge_with_its_outcomes(capsys, small, tmp_path):
    """For a user and for a program."""
    obey(run_words(small, tmp_path, "stub:seed=1,refused=.5"))
    obey(run_words(small, tmp_path, "stub:2", "--name", "second"))
    capsys.readouterr()
    assert obey(["judge", "list", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^second +72 answered$", shown, re.MULTILINE)
    assert re.search(r"^stub +\d+ .*, \d+ refused$", shown, re.MULTILINE)
    assert obey(["judge", "list", "--workspace", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["judges"][0] == {"judge": "second", "answered": 72}
    assert sum(count for name, count in found["judges"][1].items() if name != "judge") == 72
    assert found["unsealed"] == []
    assert {kind["kind"].partition(":")[0] for kind in found["kinds"]} >= {"openai", "hf", "table", "python", "stub"}


def test_a_card_says_who_a_judge_is(capsys, small, server, tmp_path):
    """Model, pack, preparation and what the self-test saw, for a user and for a program."""
    words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--licence", "CC-BY-NC-4.0")
    assert obey(words) == 0
    capsys.readouterr()
    assert obey(["judge", "card", "stub-vlm", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^model +stub-vlm$", shown, re.MULTILINE)
    assert re.search(r"^pack +chest@1 sha256:", shown, re.MULTILINE)
    assert "forbids commercial use" in shown
    assert obey(["judge", "card", "stub-vlm", "--workspace", str(tmp_path), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)["card"]
    assert card["preparation"]["side_px"] == 512
    assert card["observed"]["image_by"] == "bytes"
    assert card["commercial_use"] == "no"


def rows(capsys, home):
    """What `bpals judge status --json` says, once there is a ledger."""
    if not (home / "ledger.sqlite").exists() or obey(["judge", "status", "--workspace", str(home), "--json"]):
        capsys.readouterr()
        return []
    return json.loads(capsys.readouterr().out)


def far(capsys, home):
    """The status of the only judge, once some of its films are done."""
    return next((row for row in rows(capsys, home) if row["films"] >= 2), None)


def test_status_while_it_runs_after_a_kill_and_at_the_end(capsys, small, start_bpals, tmp_path):
    """R11, R01: a run is seen from outside, refused a second writer, killed, listed, resumed; nothing is lost."""
    with FaultyServer(latency_s=0.2) as server:  # slow, so that the run is not over before it is looked at
        words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--in-flight", "2")
        process = start_bpals(*words)
        row = wait_until(lambda: far(capsys, tmp_path) or (process.poll() is not None and process.communicate()))
        assert (row["judge"], row["state"], row["films_all"]) == ("stub-vlm", "running", FILMS)
        assert row["films_per_s"] > 0
        assert row["eta_s"] > 0
        assert row["p50_s"] >= 0.2
        assert obey(["judge", "status", "--workspace", str(tmp_path)]) == 0
        assert re.search(r"stub-vlm: running, \d+ of 24 .*p50 \d+\.\d+ s.* left", capsys.readouterr().out)
        assert obey(words) == 2
        assert f"process {process.pid} on " in capsys.readouterr().err
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed = rows(capsys, tmp_path)[0]
        assert (killed["state"], killed["eta_s"]) == ("killed", None)
        assert 2 <= killed["films"] < FILMS
        assert obey(["judge", "list", "--workspace", str(tmp_path)]) == 0
        assert f"killed, {killed['films']} of 24" in capsys.readouterr().out
        server.latency_s = 0
        asked = server.seen.requests
        assert obey([*words, "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
    assert done["counts"] == dict.fromkeys(OUTCOME.categories, 0) | {"answered": 72}
    assert server.seen.requests - asked == done["card"]["observed"]["calls"] + (FILMS - killed["films"]) * 10
    assert rows(capsys, tmp_path)[0]["state"] == "done"


def test_ctrl_c_is_exit_code_130_and_the_same_command_goes_on(capsys, small, start_bpals, tmp_path):
    """R04: open films are finished and sealed; the next run asks only the others."""
    with FaultyServer(latency_s=0.2) as server:  # slow, so that the run is not over before the signal comes
        words = run_words(small, tmp_path, "openai:stub-vlm", "--base-url", server.url, "--in-flight", "2")
        process = start_bpals(*words)
        wait_until(lambda: far(capsys, tmp_path) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        films = int(re.search(r"stub-vlm: interrupted, (\d+) images", out)[1])
        assert errors.splitlines()[-1].startswith("bpals: interrupted;")
        assert Workspace(tmp_path).judge("stub-vlm").answers().height == films * 3
        assert rows(capsys, tmp_path)[0]["state"] == "interrupted"
        server.latency_s = 0
        assert obey(words) == 0
    assert mentions(capsys.readouterr().out, "stub-vlm: done", "24", "72")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_and_every_option_a_sentence(capsys, command):
    """The help of each command ends with a line to paste."""
    assert obey(["judge", command, "--help"]) == 0
    assert f"Example: bpals judge {command}" in " ".join(capsys.readouterr().out.split())
    parameters = get_command(app).commands["judge"].commands[command].params
    assert not [option.name for option in parameters if not getattr(option, "help", "")]


def test_a_judge_that_answered_nothing_says_why(capsys, small, tmp_path):
    """The last line has the counts and the first reason."""
    judge = tmp_path / "mute.py"
    judge.write_text("import bpals\n\n@bpals.judge('mute')\ndef mute(image, finding):\n    return 'yes'\n")
    assert obey(run_words(small, tmp_path / "audit", f"python:{judge}")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert mentions(last, "mute", "72 unparsed", "str", "'yes'")


def test_a_judge_that_is_mended_takes_its_name_again(capsys, small, tmp_path):
    """A judge that never said anything has no name to defend: the same command goes on."""
    judge = tmp_path / "mine.py"
    judge.write_text("import bpals\n\n@bpals.judge('mine')\ndef mine(image, finding):\n    return image.nothing\n")
    words = run_words(small, tmp_path / "audit", f"python:{judge}")
    assert obey(words) == 2
    assert mentions(capsys.readouterr().err, "'mine'", "3", "AttributeError")
    judge.write_text(judge.read_text().replace("image.nothing", "0.5"))
    assert obey(words) == 0
    assert mentions(capsys.readouterr().out, "mine: done", "24", "72")


def test_status_and_list_know_the_same_judges(capsys, small, tmp_path):
    """Those that were asked, and those whose scores were read."""
    obey(run_words(small, tmp_path))
    scores = tmp_path / "scores.csv"
    scores.write_text(f"image_id,Effusion\n{small.image_ids[0]},0.5\n")
    assert obey(["judge", "run", f"table:{scores}", "--workspace", str(tmp_path)]) == 0
    capsys.readouterr()
    obey(["judge", "list", "--workspace", str(tmp_path), "--json"])
    listed = {judge["judge"] for judge in json.loads(capsys.readouterr().out)["judges"]}
    assert obey(["judge", "status", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert {line.partition(":")[0] for line in shown.splitlines() if not line.startswith(" ")} == listed
    assert mentions(shown, "scores:", "1 of 1")


DOZEN = 12


@pytest.fixture(scope="module")
def dozen(tmp_path_factory):
    """A dozen made-up films."""
    return datasets.write(tmp_path_factory.mktemp("small"), DOZEN)


@pytest.fixture(scope="module")
def halves(dozen, tmp_path_factory):
    """Two shards, asked by the command; read them, do not change them."""
    homes = [tmp_path_factory.mktemp(f"w{part}") for part in (1, 2)]
    for part, home in enumerate(homes, start=1):
        words = ["judge", "run", "stub:5", *dozen.words, "--shard", f"{part}/2", "--workspace", str(home)]
        assert obey(words) == 0
    return homes


def test_shards_are_merged_and_counted(capsys, halves, tmp_path):
    """What came, all six outcomes, and what to type next."""
    assert obey(["judge", "merge", *map(str, halves), "--workspace", str(tmp_path), "--strict"]) == 0
    shown = capsys.readouterr()
    assert mentions(shown.out, "stub: done", "12 new", "0 known")
    assert mentions(shown.out, "answered 36", "abstained 0", "refused 0", "unparsed 0", "unsupported 0", "failed 0")
    assert f"bpals audit --workspace {tmp_path}" in shown.out
    assert shown.err == ""


def test_a_missing_shard_is_said(capsys, halves, tmp_path):
    """The audit may go on with a part of the films, and nobody thinks it is all."""
    assert obey(["judge", "merge", str(halves[0]), "--workspace", str(tmp_path)]) == 0
    assert mentions(capsys.readouterr().err, "1 shard", "2/2")


def test_conflicts_are_listed_counted_and_end_in_2_where_that_is_asked_for(capsys, halves, tmp_path):
    """R17: the conflict is printed either way, and the first value is the one that is sealed."""
    assert obey(["judge", "merge", *map(str, halves), "--workspace", str(tmp_path)]) == 0
    capsys.readouterr()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.change(lambda connection: connection.exec_driver_sql(
            "UPDATE reply SET logit = 99 WHERE number = 0 AND film_id = (SELECT min(film_id) FROM film "
            "WHERE control = '')"))  # fmt: skip
    words = ["judge", "merge", *map(str, halves), "--workspace", str(tmp_path)]
    assert obey(words) == 0
    said = capsys.readouterr().err
    assert "1 conflict" in said
    assert "answered 99, " in said
    assert obey([*words, "--strict"]) == 2
    capsys.readouterr()
    assert obey([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["conflicts"], told["judges"][0]["new"]) == (1, 0)
    assert told["first_conflicts"][0]["here"].startswith("answered 99")


@pytest.mark.parametrize("shard", ["0/8", "9/8", "a/b"])
def test_what_is_no_shard_is_refused_in_one_line(capsys, dozen, shard, tmp_path):
    """Before a film is read."""
    assert obey(["judge", "run", "stub:", *dozen.words, "--workspace", str(tmp_path), "--shard", shard]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bpals: --shard {shard}: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "ledger.sqlite").exists()
