"""Features: films become numbers in worker processes, and what cannot be seen has a reason."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from bpals.errors import FilmError
from bpals.images.collection import open_index
from bpals.images.prepare import decode
from bpals.images.stream import GARBLED, THUMBNAIL_PX, FeatureSpec, ImageFeatures, image_features, square
from bpals.images.worker import pack, unpack
from bpals.types import Refusal
from world import tiny_onnx


@pytest.fixture
def feature_spec(tmp_path_factory):
    """How features are extracted: squares of 32 pixels, the means of 16 fields."""
    path = tiny_onnx.write(tmp_path_factory.mktemp("backbone") / "tiny.onnx")
    return FeatureSpec(
        side_px=tiny_onnx.SIDE_PX, extractor="bpals.judges.backbone:open_extractor", given={"named": str(path)}
    )


@pytest.fixture
def index(tmp_path, film):
    """Six films, one of them cut off, one blank."""
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(film(number, width=96 + number))
    (tmp_path / "cut.png").write_bytes(film(9)[:-200])
    blank = io.BytesIO()
    Image.new("L", (64, 64), 100).save(blank, "PNG")
    (tmp_path / "blank.png").write_bytes(blank.getvalue())
    return open_index(tmp_path)


def test_a_film_is_seen_whole(index, film, feature_spec):
    """Which file it was, its size as it lies there, what the extractor made of its square, and a thumbnail."""
    seen = dict(image_features(index, ["2"], feature_spec, workers=0))["2"]
    content = film(2, width=98)
    shown = square(decode(content).image, tiny_onnx.SIDE_PX)
    assert (seen.image_id, seen.sha256) == ("2", hashlib.sha256(content).hexdigest())
    assert (seen.width_px, seen.height_px) == (98, 80)
    assert seen.features == pytest.approx(shown.reshape(-1) @ tiny_onnx.fields(), abs=1e-3)
    assert seen.features.dtype == np.float32
    assert seen.thumbnail.shape == (THUMBNAIL_PX, THUMBNAIL_PX)
    assert seen.thumbnail.mean() == pytest.approx(shown.mean(), abs=1)


def test_what_cannot_be_seen_has_the_reason_that_a_judge_would_be_given(index, feature_spec):
    """The same decoders, the same refusals."""
    seen = dict(image_features(index, index.found, feature_spec, workers=0))
    refused = {name: made.code for name, made in seen.items() if isinstance(made, Refusal)}
    assert refused == {"cut": "truncated", "blank": "blank"}


def test_what_is_packed_comes_back(index, feature_spec):
    """A film that was seen, and a refusal, through the channel of a worker."""
    for made in dict(image_features(index, index.found, feature_spec, workers=0)).values():
        back = unpack(feature_spec, pack(feature_spec, made))
        if isinstance(made, ImageFeatures):
            assert np.array_equal(back.features, made.features)
            assert np.array_equal(back.thumbnail, made.thumbnail)
            assert (back.sha256, back.width_px, back.notes) == (made.sha256, made.width_px, made.notes)
        else:
            assert back == made


@pytest.mark.parametrize("body", [b"", b"short", bytes(1026)])
def test_an_answer_that_no_sound_worker_gives_is_known_as_such(feature_spec, body):
    """F24: too few bytes, or a number cut in two."""
    about = b'{"made": {"sha256": "", "size": [1, 1], "notes": []}}'
    with pytest.raises(GARBLED):
        unpack(feature_spec, len(about).to_bytes(4, "little") + about + body)


def test_workers_see_what_this_process_sees(index, feature_spec):
    """To the last bit, in the same order; the extractor is made in each worker, by its name."""
    here, there = (list(image_features(index, index.found, feature_spec, workers=workers)) for workers in (0, 2))
    assert [name for name, _ in here] == [name for name, _ in there]
    for (_, one), (_, other) in zip(here, there, strict=True):
        assert type(one) is type(other)
        if isinstance(one, ImageFeatures):
            assert np.array_equal(one.features, other.features)
            assert np.array_equal(one.thumbnail, other.thumbnail)


def test_an_extractor_that_cannot_be_made_stops_the_run_and_not_the_machine(index):
    """A worker that does not come up is said once."""
    with pytest.raises(FilmError, match="does not start"):
        list(image_features(index, index.found, FeatureSpec(extractor="bpals.judges.backbone:none_such"), workers=1))
