"""From a film to what a network is shown: framed, made small, centred and scaled, by the rule of its recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bpals.judges.recipe import Recipe

WHITE = 255

Floats = npt.NDArray[np.float32]


def show(image: Image.Image, recipe: Recipe) -> Floats:
    """Give the numbers of a grey image, `[channels, side, side]`; three channels are the same grey, scaled apart."""
    grey = np.asarray(frame(image, recipe), dtype=np.float32) / WHITE
    mean, std = (np.array(numbers, dtype=np.float32)[:, None, None] for numbers in (recipe.mean, recipe.std))
    shown: Any = (grey[None] - mean) / std
    return np.ascontiguousarray(shown, dtype=np.float32)


def frame(image: Image.Image, recipe: Recipe) -> Image.Image:
    """Cut the square that a network is shown out of an image; what is smaller is enlarged."""
    side = (recipe.side_px, recipe.side_px)
    width, height = image.size
    if recipe.framing == "stretch":
        return image.resize(side, Image.Resampling.BILINEAR)
    if recipe.framing == "crop, resize":
        square = min(width, height)
        left, top = width // 2 - square // 2, height // 2 - square // 2
        middle = image.crop((left, top, left + square, top + square))
        # Its makers scale before they resize: greys between two greys are kept.
        return middle.convert("F").resize(side, Image.Resampling.BILINEAR)
    shorter = min(width, height)
    wide, high = (recipe.resize_px * each // shorter for each in (width, height))
    left, top = round((wide - recipe.side_px) / 2), round((high - recipe.side_px) / 2)
    whole = image.resize((wide, high), Image.Resampling.BILINEAR)
    return whole.crop((left, top, left + recipe.side_px, top + recipe.side_px))
