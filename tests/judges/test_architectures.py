"""Weights come into their network under every name they were saved with; what does not fit is named with its shapes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bpals.errors import JudgeError
from bpals.judges.checkpoint import open_network
from bpals.judges.weights import Weights
from world.saved_weights import as_2017, network, numbers

SHOWN = np.random.default_rng(0).normal(size=(1, 3, 64, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def densenet():
    """A DenseNet-121 with random weights, and what it says."""
    module = network("densenet121", seed=1)
    return numbers(module), said(module)


@pytest.fixture(scope="module")
def resnet():
    """A ResNet-50 with random weights, and what it says."""
    module = network("resnet50", seed=2)
    return numbers(module), said(module)


def said(module):
    """What torch itself says of a film."""
    with torch.inference_mode():
        return module(torch.from_numpy(SHOWN)).numpy()


def opened(arrays, architecture="densenet121", *, channels=3, outputs=14):
    """The network of some weights."""
    weights = Weights(path=Path("w.pt"), sha256="", form="", arrays=arrays)
    return open_network(weights, architecture, channels=channels, outputs=outputs, device="cpu")


def under(prefix, arrays):
    """The same weights under a wrapper's name."""
    return {prefix + name: array for name, array in arrays.items()}


RENAMED = {
    "as torchvision has them": lambda arrays: arrays,
    "DataParallel": lambda arrays: under("module.", arrays),
    "compiled": lambda arrays: under("_orig_mod.module.", arrays),
    "CheXNet of 2017": as_2017,
    "beside a loss": lambda arrays: under("net.", arrays) | {"loss.pos_weight": np.ones(14)},
    "with operating points": lambda arrays: arrays | {"op_threshs": np.ones(14)},
    "without counters": lambda arrays: {k: v for k, v in arrays.items() if not k.endswith("num_batches_tracked")},
    "in doubles": lambda arrays: {name: array.astype(np.float64) for name, array in arrays.items()},
}


@pytest.mark.parametrize("rename", RENAMED.values(), ids=RENAMED)
def test_a_densenet_is_the_same_under_every_name(densenet, rename):
    """It says what torch's own network says, to the last bit."""
    arrays, wanted = densenet
    # Not to the last bit: some processors add up in another order from one call to the next.
    assert opened(rename(arrays)).run(SHOWN) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("head", ["fc.", "fc.0.", "fc.1."])
def test_a_resnet_too_with_its_head_in_a_sequence(resnet, head):
    """A Dropout before the last layer or a Sigmoid after it has no weights."""
    arrays, wanted = resnet
    renamed = {name.replace("fc.", head): array for name, array in arrays.items()}
    assert opened(under("module.", renamed), "resnet50").run(SHOWN) == pytest.approx(wanted, abs=1e-5)


def without(arrays, name):
    """All weights but one."""
    return {each: array for each, array in arrays.items() if each != name}


MISFITS = {
    "missing": (
        lambda arrays: without(arrays, "features.norm5.weight"),
        r"features\.norm5\.weight \(1024,\) is missing; it is no whole densenet121",
    ),
    "missing head": (
        lambda arrays: without(arrays, "classifier.bias"),
        r"classifier\.bias \(14,\) is missing",
    ),
    "outputs": (
        lambda arrays: arrays | {"classifier.weight": np.zeros((5, 1024)), "classifier.bias": np.zeros(5)},
        r"has the shape \(5, 1024\): 5 outputs, where 14 labels are named. .*--recipe",
    ),
    "channels": (
        lambda arrays: arrays | {"features.conv0.weight": np.zeros((64, 1, 7, 7))},
        r"features\.conv0\.weight has the shape \(64, 1, 7, 7\), and \(64, 3, 7, 7\) is wanted",
    ),
    "a layer more": (
        lambda arrays: arrays | {"features.norm6.weight": np.zeros(3)},
        r"features\.norm6\.weight \(3,\) has no place in a densenet121",
    ),
    "a head of two layers": (
        lambda arrays: (
            without(arrays, "classifier.weight")
            | {"classifier.0.weight": np.zeros((9, 1024)), "classifier.2.weight": np.zeros((14, 9))}
        ),
        r"classifier\.weight \(14, 1024\) is missing",
    ),
    "no numbers": (
        lambda arrays: arrays | {"classifier.bias": np.full(14, np.nan)},
        r"classifier\.bias holds values that are no numbers",
    ),
    "twice": (
        lambda arrays: under("model.", arrays) | under("ema.", arrays),
        r"holds the network twice, under 'model\.' and 'ema\.'",
    ),
    "nothing": (lambda _: {}, r"holds no densenet121: .* is missing\. Its names: none"),
}


@pytest.mark.parametrize(("change", "why"), MISFITS.values(), ids=MISFITS)
def test_weights_that_do_not_fit_are_refused_by_name_and_shape(densenet, change, why):
    """Nothing is ever filled up with chance."""
    with pytest.raises(JudgeError, match=why):
        opened(change(densenet[0]))


def test_the_other_network_is_named_where_it_is_that(resnet):
    """A ResNet under densenet121: is answered with what to type."""
    with pytest.raises(JudgeError, match=r"no densenet121.*resnet50:FILE"):
        opened(resnet[0])
