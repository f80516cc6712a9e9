"""Looking: films become numbers in worker processes, and what cannot be seen has a reason."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from bpals.errors import FilmError
from bpals.images.collection import open_shelf
from bpals.images.prepare import decode
from bpals.images.stream import GARBLED, THUMBNAIL_PX, Look, Seen, looked, square
from bpals.images.worker import pack, unpack
from bpals.types import Refusal
from world import tiny_onnx


@pytest.fixture
def look(tmp_path_factory):
    """A way to look: squares of 32 pixels, the means of 16 fields."""
    path = tiny_onnx.write(tmp_path_factory.mktemp("backbone") / "tiny.onnx")
    return Look(side_px=tiny_onnx.SIDE_PX, eye="bpals.judges.backbone:open_eye", given={"named": str(path)})


@pytest.fixture
def shelf(tmp_path, film):
    """Six films, one of them cut off, one blank."""
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(film(number, width=96 + number))
    (tmp_path / "cut.png").write_bytes(film(9)[:-200])
    blank = io.BytesIO()
    Image.new("L", (64, 64), 100).save(blank, "PNG")
    (tmp_path / "blank.png").write_bytes(blank.getvalue())
    return open_shelf(tmp_path)


def test_a_film_is_seen_whole(shelf, film, look):
    """Which file it was, its size as it lies there, what the eye made of its square, and a thumbnail."""
    seen = dict(looked(shelf, ["2"], look, workers=0))["2"]
    content = film(2, width=98)
    shown = square(decode(content).image, tiny_onnx.SIDE_PX)
    assert (seen.image_id, seen.sha256) == ("2", hashlib.sha256(content).hexdigest())
    assert (seen.width_px, seen.height_px) == (98, 80)
    assert seen.features == pytest.approx(shown.reshape(-1) @ tiny_onnx.fields(), abs=1e-3)
    assert seen.features.dtype == np.float32
    assert seen.thumbnail.shape == (THUMBNAIL_PX, THUMBNAIL_PX)
    assert seen.thumbnail.mean() == pytest.approx(shown.mean(), abs=1)


def test_what_cannot_be_seen_has_the_reason_that_a_judge_would_be_given(shelf, look):
    """The same decoders, the same refusals."""
    seen = dict(looked(shelf, shelf.found, look, workers=0))
    refused = {name: made.code for name, made in seen.items() if isinstance(made, Refusal)}
    assert refused == {"cut": "truncated", "blank": "blank"}


def test_what_is_packed_comes_back(shelf, look):
    """A film that was seen, and a refusal, through the channel of a worker."""
    for made in dict(looked(shelf, shelf.found, look, workers=0)).values():
        back = unpack(look, pack(look, made))
        if isinstance(made, Seen):
            assert np.array_equal(back.features, made.features)
            assert np.array_equal(back.thumbnail, made.thumbnail)
            assert (back.sha256, back.width_px, back.notes) == (made.sha256, made.width_px, made.notes)
        else:
            assert back == made


@pytest.mark.parametrize("body", [b"", b"short", bytes(1026)])
def test_an_answer_that_no_sound_worker_gives_is_known_as_such(look, body):
    """F24: too few bytes, or a number cut in two."""
    about = b'{"made": {"sha256": "", "size": [1, 1], "notes": []}}'
    with pytest.raises(GARBLED):
        unpack(look, len(about).to_bytes(4, "little") + about + body)


def test_workers_see_what_this_process_sees(shelf, look):
    """To the last bit, in the same order; the eye is made in each worker, by its name."""
    here, there = (list(looked(shelf, shelf.found, look, workers=workers)) for workers in (0, 2))
    assert [name for name, _ in here] == [name for name, _ in there]
    for (_, one), (_, other) in zip(here, there, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Seen):
            assert np.array_equal(one.features, other.features)
            assert np.array_equal(one.thumbnail, other.thumbnail)


def test_an_eye_that_cannot_be_made_stops_the_run_and_not_the_machine(shelf):
    """A worker that does not come up is said once."""
    with pytest.raises(FilmError, match="does not start"):
        list(looked(shelf, shelf.found, Look(eye="bpals.judges.backbone:no_such_eye"), workers=1))
