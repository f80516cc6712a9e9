"""Skill: the scorecard's AUROC, an interval with patients whole, and who has no signal."""

import time

import numpy as np
import polars as pl
import pytest

from bpals.findings import NIH
from bpals.metrics import Curve
from bpals.reviews import verdicts
from bpals.score.intervals import Resamples, Resampling, interval
from bpals.score.skill import FEWEST_PATIENTS, Scores, Yardstick
from bpals.sources import nih
from bpals.tasks.judge_card import skill
from bpals.testing import tiny_dataset
from bpals.types import KIND, OUTCOME, SKILL, TRUTH, Reference, answers_schema

PANEL_AUROC = {
    "Atelectasis": 0.818, "Cardiomegaly": 0.909, "Effusion": 0.883, "Infiltration": 0.716, "Mass": 0.838,
    "Nodule": 0.776, "Pneumonia": 0.762, "Pneumothorax": 0.878, "Consolidation": 0.800, "Edema": 0.894,
    "Emphysema": 0.932, "Fibrosis": 0.825, "Pleural_Thickening": 0.789, "Hernia": 0.918,
}  # fmt: skip


def answers(dataset, p_present, *, judge="eye"):
    """A judge's table: a probability a claim, null where it did not answer."""
    table = dataset.claims.select("image_id", "finding", judge=pl.lit(judge), kind=pl.lit("image", dtype=KIND))
    table = table.with_columns(p_present=pl.Series(p_present).fill_nan(None))
    outcome = pl.when(pl.col("p_present").is_null()).then(pl.lit("failed")).otherwise(pl.lit("answered"))
    table = table.with_columns(outcome=outcome.cast(OUTCOME))
    schema = answers_schema(dataset.vocabulary)
    missing = [pl.lit(None).alias(name) for name in schema if name not in table.columns]
    return table.with_columns(missing).select(schema.names()).cast(schema)


@pytest.fixture(scope="module")
def dataset():
    """Three hundred patients with one to four films."""
    return tiny_dataset(patients=300, uncertain=0.05, seed=1)


@pytest.fixture(scope="module")
def told(dataset):
    """Probabilities that follow the claims, alike within a patient."""
    draw = np.random.default_rng(0)
    claimed = (dataset.claims["says"] == "present").to_numpy()
    patient = dataset.claims.join(dataset.images, on="image_id", how="left", maintain_order="left")["patient_id"]
    habit = draw.normal(0, 1, 300)[patient.rank("dense").to_numpy().astype(int) - 1]
    return 1 / (1 + np.exp(-(draw.normal(0, 1, len(claimed)) + habit + 1.0 * claimed)))


def test_the_auroc_is_the_scorecard_s_and_the_interval_the_bootstrap_s(dataset, told):
    """Patients drawn whole two thousand times give the ends within a tenth of the interval's width."""
    found = skill(answers(dataset, told), dataset.claims, dataset.images)
    assert found.schema == SKILL
    for row in found.iter_rows(named=True):
        its = dataset.claims.with_columns(p=pl.Series(told)).filter(
            pl.col("finding") == row["finding"], pl.col("says") != "uncertain"
        )
        patient = its.join(dataset.images, on="image_id", how="left", maintain_order="left")["patient_id"].rank("dense")
        p, present = its["p"].to_numpy(), (its["says"] == "present").to_numpy()
        resamples = Resamples.of(patient.to_numpy().astype(np.int64), Resampling(draws=2000))
        drawn = interval(np.concatenate([Curve.of(p, present, weights).auroc() for weights in resamples.weights()]))
        assert row["auroc"] == float(Curve.of(p, present).auroc()[0])
        assert (row["n"], row["positives"]) == (its.height, present.sum())
        width = row["high"] - row["low"]
        assert (row["low"], row["high"]) == pytest.approx(drawn, abs=0.1 * width)
        assert row["signal"]


def test_films_of_one_patient_are_one_witness(dataset, told):
    """Counted film by film the same answers would seem surer."""
    whole = skill(answers(dataset, told), dataset.claims, dataset.images)
    nameless = dataset.images.with_columns(patient_id=pl.lit(None, pl.String))
    each = skill(answers(dataset, told), dataset.claims, nameless)
    assert whole["auroc"].equals(each["auroc"])
    assert ((whole["high"] - whole["low"]) > (each["high"] - each["low"])).all()


def test_chance_and_worse_than_chance_have_no_signal(dataset, told):
    """An interval that includes .5, or lies below it: a judge that is reliably wrong is not turned round."""
    chance = np.random.default_rng(4).random(len(told))
    found = skill(answers(dataset, chance), dataset.claims, dataset.images)
    assert not found["signal"].any()
    assert ((found["low"] < 0.5) & (found["high"] > 0.5)).all()
    turned = skill(answers(dataset, 1 - told), dataset.claims, dataset.images)
    assert (turned["high"] < 0.5).all()
    assert not turned["signal"].any()


