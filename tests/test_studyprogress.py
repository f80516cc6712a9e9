"""How far a study is: numbers of a real desk's ledger, beside the same worked out by hand."""

import itertools
import json

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.cli.main import obey
from bpals.errors import UnknownName
from bpals.findings import Vocabulary
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer
from bpals.room.desk.study import Study
from bpals.store.ledger import Ledger
from bpals.store.workspace import Workspace
from bpals.tasks.reading_list import CASES, draw_cases
from bpals.tasks.study_progress import Question, answer, gather, progress, study_progress
from bpals.types import KIND, OUTCOME, answers_schema
from world import desks
from world.datasets import EXAMPLES, FINDINGS

FILMS = 160
WORDS = Vocabulary(name="films", findings=FINDINGS)
STUDY = Study(
    name="both", findings=FINDINGS, queue_size=80, batch=20, random_share=0.5, repeats=0.2, reveal=False, seed=4
)


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """An audit of the first examples by one quick judge, who sees what they show, dimly."""
    folder = tmp_path_factory.mktemp("progress")
    films = pl.read_csv(EXAMPLES / "films.csv").head(FILMS)
    films.write_csv(folder / "films.csv")
    truth = shows()
    schema = answers_schema(WORDS)
    lean = 2 * truth["shows"].to_numpy() - 1 + np.random.default_rng(1).normal(size=truth.height)
    table = truth.select(
        "image_id", "finding", judge=pl.lit("eye"), kind=pl.lit("image", dtype=KIND),
        outcome=pl.lit("answered", dtype=OUTCOME), p_present=pl.Series(1 / (1 + np.exp(-lean))),
    ).with_columns(pl.lit(None, schema[name]).alias(name) for name in schema.names()[6:])  # fmt: skip
    Workspace(folder / "audit").seal_judge("eye", {"judge": "eye"}, table)
    words = {"source": f"table:{folder / 'films.csv'}", "mapping": str(EXAMPLES / "films.toml")}
    return bpals.audit(**words, workspace=folder / "audit", judges=["eye"]).workspace


def shows():
    """What the films show: image_id, finding, shows."""
    truth = pl.read_csv(EXAMPLES / "experts.csv").head(FILMS)
    return truth.unpivot(index="image_id", variable_name="finding", value_name="shows")


def reader(seed, errs):
    """Somebody who reads what is there, and errs on a share of the pairs."""
    truth = {(row["image_id"], row["finding"]): row["shows"] for row in shows().iter_rows(named=True)}
    dice = np.random.default_rng(seed)

    def read(view):
        said = {}
        for finding in view.findings:
            present = truth[view.image_id, finding] == 1
            said[finding] = "present" if present != (dice.random() < errs) else "absent"
        return Answer(verdicts=said)

    return read


@pytest.fixture(scope="module")
def read(audit):
    """The study, read by two readers to its end: its tables."""
    with Ledger.open(audit / "ledger.sqlite") as ledger:
        desk = Desk.open(ledger, STUDY)
        desk.draw(draw_cases(audit, STUDY), "sha256:first")
        ann, ben = desks.enter(ledger, "ann", "ben")
        for turn in range(45):
            for account, says in ((ann, reader(turn, 0.02)), (ben, reader(1000 + turn, 0.1))):
                if desk.next(account).current is not None:
                    desks.read(desk, account, says)
        return gather(desk)


@pytest.fixture(scope="module")
def told(audit, read):
    """The numbers."""
    return progress(audit, read, STUDY)


def test_readings_and_repeats_are_counted(told, read):
    """Forty-five locks a reader, some of them films that the reader had read before."""
    counted = told["counts"]
    assert counted["readings"] + counted["repeats"] == 90
    assert counted["repeats"] == read.reviews.filter(pl.col("repeat") == 1)["reading_id"].n_unique() > 5
    assert counted["reads"] == 3 * counted["readings"]
    assert (counted["readers"], counted["imported"], counted["unaudited"]) == (2, 0, 0)


def test_errors_are_those_that_the_readers_settled_on(told, read, audit):
    """A pair is wrong where its readers agreed against its claim; it is open until all have, or if they split."""
    seen = read.reviews.filter(pl.col("repeat") == 0).select("image_id", "finding").unique()
    agreed = read.consensus.select("image_id", "finding", truth=pl.col("verdict").cast(pl.String))
    claims = pl.read_parquet(audit / "claims.parquet").with_columns(pl.col("finding", "says").cast(pl.String))
    both = claims.filter(pl.col("says") != "uncertain").join(seen, on=["image_id", "finding"], how="semi")
    both = both.join(agreed, on=["image_id", "finding"], how="left")
    assert both["truth"].null_count() > 0
    for row in told["errors"][:-1]:
        own = both.filter(pl.col("finding") == row["finding"])
        settled = own.filter(pl.col("truth").is_in(["present", "absent"]))
        wrong = settled.filter(pl.col("truth") != pl.col("says"))
        assert (row["pairs"], row["settled"]) == (own.height, settled.height)
        assert row["open"] == own.height - settled.height
        assert row["confirmed"] == wrong.height == row["present"] + row["absent"]
    assert told["errors"][-1]["finding"] == "all findings"
    assert told["errors"][-1]["confirmed"] == sum(row["confirmed"] for row in told["errors"][:-1])


