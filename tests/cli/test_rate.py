"""`bpals rate` and `bpals rate plan` as they are typed."""

import json
import shutil

import polars as pl
import pytest

import shape
from bpals.cli import rate
from bpals.cli.main import obey
from world.words import mentions


@pytest.fixture
def place(films_audit, tmp_path, monkeypatch):
    """A folder with a copy of an audit of the made-up films in `audit`, and the shell is in it."""
    folder = tmp_path / "place"
    shutil.copytree(films_audit, folder / "audit")
    monkeypatch.chdir(folder)
    return folder


def fill(file, *, reader="Ann", hedge_every=0):
    """Fill in a reading list with the experts' word; some verdicts are hedged."""
    listed = pl.read_csv(file, schema_overrides={"verdict": pl.String, "reader": pl.String})
    truth = pl.read_csv(shape.ROOT / "examples" / "experts.csv").unpivot(index="image_id", variable_name="finding")
    known = listed.join(truth, on=["image_id", "finding"], maintain_order="left")
    word = pl.when(pl.col("value") == 1).then(pl.lit("present")).otherwise(pl.lit("absent"))
    if hedge_every:
        word = pl.when(pl.int_range(pl.len()) % hedge_every == 0).then(pl.lit("uncertain")).otherwise(word)
    known.select("image_id", "finding", verdict=word, reader=pl.lit(reader)).write_csv(file)


def test_from_a_plan_to_a_rate(place, capsys):
    """The list is written, the next line to type is said, and the table has intervals and what they do not mean."""
    assert obey(["rate", "plan", "--findings", "Effusion,Cardiomegaly", "--reads", "60", "--out", "reads.csv"]) == 0
    planned = capsys.readouterr().out
    assert "120 pairs to read" in planned
    assert "bpals rate --reviews reads.csv --workspace audit" in planned
    assert (place / "reads.csv").read_text().splitlines()[0] == "image_id,finding,verdict,reader"
    fill(place / "reads.csv", hedge_every=15)
    assert obey(["rate", "--reviews", "reads.csv", "--group-by", "sex", "--out", "reviews.csv"]) == 0
    told = capsys.readouterr()
    for words in ("Share of labels that readers reject", "95 % interval", "all findings", "By sex", "unsettled"):
        assert words in told.out
    assert rate.OF_THIS_DATASET in told.out
    assert "inclusion" in (place / "reviews.csv").read_text().splitlines()[0]
    assert all(len(line) <= 110 for line in told.out.splitlines() if "│" in line or "─" in line)


def test_one_interval_is_printed_and_the_other_on_request(place, capsys):
    """For one look by default, at any time with --any-time; JSON has both."""
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "60"]) == 0
    fill(place / "reads.csv")
    capsys.readouterr()
    line = ["rate", "--reviews", "reads.csv"]
    assert obey([*line, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rates"][0]
    spans = {(): rate._span(row), ("--any-time",): rate._span(row, "anytime_low", "anytime_high")}
    assert len(set(spans.values())) == 2
    for flags, span in spans.items():
        assert obey([*line, *flags]) == 0
        told = capsys.readouterr().out
        assert span in told
        assert not any(other in told for other in spans.values() if other != span)
        assert ("--any-time" in told) is not bool(flags)


def test_an_interval_for_any_time_needs_a_plan(place, capsys):
    """Reads that were drawn otherwise have no order; nothing is written."""
    pairs = pl.read_parquet(place / "audit" / "claims.parquet").filter(finding="Effusion").head(60)
    pairs.select("image_id", "finding", verdict=pl.lit("absent"), reader=pl.lit("Ann")).write_csv("own.csv")
    line = ["rate", "--reviews", "own.csv", "--simple-random"]
    assert obey(line) == 0
    assert "--any-time" not in capsys.readouterr().out
    assert obey([*line, "--any-time", "--out", "out.csv"]) == 2
    assert mentions(capsys.readouterr().err, "--any-time", "bpals rate plan")
    assert not (place / "out.csv").exists()


@pytest.mark.usefixtures("place")
def test_a_plan_that_adds_to_another_names_both_lists(capsys):
    """Of the second list alone most of what was drawn is unread."""
    plan = ["rate", "plan", "--findings", "Effusion"]
    assert obey([*plan, "--reads", "60", "--out", "reads.csv"]) == 0
    assert "list of before" not in capsys.readouterr().out
    assert obey([*plan, "--reads", "90", "--out", "more.csv"]) == 0
    assert mentions(capsys.readouterr().out, "bpals rate --reviews more.csv", "once more --reviews")


def test_a_plan_says_what_its_expectation_is_worth(place, capsys):
    """Where no expert label taught the trust it expects far too many errors; where one did nothing is said."""
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "60"]) == 0
    told = capsys.readouterr().out
    assert mentions(told, "No expert label", "Effusion")
    assert mentions(told, "--width", "too many reads")
    run = place / "audit" / "run.json"
    record = json.loads(run.read_text())
    record["calibration"] = {"findings": {"Effusion": {}}}
    run.write_text(json.dumps(record))
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "80", "--out", "more.csv"]) == 0
    assert "No expert label" not in capsys.readouterr().out


