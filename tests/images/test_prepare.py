"""Preparing a film: what is shown, what is refused, and that nothing but pixels leaves."""

import hashlib
import io
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bpals.images.prepare import NOTES, Preparation, Prepared, prepare
from bpals.types import Refusal

SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (bytes(4096), "zeros"),
        (b"<!DOCTYPE html><html><title>404</title></html>", "web page"),
        (b"\xef\xbb\xbf\n <html>", "web page"),
        (b"Image Index,Finding Labels\n", "no PNG"),
        (b"PK\x03\x04" + bytes(100), "no PNG"),
    ],
)
def test_what_is_no_image_says_what_it_is(content, words):
    """F07: an error page, nothing, zeros."""
    refused = prepare(content, Preparation())
    assert refused.code == "not_an_image"
    assert words in refused.message


def test_images_of_other_kinds_are_refused_whatever_their_name(draw, save):
    """F08: GIF, WebP, BMP, TIFF; SVG never."""
    grey = draw()
    others = {kind: save(grey, kind) for kind in ("GIF", "BMP", "TIFF", "WEBP")} | {"SVG": SVG}
    for kind, content in others.items():
        refused = prepare(content, Preparation())
        assert refused.code == "format", kind
        assert kind.lower() in refused.message.lower()


@pytest.mark.parametrize("level", [0, 255, 17])
def test_a_film_of_one_grey_is_blank(save, refusal, level):
    """F10: all black, all white, all anything; as PNG, as JPEG and in 16 bits."""
    flat = np.full((64, 64), level, np.uint8)
    assert refusal(save(flat)) == "blank"
    assert refusal(save(flat, "JPEG")) == "blank"
    assert refusal(save(flat.astype(np.uint16) * 200)) == "blank"


@pytest.mark.parametrize(("width", "height", "code"), [(1, 1, "tiny"), (31, 500, "tiny"), (40, 400, "unexpected_size")])
def test_a_film_without_the_shape_of_a_film_is_refused(film, refusal, width, height, code):
    """One pixel, a thumbnail, a strip."""
    assert refusal(film(width=width, height=height) if width > 1 else film(width=2, height=1)) == code


@pytest.mark.parametrize(
    ("size", "side", "shown"),
    [
        ((300, 200), 100, (100, 67)),
        ((200, 300), 100, (67, 100)),
        ((90, 60), 100, (90, 60)),
        ((100, 100), 100, (100, 100)),
    ],
)
def test_the_longer_side_is_made_to_measure_and_nothing_is_enlarged(film, size, side, shown):
    """Proportions are kept."""
    made = prepare(film(width=size[0], height=size[1]), Preparation(side_px=side)).film
    assert (made.width_px, made.height_px) == shown
    assert Image.open(io.BytesIO(made.png)).size == shown


def test_hash_and_pixels_are_of_the_same_bytes(film):
    """F22: there is no second look at the disk between the two."""
    content = film()
    made = prepare(content, Preparation())
    assert made.film.sha256 == hashlib.sha256(content).hexdigest()
    assert prepare(content, Preparation()) == made
    assert prepare(film(1), Preparation()).film.png != made.film.png


def test_what_leaves_is_grey_pixels_and_nothing_else(film):
    """M06: three kinds of chunk, 8-bit grey."""
    written = prepare(film(), Preparation()).film.png
    image = Image.open(io.BytesIO(written))
    assert image.mode == "L"
    assert not image.info
    assert {written[at - 4 : at] for at in (16, len(written) - 4)} == {b"IHDR", b"IEND"}


def test_a_preparation_can_be_written_on_a_card_and_sent_to_a_process():
    """What is done to a film is part of who a judge is."""
    wish = Preparation(side_px=336)
    assert wish.as_dict() == {"side_px": 336, "codec": "png", "interpolation": "lanczos", "rule": 1}
    assert pickle.loads(pickle.dumps(wish)) == wish  # noqa: S301
    assert Preparation(**wish.as_dict()) == wish


def is_an_outcome(done):
    """A film with known notes, or a refusal in one line."""
    if isinstance(done, Refusal):
        return bool(done.code.replace("_", "").isalpha() and done.message and "\n" not in done.message)
    return isinstance(done, Prepared) and set(done.notes) <= set(NOTES)


@settings(max_examples=150, derandomize=True, deadline=5000)
@given(start=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", bytes(128) + b"DICM"]), rest=st.binary())
def test_no_bytes_raise_anything(start, rest):
    """F24: whatever the file is, there is a film or a reason, within a second."""
    assert is_an_outcome(prepare(start + rest, Preparation()))


def check_damage(kind, data, film, draw, save):
    """Damage one file somewhere, and prepare it."""
    content = film() if kind == "PNG" else save(draw(), "JPEG", progressive=kind == "progressive")
    at = data.draw(st.integers(0, len(content) - 1))
    put = data.draw(st.binary(max_size=8))
    gone = data.draw(st.integers(0, 16))
    assert is_an_outcome(prepare(content[:at] + put + content[at + gone :], Preparation()))


@settings(max_examples=150, derandomize=True, deadline=5000)
@given(kind=st.sampled_from(["PNG", "JPEG", "progressive"]), data=st.data())
def test_no_damage_to_a_film_raises_anything(kind, data, film, draw, save):
    """F24: any byte of a film changed, cut or doubled."""
    check_damage(kind, data, film, draw, save)


@pytest.mark.sweep
@settings(max_examples=5000, deadline=5000)
@given(kind=st.sampled_from(["PNG", "JPEG", "progressive"]), data=st.data())
def test_no_damage_to_a_film_ever_raises_anything(kind, data, film, draw, save):
    """F24: five thousand other damages."""
    check_damage(kind, data, film, draw, save)
