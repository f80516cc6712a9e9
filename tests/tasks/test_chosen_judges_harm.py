"""Harm: a judge that knows nothing, asked about all of NIH beside the record judge, must do none; a good one helps."""

import polars as pl
import pytest

from bpals.findings import NIH
from bpals.judges.record import RecordJudge
from bpals.judges.stub import StubJudge
from bpals.reviews import verdicts
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited, about
from bpals.score.scorecard import scorecard
from bpals.store.workspace import Workspace
from bpals.tasks.chosen_judges import Chosen
from bpals.types import KIND, OUTCOME, Dataset, answers_schema
from world.estimating import estimate


@pytest.fixture(scope="module")
def nih(nih_workspace):
    """The audited NIH record: the dataset, what the record judge said of it, and its signal without any expert."""
    audit = Workspace(nih_workspace).open()
    dataset = Dataset(
        name="nih", title="NIH", vocabulary=NIH, images=audit.table("images.parquet"),
        claims=audit.table("claims.parquet"), attribution="NIH", inputs={},
    )  # fmt: skip
    judgments = audit.table("judgments/record.parquet")
    return dataset, judgments, estimate(dataset, judgments).table


@pytest.fixture(scope="module")
def harmed(nih, tmp_path_factory):
    """The signal with a seeded stub of AUROC .5 over all 112,120 films beside the record judge."""
    dataset, judgments, _ = nih
    home, stub = Workspace(tmp_path_factory.mktemp("harm") / "audit"), StubJudge(seed=0)
    home.write_judge("stub", stub.card.as_dict(), stub.scores(dataset.images["image_id"], NIH))
    panel, notices = Chosen(record=RecordJudge(), finished=tuple(home.judges())).answers_about(dataset)
    assert notices == []
    return estimate(dataset, judgments, panel=panel)


def test_the_stub_answered_everything_and_is_heeded_almost_nowhere(harmed):
    """No signal on at least 12 of 14 findings; its effective weight is below .05."""
    skill = harmed.skill.filter(pl.col("judge") == "stub")
    assert skill["n"].unique().to_list() == [112_120]
    assert (skill["auroc"] - 0.5).abs().max() < 0.03
    assert (~skill["signal"]).sum() >= 12
    assert harmed.weights["stub"] < 0.05
    assert harmed.weights["stub"] + harmed.weights["record"] == pytest.approx(1)
    assert set(harmed.table["answered"]) == {2}


def test_where_it_has_no_signal_every_trust_is_the_same_to_the_last_bit(nih, harmed):
    """And where chance gave it one, no trust moves by more than a few hundredths."""
    _, _, alone = nih
    silent = harmed.skill.filter(pl.col("judge") == "stub", ~pl.col("signal"))["finding"].to_list()
    quiet = pl.col("finding").cast(pl.String).is_in(silent)
    untouched = ["p_present", "trust", "trust_low", "trust_high", "agreement", "flag", "reasons", "method"]
    assert harmed.table.filter(quiet).select(untouched).equals(alone.filter(quiet).select(untouched))
    assert (harmed.table["trust"] - alone["trust"]).abs().max() < 0.1
    assert (harmed.table["trust"] - alone["trust"]).abs().mean() < 0.001


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_scorecard_cannot_tell_the_difference(nih, harmed, data_folder, split):
    """Error AP with the stub less that of the record alone: the paired interval holds 0 for every finding and pooled.

    Without reviews the record alone is what the scorecard calls self-confidence, so its own paired gain says it.
    """
    dataset, judgments, _ = nih
    reference = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split=split)
    audited = Audited(images=dataset.images, claims=dataset.claims, judgments=judgments, signal=harmed.table)
    pairs, _ = about(reference.truth.drop("split"), audited, reference.groups)
    rows, _ = scorecard(pairs, Resampling(draws=200))
    gains = [row for row in rows if row["method"] == "self_confidence"]
    assert len({row["finding"] for row in gains}) == 4
    for row in gains:
        assert row["ap_gain_low"] <= 0 <= row["ap_gain_high"], row["finding"]
        assert abs(row["ap_gain"]) < 0.02


@pytest.fixture(scope="module")
def helped(nih, data_folder, tmp_path_factory):
    """The signal with a CheXNet model on its 22,433 films beside the record judge, and those films."""
    dataset, judgments, _ = nih
    panel = pl.read_parquet(data_folder / "predictions" / "chexnet_panel.parquet")
    its = panel.filter(pl.col("model") == "jrzech_densenet121")
    long = its.unpivot(list(NIH.findings), index="Image Index", variable_name="finding", value_name="p_present")
    answers = long.rename({"Image Index": "image_id"}).with_columns(
        pl.lit("chexnet").alias("judge"), pl.lit("image", dtype=KIND).alias("kind"),
        pl.lit("answered", dtype=OUTCOME).alias("outcome"),
    )  # fmt: skip
    schema = answers_schema(NIH)
    answers = answers.with_columns(pl.lit(None).alias(name) for name in schema if name not in answers.columns)
    home = Workspace(tmp_path_factory.mktemp("help") / "audit")
    home.write_judge("chexnet", {"judge": "chexnet"}, answers.select(schema.names()).cast(schema))
    seated, _ = Chosen(record=RecordJudge(), finished=tuple(home.judges())).answers_about(dataset)
    return estimate(dataset, judgments, panel=seated), its["Image Index"]


def test_a_trained_model_on_part_of_the_films_moves_only_those(nih, helped):
    """The trust of every other film is the same to the last bit, and the method says who took part."""
    _, _, alone = nih
    signal, films = helped
    seen = pl.col("image_id").is_in(films.implode())
    kept = ["p_present", "trust", "trust_low", "trust_high", "agreement", "answered", "method"]
    assert signal.table.filter(~seen).select(kept).equals(alone.filter(~seen).select(kept))
    assert signal.table.filter(seen)["method"].unique().to_list() == ["judges-2"]
    assert signal.skill.filter(pl.col("judge") == "chexnet")["signal"].all()
    assert 0.3 < signal.weights["chexnet"] < 0.7


def test_a_trained_model_finds_more_errors_than_the_record_alone(nih, helped, data_folder):
    """On the 527 validation images that both answered; pneumothorax has 8 errors there, too few to tell."""
    dataset, judgments, _ = nih
    signal, films = helped
    reference = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split="val")
    audited = Audited(images=dataset.images, claims=dataset.claims, judgments=judgments, signal=signal.table)
    truth = reference.truth.drop("split").filter(pl.col("image_id").is_in(films.implode()))
    pairs, _ = about(truth, audited, reference.groups)
    rows, _ = scorecard(pairs, Resampling(draws=200))
    found = {(row["finding"], row["method"]): row for row in rows if row["given"] == "all"}
    for finding, before, after in (("Nodule or mass", 0.60, 0.689), ("Airspace opacity", 0.70, 0.857)):
        record = found[finding, "self_confidence"]
        assert record["n"] == 527
        assert record["error_ap"] == pytest.approx(before, abs=0.005)
        assert found[finding, "bpals"]["error_ap"] == pytest.approx(after, abs=0.006)
        assert record["ap_gain_low"] > 0
