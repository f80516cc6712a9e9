"""No label reaches an image judge: with every label turned round, not a bit of any answer moves."""

import runpy

import numpy as np
import polars as pl
import pytest

import bpals
import shape
from bpals.judges.stub import StubJudge
from bpals.store.workspace import Workspace

LABELS = ["Cardiomegaly", "Effusion", "Pneumothorax"]


@bpals.judge("brightness-everywhere")
def brightness(image, finding):
    """Say something about every finding, so that every label had its chance."""
    return (np.asarray(image).mean() / 255 + len(finding) / 100) / 2


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Pictures of the first twelve made-up films, and their table with labels as they are and turned round."""
    folder = tmp_path_factory.mktemp("blind")
    picture = runpy.run_path(str(shape.ROOT / "examples" / "make_pictures.py"))["picture"]
    draw = np.random.default_rng(1)
    (folder / "films").mkdir()
    for film in pl.read_csv(shape.ROOT / "examples" / "experts.csv").head(12).iter_rows(named=True):
        picture(film, draw).save(folder / "films" / film["image_id"])
    table = pl.read_csv(shape.ROOT / "examples" / "films.csv").head(12)
    table.write_csv(folder / "as-they-are.csv")
    turned = {1: 0, 0: 1, -1: 0}
    table.with_columns(pl.col(LABELS).replace_strict(turned)).write_csv(folder / "turned.csv")
    return folder


@pytest.mark.parametrize("judge", [brightness, StubJudge(seed=2)], ids=lambda judge: judge.card.judge)
def test_no_answer_moves_when_every_label_is_turned_round(films, tmp_path, judge):
    """Asked through the whole path that `bpals judge run` takes, from the dataset's file to the sealed table."""
    sealed = []
    for labels in ("as-they-are", "turned"):
        order = bpals.Order(
            source=f"table:{films / labels}.csv", mapping=str(shape.ROOT / "examples" / "films.toml"), workers=0
        )
        home = tmp_path / labels
        run = bpals.run_judge(judge, images=films / "films", workspace=home, order=order)
        assert (run.state, run.films) == ("done", 12)
        sealed.append(Workspace(home).judge(run.name).answers())
    assert sealed[0].height == 12 * len(LABELS)
    assert set(sealed[0]["outcome"]) == {"answered"}
    assert sealed[0].equals(sealed[1])
