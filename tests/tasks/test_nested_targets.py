"""Soft targets for a judge that is trained on them: nobody's label reaches the targets, or the answers, about him."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from bpals.findings import Vocabulary
from bpals.judges.linear_probe import ProbeJudge
from bpals.judges.record import RecordJudge, Training, fold_of
from bpals.judges.stub import StubJudge
from bpals.numeric import patients
from bpals.store.workspace import Workspace
from bpals.tasks.audit import Answers, weigh
from bpals.tasks.chosen_judges import Chosen
from bpals.tasks.nested_targets import FOLDER, kept_targets, nested_targets
from bpals.testing import flipped, moved
from bpals.types import IMAGES, SAYS, Dataset, Experts, claims_schema

WORDS = Vocabulary(name="two", findings=("Mass", "Edema"))
IMAGES_HERE, PATIENTS, WIDTH = 420, 90, 10
QUICK = RecordJudge(networks=1, training=Training(hidden=(16, 8), epochs=1, batch=64, steps=300, rate=1e-2))
"""The metadata judge, small: these tests are about who sees what."""


class Held:
    """Features in memory."""

    def __init__(self, image_ids, numbers):
        """Take them."""
        self.image_ids, self.numbers, self.width = list(image_ids), numbers, numbers.shape[1]

    def rows(self, start, stop):
        """Give some."""
        return self.numbers[start:stop]


@pytest.fixture(scope="module")
def dataset():
    """Patients who have a finding on all their images or on none; one label in eight is wrong."""
    dice = np.random.default_rng(1)
    patient = np.sort(dice.integers(0, PATIENTS, IMAGES_HERE))
    truth = (dice.random((PATIENTS, 2)) < 0.35)[patient]
    says = np.where(truth ^ (dice.random(truth.shape) < 0.125), "present", "absent").astype(object)
    says[dice.random(says.shape) < 0.02] = "uncertain"
    names = [f"{number:04}.png" for number in range(IMAGES_HERE)]
    images = pl.DataFrame({"image_id": names, "patient_id": [f"p{each}" for each in patient]})
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in IMAGES.items() if name not in images.columns]
    claims = pl.DataFrame(
        {
            "image_id": np.repeat(names, 2),
            "finding": pl.Series(list(WORDS.findings) * IMAGES_HERE, dtype=WORDS.enum),
            "says": pl.Series(says.reshape(-1).tolist(), dtype=SAYS),
        }
    ).cast(dict(claims_schema(WORDS)))
    images = images.with_columns(missing).select(IMAGES.names())
    numbers = dice.normal(size=(IMAGES_HERE, WIDTH)).astype(np.float32)
    numbers[:, :2] += 1.5 * truth
    made = Dataset(
        name="two", title="Two", vocabulary=WORDS, images=images, claims=claims, attribution="Made up.", inputs={}
    )
    return made, Held(names, numbers), truth


@pytest.fixture(scope="module")
def targets(dataset):
    """Its targets."""
    return nested_targets(dataset[0], judge=QUICK)


def folds(dataset):
    """The fold of each image."""
    return fold_of(patients(dataset.images).to_numpy().astype(np.str_), 5)


def signal_probe(dataset, features, targets):
    """The answers of a probe on the targets."""
    judge = ProbeJudge(name="soft", targets="signal")
    return judge.read(dataset.images, dataset.claims, dataset.vocabulary, features, targets=targets)


def turned(dataset, number, count):
    """The dataset with labels of one fold flipped, and its images of that fold."""
    here = dataset.images.filter(pl.Series(folds(dataset) == number))
    its = dataset.claims.join(here, on="image_id", how="semi").filter(pl.col("says") != "uncertain").head(count)
    assert its.height == count
    return replace(dataset, claims=flipped(dataset.claims, its)), here


def test_targets_for_a_fold_know_nothing_of_its_patients(dataset, targets):
    """They are open there, and probabilities elsewhere, also where the label is uncertain."""
    fold = folds(dataset[0])
    assert targets.shape == (5, IMAGES_HERE, 2)
    for number, each in enumerate(targets):
        assert np.isnan(each[fold == number]).all()
        assert ((each[fold != number] > 0) & (each[fold != number] < 1)).all()


def test_targets_are_nearer_to_the_truth_than_chance(dataset, targets):
    """A patient's other images tell."""
    middle, truth = np.nanmean(targets, axis=0), dataset[2]
    for finding in range(2):
        assert middle[truth[:, finding], finding].mean() > middle[~truth[:, finding], finding].mean() + 0.1