def test_a_blank_list_and_the_key_of_a_queue_are_said(place, capsys):
    """What to write into it; and where a chance came from."""
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "30"]) == 0
    capsys.readouterr()
    assert obey(["rate", "--reviews", "reads.csv"]) == 2
    assert mentions(capsys.readouterr().err, "present, absent", "unreadable")
    fill(place / "reads.csv")
    keyed = pl.read_csv("reads.csv").select("image_id", "finding", inclusion=pl.lit(0.5))
    keyed.write_csv("reads.key.csv")
    assert obey(["rate", "--reviews", "reads.csv"]) == 0
    assert mentions(capsys.readouterr().err, "30 reads", "reads.key.csv")


def test_the_rates_can_be_read_by_a_program(place, capsys):
    """JSON on stdout, notes on stderr."""
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["listed"] == 60
    fill(place / "reads.csv")
    with (place / "reads.csv").open("a") as file:
        file.write("nowhere.png,Effusion,present,Ann\n")
    assert obey(["rate", "--reviews", "reads.csv", "--json"]) == 0
    told = capsys.readouterr()
    first = json.loads(told.out)["rates"][0]
    assert first["low"] <= first["rate"] <= first["high"]
    assert "nowhere.png" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rate"], "bpals rate plan --reads 300"),
        (["rate", "--reviews", "none.csv"], "none.csv does not exist. Check the path after --reviews"),
        (["rate", "plan"], "--reads 300, or --width"),
        (["rate", "plan", "--reads", "60", "--findings", "Efusion"], "Did you mean 'Effusion'"),
        (["rate", "plan", "--reads", "0"], "--reads"),
        (["rate", "plan", "--reads", "60", "--out", "audit/run.json"], "is there already"),
        (["rate", "--reviews", "experts.csv", "--workspace", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(place, capsys, words, said):
    """Exit code 2, and what to type next."""
    assert obey(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert not (place / "audit" / "rate-plan.parquet").exists()


def test_a_full_list_is_never_lost(place, capsys):
    """Planning again into the same file is refused before anything is drawn."""
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "30"]) == 0
    fill(place / "reads.csv")
    before = (place / "reads.csv").read_bytes(), (place / "audit" / "rate-plan.parquet").read_bytes()
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "60"]) == 2
    assert ((place / "reads.csv").read_bytes(), (place / "audit" / "rate-plan.parquet").read_bytes()) == before
    assert "--out" in capsys.readouterr().err
    assert obey(["rate", "plan", "--findings", "Effusion", "--reads", "30", "--out", "more.csv"]) == 0
    assert "Nothing new to read" in capsys.readouterr().out
    assert not (place / "more.csv").exists()


def test_the_four_findings_give_no_rate_of_nih(nih_workspace, data_folder, capsys):
    """An enriched expert set is refused with the reason."""
    file = data_folder / "expert" / "four_findings_readers.csv"
    assert obey(["rate", "--reviews", str(file), "--workspace", str(nih_workspace)]) == 2
    assert "enriched in errors" in capsys.readouterr().err
