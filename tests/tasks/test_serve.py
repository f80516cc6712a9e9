"""The reading room as a whole: workspace, films, queue, readers, and the way back into the signal."""

import os
import shutil
import socket
from pathlib import Path

import polars as pl
import pytest
from starlette.testclient import TestClient

from bpals.errors import LockHeld, UsageError, WorkspaceError
from bpals.room.web.server import Binding
from bpals.store.ledger.relay import for_a_run
from bpals.store.workspace import LEDGER, Workspace
from bpals.tasks.review_files import import_reviews
from bpals.tasks.serve import Opening, office, open_room, serve_room, verify_log
from world.waiting import wait_until

ROOT = Path(__file__).parents[2]
PASSWORD = "seven lamps by the sea"  # noqa: S105  nobody's


@pytest.fixture
def opening(demo, tmp_path):
    """The demo in a folder of this test's own, learning after every five readings."""
    home = shutil.copytree(demo.workspace, tmp_path / "demo")
    study = tmp_path / "study.toml"
    study.write_text('name = "quick"\nreaders_per_case = 1\nlearn_every = 5\nrepeats = 0.0\nqueue_size = 40\n')
    return Opening(workspace=home, images=home / "films", study=study)


def enter(room):
    """Enter by the link that was printed, as a browser does."""
    origin, _, token = room.entrance.partition("/enter#")
    client = TestClient(room.app, base_url=origin, headers={"Origin": origin, "Sec-Fetch-Site": "same-origin"})
    assert client.post("/enter", json={"token": token}).status_code == 200
    return client


def read(client, number):
    """Read the next case, as a reader who sees every finding on every film."""
    case = client.post("/api/next", json={}).json()["reading"]
    answer = {"verdicts": {finding["name"]: "present" for finding in case["findings"]}}
    spent = {"active_s": 2.0, "wall_s": 3.0}
    sent = {"version": case["version"], "key": f"key-of-reading-{number:04}", "answer": answer, "spent": spent}
    locked = client.post(f"/api/readings/{case['reading_id']}/lock", json=sent)
    assert locked.status_code == 200, locked.text
    again = {**sent, "version": locked.json()["version"], "key": f"key-of-second-{number:04}"}
    assert client.post(f"/api/readings/{case['reading_id']}/second", json=again).status_code == 200
    return case


def test_what_is_read_flows_back_into_signal_and_queue(opening):
    """After five readings they are weighed, the queue is drawn anew, and the log holds all of it."""
    before = Workspace(opening.workspace).run["files"]["signal.parquet"]["sha256"]
    with open_room(opening) as room:
        client = enter(room)
        for number in range(5):
            read(client, number)
        # Learning is another process: it gets the time of a busy machine, and no flood of questions beside it.
        wait_until(lambda: client.get("/api/progress").json()["learner"]["lessons"] == 1, timeout=240, every=0.25)
        told = client.get("/api/progress").json()["learner"]
        assert told["failure"] is None
        after = Workspace(opening.workspace).run
        assert after["files"]["signal.parquet"]["sha256"] == told["last"]["version"]
        assert [entry["version"] for entry in after["history"]] == [before]
        assert after["reviews"]["reads"] == 5 * 14
        case = read(client, 5)
        signals = room.room.desk.reviews().filter(reading_id=case["reading_id"], saw_signal=1)["signal"].unique()
        assert signals.to_list() == [told["last"]["version"]]
        assert told["last"]["drawn"] > 0
    assert verify_log(opening.workspace).found == []


def test_a_room_that_was_closed_goes_on_where_it_was(opening):
    """The second opening offers what was not read, under the same account, and draws nothing anew."""
    with open_room(opening) as room:
        first = read(enter(room), 0)
    with open_room(opening) as room:
        assert room.cases == 40
        second = read(enter(room), 1)
        assert second["case_no"] == 2
        assert second["reading_id"] != first["reading_id"]


def test_a_room_without_films_says_where_to_put_them(opening):
    """Nobody is shown an empty page instead."""
    with pytest.raises(UsageError, match=r"--images PATH"):
        open_room(Opening(workspace=opening.workspace)).__enter__()


