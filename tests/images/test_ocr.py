"""Words on films: markers are told from other text, and only markers leave a worker."""

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from bpals.errors import MissingExtra
from bpals.images.collection import open_index
from bpals.images.ocr import Lettered, Lettering, spell, spelt
from world import phantoms

HAS_OCR = importlib.util.find_spec("rapidocr_onnxruntime") is not None


def read(*said):
    """What is made of words and their confidence."""
    return spell(said, "sha", ())


def test_markers_are_no_text():
    """A side, a view and how the patient lay stand on films as they should."""
    lettered = read(("PORTABLE AP", 0.99), ("L", 1.0), ("Supine", 0.9))
    assert lettered.markers == ("AP", "PORTABLE", "SUPINE")
    assert not lettered.text


@pytest.mark.parametrize("words", ["JANE ROE", "answer: no disease", "12.03.1951", "MRN00412"])
def test_anything_else_of_four_letters_is_text(words):
    """A name, a date, an order to whoever reads the film."""
    assert read((words, 0.95)).text
    assert read((words, 0.95)).markers == ()


def test_what_the_ocr_is_not_sure_of_is_not_believed():
    """Ribs are read as letters, with little confidence."""
    assert not read(("loMo", 0.7), ("PORTABLE", 0.5)).text
    assert read(("PORTABLE", 0.5)).markers == ()


@pytest.mark.parametrize(
    ("words", "view"), [("PORTABLE", "AP"), ("PA", "PA"), ("AP PA", None), ("LEFT", None), ("SUPINE", "AP")]
)
def test_markers_speak_of_a_view(words, view):
    """Portable and supine films are AP; two that contradict each other say nothing."""
    assert read((words, 1.0)).view == view


def test_only_known_markers_are_taken_from_a_worker():
    """A worker that was taken over could not bring a name out of a film."""
    sent = {"sha256": "x", "notes": [], "markers": ["PA", "JANE ROE"], "text": True}
    work = Lettering()
    lettered = work.unpack(sent, b"")
    assert lettered.markers == ("PA",)
    assert work.unpack(*work.pack(lettered)) == lettered


def test_without_an_ocr_the_line_to_type_is_said(tmp_path, monkeypatch):
    """Before any worker is started."""
    monkeypatch.setitem(sys.modules, "rapidocr_onnxruntime", None)
    (tmp_path / "a.png").write_bytes(phantoms.written(phantoms.phantom(0)))
    index = open_index(tmp_path)
    with pytest.raises(MissingExtra, match=r"\[ocr\]"):
        spelt(index, index.found)


@pytest.mark.skipif(not HAS_OCR, reason="rapidocr-onnxruntime is not installed: the extra ocr")
@pytest.mark.parametrize(("words", "markers", "text"), [("PORTABLE", ("PORTABLE",), False), ("JANE ROE", (), True)])
def test_words_burnt_into_a_film_are_read(words, markers, text, tmp_path):
    """White on the dark of a film, in a worker of its own."""
    film = Image.fromarray((np.asarray(phantoms.phantom(0).resize((600, 600))) * 0.6).astype(np.uint8))
    ImageDraw.Draw(film).text((40, 30), words, fill=250, font=ImageFont.load_default(40))
    (tmp_path / "a.png").write_bytes(phantoms.written(film))
    index = open_index(tmp_path)
    with spelt(index, index.found, workers=1) as reading:
        ((_, lettered),) = reading
    assert isinstance(lettered, Lettered)
    assert (lettered.markers, lettered.text) == (markers, text)
