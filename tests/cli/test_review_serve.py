"""`bpals review serve`, `account` and `verify-log`, as they are typed."""

import io
import json
import re
import shutil
import signal
import sqlite3
import sys

import httpx
import pytest

from bpals.cli.main import obey
from world.words import mentions

PASSWORD = "seven lamps by the sea"  # noqa: S105  nobody's


@pytest.fixture
def home(demo, tmp_path):
    """A copy of it."""
    return shutil.copytree(demo.workspace, tmp_path / "demo")


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command to its end; a password is read from where nobody types."""

    def run(*words, given=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        code = obey(["review", *map(str, words)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_a_room_opens_says_where_and_closes_with_ctrl_c(start_bpals, home):
    """The address is printed as soon as it can be opened; Ctrl-C is no error."""
    process = start_bpals("review", "serve", "--workspace", home, "--images", home / "films", "--port", "0")
    said = [process.stdout.readline(), process.stdout.readline()]
    assert "120 films to read" in said[0]
    origin = re.match(r"Open: (http://127\.0\.0\.1:\d+)/enter#\S+", said[1])[1]
    assert httpx.get(f"{origin}/healthz").json() == {"ok": True}
    assert (home / "room.secret").stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


def test_a_password_comes_by_a_pipe(start_bpals, home):
    """In a process of its own, with nobody at a terminal."""
    process = start_bpals("review", "account", "add", "anna", "--role", "admin", "--workspace", home, stdin=-1)
    out, errors = process.communicate(PASSWORD, timeout=120)
    assert (process.returncode, out) == (0, "anna may enter as admin.\n"), errors


def test_accounts_are_made_listed_and_disabled(run, home):
    """Each with what it may do; the password comes from the pipe and is shown nowhere."""
    assert run("account", "list", "--workspace", home)[1].startswith("Nobody yet.")
    code, out, errors = run("account", "add", "anna", "--role", "admin", "--workspace", home, given=PASSWORD)
    assert (code, out) == (0, "anna may enter as admin.\n"), errors
    code, out, _ = run("account", "add", "ben", "--totp", "--workspace", home, given=PASSWORD)
    assert code == 0
    assert "otpauth://totp/" in out
    code, out, _ = run("account", "disable", "ben", "--workspace", home)
    assert (code, out) == (0, "ben may not enter.\n")
    _, out, _ = run("account", "list", "--workspace", home, "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (rows["anna"]["role"], rows["anna"]["disabled"]) == ("admin", False)
    assert (rows["ben"]["totp"], rows["ben"]["disabled"]) == (True, True)
    assert PASSWORD not in out


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["add", "anna", "--role", "owner"], PASSWORD, "no role is called 'owner'"),
        (["add", "anna"], "password", "this password is refused"),
        (["disable", "nobody"], "", "no account is called 'nobody'"),
        (["add", "anna", "--email", "anna@example.org"], "", "which provider knows that address"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(run, home, words, given, message):
    """And nobody is let in by accident."""
    code, _, errors = run("account", *words, "--workspace", home, given=given)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_s15_a_room_without_accounts_is_not_opened_to_others(run, home):
    """S15: first start, no users, an address that others can reach: refused, with what to type."""
    beyond = "0.0.0.0"  # noqa: S104  it is refused
    films = ("--workspace", home, "--images", home / "films")
    code, _, errors = run("serve", *films, "--host", beyond, "--port", "0")
    assert code == 2
    assert "bpals review account add NAME --role admin" in errors


def test_s22_a_log_that_was_edited_is_found(run, home):
    """S22: whole as it was written; one changed entry is named, and the exit code says so."""
    run("account", "add", "anna", "--workspace", home, given=PASSWORD)
    code, out, _ = run("verify-log", "--workspace", home)
    first, head = out.splitlines()
    assert (code, first) == (0, "The log is whole.")
    assert re.fullmatch("Head: 1:[0-9a-f]{64}", head)
    code, out, _ = run("verify-log", "--workspace", home, "--head", head.removeprefix("Head: "))
    assert (code, out.splitlines()[1]) == (0, head)
    code, out, _ = run("verify-log", "--workspace", home, "--head", "f" * 64)
    assert (code, mentions(out, "no entry", "hash")) == (1, True)
    with sqlite3.connect(home / "ledger.sqlite") as file:
        file.execute("UPDATE entry SET actor = 'somebody' WHERE sequence = 1")
    code, out, _ = run("verify-log", "--workspace", home)
    assert code == 1
    assert "1" in out
