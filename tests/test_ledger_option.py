"""`--ledger URL`: a workspace whose answers are on PostgreSQL, found again later, its password kept nowhere."""

import json

import pytest

from bpals.errors import UsageError, WorkspaceError
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import ledger_of
from bpals.store.ledger.postgres import ENVIRONMENT
from bpals.store.workspace import Workspace
from bpals.tasks.judge import run_judge
from bpals.tasks.judge_status import status_of
from world import datasets
from world.datasets import ask, order

FILMS = 4
SECRET = "hunter-2"  # noqa: S105


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A few films; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), FILMS)


@pytest.fixture
def with_password(postgres_url):
    """The same address with a password, which this server does not ask for."""
    return postgres_url.replace("postgres@", f"postgres:{SECRET}@")


def all_text(folder):
    """Everything that is written in a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_judge_is_asked_on_postgresql_and_found_again(small, postgres_url, tmp_path):
    """X06: the same answers as in a file; the address is given once, and the workspace has no file of its own."""
    ask("stub:3", small, tmp_path / "file")
    home = tmp_path / "server"
    done = ask("stub:3", small, home, ledger=postgres_url)
    assert (done.state, done.films) == ("done", FILMS)
    assert not (home / "ledger.sqlite").exists()
    answers = [Workspace(tmp_path / name).judge("stub").answers() for name in ("file", "server")]
    assert answers[0].equals(answers[1])
    (row,) = status_of(home)
    assert (row["state"], row["films"]) == ("done", FILMS)
    ask("stub:4", small, home, name="second")
    assert [row["judge"] for row in status_of(home)] == ["stub", "second"]
    assert [row["judge"] for row in status_of(tmp_path / "another", ledger=postgres_url)] == ["stub", "second"]


def test_the_command_takes_the_address(small, postgres_url, tmp_path, start_bpals):
    """`bpals judge run --ledger URL`, then `judge status` and `judge list` without it."""
    words = ["--workspace", tmp_path / "home"]
    run = start_bpals("judge", "run", "stub:1", *small.words, *words, "--ledger", postgres_url)
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    for command in ("status", "list"):
        told = start_bpals("judge", command, "--json", *words)
        found, errors = told.communicate()
        assert told.returncode == 0, errors
        assert "stub" in json.dumps(json.loads(found))
    refused = start_bpals("judge", "run", "stub:1", *small.words, *words, "--ledger", f"postgresql://me:{SECRET}@h/d")
    _, errors = refused.communicate()
    assert refused.returncode == 2
    assert ENVIRONMENT in errors
    assert SECRET not in errors


def test_a_password_stays_in_the_environment(small, postgres_url, with_password, tmp_path, monkeypatch):
    """S23: it opens the ledger, and stands in no file; without it the workspace still knows which ledger is its own."""
    monkeypatch.setenv(ENVIRONMENT, with_password)
    home = tmp_path / "home"
    ask("stub:3", small, home)
    assert status_of(home)[0]["films"] == FILMS
    assert SECRET.encode() not in all_text(home)
    monkeypatch.delenv(ENVIRONMENT)
    assert Workspace(home).remembered("ledger") == ledger_of(Workspace(home))
    assert SECRET not in ledger_of(Workspace(home))
    assert status_of(home)[0]["films"] == FILMS
    monkeypatch.setenv(ENVIRONMENT, f"postgresql://me:{SECRET}@elsewhere/ledger")
    with pytest.raises(UsageError, match="is meant") as refused:
        status_of(home)
    assert SECRET not in str(refused.value)
    with Ledger.open(postgres_url) as ledger:
        assert SECRET not in json.dumps([ledger.cards(), ledger.runs(1)])


def test_a_workspace_has_one_ledger(small, postgres_url, tmp_path, monkeypatch):
    """Answers in a file are not left behind by an address; a server that moved is named anew."""
    ask("stub:3", small, tmp_path)
    with pytest.raises(UsageError, match="a workspace has one ledger"):
        run_judge("stub:3", images=small.images, workspace=tmp_path, order=order(small, ledger=postgres_url))
    monkeypatch.setenv(ENVIRONMENT, postgres_url)
    with pytest.raises(UsageError, match="a workspace has one ledger"):
        status_of(tmp_path)
    monkeypatch.delenv(ENVIRONMENT)
    assert status_of(tmp_path)[0]["films"] == FILMS
    home = tmp_path / "home"
    Workspace(home).remember(ledger="postgresql://me@old/ledger")
    ask("stub:3", small, home, ledger=postgres_url)
    assert status_of(home)[0]["films"] == FILMS


def test_a_server_that_is_away_is_one_line(small, tmp_path):
    """What is wrong, where, and what to do; nothing is remembered that never worked."""
    away = f"postgresql://me@/ledger?host={tmp_path}"
    with pytest.raises(WorkspaceError, match=r"cannot be opened .*server"):
        ask("stub:3", small, tmp_path / "home", ledger=away)
    assert Workspace(tmp_path / "home").remembered("ledger") is None
