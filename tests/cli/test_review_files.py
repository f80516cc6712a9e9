"""`bpals review export` and `bpals review import`, typed."""

import contextlib
import json
import re
import shutil

import polars as pl
import pytest

import bpals
import shape
from bpals.cli.main import obey
from world import datasets, made_judges
from world.words import mentions

SHEET = "image_id,reader,Effusion,Fracture\n{0},ann,YES,NO\n{1},ann,NO,YES\n{0},bob,HEDGE,\n"
LISTS = (shape.ROOT / "docs" / "lists.md").read_text(encoding="utf-8")
"""The page that says which file feeds which command."""


@pytest.fixture
def home(films_audit, tmp_path):
    """A workspace, and beside it a sheet of five reads of its first films."""
    films = bpals.load_signal(films_audit)["image_id"].unique(maintain_order=True)
    (tmp_path / "sheet.csv").write_text(SHEET.format(*films))
    return shutil.copytree(films_audit, tmp_path / "audit")


def typed(capsys, *words):
    """Type a command: its exit code, what it printed, and what it said on stderr."""
    code = obey([str(word) for word in words])
    return code, *capsys.readouterr()


def test_reads_go_in_and_out(home, tmp_path, capsys):
    """Once in, they are there; brought in again they are not new; out they go as what is asked for."""
    line = ["review", "import", tmp_path / "sheet.csv", "--workspace", home]
    code, printed, noted = typed(capsys, *line)
    assert code == 0
    assert mentions(printed, "5 reads", str(tmp_path / "sheet.csv"), "5 are new, 0", "images: 2, readers: 2")
    assert mentions(noted, "note: Fracture", "2 reads", "1 present")
    assert mentions(typed(capsys, *line)[1], "0 are new, 5")
    code, printed, _ = typed(capsys, "review", "export", "--out", tmp_path / "out.csv", "--workspace", home)
    assert (code, printed) == (0, f"5 reviews in {tmp_path / 'out.csv'}\n")


def test_a_program_is_told_in_json(home, tmp_path, capsys):
    """How many, whose, of what, and what was odd."""
    _, printed, _ = typed(capsys, "review", "import", tmp_path / "sheet.csv", "--workspace", home, "--json")
    told = json.loads(printed)
    assert {name: told[name] for name in ("read", "new", "already", "films")} == {
        "read": 5,
        "new": 5,
        "already": 0,
        "films": 2,
    }
    assert told["findings"] == {"Effusion": 3, "Fracture": 2}
    assert told["readers"] == ["ann", "bob"]
    assert [notice["code"] for notice in told["notices"]] == ["unaudited"]
    words = ["--format", "coco", "--out", tmp_path / "boxes.json", "--workspace", home, "--json"]
    _, printed, _ = typed(capsys, "review", "export", *words)
    assert json.loads(printed)["reviews"] == 5


def test_what_cannot_be_is_one_line_and_exit_code_2(home, tmp_path, capsys):
    """A file that is there, a format that is not, a file that is missing."""
    typed(capsys, "review", "import", tmp_path / "sheet.csv", "--workspace", home)
    for words, message in (
        (["export", "--out", tmp_path / "sheet.csv"], "is there already and is not overwritten"),
        (["export", "--out", tmp_path / "x", "--format", "exel"], "no format is called 'exel'"),
        (["export", "--out", tmp_path / "x.zip"], "which format?"),
        (["import", tmp_path / "none.csv"], "does not exist"),
    ):
        code, _, said = typed(capsys, "review", *words, "--workspace", home)
        assert code == 2
        assert message in said
        assert len(said.splitlines()) == 1


def test_several_files_of_reads_are_heard_together(home, tmp_path, capsys):
    """By `review next`, `rate` and `audit`; what a reader contradicts in them is counted."""
    film = bpals.load_signal(home)["image_id"][0]
    (tmp_path / "more.csv").write_text(f"image_id,reader,Effusion\n{film},ann,NO\n")
    words = ["--workspace", home, "--reviews", tmp_path / "sheet.csv", "--reviews", tmp_path / "more.csv"]
    for command in (["review", "next", "--n", 3], ["rate", "--simple-random"]):
        code, _, said = typed(capsys, *command, *words)
        assert code == 0, said
        assert mentions(said, "sheet.csv and more.csv", "1 time")
    code, _, said = typed(capsys, "audit", *words, "--source", datasets.SOURCE, "--mapping", datasets.MAPPING)
    assert code == 0, said
    assert mentions(said, "sheet.csv and more.csv", "1 time")
    run = json.loads((home / "run.json").read_text())
    assert run["values"]["reviews"]["value"] == [str(tmp_path / "sheet.csv"), str(tmp_path / "more.csv")]
    assert set(run["reviews"]["inputs"]) == {"sheet.csv", "more.csv"}


def fill(file):
    """Fill in a reading list with the experts' word, as bpals writes it."""
    listed = pl.read_csv(file, infer_schema=False)
    known = listed.drop("verdict", "reader").join(
        made_judges.truth(), on=["image_id", "finding"], maintain_order="left"
    )
    word = pl.when("present").then(pl.lit("present")).otherwise(pl.lit("absent"))
    known.select("image_id", "finding", reader=pl.lit("ann"), verdict=word).write_csv(file)


def read_by(name):
    """The commands that docs/lists.md says read a file."""
    row = next(line for line in LISTS.splitlines() if line.startswith(f"|**{name}**"))
    return re.findall(r"`([^`]+)`", row.split("|")[4])


@pytest.fixture(scope="module")
def lists(films_audit, tmp_path_factory):
    """The files of docs/lists.md, made as it says, beside the audit that they are about."""
    folder = tmp_path_factory.mktemp("lists")
    shutil.copytree(films_audit, folder / "audit")
    with contextlib.chdir(folder):
        assert obey(["review", "next", "--n", "150", "--random-share", "0.9", "--out", "list.csv"]) == 0
        fill("list.csv")
        assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "60", "--out", "reads.csv"]) == 0
        fill("reads.csv")
        assert obey(["rate", "--reviews", "reads.csv", "--out", "reviews.csv"]) == 0
        assert obey(["review", "import", "list.csv"]) == 0
        assert obey(["review", "export", "--out", "out.csv"]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "file"),
    [("reading list", "list.csv"), ("rate list", "reads.csv"), ("rated reads", "reviews.csv"), ("export", "out.csv")],
)
def test_every_command_reads_the_files_that_the_docs_say(lists, tmp_path, monkeypatch, capsys, name, file):
    """And each file has the four words of a verdict, whoever wrote it."""
    shutil.copytree(lists, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert set(pl.read_csv(file)["verdict"]) <= {"present", "absent", "uncertain", "unreadable"}
    if name != "rate list":
        # Where a plan is, only its own list gives a rate.
        (tmp_path / "here" / "audit" / "rate-plan.parquet").unlink()
    assert read_by(name)
    for command in read_by(name):
        assert obey([*command.split(), file]) == 0, capsys.readouterr().err
