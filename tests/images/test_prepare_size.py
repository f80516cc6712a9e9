"""The size of a film, from its header alone."""

import io

import pytest
from PIL import Image

from bpals.images.prepare import is_dicom, size_of
from world import review_tables


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_says_how_large_it_is(kind):
    """Width first."""
    written = io.BytesIO()
    Image.new("L", (70, 90), 30).save(written, kind)
    assert size_of(written.getvalue()) == (70, 90)
    assert not is_dicom(written.getvalue())


def test_a_dicom_says_how_large_it_is():
    """Without its pixels."""
    pytest.importorskip("pydicom")
    film = review_tables.dicom(side=48)
    assert is_dicom(film)
    assert size_of(film) == (48, 48)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", bytes(128) + b"DICM"])
def test_what_does_not_say_has_no_size(content):
    """And is no error here: whoever shows it will say what it is."""
    assert size_of(content) is None
