"""A judge of a workspace: its card, and what its answers are worth."""

import json

import pytest

import bpals
from bpals.errors import TruthError, UnknownName, UsageError, WorkspaceError
from bpals.store.workspace import Workspace
from bpals.tasks.judge_card import card_of, labels_of
from world import made_judges
from world.made_judges import EXPERTS

PANEL_AUROC = {
    "Atelectasis": 0.818, "Cardiomegaly": 0.909, "Effusion": 0.883, "Infiltration": 0.716, "Mass": 0.838,
    "Nodule": 0.776, "Pneumonia": 0.762, "Pneumothorax": 0.878, "Consolidation": 0.800, "Edema": 0.894,
    "Emphysema": 0.932, "Fibrosis": 0.825, "Pleural_Thickening": 0.789, "Hernia": 0.918,
}  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Four table judges of the made-up films."""
    return made_judges.make_workspace(tmp_path_factory.mktemp("judged") / "mine")


def test_a_card_says_who_and_what_it_is_worth_against_experts(judged):
    """Model, licence, answers by outcome, and an AUROC a finding with its yardstick."""
    found = card_of("sharp", workspace=judged, reference=EXPERTS)
    assert (found["card"]["model"], found["card"]["commercial_use"]) == ("Sharp-1", "no")
    assert (found["films"], found["asked"], found["answered"], found["failed"]) == (600, 1800, 1800, 0)
    assert [(row["finding"], row["against"], row["n"]) for row in found["skill"]] == [
        (finding, "experts", 600) for finding in ("Cardiomegaly", "Effusion", "Pneumothorax")
    ]
    assert all(row["low"] < row["auroc"] < row["high"] and row["signal"] for row in found["skill"])
    json.dumps(found, allow_nan=False)


def test_without_experts_the_card_says_that_it_is_against_the_claims(judged):
    """And a judge that says the same of all has no signal."""
    found = card_of("blind", workspace=judged)
    assert {row["against"] for row in found["skill"]} == {"claims"}
    assert not any(row["signal"] for row in found["skill"])


def test_a_real_model_has_its_known_aurocs(data_folder, tmp_path):
    """Issue 3: `jrzech_densenet121` against the NIH labels on its 22,433 films, to three decimals."""
    file = data_folder / "predictions" / "chexnet_panel.parquet"
    bpals.run_judge(f"table:{file}@jrzech_densenet121", workspace=tmp_path)
    found = card_of("jrzech_densenet121", workspace=tmp_path)
    assert {row["finding"]: round(row["auroc"], 3) for row in found["skill"]} == PANEL_AUROC
    assert {(row["against"], row["n"]) for row in found["skill"]} == {("claims", 22_433)}


def test_what_cannot_be_had_is_said(judged, tmp_path):
    """An unknown judge, a record judge without an audit, boxes, and a reference that is not there."""
    with pytest.raises(UnknownName, match="Did you mean 'sharp'"):
        card_of("sharpe", workspace=judged)
    with pytest.raises(WorkspaceError, match="holds no audit"):
        card_of("record", workspace=judged)
    with pytest.raises(UsageError, match="presences only"):
        card_of("sharp", workspace=judged, reference="boxes")
    with pytest.raises(TruthError, match="nowhere"):
        card_of("sharp", workspace=judged, reference=f"table={tmp_path / 'nowhere.csv'}")


def test_the_labels_are_those_of_the_remembered_dataset_or_of_nih(judged, tmp_path):
    """A workspace that remembers nothing is about NIH."""
    assert labels_of(Workspace(judged)).title == "Made-up films"
    assert labels_of(Workspace(tmp_path)).title.startswith("NIH ChestX-ray14")
