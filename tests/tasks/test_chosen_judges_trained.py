"""A judge that was told the labels: real scores of a CheXNet model, under one card and under another."""

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.findings import NIH
from bpals.judges.record import RecordJudge
from bpals.metrics import Curve
from bpals.reviews import verdicts
from bpals.score.opinions import Audited, about
from bpals.store.workspace import Workspace
from bpals.tasks.chosen_judges import Chosen
from bpals.types import Dataset
from world.estimating import estimate

MODEL = "jrzech_densenet121"
EVIDENCE = 'evidence = "its paper"\n'
CARDS = {
    "no": f'trained_on_target = "no"\n{EVIDENCE}',
    "yes": f'trained_on_target = "yes"\n{EVIDENCE}',
    "held-out": f'trained_on_target = "yes"\nheld_out = "yes"\n{EVIDENCE}',
    "unknown": "",
}
ECHO = 2.0
"""Logits by which a network that learned the labels by heart leans to them."""


@pytest.fixture(scope="module")
def predictions(data_folder):
    """The model's scores of the films of every third patient and of the adjudicated ones, as a table of scores."""
    panel = pl.read_parquet(data_folder / "predictions" / "chexnet_panel.parquet").filter(pl.col("model") == MODEL)
    truth = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split="val").truth
    patient = pl.col("Image Index").str.head(8)
    read = truth["image_id"].str.head(8).unique()
    panel = panel.filter((patient.cast(pl.Int64) % 3 == 0) | patient.is_in(read.implode()))
    return panel.rename({"Image Index": "image_id"}).unpivot(
        list(NIH.findings), index="image_id", variable_name="finding", value_name="p_present"
    )


@pytest.fixture(scope="module")
def nih(nih_workspace, predictions):
    """The films that the model scored: the dataset, and what the record judge said of it."""
    audit = Workspace(nih_workspace).open()
    images, claims, record = (
        audit.table(name).join(predictions, on="image_id", how="semi", maintain_order="left")
        for name in ("images.parquet", "claims.parquet", "judgments/record.parquet")
    )
    dataset = Dataset(
        name="nih", title="NIH", vocabulary=NIH, images=images, claims=claims, attribution="NIH", inputs={}
    )
    return dataset, record


@pytest.fixture(scope="module")
def scores(nih, predictions):
    """The model's own scores, and the same with an echo of the claims."""
    dataset, _ = nih
    claims = dataset.claims.select("image_id", pl.col("finding").cast(pl.String), "says")
    both = predictions.join(claims, on=["image_id", "finding"], maintain_order="left")
    p = both["p_present"].to_numpy().clip(1e-9, 1 - 1e-9)
    loud = ECHO * np.maximum(0, 1 + 0.5 * np.random.default_rng(0).normal(size=both.height))
    z = np.log(p / (1 - p)) + np.where((both["says"] == "present").to_numpy(), loud, -loud)
    return {"own": predictions, "echo": both.select("image_id", "finding", p_present=pl.Series(1 / (1 + np.exp(-z))))}


@pytest.fixture(scope="module")
def weighed(nih, scores, tmp_path_factory):
    """Make the signal of the record judge and those scores under a card; the same ones are not weighed again."""
    dataset, judgments = nih
    made = {}

    def weighed(which, card):
        if (which, card) not in made:
            folder = tmp_path_factory.mktemp("told")
            file = folder / "scores.parquet"
            scores[which].write_parquet(file)
            if CARDS[card]:
                (folder / "scores.parquet.card.toml").write_text(CARDS[card], encoding="utf-8")
            bpals.run_judge(f"table:{file}", workspace=folder / "audit", order=bpals.Order(name="model"))
            sealed = Workspace(folder / "audit").judge("model")
            panel, notices = Chosen(record=RecordJudge(), finished=(sealed,)).answers_about(dataset)
            made[which, card] = estimate(dataset, judgments, panel=panel), [notice.code for notice in notices]
        return made[which, card]

    return weighed


def test_the_same_scores_weigh_visibly_less_if_they_were_trained_on_these_labels(weighed):
    """No more than half as much as the record judge, finding by finding; and the audit says so."""
    told, notices = weighed("own", "yes")
    free, silent = weighed("own", "no")
    assert (notices, silent) == (["trained_on_target"], [])
    assert free.weights["model"] > 0.5
    assert told.weights["model"] < 0.6 * free.weights["model"]
    for finding, weight in told.shares["model"].items():
        assert weight < 0.75 * free.shares["model"][finding], finding
        assert weight <= 0.5 * told.shares["record"][finding] + 1e-9, finding


@pytest.mark.parametrize("card", ["held-out", "unknown"])
def test_what_was_trained_on_other_patients_or_nobody_knows_is_not_punished(weighed, card):
    """To the last bit."""
    free, _ = weighed("own", "no")
    other, notices = weighed("own", card)
    assert notices == []
    assert other.table.equals(free.table)


def test_an_echo_drowns_everybody_unless_its_card_says_what_it_is(nih, weighed, data_folder):
    """Error AP on the 527 adjudicated validation images, all three groups together."""
    dataset, judgments = nih
    reference = verdicts.load(f"four-findings={data_folder / 'expert'}", vocabulary=NIH, split="val")
    truth = reference.truth.drop("split").join(dataset.images, on="image_id", how="semi")
    found = {}
    for card in ("no", "yes"):
        signal, _ = weighed("echo", card)
        audited = Audited(images=dataset.images, claims=dataset.claims, judgments=judgments, signal=signal.table)
        pairs, _ = about(truth, audited, reference.groups, baselines=False)
        wrong = (pairs["claimed"] != pairs["present"]).to_numpy()
        found[card] = float(Curve.of(1 - pairs["trust"].to_numpy(), wrong).average_precision()[0])
    assert weighed("echo", "no")[0].weights["model"] > 0.85
    assert weighed("echo", "yes")[0].weights["model"] < 0.35
    assert found["yes"] > found["no"] + 0.05