def test_the_rate_rests_on_a_fair_sample_and_holds_the_truth(told, audit):
    """Fewer pairs than were read; its interval holds what the films show."""
    claims = pl.read_parquet(audit / "claims.parquet").with_columns(pl.col("finding", "says").cast(pl.String))
    known = claims.filter(pl.col("says") != "uncertain").join(shows(), on=["image_id", "finding"])
    wrong = known.select(((pl.col("says") == "present") != (pl.col("shows") == 1)).mean()).item()
    row = told["errors"][-1]
    assert 0 < row["sample"] < row["settled"]
    assert row["low"] <= wrong <= row["high"]
    assert row["low"] <= row["rate"] < row["high"]


def test_a_slip_of_one_reader_is_no_error_of_the_label(audit, tmp_path):
    """While a second reader is wanted the first one's word gives no rate; with one reader a case it does."""
    rates = {}
    for wanted in (1, 2):
        study = replaced(readers_per_case=wanted, adjudication="none", random_share=1.0, repeats=0.0)
        with Ledger.open(tmp_path / f"{wanted}.sqlite") as ledger:
            desk = Desk.open(ledger, study)
            desk.draw(draw_cases(audit, study), "sha256:first")
            for account in desks.enter(ledger, "ann", "ben")[:wanted]:
                rates[wanted, account.name] = [row["sample"] for row in progress(audit, gather(desk), study)["errors"]]
                for _ in range(12):
                    desks.read(desk, account, reader(0, 0.0))
            rates[wanted, "end"] = [row["sample"] for row in progress(audit, gather(desk), study)["errors"]]
    assert min(rates[1, "end"]) >= 10
    assert set(rates[2, "ben"]) == {None}
    assert min(rates[2, "end"]) > 0


def test_agreement_is_what_two_readers_give(told, read):
    """The share of pairs on which they say the same, and kappa from its two definitions."""
    blind = read.reviews.filter(pl.col("repeat") == 0)
    ann, ben = (blind.filter(pl.col("reader") == name) for name in ("ann", "ben"))
    both = ann.join(ben, on=["image_id", "finding"])
    for row in told["agreement"][:-1]:
        own = both.filter(pl.col("finding") == row["finding"])
        alike = (own["verdict"] == own["verdict_right"]).mean()
        share = ((own["verdict"] == "present").mean() + (own["verdict_right"] == "present").mean()) / 2
        chance = share**2 + (1 - share) ** 2
        assert row["n"] == own.height > 20
        assert row["agreement"] == pytest.approx(alike)
        assert row["fleiss"] == pytest.approx((alike - chance) / (1 - chance))
        assert row["ac1"] == pytest.approx((alike - 2 * share * (1 - share)) / (1 - 2 * share * (1 - share)))
        assert row["agreement_low"] <= row["agreement"] <= row["agreement_high"]


def test_a_reader_agrees_with_himself_on_repeats(told, read):
    """Ann, who errs less, more than Ben; both rows and one for all."""
    again = read.reviews.filter(pl.col("repeat") == 1)
    once = read.reviews.filter(pl.col("repeat") == 0)
    both = again.join(once, on=["image_id", "finding", "reader"])
    rows = {row["first"]: row for row in told["within"]}
    assert list(rows) == ["all readers", "ann", "ben"]
    for name in ("ann", "ben"):
        own = both.filter(pl.col("reader") == name)
        assert rows[name]["n"] == own.height
        assert rows[name]["agreement"] == pytest.approx((own["verdict"] == own["verdict_right"]).mean())


def test_each_reader_is_held_against_the_consensus(told, read):
    """Where both agreed the consensus is theirs; what is open is no consensus."""
    rows = {row["first"]: row for row in told["against"]}
    assert set(rows) == {"all readers", "ann", "ben"}
    assert rows["ann"]["n"] == read.consensus.filter(pl.col("verdict").is_not_null(), pl.col("readers") > 1).height
    assert rows["ann"]["agreement"] == 1
    assert rows["ann"]["agreement_low"] is None


def test_the_pace_is_that_of_active_time(told, read):
    """What the desk kept of every locked reading, repeats too."""
    own = read.reviews.unique("reading_id")
    whole = told["pace"][0]
    assert whole["reader"] == "all readers"
    assert whole["readings"] == 90
    assert whole["per_hour"] == pytest.approx(90 / (own["active_s"].sum() / 3600))
    assert [row["reader"] for row in told["pace"][1:]] == ["ann", "ben"]


