"""`bpals review progress` in a terminal: every figure whole at any width, and words that fit the numbers."""

import shutil

import pytest

from bpals.cli.main import obey
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer
from bpals.room.desk.study import Study
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.reading_list import draw_cases
from bpals.tasks.score import vocabulary_of
from bpals.tasks.study_progress import study_progress
from bpals.text import several
from world import desks
from world.words import mentions

READS = 26


@pytest.fixture(scope="module")
def home(demo, tmp_path_factory):
    """The demo in a folder of its own, of which two readers have read some cases in no time."""
    home = shutil.copytree(demo.workspace, tmp_path_factory.mktemp("told") / "demo")
    findings = vocabulary_of(Workspace(home).open().table("claims.parquet", "finding")).findings
    study = Study(name="quick", findings=findings, random_share=0.5, repeats=0.05, reveal=False, batch=30)
    with Ledger.open(home / "ledger.sqlite") as ledger:
        desk = Desk.open(ledger, study)
        desk.draw(draw_cases(home, study), "sha256:first")
        for account in desks.enter(ledger, "ann", "ben"):
            for turn in range(READS):
                said = Answer(verdicts={findings[turn % 14]: "present"})
                desks.read(desk, account, lambda _view, said=said: said)
    return home


def printed(home, capsys, columns, monkeypatch):
    """What is printed at a width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert obey(["review", "progress", "--workspace", str(home)]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def told(home):
    """The numbers themselves."""
    return study_progress(home)


@pytest.mark.parametrize("columns", [60, 80])
def test_no_figure_is_cut_off(home, told, capsys, monkeypatch, columns):
    """Every figure stands there whole, with its ends, and no line of a table is wider than the terminal."""
    text = printed(home, capsys, columns, monkeypatch)
    tables = text[text.index("Errors confirmed") :]
    assert "…" not in text
    assert max(len(line) for line in tables.splitlines()) <= columns
    for row in told["agreement"]:
        assert row["finding"] in tables
        for name in ("agreement", "positive", "negative", "fleiss", "ac1", "alpha"):
            if row["enough"] and row[f"{name}_low"] is not None:
                assert f"{row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}" in tables
    assert told["errors"][-1]["enough"]
    assert f"{told['errors'][-1]['low']:.3f} to {told['errors'][-1]['high']:.3f}" in tables


def test_words_fit_the_numbers(home, told, capsys, monkeypatch):
    """One repeat is no plural and no interval, no time is no 0 s, and no rule is no need for more."""
    text = printed(home, capsys, 110, monkeypatch)
    counted, (first, *_) = told["counts"], told["within"]
    assert mentions(text, f"{counted['readings']} readings", several(counted["repeats"], "repeat"), "2 readers")
    assert not first["enough"]
    assert f"repeats ({first['patients']})" in text
    assert "less than a second" in text
    assert "no stopping rule" in text
    assert "more readings" not in text
