"""The recipes of examples/training_recipes.py, each run on tiny data: the targets are learnt, and NaN harms nobody."""

import runpy

import numpy as np
import polars as pl
import pytest

import bpals
import shape

torch = pytest.importorskip("torch", reason="needs the extra torch")

from bpals.judges.local_model import mend_torchvision  # noqa: E402  after what may be missing

SIDE, COUNT = 8, 64
FINDINGS = ["Effusion", "Mass"]


@pytest.fixture(scope="module")
def recipes():
    """The functions."""
    return runpy.run_path(str(shape.ROOT / "examples" / "training_recipes.py"))


@pytest.fixture(scope="module")
def data():
    """Images whose brightness tells the first finding, and the targets of an audit."""
    dice = np.random.default_rng(0)
    present = dice.random((COUNT, 2)) < 0.5
    images = dice.normal(size=(COUNT, 1, SIDE, SIDE)).astype(np.float32) + present[:, 0, None, None, None]
    p = np.where(present, 0.8, 0.2)
    p[::9, 1] = np.nan
    ids = [f"{number}.png" for number in range(COUNT)]
    signal = pl.DataFrame(
        {
            "image_id": np.repeat(ids, 2),
            "finding": FINDINGS * COUNT,
            "says": np.where(present, "present", "absent").reshape(-1),
            "p_present": pl.Series(p.reshape(-1)).fill_nan(None),
            "flag": "unverified",
        }
    )
    return torch.from_numpy(images), bpals.targets(signal), present


@pytest.fixture
def network():
    """A line over the pixels."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 2))


def tells(network, data):
    """Whether a network learnt the first finding, and has no NaN."""
    images, _, present = data
    with torch.no_grad():
        logits = network(images).numpy()[:, 0]
    return np.isfinite(logits).all() and logits[present[:, 0]].mean() > logits[~present[:, 0]].mean() + 0.5


def test_a_pytorch_loop(recipes, network, data):
    """Plain torch."""
    assert tells(recipes["pytorch"](network, *data[:2]), data)


# Lightning 2.6 uses what torch 2.13 will drop.
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_lightning_module(recipes, network, data):
    """With pytorch_lightning."""
    mend_torchvision()
    assert tells(recipes["lightning"](network, *data[:2]), data)


def test_a_hugging_face_trainer(recipes, network, data, tmp_path):
    """With transformers and accelerate."""
    mend_torchvision()
    assert tells(recipes["hugging_face"](network, *data[:2], str(tmp_path)), data)


def test_scikit_learn_on_features(recipes, data):
    """One line per finding."""
    images, soft, present = data
    first, second = recipes["scikit_learn"](images.numpy().reshape(COUNT, -1), soft)
    scores = first.predict(images.numpy().reshape(COUNT, -1))
    assert scores[present[:, 0]].mean() > scores[~present[:, 0]].mean() + 0.1
    assert np.isfinite(second.coef_).all()


def test_a_dataset_of_torchxrayvision(recipes, network, data):
    """A class with the fields of theirs: `csv`, `labels`, `pathologies`."""
    images, soft, _ = data

    class Films(torch.utils.data.Dataset):
        pathologies = FINDINGS
        csv = pl.DataFrame({"Image Index": soft.image_ids})
        labels = np.zeros((COUNT, 2), dtype=np.float32)

        def __len__(self):
            return COUNT

        def __getitem__(self, index):
            return {"img": images[index].numpy(), "lab": self.labels[index]}

    assert tells(recipes["torchxrayvision"](network, Films(), soft), data)
