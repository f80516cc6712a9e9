"""The checks together: one row a film, null where nothing is known, and each fires for its own reason."""

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageDraw, ImageFont

from bpals.images.checks import CHECKS, ONE_GREY, Gallery, check, one_grey, refused_films
from bpals.images.ocr import Lettered
from bpals.signal.observations import CHECK_WORDS
from bpals.types import FILM_CHECKS
from world import phantoms


def small(image):
    """A film at 32 x 32."""
    return np.asarray(image.resize((224, 224), Image.Resampling.LANCZOS).resize((32, 32), Image.Resampling.BOX))


def gallery(images, **columns):
    """Films that were seen, each of a patient of its own unless told."""
    count = len(images)
    thumbnails = np.stack([small(image) for image in images])
    grey = one_grey(thumbnails)
    names = [f"film{place}" for place in range(count)]
    given = {"image_id": names, "sha256": names, "width_px": [88] * count, "height_px": [88] * count, "patient": names}
    table = pl.DataFrame({**given, "notes": [[]] * count, "view": ["PA"] * count, **columns})
    features = np.zeros((count, 4), np.float32)
    stored = type("Stored", (), {"width": 4, "rows": lambda _self, start, stop: features[start:stop]})()
    table = table.with_columns(pl.col("notes").cast(pl.List(pl.String)))
    return Gallery(
        table=table, thumbnails=thumbnails, features=stored, fold=np.arange(count) % 5, blank=grey >= ONE_GREY,
        one_grey=grey,
    )  # fmt: skip


def fired(seen, lettered=None):
    """The checks that fire, film by film."""
    films = check(seen, None, lettered).films
    assert films.schema == FILM_CHECKS
    return films["checks"].to_list()


FILM, OTHER = phantoms.phantom(0), phantoms.phantom(1)


def noisy(grey, spread):
    """One grey under noise, as a detector gives it without a patient."""
    draw = np.random.default_rng(0)
    return Image.fromarray(np.clip(draw.normal(grey, spread, (256, 256)), 0, 255).astype(np.uint8))


def marked(grey):
    """Nothing but a marker."""
    image = Image.new("L", (512, 512), grey)
    ImageDraw.Draw(image).text((30, 30), "L", fill=255, font=ImageFont.load_default(40))
    return image


@pytest.mark.parametrize("empty", [noisy(0, 3), noisy(128, 10), noisy(250, 5), marked(0), marked(90)])
def test_a_film_of_next_to_nothing_is_blank(empty):
    """Noise, and a marker without a patient."""
    assert fired(gallery([FILM, empty])) == [[], ["blank"]]


def test_a_small_film_on_a_large_dark_plate_is_not_blank():
    """A child: two thirds of the film are black."""
    plate = Image.new("L", (256, 256), 0)
    plate.paste(FILM.resize((150, 150)), (50, 30))
    assert fired(gallery([plate])) == [[]]


def test_blank_films_are_not_one_anothers_copies():
    """Two empty films are alike, and are not one exposure."""
    assert fired(gallery([marked(0), marked(0)])) == [["blank"], ["blank"]]


def test_a_copy_names_its_twin_and_whether_it_is_the_same_patients():
    """Both of the pair do."""
    films = check(gallery([FILM, OTHER, FILM], patient=["p", "q", "p"]), None, None).films
    assert films["near_duplicate_of"].to_list() == ["film2", None, "film0"]
    assert films["same_patient"].to_list() == [True, None, True]
    other = check(gallery([FILM, OTHER, FILM], patient=["p", "q", "r"]), None, None).films
    assert other["same_patient"].to_list() == [False, None, False]


def test_tags_of_a_dicom_fire_and_silence_is_not_known():
    """A lateral by its tag, burnt-in text by its tag; a film without tags is null, not false."""
    films = check(gallery([FILM, OTHER], notes=[["lateral", "burned_in"], []]), None, None).films
    assert films["checks"].to_list() == [["lateral", "text"], []]
    assert films["lateral"].to_list() == [True, None]
    assert films["text"].to_list() == [True, None]


def test_markers_speak_against_the_recorded_view():
    """PORTABLE on a film recorded as PA; on one recorded as AP it is as it should be."""

    def lettered(*markers, text=False):
        return Lettered(sha256="", notes=(), markers=markers, text=text)

    seen = gallery([FILM, OTHER, phantoms.phantom(2)], view=["PA", "AP", None])
    words = {"film0": lettered("PORTABLE"), "film1": lettered("AP", "PORTABLE"), "film2": lettered("PA", text=True)}
    assert fired(seen, words) == [["view"], [], ["text"]]


def test_few_films_are_said_nothing_of_that_must_be_learnt():
    """Inverted, turned and cropped are null, not false."""
    films = check(gallery([FILM, OTHER]), None, None).films
    unknown = ["inverted", "turned", "cropped", "inverted_score", "unlike", "view_score"]
    assert films.select(unknown).null_count().row(0) == (2,) * len(unknown)


def test_a_film_that_was_refused_has_a_row():
    """One of a single grey is blank; of a torn file nothing is known."""
    films = refused_films(pl.DataFrame({"image_id": ["a", "b"], "code": ["blank", "truncated"]}))
    assert films.schema == FILM_CHECKS
    assert films["checks"].to_list() == [["blank"], None]
    assert films["blank"].to_list() == [True, False]


def test_every_check_has_words_in_the_signal():
    """The list of the room of films is the list of the room of the signal."""
    assert tuple(CHECK_WORDS) == CHECKS
