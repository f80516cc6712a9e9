"""A folder of drawn chest films and a plain feature extractor: what the tests of the film checks work on."""

import io

import numpy as np
from PIL import Image

from bpals.images.phantom import FINDINGS, draw_phantom
from bpals.images.stream import FeatureSpec

SIDE_PX = 96
FEATURE_SPEC = FeatureSpec(side_px=48, extractor="world.phantoms:open_extractor")


def open_extractor():
    """Give an extractor that sees the film at 12 x 12, and how rough each ninth of it is."""

    def see(square):
        grey = square.astype(np.float32)
        small = grey.reshape(12, 4, 12, 4).mean(axis=(1, 3)).ravel()
        rough = np.abs(np.diff(grey, axis=0))[:45].reshape(3, 15, 3, 16).mean(axis=(1, 3)).ravel()
        return np.concatenate([small / 255, rough / 255])

    return see


def phantom(seed):
    """One drawn film of a patient of its own, with a finding or two, shifted and lit as films are."""
    hand = np.random.default_rng([seed, 7])
    findings = hand.choice(sorted(FINDINGS), 2, replace=False)
    grey = np.asarray(Image.open(io.BytesIO(draw_phantom(findings, seed=seed, side_px=SIDE_PX))))
    x, y = hand.integers(0, 9, 2)
    shown = grey[y : SIDE_PX - 8 + y, x : SIDE_PX - 8 + x]
    patch = hand.uniform(0, 50, (4, 4)).astype(np.uint8)
    haze = np.asarray(Image.fromarray(patch).resize(shown.T.shape, Image.Resampling.BICUBIC), dtype=float)
    return Image.fromarray(np.clip(shown * hand.uniform(0.6, 0.9) + haze, 0, 255).astype(np.uint8))


def written(image, kind="PNG", **options):
    """The bytes of a film's file."""
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()
