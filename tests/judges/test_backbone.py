"""Backbones: frozen networks by name and by file, and what cannot be one."""

import json
import subprocess
import sys

import numpy as np
import pytest

import shape
from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.judges.backbone import OnnxBackbone, built_file, open_backbone, open_eye, scaled
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
    assert np.array_equal(together[1], open_eye(str(tiny))(NOISE[1]))


def test_a_float_network_is_shown_what_imagenet_networks_expect(tmp_path):
    """Grey from 0 to 1, centred and scaled."""
    backbone = OnnxBackbone(tiny_onnx.write(tmp_path / "float.onnx", kind=tiny_onnx.FLOAT))
    wanted = scaled(NOISE, 1).reshape(3, -1) @ tiny_onnx.fields()
    assert backbone.look(NOISE) == pytest.approx(wanted, abs=1e-4)
    assert scaled(np.full((1, 4, 4), 255, np.uint8), 3)[0, :, 0, 0] == pytest.approx([2.249, 2.429, 2.64], abs=0.001)


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
        OnnxBackbone(tiny_onnx.write(tmp_path / "nan.onnx", weights=broken))


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
        "from bpals.judges.backbone import open_eye\n"
        f"numbers = open_eye({str(tiny)!r})(np.zeros((32, 32), np.uint8))\n"
        "heavy = {'torch', 'torchvision', 'transformers', 'timm', 'onnx', 'scipy'} & set(sys.modules)\n"
        "print(json.dumps([len(numbers), sorted(heavy)]))\n"
    )
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, env={"PYTHONPATH": str(shape.SRC)}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [tiny_onnx.WIDTH, []]
