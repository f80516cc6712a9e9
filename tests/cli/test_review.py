"""`bpals review next`: the sheet for a reader, and what goes wrong in one line."""

import json

import polars as pl
import pytest

from bpals import next_reviews
from bpals.cli.main import obey
from world import workspaces
from world.words import mentions

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with a signal of 200 made-up films."""
    return workspaces.write_signal(tmp_path_factory.mktemp("review") / "audit")


def test_a_list_is_printed_without_a_mark(workspace, capsys):
    """Film and finding, and nothing that a reader should not know."""
    assert obey(["review", "next", "--workspace", str(workspace), "--n", "12"]) == 0
    listed = next_reviews(workspace, n=12)
    assert [tuple(line.split("  ")) for line in capsys.readouterr().out.splitlines()] == list(
        listed.select("image_id", "finding").iter_rows()
    )
    assert listed["drawn"].to_list().count("random") == 3


def test_the_json_has_what_a_program_needs(workspace, capsys):
    """Value, inclusion and how each was drawn; the same call gives the same list."""
    assert obey(["review", "next", "--workspace", str(workspace), "--n", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == next_reviews(workspace, n=12).to_dicts()


def test_a_sheet_comes_back_filled_in_and_is_not_offered_again(workspace, tmp_path, capsys):
    """Write a sheet, fill it in, ask for the next: none of its pairs comes again."""
    first, words = tmp_path / "list.csv", ["review", "next", "--workspace", str(workspace), "--n", "20"]
    assert obey([*words, "--out", str(first)]) == 0
    said = capsys.readouterr().out
    assert "20 pairs in" in said
    assert "list.key.csv" in said
    sheet = pl.read_csv(first, schema_overrides={"reader": pl.String, "verdict": pl.String})
    assert sheet.columns == ["image_id", "finding", "reader", "verdict"]
    sheet.with_columns(reader=pl.lit("ann"), verdict=pl.lit("NO")).write_csv(first)
    assert obey([*words, "--reviews", str(first), "--json"]) == 0
    again = pl.DataFrame(json.loads(capsys.readouterr().out))
    assert again.height == 20
    assert again.join(sheet, on=["image_id", "finding"], how="semi").is_empty()
    assert obey([*words, "--out", str(first)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_findings_and_gains_turn_the_list(workspace, capsys):
    """Only the findings that are asked for, spelled as people do; a gain brings one forward."""
    words = ["review", "next", "--workspace", str(workspace), "--json", "--random-share", "0"]
    assert obey([*words, "--n", "9", "--findings", "effusion, Pneumothorax", "--gain", "Effusion=50"]) == 0
    assert {row["finding"] for row in json.loads(capsys.readouterr().out)} == {"Effusion"}
    assert obey([*words, "--n", "5000"]) == 0
    told = capsys.readouterr()
    assert mentions(told.err, "not 5,000")
    assert obey([*words, "--n", "5000", "--all-films"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > len(json.loads(told.out))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--n", "0"], "0 pairs are nothing to read"),
        (["--findings", "Efusion"], "Did you mean 'Effusion'"),
        (["--gain", "Effusion"], "takes a finding and a number"),
        (["--gain", "Effusion=much"], "takes a finding and a number"),
        (["--gain", "Nothing=2"], "no finding is called 'Nothing'"),
        (["--random-share", "2"], "random share of 2.0"),
        (["--reviews", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_a_mistake_is_one_line(workspace, capsys, words, says):
    """What is wrong and what to type; exit code 2."""
    assert obey(["review", "next", "--workspace", str(workspace), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_without_an_audit_there_is_nothing_to_read(tmp_path, capsys):
    """It says which command makes one."""
    assert obey(["review", "next", "--workspace", str(tmp_path / "none")]) == 2
    assert "Type: bpals audit" in capsys.readouterr().err
