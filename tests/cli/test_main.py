"""How `bpals` ends: what it prints on stderr and with which exit code."""

import errno
import shlex
import subprocess
import sys

import pytest
import typer
from typer.main import get_command

import shape
from bpals.cli.main import app, obey
from bpals.errors import SourceError
from bpals.version import VERSION
from world.words import mentions

pytestmark = pytest.mark.quick

COMMANDS = sorted(get_command(app).commands)


def toy(failure):
    """A command line whose one command fails as told."""
    commands = typer.Typer()

    @commands.callback()
    def nothing():
        pass

    @commands.command()
    def fail():
        raise failure

    return commands


def test_the_version_is_printed(capsys):
    """`bpals --version` prints name and version on stdout and ends well."""
    assert obey(["--version"]) == 0
    assert capsys.readouterr().out == f"bpals {VERSION}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_alone_it_says_what_there_is(capsys, arguments):
    """Without a command, and with --help, every command is listed."""
    assert obey(arguments) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ["audit", "doctor", "score"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(capsys, command):
    """The help of each command ends with a line to paste."""
    assert obey([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Example: bpals {command}" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is_for(command):
    """No option or argument is without a sentence."""
    silent = [option.name for option in get_command(app).commands[command].params if not getattr(option, "help", "")]
    assert not silent


def test_an_error_of_the_user_is_one_line(capsys):
    """A BpalsError is printed as `bpals: ...` on stderr and the exit code is 2."""
    assert obey(["fail"], toy(SourceError("my.csv, row 7: no such thing.\nType: bpals audit"))) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "bpals: my.csv, row 7: no such thing. Type: bpals audit\n"


def test_a_real_error_of_the_user_is_one_line(capsys, tmp_path):
    """A workspace without an audit is answered with the command that makes one."""
    code = obey(["score", "--workspace", str(tmp_path / "none"), "--reference", f"four-findings={tmp_path}"])
    shown = capsys.readouterr().err
    assert code == 2
    assert shown.startswith("bpals: ")
    assert shown.count("\n") == 1
    assert "bpals audit --workspace" in shown


def test_what_a_file_brings_into_a_message_cannot_play_with_the_terminal(capsys):
    """Escape codes and line breaks in a file name come out as blanks."""
    obey(["fail"], toy(SourceError("a\x1b[31m\r\nb\u202e.csv is empty")))
    shown = capsys.readouterr().err
    assert shown == "bpals: a [31m b .csv is empty\n"


def test_debug_adds_the_traceback(capsys, tmp_path):
    """`--debug` shows where an error came from, and still ends with the one line."""
    score = ["score", "--workspace", str(tmp_path / "none"), "--reference", f"four-findings={tmp_path}"]
    assert obey(["--debug", *score]) == 2
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.splitlines()[-1].startswith("bpals: ")


@pytest.mark.parametrize("arguments", [["audit", "--no-such-option"], ["no-such-command"], ["--no-such-option"]])
def test_a_wrong_word_is_answered_with_the_help_to_type(capsys, arguments):
    """The line names the word and the command whose help explains it; the exit code is 2."""
    assert obey(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "no-such" in shown
    assert shown.rstrip().endswith("--help")


def test_an_interruption_says_that_the_same_command_starts_again(capsys):
    """Ctrl-C ends with 130 and the line to type, quoted for a shell."""
    assert obey(["fail"], toy(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.endswith("again: bpals fail\n")


def test_a_full_disk_is_nobodys_bug(capsys):
    """No space left is one line and exit code 2, with the command to type after making room."""
    full = OSError(errno.ENOSPC, "No space left on device", "audit/.staging-1/signal.parquet")
    assert obey(["fail"], toy(full)) == 2
    shown = capsys.readouterr().err
    assert mentions(shown, "disk is full", "audit/.staging-1/signal.parquet")
    assert shown.count("\n") == 1


def test_anything_else_is_our_bug_and_is_shown_whole(capsys):
    """What nobody foresaw gets a traceback, the word doctor, and exit code 1."""
    assert obey(["fail"], toy(ZeroDivisionError("three by nothing"))) == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "ZeroDivisionError: three by nothing" in shown
    assert "run `bpals doctor`" in shown.splitlines()[-1]


@pytest.mark.parametrize("code", [2, 3])
def test_a_command_may_choose_its_exit_code(code):
    """`typer.Exit` is passed on as it is."""
    assert obey(["fail"], toy(typer.Exit(code))) == code


def test_the_module_runs_as_the_command(tmp_path):
    """`python -m bpals` prints on stderr and exits like `bpals`."""
    line = f"{shlex.quote(sys.executable)} -m bpals score --workspace none --reference four-findings=none"
    done = subprocess.run(
        shlex.split(line),
        cwd=tmp_path,
        env={"PYTHONPATH": str(shape.SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bpals: ")
    assert not list(tmp_path.iterdir())