def test_chance_passes_once_in_forty():
    """Over many judges that know nothing, an interval of 95 % lies above .5 in about 2.5 %."""
    draw = np.random.default_rng(1)
    states = (draw.random((3000, 100)) < 0.1).astype(float)
    names = tuple(f"F{number}" for number in range(100))
    yardstick = Yardstick(patient=np.arange(3000) // 3, truth=pl.DataFrame(schema={"row": pl.UInt32, **TRUTH}))
    drawn = [Scores(judge="x", findings=names, given=draw.normal(size=states.shape), states=states) for _ in range(5)]
    passed = [yardstick.measure(scores)["signal"].mean() for scores in drawn]
    assert 0.01 < np.mean(passed) < 0.05


def test_experts_are_the_yardstick_where_they_read_enough(dataset, told):
    """Ten patients with the finding and ten without, that the judge answered; else the claims. The row says which."""
    films = dataset.images.unique("patient_id", keep="first", maintain_order=True)["image_id"]
    draw = np.random.default_rng(4)

    def reference(count):
        present = np.arange(2 * count) < count
        rows = {"image_id": films[: 2 * count], "finding": "Mass", "present": present, "split": None}
        return Reference(kind="table", truth=pl.DataFrame(rows, schema=TRUTH))

    table = answers(dataset, told)
    for count, against in ((FEWEST_PATIENTS, "experts"), (FEWEST_PATIENTS - 1, "claims")):
        found = skill(table, dataset.claims, dataset.images, reference(count))
        assert found["against"].to_list() == ["claims", "claims", against]
    row = skill(table, dataset.claims, dataset.images, reference(60)).filter(pl.col("finding") == "Mass")
    assert (row["n"][0], row["positives"][0]) == (120, 60)
    assert abs(row["auroc"][0] - 0.5) < 0.2
    failed = answers(dataset, np.where(draw.random(len(told)) < 2, np.nan, told))
    unread = skill(failed, dataset.claims, dataset.images, reference(60))
    assert unread["against"].unique().to_list() == ["claims"]
    assert unread["n"].sum() == 0


def test_too_few_patients_make_no_interval_and_no_signal():
    """Two films that are told apart prove nothing, though their AUROC would be 1."""
    small = tiny_dataset(patients=12)
    perfect = (small.claims["says"] == "present").to_numpy() * 0.5 + 0.2
    found = skill(answers(small, perfect), small.claims, small.images)
    assert found.select("auroc", "low", "high").null_count().row(0) == (3, 3, 3)
    assert not found["signal"].any()
    large = tiny_dataset(patients=300)
    perfect = (large.claims["says"] == "present").to_numpy() * 0.5 + 0.2
    sure = skill(answers(large, perfect), large.claims, large.images)
    assert sure["auroc"].to_list() == [1, 1, 1]
    assert sure["signal"].all()


def test_boxes_are_no_yardstick(dataset, told):
    """They are presences only."""
    truth = pl.DataFrame({"image_id": dataset.images["image_id"], "finding": "Mass", "present": True, "split": None})
    boxes = Reference(kind="boxes", truth=truth.cast(TRUTH), positives_only=True)
    found = skill(answers(dataset, told), dataset.claims, dataset.images, boxes)
    assert set(found["against"]) == {"claims"}


def test_several_judges_come_in_the_order_of_their_names(dataset, told):
    """A row a judge and finding; no judge gives no row."""
    both = pl.concat([answers(dataset, told, judge=name) for name in ("b", "a")])
    assert skill(both, dataset.claims, dataset.images)["judge"].to_list() == ["a"] * 3 + ["b"] * 3
    assert skill(both.clear(), dataset.claims, dataset.images).equals(pl.DataFrame(schema=SKILL))


@pytest.fixture(scope="module")
def record():
    """The embedded NIH record."""
    return nih.load()


def test_the_chexnet_panel_has_its_known_skill(record, data_folder):
    """jrzech_densenet121 against the NIH labels on its 22,433 films, to three decimals, by the scorecard's own code."""
    panel = pl.read_parquet(data_folder / "predictions" / "chexnet_panel.parquet")
    its = panel.filter(pl.col("model") == "jrzech_densenet121")
    table = its.unpivot(list(NIH.findings), index="Image Index", variable_name="finding", value_name="p_present")
    table = table.select(
        pl.col("Image Index").alias("image_id"), pl.col("finding").cast(NIH.enum), "p_present",
        judge=pl.lit("jrzech_densenet121"), outcome=pl.lit("answered", dtype=OUTCOME),
    )  # fmt: skip
    found = skill(table, record.claims, record.images)
    assert found["n"].unique().to_list() == [22_433]
    assert {row["finding"]: round(row["auroc"], 3) for row in found.iter_rows(named=True)} == PANEL_AUROC
    assert found["signal"].all()
    reference = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split="val")
    against = dict(skill(table, record.claims, record.images, reference).select("finding", "against").iter_rows())
    assert {finding for finding, yardstick in against.items() if yardstick == "experts"} <= {"Pneumothorax"}


def test_all_of_nih_is_measured_in_five_seconds(record):
    """112,120 films, 14 findings, one judge that answered them all."""
    dataset = record
    table = answers(dataset, np.random.default_rng(0).random(dataset.claims.height))
    started = time.process_time()
    found = skill(table, dataset.claims, dataset.images)
    assert time.process_time() - started < 5
    assert found["n"].unique().to_list() == [112_120]
