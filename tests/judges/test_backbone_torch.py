"""Backbones of transformers and timm: any vision model, frozen, by its folder."""

import importlib.util
import json

import numpy as np
import pytest

from bpals.errors import JudgeError
from bpals.judges.backbone import open_backbone

torch = pytest.importorskip("torch", reason="needs the extra torch")
tiny_models = pytest.importorskip("world.tiny_models", reason="needs the extra torch")

import transformers  # noqa: E402  after what may be missing
from safetensors.torch import load_file, save_file  # noqa: E402

NORMAL = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT of one layer, without a pooling layer, as many are saved."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    told = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, **NORMAL}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return folder


def noise(side_px, count=2):
    """Films of noise."""
    return np.random.default_rng(0).integers(0, 256, (count, side_px, side_px), dtype=np.uint8)


def test_the_tokens_of_a_vit_are_averaged(vit):
    """As its processor says it is to be shown a film, and as transformers itself computes."""
    backbone = open_backbone(f"hf:{vit}")
    assert (backbone.name, backbone.side_px, backbone.width) == ("vit", 32, 16)
    shown = np.repeat((noise(32)[:, None] / 255 - 0.5) / 0.25, 3, axis=1).astype(np.float32)
    model = transformers.ViTModel.from_pretrained(vit, add_pooling_layer=False).eval()
    with torch.no_grad():
        wanted = model(pixel_values=torch.from_numpy(shown)).last_hidden_state.mean(1).numpy()
    assert backbone.look(noise(32)) == pytest.approx(wanted, abs=1e-5)


def test_a_dual_encoder_gives_its_image_features(tmp_path):
    """CLIP: what it compares with captions."""
    backbone = open_backbone(f"hf:{tiny_models.save_clip(tmp_path / 'clip')}")
    assert backbone.look(noise(backbone.side_px)).shape == (2, backbone.width)
    assert not np.array_equal(*backbone.look(noise(backbone.side_px)))


def test_other_weights_are_another_backbone(vit, tmp_path):
    """The hash is of what lies in the folder, so features of two models are never mixed."""
    other = tmp_path / "vit"
    other.mkdir()
    for file in vit.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert open_backbone(f"hf:{other}").sha256 == open_backbone(f"hf:{vit}").sha256
    weights = load_file(other / "model.safetensors")
    first = next(iter(weights))
    save_file(weights | {first: weights[first] + 1}, other / "model.safetensors", metadata={"format": "pt"})
    assert open_backbone(f"hf:{other}").sha256 != open_backbone(f"hf:{vit}").sha256


def test_weights_with_holes_are_refused(vit, tmp_path):
    """Random numbers in their place would be a backbone of nothing."""
    other = tmp_path / "vit"
    other.mkdir()
    for file in vit.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = load_file(other / "model.safetensors")
    save_file(dict(list(weights.items())[3:]), other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(JudgeError, match=r"\d+ (is|are) missing"):
        open_backbone(f"hf:{other}")


def test_a_name_of_the_hub_needs_its_commit():
    """What moves cannot be cached by its name."""
    with pytest.raises(Exception, match="pinned by its commit"):
        open_backbone("hf:org/some-vit")


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_a_timm_model_is_read_from_its_folder(tmp_path):
    """With the size and the scaling that it was trained with; another hash than named is refused."""
    timm = importlib.import_module("timm")
    torch.manual_seed(0)
    save_file(
        timm.create_model("test_resnet", pretrained=False, num_classes=3).state_dict(), tmp_path / "model.safetensors"
    )
    trained = {
        "input_size": [3, 64, 64],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "classifier": "fc",
        "first_conv": "conv1.0",
    }
    config = {"architecture": "test_resnet", "num_classes": 3, "pretrained_cfg": {**trained, "num_classes": 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    backbone = open_backbone(f"timm:{tmp_path}")
    assert backbone.side_px == 64
    assert backbone.look(noise(64)).shape == (2, backbone.width)
    with pytest.raises(JudgeError, match="its weights have the sha256"):
        open_backbone(f"timm:{tmp_path}", "0" * 64)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.bin")
    with pytest.raises(JudgeError, match="could run code"):
        open_backbone(f"timm:{tmp_path}")
