"""A PNG is checked to its last byte before it is decoded, and decoded to 8-bit grey by one rule."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from bpals.images import formats
from bpals.images.prepare import Preparation, prepare

HEADER_AT = 16


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_cut_png_is_truncated(film, refusal, share):
    """F01: whatever part of it is there."""
    content = film(width=300, height=300)
    assert refusal(content[: int(len(content) * share)]) == "truncated"


def test_every_cut_of_a_png_is_refused(film, refusal):
    """F01: there is no length at which a part passes for the whole."""
    content = film(width=32, height=32)
    codes = {refusal(content[:length]) for length in range(1, len(content))}
    assert codes == {"truncated"}


def test_a_png_without_its_end_is_truncated(film, refusal):
    """F02: Pillow alone would load it."""
    assert refusal(film()[:-12]) == "truncated"


def test_a_flipped_bit_among_the_pixels_is_corrupt(film, refusal):
    """F03: also in a film that is black, where Pillow notices nothing."""
    content = bytearray(film())
    at = content.index(b"IDAT") + 40
    for bit in range(8):
        content[at] ^= 1 << bit
        assert refusal(bytes(content)) == "corrupt"
        content[at] ^= 1 << bit


def test_a_flipped_bit_with_a_mended_checksum_is_still_refused(film, chunk, refusal):
    """F03: the pixels have a checksum of their own inside."""
    content = film()
    at = content.index(b"IDAT")
    (length,) = struct.unpack_from(">I", content, at - 4)
    data = bytearray(content[at + 4 : at + 4 + length])
    data[len(data) // 2] ^= 0x10
    broken = content[: at - 4] + chunk(b"IDAT", bytes(data)) + content[at + 8 + length :]
    assert refusal(broken) in {"corrupt", "unexpected_size"}


@pytest.mark.parametrize(("width", "height"), [(40, 40), (96, 79), (97, 80), (95, 80), (200, 200)])
def test_a_header_of_another_size_is_found_out(film, chunk, refusal, width, height):
    """F04: the pixels are counted against the header, though its checksum is right."""
    content = film(width=96, height=80)
    header = struct.pack(">II", width, height) + content[24:29]
    assert refusal(content[:8] + chunk(b"IHDR", header) + content[33:]) == "unexpected_size"


def test_a_header_of_one_pixel_is_refused(film, chunk, refusal):
    """F04: with a mended checksum it is too small to be a film, without one it is corrupt."""
    content = film()
    header = struct.pack(">II", 1, 1) + content[24:29]
    assert refusal(content[:8] + chunk(b"IHDR", header) + content[33:]) == "tiny"
    assert refusal(content[:HEADER_AT] + header + content[29:]) in {"tiny", "corrupt"}


def test_a_film_of_too_many_pixels_is_refused_before_it_is_decoded(film, chunk, black_png, memory_of, tmp_path):
    """F05: a header of 60,000 x 60,000; 81 and 144 million real pixels, of which Pillow says little or nothing."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    claim = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    suspects = (claim, black_png(9_000, 9_000), black_png(12_000, 12_000))
    codes, grown_mb = memory_of(tmp_path, film(), *suspects)
    assert codes == ["giant"] * 3
    assert grown_mb < 50


