"""A made-up film, to ask a judge about."""

from __future__ import annotations

import io
from hashlib import sha256

import numpy as np
from PIL import Image

from bpals.types import Film


def tiny_film(*, seed: int = 0, side_px: int = 64, grey: int | None = None) -> Film:
    """Make up a film: noise around two dark lungs, or one grey all over."""
    draw = np.random.default_rng(seed)
    if grey is None:
        y, x = np.mgrid[-1 : 1 : side_px * 1j, -1 : 1 : side_px * 1j]
        lungs = np.exp(-((np.abs(x) - 0.45) ** 2 / 0.05 + y**2 / 0.3))
        bright = 180 - 120 * lungs + draw.normal(0, 12, x.shape) + draw.uniform(-30, 30)
    else:
        bright = np.full((side_px, side_px), float(grey))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(bright, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    png = buffer.getvalue()
    return Film(sha256=sha256(png).hexdigest(), png=png, width_px=side_px, height_px=side_px)