def test_a_port_that_is_taken_is_named(opening):
    """And nothing is opened."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = Opening(workspace=opening.workspace, images=opening.images, binding=Binding(port=port))
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}"):
            serve_room(busy, ready=lambda _room: None)


def test_accounts_turn_the_link_into_a_login(opening):
    """Once somebody has a password, the address that is printed opens nothing by itself."""
    with office(opening.workspace) as accounts:
        accounts.make("anna", "admin", password=PASSWORD, by="test")
    with open_room(opening) as room:
        assert room.entrance.endswith("/login")
        assert [notice.code for notice in room.notices if notice.code == "no_password"] == []


def test_who_read_alone_is_told_how_to_get_in_once_somebody_has_a_password(opening):
    """No link is printed any more, so the account that came by one is named, with the command that lets it in."""
    with open_room(opening) as room:
        read(enter(room), 0)
    with office(opening.workspace) as accounts:
        accounts.make("anna", "reader", password=PASSWORD, by="test")
    with open_room(opening) as room:
        told = next(notice.message for notice in room.notices if notice.code == "no_password")
        assert told.startswith("reader has no password yet")
        assert told.endswith(f"bpals review account password reader --workspace {opening.workspace}")
        with office(opening.workspace) as accounts:
            accounts.set_password(accounts.named("reader"), PASSWORD, by="test")
        assert room.room.accounts.enter("reader", PASSWORD).name == "reader"
    with open_room(opening) as room:
        assert "no_password" not in {notice.code for notice in room.notices}


def test_a_folder_without_an_audit_gets_no_ledger_and_has_no_log(tmp_path):
    """Who forgets --workspace is told so; nothing is made where nothing was audited."""
    home = tmp_path / "nowhere"
    with pytest.raises(WorkspaceError, match="holds no audit"), office(home) as accounts:
        accounts.make("anna", "admin", password=PASSWORD, by="test")
    with pytest.raises(UsageError, match=r"no log.*bpals review serve"):
        verify_log(home)
    assert not home.exists()


def test_an_account_and_a_file_of_reads_come_in_beside_an_open_room(opening, tmp_path):
    """On SQLite too: the room writes them, whoever is new enters at once, and the next lesson hears the reads."""
    film = pl.read_parquet(opening.workspace / "images.parquet")["image_id"][0]
    (tmp_path / "reads.csv").write_text(f"image_id,reader,Effusion,Fracture\n{film},ann,YES,NO\n")
    with open_room(opening) as room:
        with office(opening.workspace) as accounts:
            accounts.make("anna", "reader", password=PASSWORD, by="test")
        assert room.room.accounts.enter("anna", PASSWORD).name == "anna"
        told = import_reviews(opening.workspace, tmp_path / "reads.csv")
        assert (told.read, told.reviews["finding"].to_list()) == (2, ["Effusion", "Fracture"])
        assert import_reviews(opening.workspace, tmp_path / "reads.csv").already == 2
        assert room.room.desk.reviews()["reader"].to_list() == ["ann", "ann"]
    assert verify_log(opening.workspace).found == []


def test_r23_a_judge_run_that_began_before_the_room_keeps_it_closed_and_says_what_to_do(opening):
    """R23: which process it is, how to stop it, and that the room comes first if both are wanted."""
    with for_a_run(opening.workspace / LEDGER), pytest.raises(LockHeld) as refused:
        open_room(opening).__enter__()
    said = str(refused.value)
    assert f"judge run (process {os.getpid()} on " in said
    assert f"kill -INT {os.getpid()}" in said
    assert "open the reading room first" in said


def test_a_second_room_is_told_to_close_the_first(opening):
    """Nobody is told to kill a process that others are reading in."""
    with open_room(opening), pytest.raises(LockHeld, match="Ctrl-C") as refused:
        open_room(opening).__enter__()
    assert "kill" not in str(refused.value)


def test_real_films_are_read_out_of_their_tars(nih_workspace, tmp_path):
    """The audit's queue over the films that are there, none of them unpacked."""
    films = (ROOT / os.environ.get("BPALS_TEST_DATA", "../shared/data") / "images").resolve()
    if not films.is_dir():
        pytest.skip(f"no films at {films}: set BPALS_TEST_DATA")
    home = shutil.copytree(nih_workspace, tmp_path / "audit")
    with open_room(Opening(workspace=home, images=films)) as room:
        client = enter(room)
        case = client.post("/api/next", json={}).json()["reading"]
        current = next(film["n"] for film in case["films"] if film["current"])
        film = client.get(f"/api/readings/{case['reading_id']}/films/{current}")
        assert film.headers["content-type"] == "image/png"
        assert len(film.content) > 10_000
        assert room.cases == 500
    assert not list(films.rglob("*.tmp*"))
