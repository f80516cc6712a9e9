"""A judge in six lines, to copy: fluid is white, so a bright film may show an effusion. It is a toy."""

from PIL import ImageStat

import bpals


@bpals.judge("mean-brightness", findings=["Effusion"], licence="Apache-2.0")
def brightness(image, _finding):
    """P(effusion) is how bright the film is."""
    return ImageStat.Stat(image).mean[0] / 255
