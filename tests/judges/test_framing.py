"""A film is framed and scaled as the makers of each network did, to the number."""

import numpy as np
import pytest
from PIL import Image

from bpals.judges.checkpoint import find_recipe, show
from bpals.judges.local_model import import_torchvision

SIZES = [(300, 300), (512, 421), (401, 512), (256, 256), (100, 64)]


def image(width, height):
    """A grey image of noise on a slope."""
    dice = np.random.default_rng(width * 1000 + height)
    slope = np.linspace(0, 200, width)[None] + np.linspace(0, 55, height)[:, None]
    return Image.fromarray(np.clip(slope + dice.normal(0, 20, (height, width)), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["chexnet", "densenet121", "resnet50"])
def test_what_torchvision_does_is_done(kind, size):
    """Resize, CenterCrop, ToTensor, Normalize on three equal channels, to a millionth."""
    recipe, transforms = find_recipe(kind, "w.pt"), import_torchvision().transforms
    steps = transforms.Compose(
        [
            transforms.Resize(256 if kind == "chexnet" else 224),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    wanted = steps(image(*size).convert("RGB")).numpy()
    shown = show(image(*size), recipe)
    assert (shown.shape, shown.dtype) == ((3, 224, 224), np.float32)
    assert np.abs(shown - wanted).max() < 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_xrv_sees_the_middle_square_from_minus_to_plus_1024(size):
    """Its own centre crop and its own scale, and then the resize."""
    width, height = size
    square = min(size)
    grey = np.asarray(image(*size), dtype=np.float32)
    top, left = height // 2 - square // 2, width // 2 - square // 2
    scaled = (2 * grey[top : top + square, left : left + square] / 255 - 1) * 1024
    wanted = np.asarray(Image.fromarray(scaled).resize((224, 224), Image.Resampling.BILINEAR))
    shown = show(image(*size), find_recipe("xrv", "w.pt"))
    assert shown.shape == (1, 224, 224)
    assert np.abs(shown[0] - wanted).max() < 1e-3


def test_black_and_white_by_value():
    """The ends of the scale: -1024 and 1024; and ImageNet's for three channels."""
    black, white = Image.new("L", (64, 64), 0), Image.new("L", (64, 64), 255)
    xrv, chexnet = find_recipe("xrv", "w.pt"), find_recipe("chexnet", "w.pt")
    assert np.unique(show(black, xrv)).tolist() == [-1024]
    assert np.unique(show(white, xrv)).tolist() == [1024]
    assert show(black, chexnet)[:, 0, 0] == pytest.approx([-2.117904, -2.035714, -1.804444], abs=1e-6)
    assert show(white, chexnet)[:, 0, 0] == pytest.approx([2.248908, 2.428571, 2.640000], abs=1e-6)


def test_a_film_may_be_stretched(tmp_path):
    """Where its recipe says so, nothing is cut off."""
    (tmp_path / "r.toml").write_text('framing = "stretch"\nside_px = 64\n')
    recipe = find_recipe("densenet121", "w.pt", tmp_path / "r.toml")
    wide = Image.new("L", (300, 100), 0)
    wide.paste(255, (0, 0, 30, 100))
    shown = show(wide, recipe)[0]
    assert shown.shape == (64, 64)
    assert shown[32, 0] > 2 > shown[32, 63]
