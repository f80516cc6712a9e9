"""A film for a reader's screen: every grey value, the window a display would use, and nothing else of the file."""

import gzip
import hashlib
import io
import threading
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from bpals.images.collection import open_index
from bpals.images.prepare import Preparation, prepare
from bpals.images.rendition import Rendition, Renditions, expose, render, shown
from bpals.types import Refusal
from world.dicoms import dicom


def unpacked(rendition):
    """The values that a browser gets out of a rendition, by the rule in the module's text."""
    if rendition.kind == "png8":
        return np.asarray(Image.open(io.BytesIO(rendition.content)))
    raw = np.frombuffer(gzip.decompress(rendition.content), np.uint8)
    high, low = raw.reshape(2, rendition.height, rendition.width).astype(np.int64)
    folded = high * 256 + low
    steps = np.where(folded % 2, -(folded + 1) // 2, folded // 2)
    return np.cumsum(steps, axis=1) % 65_536


@pytest.fixture(scope="module")
def deep():
    """Values of 12 bits, from end to end."""
    ramp = np.linspace(0, 4095, 96 * 80).reshape(80, 96)
    return np.rint(ramp).astype(np.uint16)


def same_as_the_judges(content):
    """Say by how many grey levels at most the screen differs from what a judge is shown."""
    done = prepare(content, Preparation(side_px=4096))
    judged = np.asarray(Image.open(io.BytesIO(done.film.png))).astype(int)
    return int(np.abs(shown(expose(content)).astype(int) - judged).max())


def test_a_film_of_8_bits_comes_as_it_is(draw, save):
    """PNG and JPEG: full size, the same pixels, the hash of the file."""
    grey = draw()
    content = save(grey)
    made = render(content)
    assert (made.kind, made.width, made.height, made.bits) == ("png8", 96, 80, 8)
    assert (made.window, made.level) == (255.0, 127.5)
    assert np.array_equal(unpacked(made), grey)
    assert made.sha256 == hashlib.sha256(content).hexdigest()
    jpeg = save(grey, "JPEG", quality=95)
    assert np.array_equal(unpacked(render(jpeg)), np.asarray(Image.open(io.BytesIO(jpeg))))


def test_a_png_of_16_bits_keeps_every_value(deep, save):
    """Shown from its darkest to its brightest value, as a judge sees it."""
    content = save(deep)
    made = render(content)
    assert (made.kind, made.bits) == ("grey16", 16)
    assert np.array_equal(unpacked(made), deep)
    assert (made.window, made.level) == (4095.0, 2047.5)
    assert same_as_the_judges(content) == 0


def test_differences_that_wrap_are_undone(save):
    """From 0 to 65,535 and back from one pixel to the next."""
    wild = np.random.default_rng(0).integers(0, 65_536, (40, 50)).astype(np.uint16)
    wild[0, :4] = [0, 65_535, 0, 32_768]
    assert np.array_equal(unpacked(render(save(wild))), wild)


WINDOWS = {
    "linear": {"WindowCenter": 2000, "WindowWidth": 1500},
    "exact": {"WindowCenter": 1900.5, "WindowWidth": 1000.25, "VOILUTFunction": "LINEAR_EXACT"},
    "rescaled": {"RescaleSlope": 0.5, "RescaleIntercept": -1000, "WindowCenter": 40, "WindowWidth": 900},
    "falling": {"RescaleSlope": -1, "RescaleIntercept": 4095, "WindowCenter": 2000, "WindowWidth": 1500},
    "monochrome1": {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 2000, "WindowWidth": 1500},
    "sigmoid": {"WindowCenter": 2000, "WindowWidth": 900, "VOILUTFunction": "SIGMOID"},
    "none": {},
    "none falling": {"RescaleSlope": -2, "RescaleIntercept": 7},
    "none monochrome1": {"PhotometricInterpretation": "MONOCHROME1"},
    "padded": {"PixelPaddingValue": 0},
}


@pytest.mark.parametrize("tags", WINDOWS.values(), ids=WINDOWS)
def test_a_dicom_looks_as_to_a_judge_and_can_be_windowed_further(deep, tags):
    """Window, rescale and polarity give the judges' picture to within rounding; no stored value is lost."""
    content = dicom(deep, BitsStored=12, HighBit=11, **tags)
    made = render(content)
    assert made.kind == "grey16"
    assert same_as_the_judges(content) <= 1
    if "VOILUTFunction" not in tags or tags["VOILUTFunction"] != "SIGMOID":
        assert len(np.unique(unpacked(made))) == len(np.unique(deep))


def test_signed_values_and_the_files_own_numbers(deep):
    """A value times the slope plus the intercept is what the file calls it."""
    signed = (deep.astype(np.int32) - 2048).astype(np.int16)
    content = dicom(signed, RescaleSlope=2, RescaleIntercept=10, WindowCenter=0, WindowWidth=2000)
    made = render(content)
    assert np.array_equal(unpacked(made) * made.slope + made.intercept, signed * 2.0 + 10)
    assert made.level * made.slope + made.intercept == pytest.approx(-0.5)
    turned = render(dicom(deep, BitsStored=12, HighBit=11, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(unpacked(turned) * turned.slope + turned.intercept, deep)
    assert same_as_the_judges(content) <= 1


def test_a_dicom_of_8_bits_is_a_png_with_its_window(draw):
    """Its window is told, and its values are untouched."""
    made = render(dicom(draw(), WindowCenter=100, WindowWidth=81))
    assert (made.kind, made.window, made.level) == ("png8", 80.0, 99.5)
    assert np.array_equal(unpacked(made), draw())


@pytest.mark.parametrize(
    ("tags", "spacing"),
    [
        ({"PixelSpacing": [0.2, 0.1]}, (0.2, 0.1)),
        ({"ImagerPixelSpacing": [0.143, 0.143]}, (0.143, 0.143)),
        ({"PixelSpacing": [0, 0.1]}, None),
        ({}, None),
    ],
)
def test_spacing_is_told_where_the_file_says_it(deep, tags, spacing):
    """In the patient, else on the detector; nothing where it cannot be."""
    assert render(dicom(deep, BitsStored=12, HighBit=11, **tags)).spacing_mm == spacing


def test_s02_nothing_but_pixels_leaves(draw, save, deep):
    """S02: text chunks, trailing bytes and DICOM names are gone; a polyglot is encoded anew."""
    about = PngImagePlugin.PngInfo()
    about.add_text("Comment", "<script>alert(1)</script>")
    content = save(Image.fromarray(draw()), "PNG", pnginfo=about) + b"<html><script>alert(1)</script>"
    made = render(content)
    assert b"script" not in made.content
    assert b"tEXt" not in made.content
    named = render(dicom(deep, BitsStored=12, HighBit=11, PatientName="Doe^Jane", PatientID="4711"))
    assert b"Doe" not in gzip.decompress(named.content)
    assert "4711" not in str(named.about())
    assert named.sha256 not in str(named.about())


@pytest.mark.parametrize("what", ["", "half", "svg", "blank", "tiny", "bomb"])
def test_what_a_judge_is_not_shown_a_reader_is_not_either(what, film, save, draw, black_png):
    """The same checks refuse the same files."""
    contents = {
        "": b"", "half": film()[:700], "svg": b"<svg></svg>", "blank": save(np.full((64, 64), 9, np.uint8)),
        "tiny": save(draw(width=20, height=20)), "bomb": black_png(64, 64).replace(b"IDAT", b"IDAT", 1)[:-20],
    }  # fmt: skip
    done = render(contents[what])
    assert isinstance(done, Refusal)
    assert done.code == prepare(contents[what], Preparation()).code


COUNTS = {"b": 3, "c": 3, "d": 5}


@pytest.fixture
def index(tmp_path, film, pack_tar, pack_zip):
    """Films in a folder, a tar, a zip and a compressed tar."""
    (tmp_path / "a.png").write_bytes(film(1))
    pack_tar(tmp_path / "b.tar", {f"b{n}.png": film(10 + n) for n in range(3)})
    pack_zip(tmp_path / "c.zip", [(f"c{n}.png", film(20 + n)) for n in range(3)])
    pack_tar(tmp_path / "d.tar.gz", {f"d{n}.png": film(30 + n) for n in range(5)}, "w:gz")
    return open_index(tmp_path, ["a.png", *(f"{name}{n}.png" for name, count in COUNTS.items() for n in range(count))])


def test_single_films_come_from_every_holder_in_any_order(index, film):
    """Also backwards out of a compressed tar, which the user is told about."""
    renditions = Renditions(index)
    for image_id, seed in {"d4.png": 34, "c2.png": 22, "a.png": 1, "d0.png": 30, "b1.png": 11, "d2.png": 32}.items():
        assert renditions.film(image_id).sha256 == hashlib.sha256(film(seed)).hexdigest()
    assert renditions.film("nowhere.png").code == "missing"
    notice = renditions.notices[0]
    assert (notice.code, notice.count) == ("films_streamed", 5)
    assert "d.tar.gz" in notice.message
    renditions.close()
    assert isinstance(renditions.film("b2.png"), Rendition)


def test_what_is_kept_is_bounded_by_bytes(index):
    """The oldest goes first; what is kept is not made again."""
    one = len(Renditions(index).film("a.png").content)
    renditions = Renditions(index, most_bytes=int(2.5 * one))
    first = renditions.film("a.png")
    assert renditions.film("a.png") is first
    for image_id in ("b0.png", "b1.png"):
        renditions.film(image_id)
    assert renditions.film("b1.png") is renditions.film("b1.png")
    assert renditions.film("a.png") is not first
    assert renditions.film("a.png") == first


def test_many_who_ask_at_once_get_one_rendition(index):
    """Sixteen threads, every film, both out of plain and compressed archives: each film is made once."""
    renditions = Renditions(index)
    got = []

    def ask():
        got.append({image_id: id(renditions.film(image_id)) for image_id in index.found})

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 16
    assert all(each == got[0] for each in got)


def test_gzip_is_what_a_browser_unpacks(deep, save):
    """One member, no name, no time in its header."""
    content = render(save(deep)).content
    assert content[:4] == b"\x1f\x8b\x08\x00"
    assert content[4:8] == bytes(4)
    assert len(zlib.decompress(content, 31)) == 2 * deep.size