def test_what_unpacks_to_too_much_is_counted_and_never_kept(film, chunk, packed_zeros, memory_of, tmp_path):
    """F06: 100 MB of text, of colour profile, or of pixels behind a header of 100 x 100, each in 450 kB."""
    packed, whole = packed_zeros(), film()
    texts = {b"zTXt": b"note\0\0", b"iTXt": b"note\0\1\0en\0note\0", b"iCCP": b"profile\0\0"}
    bombs = [whole[:33] + chunk(kind, before + packed) + whole[33:] for kind, before in texts.items()]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 8, 0, 0, 0, 0))
    bombs.append(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    codes, grown_mb = memory_of(tmp_path, whole, *bombs)
    assert codes == ["bomb", "bomb", "bomb", "unexpected_size"]
    assert grown_mb < 50


def test_a_small_text_is_no_bomb_and_does_not_leave(film, chunk, seen):
    """M06: a name in a text chunk is left behind."""
    whole = film()
    text = chunk(b"tEXt", b"Patient\0CANARY") + chunk(b"zTXt", b"Patient\0\0" + zlib.compress(b"CANARY"))
    content = whole[:33] + text + whole[33:]
    assert np.array_equal(seen(content), seen(whole))
    assert b"CANARY" not in prepare(content, Preparation()).film.png
    assert formats.check_png(content) == whole


def test_a_part_that_must_be_understood_and_is_not_is_refused(film, chunk, refusal):
    """A chunk with a capital letter may not be skipped."""
    whole = film()
    assert refusal(whole[:33] + chunk(b"CgBI", b"\0\0\0\0") + whole[33:]) == "format"


def test_sixteen_bits_are_spread_from_the_darkest_to_the_brightest(draw, save, seen):
    """F09: 12 bits in a 16-bit file would be black if they were only divided by 257."""
    grey = draw()
    deep = save(grey.astype(np.uint16) * 16 + 5)
    assert np.array_equal(seen(deep), grey)
    assert prepare(deep, Preparation()).notes == ("deep",)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_a_grey_film_saved_in_colour_equals_its_grey_twin(draw, save, seen, mode):
    """F09: RGBA as NIH ships some, palette, transparency."""
    grey = Image.fromarray(draw())
    assert np.array_equal(seen(save(grey.convert(mode))), np.asarray(grey))


def test_what_a_film_was_is_written_down(draw, save):
    """F09: each rule that was applied leaves a note."""
    grey = Image.fromarray(draw())
    tinted = Image.merge("RGB", (grey, grey.transpose(Image.Transpose.FLIP_LEFT_RIGHT), grey))
    notes = {
        "RGBA": save(grey.convert("RGBA")),
        "P": save(grey.convert("P")),
        "RGB": save(grey.convert("RGB")),
        "tinted": save(tinted),
        "L": save(grey),
    }
    found = {name: prepare(content, Preparation()).notes for name, content in notes.items()}
    assert found == {"RGBA": ("alpha",), "P": ("palette",), "RGB": (), "tinted": ("colour",), "L": ()}


def test_transparency_hides_nothing(draw, save, seen):
    """F09: alpha is left out, so that what is stored is what is judged."""
    grey = Image.fromarray(draw())
    clear = grey.convert("RGBA")
    clear.putalpha(0)
    assert np.array_equal(seen(save(clear)), np.asarray(grey))


def test_one_bit_and_interlaced_films_are_read(draw, save, seen, black_png, refusal):
    """F09: the sizes of every depth are known."""
    bits = Image.fromarray(draw()).point(lambda value: 255 * (value > 128)).convert("1")
    assert np.array_equal(seen(save(bits)), np.asarray(bits.convert("L")))
    assert refusal(black_png(100, 100)) == "blank"


def test_the_sizes_of_an_interlaced_png_add_up():
    """Seven passes of 5 x 3 pixels, each line with its filter byte, by hand: 2 + 2 + 0 + 4 + 4 + 6 + 6 bytes."""
    header = formats.PngHeader(width_px=5, height_px=3, depth=8, colour=0, interlaced=True)
    passes = [(1, 1), (1, 1), (0, 0), (1, 1), (3, 1), (2, 2), (5, 1)]
    assert header.raw_bytes == sum(height * (1 + width) if width else 0 for width, height in passes)


def test_the_rgba_original_of_nih_equals_its_grey_twin(data_folder, seen, save):
    """F09: the one RGBA film among the originals."""
    content = (data_folder / "images" / "originals" / "00000100_000.png").read_bytes()
    image = Image.open(data_folder / "images" / "originals" / "00000100_000.png")
    assert image.mode == "RGBA"
    twin = save(image.getchannel("R"))
    assert np.array_equal(seen(content), seen(twin))
    assert prepare(content, Preparation()).film.png == prepare(twin, Preparation()).film.png
