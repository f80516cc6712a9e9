"""`bpals judge train`, from images to a judge of the workspace: cross-fitted, resumable, exported, and honest."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.judges.fine_tuning import Schedule
from bpals.judges.record import fold_of
from bpals.store.workspace import Workspace
from bpals.tasks.judge import Order, run_judge
from bpals.tasks.train import FOLDER, Plan, train_judge
from world import datasets

pytest.importorskip("torch", reason="needs the extra torch")
tiny_models = pytest.importorskip("world.tiny_models", reason="needs the extra torch")

IMAGES, FOLDS = 240, 3
SHORT = Schedule(side_px=32, epochs=1, batch=16, rate=3e-3)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A few images of the examples; one is cut off."""
    made = datasets.write(tmp_path_factory.mktemp("small"), IMAGES)
    cut = made.images / made.image_ids[5]
    cut.write_bytes(cut.read_bytes()[:-100])
    return made


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A small ViT on soft targets, three folds."""
    folder = tiny_models.save_vit(tmp_path_factory.mktemp("models") / "vit")
    return Plan(backbone=f"hf:{folder}", folds=FOLDS, schedule=SHORT, device="cpu")


def train(plan, small, home, source=None, **more):
    """Train over the small dataset."""
    notes = []
    order = Order(source=source or small.source, mapping=small.mapping, workers=0)
    return train_judge(plan, images=small.images, workspace=home, order=order, say=notes.append, **more), notes


@pytest.fixture(scope="module")
def whole(plan, small, tmp_path_factory):
    """The training, run to its end."""
    home = tmp_path_factory.mktemp("whole")
    return home, *train(plan, small, home)


def answers(home):
    """What the judge says."""
    return Workspace(home).judge("trained-vit-signal").answers()


def test_its_answers_are_a_judge_of_the_workspace(whole, small):
    """One row per image and finding; the image that is cut off failed, and the card says how it was trained."""
    home, run, notes = whole
    assert (run.name, run.state, run.counts["failed"]) == ("trained-vit-signal", "done", 3)
    assert run.counts["answered"] == (IMAGES - 1) * 3
    card = Workspace(home).judge(run.name).card
    assert (card["trained_on_target"], card["held_out"], card["commercial_use"]) == ("yes", True, "unknown")
    assert card["settings"]["targets"] == "signal"
    assert "no medical device" in card["evidence"]
    assert any("no medical device" in note for note in notes)
    assert len(small.image_ids) == IMAGES


def test_what_is_trained_is_not_trained_again(whole, plan, small):
    """The second run reads the answers of each fold; one kept fold of several machines is collected."""
    home, _, _ = whole
    before = answers(home)
    again, notes = train(plan, small, home)
    assert not any("epoch" in note for note in notes)
    assert answers(home).equals(before)
    assert again.counts == whole[1].counts


def test_the_networks_in_the_folder_are_those_of_the_answers(plan, small, tmp_path):
    """Another order under the same name, and the first one again: nothing of the order between is left."""
    two = replace(plan, folds=2, targets="labels")
    other = replace(two, schedule=replace(SHORT, seed=1))
    folder = tmp_path / FOLDER / "trained-vit"
    kept = []
    for each in (two, other, two):
        train(each, small, tmp_path)
        kept.append((folder / "fold-0.safetensors").read_bytes())
        assert len(list(folder.glob("fold-0-*.npy"))) == 1
    assert kept[0] == kept[2] != kept[1]


def test_a_killed_training_and_folds_apart_end_with_the_same_bits(whole, plan, small, tmp_path):
    """A fold that another machine trained, then a kill in the next one: the same command ends as one run."""
    alone, notes = train(replace(plan, only_fold=1), small, tmp_path)
    assert alone.sealed is None
    assert "without --fold" in notes[-1]

    def kill(snapshot):
        if snapshot.stage.startswith("training fold 2, 5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, small, tmp_path, watch=kill)
    train(plan, small, tmp_path)
    assert answers(tmp_path).equals(answers(whole[0]))


def test_flipped_labels_of_a_fold_move_no_answer_about_it(whole, plan, small, tmp_path):
    """56 labels of one fold, everything made again: not a bit moves about that fold, and others do move."""
    table = pl.read_csv(small.source.removeprefix("table:"))
    fold = fold_of(table["patient"].cast(pl.String).to_numpy().astype(np.str_), FOLDS)
    here = np.flatnonzero(fold == 0)[:56]
    assert len(here) == 56
    turned = table["Effusion"].to_numpy().copy()
    turned[here] = 1 - turned[here]
    table.with_columns(Effusion=pl.Series(turned)).write_csv(tmp_path / "films.csv")
    train(plan, small, tmp_path / "home", source=f"table:{tmp_path / 'films.csv'}")
    inside = pl.col("image_id").is_in(table.filter(pl.Series(fold == 0))["film"].to_list())
    before, after = answers(whole[0]), answers(tmp_path / "home")
    assert after.filter(inside).equals(before.filter(inside))
    assert not after.filter(~inside).equals(before.filter(~inside))


def test_the_networks_run_on_new_images_by_onnx(whole, small, tmp_path):
    """safetensors, ONNX and a recipe per fold; `onnx:` takes them as they are."""
    pytest.importorskip("onnxruntime", reason="needs the extra probe")
    folder = whole[0] / FOLDER / "trained-vit-signal"
    assert {path.suffix for path in folder.glob("fold-0*")} >= {".safetensors", ".onnx", ".toml"}
    assert not list(folder.glob("*.checkpoint"))
    options = {"recipe": str(folder / "fold-0.toml")}
    order = Order(source=small.source, mapping=small.mapping, workers=0, limit_images=20, options=options)
    run = run_judge(f"onnx:{folder / 'fold-0.onnx'}", images=small.images, workspace=tmp_path, order=order)
    assert run.counts["answered"] >= 57
    assert run.card.trained_on_target == "yes"


def test_too_few_images_are_refused(plan, small, tmp_path):
    """A network would learn them by heart."""
    order = Order(source=small.source, mapping=small.mapping, workers=0, limit_images=40)
    with pytest.raises(UsageError, match="at least 200"):
        train_judge(plan, images=small.images, workspace=tmp_path, order=order)
    with pytest.raises(UsageError):
        replace(plan, folds=1)


def test_a_finding_without_any_label_is_unsupported(plan, small, tmp_path):
    """One class absent everywhere: nothing is learnt of it, and the others are trained."""
    table = pl.read_csv(small.source.removeprefix("table:"))
    table.with_columns(Effusion=pl.lit(None, dtype=pl.Int64)).write_csv(tmp_path / "films.csv")
    run, _ = train(
        replace(plan, targets="labels", folds=2), small, tmp_path / "home", f"table:{tmp_path / 'films.csv'}"
    )
    assert run.counts["unsupported"] == IMAGES - 1
    assert json.loads((tmp_path / "home" / "judgments" / "trained-vit.json").read_text())["card"]["model"] == "vit"