def test_the_curve_ends_at_the_errors_that_were_confirmed(told):
    """It rises with every reading, beside what reading at random would have found."""
    curve = told["series"]
    assert [point["reads"] for point in curve] == sorted({point["reads"] for point in curve})
    assert curve[-1]["reads"] == told["counts"]["readings"]
    assert curve[-1]["found"] == told["errors"][-1]["confirmed"]
    assert all(before["found"] <= after["found"] for before, after in itertools.pairwise(curve))
    assert curve[-1]["random_low"] <= curve[-1]["random"] <= curve[-1]["random_high"]


def test_what_is_needed_follows_the_widest_interval(audit, read, told):
    """Under a rule four times the reads for half the width; without one nothing."""
    widths = {row["finding"]: row["high"] - row["low"] for row in told["errors"][:-1]}
    needed = progress(audit, read, replaced(stop_width=0.05))["needed"]
    assert needed["widest"] == max(widths.values()) == widths[needed["finding"]]
    assert needed["more_pairs"] > 0
    assert needed["more_readings"] == 2 * needed["more_pairs"]
    assert told["needed"]["more_readings"] is None
    assert "more" not in told["stopping"]["words"]


def test_the_band_is_the_interval_of_all_findings(told):
    """The same numbers stand in the chart and in the table."""
    row, last = told["errors"][-1], told["series"][-1]
    assert row["finding"] == "all findings"
    assert last["pairs"] == row["settled"]
    ends = [row["settled"] * row[name] for name in ("rate", "low", "high")]
    assert [last[name] for name in ("random", "random_low", "random_high")] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("more", "rule", "reached"),
    [
        ({"stop_width": 0.9}, "width", True),
        ({"stop_width": 0.01}, "width", False),
        ({"stop_reads": 500}, "reads", False),
    ],
)
def test_the_stopping_rule_is_told(audit, read, more, rule, reached):
    """By the width of the widest interval, or by a number of readings."""
    stopping = answer(Question(workspace=audit, gathered=read, study=replaced(**more)))["stopping"]
    assert (stopping["rule"], stopping["reached"]) == (rule, reached)
    assert f"{next(iter(more.values())):g}" in stopping["words"]
    assert ("more" in stopping["words"]) is not reached


def replaced(**more):
    """The study with another rule."""
    settings = json.loads(STUDY.as_json()) | more
    return Study.from_json(json.dumps(settings))


def test_films_that_cannot_be_shown_are_not_in_the_rate(audit, read):
    """The rate is that of the films that could be drawn."""
    shown = pl.read_parquet(audit / "images.parquet")["image_id"].to_list()[:100]
    rows = progress(audit, read, STUDY, films=shown)["errors"]
    assert {row["claims"] for row in rows[:-1]} <= set(range(90, 101))


def test_nothing_read_is_nothing_told(audit, tmp_path):
    """A study that has just begun has no rate, no agreement and no curve, and says what it waits for."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        desk = Desk.open(ledger, STUDY)
        desk.draw(draw_cases(audit, STUDY), "sha256:first")
        told = progress(audit, gather(desk), STUDY)
    assert (told["errors"], told["agreement"], told["series"], told["pace"]) == ([], [], [], [])
    assert told["needed"]["widest"] is None
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_everything_can_be_written_as_json(told):
    """Numbers that are not defined are null, never NaN."""
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_the_command_prints_it(audit, read, capsys):
    """For people and for programs; a study that is not there is named with those that are."""
    assert read.reviews.height
    assert obey(["review", "progress", "--workspace", str(audit), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["study"] == "both"
    assert obey(["review", "progress", "--workspace", str(audit), "--study", "both"]) == 0
    printed = capsys.readouterr().out
    assert f"{told['counts']['readings']} readings" in printed
    assert "Errors confirmed" in printed
    assert "Each reader and the consensus" in printed
    with pytest.raises(UnknownName, match="both"):
        study_progress(audit, study="bot")


def test_a_study_that_asks_only_what_was_drawn_has_a_rate_too(audit, tmp_path):
    """There a pair is drawn, and its chance is its own."""
    study = Study(
        name="pairs", findings=FINDINGS, asks="drawn", queue_size=120, batch=20, random_share=0.5, repeats=0.0,
        readers_per_case=1, adjudication="none", reveal=False,
    )  # fmt: skip
    cases = draw_cases(audit, study)
    assert cases.schema == CASES
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        desk = Desk.open(ledger, study)
        desk.draw(cases, "sha256:first")
        (ann,) = desks.enter(ledger, "ann")
        for _ in range(60):
            desks.read(desk, ann, reader(0, 0.0))
        told = progress(audit, gather(desk), study)
    # A film that is drawn for two of its findings is one case.
    assert 60 <= told["counts"]["pairs"] < 90
    assert 20 <= told["errors"][-1]["sample"] <= 50
    assert told["within"] == told["against"] == []
