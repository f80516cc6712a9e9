"""A JPEG is read marker by marker before it is decoded, and stands upright afterwards."""

import struct

import numpy as np
import pytest
from PIL import Image

from bpals.images.prepare import Preparation, prepare


def test_a_jpeg_is_read_whatever_its_name(draw, save, seen):
    """F08: NIH's 1024 px PNG are often kept as 256 px JPEG; the content says what it is."""
    grey = draw()
    shown = seen(save(grey, "JPEG", quality=95))
    assert np.abs(shown.astype(int) - grey).mean() < 8


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_every_cut_of_a_jpeg_is_refused(draw, save, refusal, options):
    """F01: a JPEG without its end is truncated."""
    content = save(draw(), "JPEG", **options)
    codes = {refusal(content[:length]) for length in range(3, len(content) - 1, 7)}
    assert codes <= {"truncated", "corrupt"}
    assert refusal(content[: len(content) // 2]) == "truncated"
    assert refusal(content[:-2]) == "truncated"


def test_a_giant_jpeg_is_refused_by_its_header(draw, save, refusal):
    """F05: 60,000 x 60,000."""
    content = bytearray(save(draw(), "JPEG"))
    at = content.index(b"\xff\xc0")
    struct.pack_into(">HH", content, at + 5, 60_000, 60_000)
    assert refusal(bytes(content)) == "giant"


def test_twelve_bits_lossless_and_a_thousand_scans_are_refused(draw, save, refusal):
    """F08: what is not decoded here has its own reasons."""
    content = save(draw(), "JPEG", progressive=True)
    at = content.index(b"\xff\xc2")
    assert refusal(content[: at + 4] + b"\x0c" + content[at + 5 :]) == "codec"
    assert refusal(content[: at + 1] + b"\xc3" + content[at + 2 :]) == "codec"
    assert refusal(content[:-2] + b"\xff\xda" * 1000 + b"\xff\xd9") == "bomb"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_is_put_upright_as_its_exif_says(draw, save, seen, orientation):
    """F09: all eight orientations come out as the same film, and seven of them are noted."""
    upright = Image.fromarray(np.kron(draw(width=12, height=10), np.ones((8, 8), np.uint8)))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    turned = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = save(turned, "JPEG", quality=100, exif=exif)
    shown = seen(content)
    assert shown.shape == (80, 96)
    assert np.abs(shown.astype(int) - np.asarray(upright)).max() < 8
    assert prepare(content, Preparation()).notes == (() if orientation == 1 else ("turned",))


def test_cmyk_and_colour_become_grey(draw, save, seen):
    """F09: CMYK as some scanners write it equals the same film in RGB."""
    grey = Image.fromarray(draw())
    shown = seen(save(grey.convert("CMYK"), "JPEG", quality=100))
    assert np.abs(shown.astype(int) - np.asarray(grey)).max() < 12


def test_nothing_of_the_exif_leaves(draw, save):
    """M06: a camera writes names and places."""
    exif = Image.Exif()
    exif[0x010E] = "CANARY"
    content = save(draw(), "JPEG", exif=exif, comment=b"CANARY")
    assert content.count(b"CANARY") == 2
    assert b"CANARY" not in prepare(content, Preparation()).film.png
