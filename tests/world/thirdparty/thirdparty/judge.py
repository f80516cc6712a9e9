"""A judge that takes bright images for ill ones."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import ImageStat

import bpals
from bpals.registry import AskOptions, ImageOptions, JudgeKind, option
from bpals.types import ImageJudge


@dataclass(frozen=True, kw_only=True)
class BrightnessOptions:
    """The options of `brightness:`."""

    gain: float = option(1.0, "How strongly brightness counts.", metavar="X", panel="Brightness")


def open_brightness(_target: str, _revision: str, **options: float) -> ImageJudge:
    """Make the judge; it has neither a target nor a revision."""
    gain = BrightnessOptions(**options).gain

    @bpals.judge(f"brightness-{gain:g}", findings=["Effusion", "Mass"], licence="Apache-2.0")
    def brightness(image, finding):  # noqa: ARG001  every finding alike
        return min(1.0, gain * ImageStat.Stat(image).mean[0] / 255)

    return brightness


JUDGE = JudgeKind(
    name="brightness",
    form="brightness:",
    summary="the brighter an image, the likelier every finding",
    open=open_brightness,
    options=BrightnessOptions,
    takes=(ImageOptions, AskOptions),
)
