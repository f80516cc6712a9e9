"""What the commands share: options, tables, and the live line of a judge run."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import shape
from bpals.cli.terminal import LiveLine, fitting, given_files, line_of, sheet, span
from bpals.judges.runner.progress import Snapshot
from bpals.types import Usage
from world.snapshots import assert_snapshot
from world.words import mentions


def test_the_live_line_says_all_that_counts():
    """Films, pairs a second, in flight, latency, cache, outcomes, tokens and the time left, in one line."""
    snapshot = Snapshot(
        films_done=1200,
        films_all=112120,
        outcomes={"answered": 38000, "refused": 400, "failed": 0},
        pairs_per_s=51.26,
        in_flight=60,
        limit=64,
        p50_s=1.234,
        p95_s=2.5,
        tokens=Usage(prompt=1_000_000, cached=900_000, output=38_400),
        eta_s=4210,
    )
    assert mentions(line_of(snapshot), "1,200/112,120", "51.3 pairs/s", "p50 1.23 s", "p95 2.50 s", "90%", "1:10 h")
    assert_snapshot(line_of(snapshot), "live-line")


def test_the_live_line_before_the_first_reply():
    """Nothing is divided by nothing, no time is promised, and what there is none of is left out."""
    assert line_of(Snapshot(films_all=3)) == "0/3 images"
    assert line_of(Snapshot(films_all=1)) == "0/1 image"
    assert line_of(Snapshot(films_all=3, limit=64)) == "0/3 images | 0/64 in flight"


def test_the_live_line_of_a_stage_names_it():
    """What is not asking about films says what it is: in films where it counts them, and with the time left."""
    copies = Snapshot(stage="altered copies", films_done=120, films_all=300, eta_s=45)
    assert mentions(line_of(copies), "altered copies", "120/300", "0:45 min")
    assert mentions(line_of(Snapshot(stage="learning, 30% done", eta_s=12)), "learning, 30% done", "0:12 min")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0:00 min"), (59.9, "0:59 min"), (130, "2:10 min"), (3600, "1:00 h")]
)
def test_a_span_is_written_in_minutes_or_hours(seconds, words):
    """So that a day is not 86,400 s."""
    assert span(seconds) == words


def test_where_nobody_watches_the_line_is_silent_at_first(capsys):
    """A log is not filled: a plain line comes every ten seconds; what must be read comes at once."""
    with LiveLine() as line:
        line.draw(Snapshot(films_all=3))
        line.note("[bold]odd[/bold]")
    assert capsys.readouterr().err == "note: [bold]odd[/bold]\n"


DRAWN = """
from bpals.cli.terminal import LiveLine
from bpals.judges.runner.progress import Snapshot

with LiveLine() as line:
    line.note("one film is odd")
    line.draw(Snapshot(films_done=7, films_all=600, eta_s=130))
print("done")
"""


def test_on_a_terminal_the_line_is_drawn_whole_and_wiped(tmp_path):
    """In 80 columns nothing is cut off, the time left above all; what is said stays above it."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(shape.SRC), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    line = [sys.executable, "-c", DRAWN]
    with subprocess.Popen(line, stdout=theirs, stderr=theirs, stdin=theirs, env=environment, cwd=tmp_path) as process:
        os.close(theirs)
        shown = b""
        # On Linux, reading a terminal whose other end is closed is an error, not an end.
        with contextlib.suppress(OSError):
            while more := os.read(ours, 4096):
                shown += more
    os.close(ours)
    assert process.returncode == 0
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown.decode()).split())
    assert "note: one film is odd" in text
    assert "7/600 images" in text
    assert "2:10 min left" in text
    assert text.endswith("done")


def test_one_file_is_heard():
    """Or none."""
    assert given_files([Path("reads.csv")]) == Path("reads.csv")
    assert given_files(None) is None
    assert given_files([]) is None


def test_several_files_are_all_heard():
    """In the order in which they were named."""
    assert given_files([Path("a.csv"), Path("b.csv")]) == [Path("a.csv"), Path("b.csv")]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_table_that_is_too_wide_is_cut_into_several(capsys, columns):
    """Each has the names, every figure is whole and there once, and the title stands on top."""
    numbers = [f"figure {place}" for place in range(8)]
    rows = [[name, *(f"+.{place}23 (+.1 to +.2)" for place in range(8))] for name in ("Pleural_Thickening", "Edema")]
    console = Console(width=columns)
    parts = list(fitting(sheet("A title", ["finding"], numbers, rows), console))
    console.print(*parts)
    told = capsys.readouterr().out
    assert len(parts) > 1
    assert max(len(line) for line in told.splitlines()) <= columns
    assert told.count("Pleural_Thickening") == told.count("Edema") == len(parts)
    assert [told.count(word) for word in (*numbers, "A title")] == [1] * 9
    assert [told.count(f"+.{place}23 (+.1 to +.2)") for place in range(8)] == [2] * 8


def test_a_table_that_fits_is_left_as_it_is():
    """In one piece."""
    table = sheet("A title", ["finding"], ["n"], [["Edema", "1"]])
    assert list(fitting(table, Console(width=80))) == [table]
