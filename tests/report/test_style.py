"""The style sheet: colours that can be read and told apart."""

import itertools
import re
from importlib import resources

import pytest

STYLE = resources.files("bpals.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)
BAR = ["rejected", "likely", "suspect", "hard", "unverified", "trusted", "confirmed"]
"""Neighbours in every bar, in this order."""


def channels(colour):
    """Linear red, green and blue of a colour such as #14507f."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one, other):
    """The contrast of two colours as WCAG defines it."""
    light, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), channels(x), strict=True)) for x in (one, other)),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "soft", "accent"])
@pytest.mark.parametrize("ground", ["paper", "card"])
def test_text_can_be_read(scheme, ink, ground):
    """WCAG AA: 4.5 to 1."""
    assert contrast(scheme[ink], scheme[ground]) >= 4.5


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("mark", ["present", "absent", "likely", "suspect", "rejected", "confirmed"])
def test_marks_stand_out_from_the_paper(scheme, mark):
    """WCAG AA for graphics: 3 to 1."""
    assert contrast(scheme[mark], scheme["paper"]) >= 3


def simulated(colour, matrix):
    """A colour as somebody sees it who lacks one kind of cone."""
    seen = channels(colour)
    return [sum(w * c for w, c in zip(row, seen, strict=True)) for row in matrix]


# Machado, Oliveira and Fernandes 2009, severity 1.
BLINDNESS = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("pair", list(itertools.pairwise(BAR)), ids="-".join)
def test_neighbours_of_a_bar_differ_for_the_colour_blind(scheme, kind, pair):
    """Far enough apart in linear RGB; a pair such as #c05050 and #60803a is not."""
    one, other = (simulated(scheme[name], BLINDNESS[kind]) for name in pair)
    assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.12


def test_the_rule_about_the_colour_blind_can_see():
    """Red and green of one lightness fail the rule above."""
    one, other = (simulated(colour, BLINDNESS["deutan"]) for colour in ("#c05050", "#8a6a3e"))
    assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 < 0.12


def test_no_text_is_tiny():
    """Nothing below 12 px on a screen."""
    screen = STYLE.split("@media print")[0]
    rems = [float(size) for size in re.findall(r"(?:font-size: |font: [^;]*?)(\d*\.\d+|\d+)rem", screen)]
    pixels = [float(size) for size in re.findall(r"(?:font-size: |font: [^;]*?)(\d+)px", screen)]
    assert min(rems) * 16 >= 12
    assert min(pixels) >= 12
