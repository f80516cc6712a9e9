"""Content-free inputs: what a judge says when there is nothing to see, which is its habit and not evidence."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image

from bpals.types import Film

SEED = 20171
BITS = 255


def films(side_px: int) -> tuple[tuple[str, Film | None], ...]:
    """Make the four controls, named, in the size of the prepared films: no film, black, a mean chest film, noise.

    The same size gives the same pixels on every machine, so that a control asked once is never asked again.
    """
    noise = np.random.default_rng(SEED).integers(0, BITS + 1, size=(side_px, side_px), dtype=np.uint8)
    return (
        ("none", None),
        ("black", _film(np.zeros((side_px, side_px), dtype=np.uint8))),
        ("mean", _film(_mean_chest(side_px))),
        ("noise", _film(noise)),
    )


def offsets(replies: pl.DataFrame) -> dict[str, list[float | None]]:
    """Average a judge's logits over the controls: subject -> `[present, absent]`, null where it answered none.

    `replies` has a row a control and question: `control`, `subject`, `polarity` and `logit`, null if not answered.
    """
    means = _wide(replies).group_by("subject", maintain_order=True).agg(pl.mean("present"), pl.mean("absent"))
    return {subject: [present, absent] for subject, present, absent in means.iter_rows()}


def spread(replies: pl.DataFrame) -> dict[str, float | None]:
    """Say how far the controls are apart: largest less smallest evidence (present - absent) / 2, subject by subject.

    It is null for a subject that was not answered in both polarities on two controls.
    """
    evidence = _wide(replies).with_columns(e=(pl.col("present") - pl.col("absent")) / 2).drop_nulls("e")
    apart = pl.when(pl.len() > 1).then(pl.max("e") - pl.min("e"))
    found = dict(evidence.group_by("subject").agg(apart).iter_rows())
    return {subject: found.get(subject) for subject in replies["subject"].unique(maintain_order=True)}


def _wide(replies: pl.DataFrame) -> pl.DataFrame:
    """Lay the two polarities of each control and subject beside each other."""
    sides = (pl.col("logit").filter(pl.col("polarity") == side).first().alias(side) for side in ("present", "absent"))
    return replies.group_by("control", "subject", maintain_order=True).agg(sides).drop("control")


def _mean_chest(side_px: int) -> npt.NDArray[np.uint8]:
    """Draw what thousands of frontal films average to: two dark lungs, a bright middle and belly, nothing sharp."""
    y, x = np.mgrid[0:side_px, 0:side_px].astype(np.float64) / max(side_px - 1, 1)

    def bump(at_x: float, at_y: float, across: float, down: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.exp(-(((x - at_x) / across) ** 2) - ((y - at_y) / down) ** 2))

    body = bump(0.5, 0.55, 0.55, 0.75)
    lungs = bump(0.3, 0.45, 0.13, 0.27) + bump(0.7, 0.45, 0.13, 0.27)
    middle = bump(0.54, 0.6, 0.12, 0.3)
    grey = 0.08 + 0.62 * body - 0.42 * lungs + 0.2 * middle
    return np.asarray(np.round(np.clip(grey, 0, 1) * BITS), dtype=np.uint8)


def _film(pixels: npt.NDArray[np.uint8]) -> Film:
    height_px, width_px = pixels.shape
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format="PNG")
    # Named by its pixels: encoders differ between versions, the control does not.
    named = hashlib.sha256(f"{width_px}x{height_px} ".encode() + pixels.tobytes()).hexdigest()
    return Film(sha256=named, png=encoded.getvalue(), width_px=width_px, height_px=height_px)