def test_labels_of_a_fold_reach_neither_its_targets_nor_the_answers_about_it(dataset, targets):
    """56 labels of one fold are flipped at once and everything is fitted again: not a bit moves about that fold."""
    whole, features, _ = dataset
    before = signal_probe(whole, features, targets)
    other, here = turned(whole, 2, 56)
    again = nested_targets(other, judge=QUICK)
    assert np.array_equal(again[2], targets[2], equal_nan=True)
    assert not np.array_equal(again[1], targets[1], equal_nan=True)
    after = signal_probe(other, features, again)
    about = before.join(here, on="image_id", how="semi")
    assert (about["outcome"] == "answered").sum() > 56
    assert moved(before, after, about).is_empty()
    elsewhere = before.join(here, on="image_id", how="anti").filter(pl.col("outcome") == "answered")
    assert moved(before, after, elsewhere).height > elsewhere.height / 2


def weight_of(dataset, answers, card, tmp_path):
    """What a judge weighs in an audit beside the metadata judge."""
    home = Workspace(tmp_path)
    home.write_judge("other", {**card.as_dict(), "judge": "other"}, answers.with_columns(judge=pl.lit("other")))
    record = RecordJudge(networks=2, training=QUICK.training)
    chosen = Chosen(record=record, finished=tuple(home.judges()))
    own = record.read(dataset.images, dataset.claims, dataset.vocabulary)
    signal = weigh(dataset, chosen, Answers(claims=own), Experts(), lambda _what, _share: None).signal
    return signal.weights.get("other", 0.0)


def test_a_probe_on_targets_has_weight_and_one_on_shuffled_targets_or_a_stub_has_none(dataset, targets, tmp_path):
    """Each finding's targets are shuffled among the images with one: nothing is left to learn."""
    whole, features, _ = dataset
    card = ProbeJudge(name="other", targets="signal").card
    dice = np.random.default_rng(4)
    shuffled = np.full_like(targets, np.nan)
    for view, each in enumerate(targets):
        known = np.flatnonzero(np.isfinite(each[:, 0]))
        shuffled[view, known] = each[dice.permutation(known)]
    assert weight_of(whole, signal_probe(whole, features, targets), card, tmp_path / "soft") > 0.1
    assert weight_of(whole, signal_probe(whole, features, shuffled), card, tmp_path / "shuffled") == 0
    stub = StubJudge(seed=0)
    scores = stub.scores(whole.images["image_id"], WORDS)
    assert weight_of(whole, scores, stub.card, tmp_path / "stub") == 0


def test_targets_are_kept_and_made_again_where_the_file_or_a_label_is_another(dataset, tmp_path):
    """They take minutes on a large dataset: a second run reads them."""
    few = dataset[0].images.head(60)
    claims = dataset[0].claims.join(few, on="image_id", how="semi")
    small, home, notes = replace(dataset[0], images=few, claims=claims), Workspace(tmp_path), []
    first = kept_targets(home, small, 2, say=notes.append)
    (kept,) = (tmp_path / FOLDER).iterdir()
    assert np.array_equal(kept_targets(home, small, 2, say=notes.append), first, equal_nan=True)
    assert len(notes) == 1
    kept.write_bytes(kept.read_bytes()[:-50])
    assert np.array_equal(kept_targets(home, small, 2, say=notes.append), first, equal_nan=True)
    its = claims.filter(pl.col("says") == "present").head(1)
    kept_targets(home, replace(small, claims=flipped(claims, its)), 2, say=notes.append)
    assert len(notes) == 3
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
