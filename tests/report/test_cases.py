"""The most suspect claims and their timelines."""

import polars as pl
import pytest

from bpals.report.cases import MOST_PICTURES, NOT_AT_HAND, OVERALL, PER_FINDING, WINDOW, cases, sentence
from bpals.testing import tiny_film
from bpals.types import FLAG, IMAGES

pytestmark = pytest.mark.quick


def one_patient(small, films, doubted):
    """A patient with so many films, one of them doubted; films are named against the order of their follow-up."""
    rows = [(f"film_{films - i:05}", "p", None, i, "PA", 50.0, "M", None, None) for i in range(films)]
    images = pl.DataFrame(rows, schema=IMAGES, orient="row")
    words = [("present" if i == doubted else "absent",) for i in range(films)]
    dataset = small.dataset(images, words, findings=("Mass",))
    flag = pl.when(pl.col("says") == "present").then(pl.lit("suspect")).otherwise(pl.lit("trusted")).cast(FLAG)
    return dataset, small.signal(dataset).with_columns(flag=flag)


def test_the_lowest_trust_comes_first(page):
    """The overall list is in order of trust."""
    shown = cases(page.dataset.images, page.signal, page.dataset.vocabulary.findings)
    for side in (shown.present, shown.absent):
        assert [case.trust for case in side] == sorted(case.trust for case in side)
        assert 0 < len(side) <= OVERALL


def test_the_first_case_is_the_least_trusted_claim_of_all(page):
    """Nothing more suspect is kept from the reader."""
    shown = cases(page.dataset.images, page.signal, page.dataset.vocabulary.findings)
    lowest = page.signal.filter(pl.col("says") == "present").sort("trust").row(0, named=True)
    assert (shown.present[0].image_id, shown.present[0].finding) == (lowest["image_id"], lowest["finding"])


def test_only_flagged_claims_are_cases(page):
    """A hard claim is ambiguous, not suspect."""
    hard = page.signal.with_columns(flag=pl.lit("hard").cast(FLAG))
    shown = cases(page.dataset.images, hard, page.dataset.vocabulary.findings)
    assert (shown.present, shown.absent, shown.findings) == ((), (), ())


def test_neither_a_patient_nor_a_finding_fills_the_list(page):
    """At most one case a finding and a patient on each side."""
    everything = page.signal.with_columns(flag=pl.lit("suspect").cast(FLAG))
    shown = cases(page.dataset.images, everything, page.dataset.vocabulary.findings)
    for side in (shown.present, shown.absent):
        assert len({case.patient for case in side}) == len(side)
        assert len({case.finding for case in side}) == len(side)


def test_each_finding_has_its_own_few(page):
    """Two presences and two absences a finding, of different patients."""
    everything = page.signal.with_columns(flag=pl.lit("suspect").cast(FLAG))
    shown = cases(page.dataset.images, everything, page.dataset.vocabulary.findings)
    assert [group.finding for group in shown.findings] == list(page.dataset.vocabulary.findings)
    for group in shown.findings:
        assert len(group.absent) == PER_FINDING
        assert len({case.patient for case in group.absent}) == PER_FINDING


def test_a_strip_is_in_the_order_of_follow_up(small):
    """The names of the films say otherwise."""
    dataset, signal = one_patient(small, 5, doubted=3)
    strip = cases(dataset.images, signal, ("Mass",)).present[0].strip
    assert [film.order for film in strip.films] == [0, 1, 2, 3, 4]
    assert [film.says for film in strip.films] == ["absent", "absent", "absent", "present", "absent"]
    assert (strip.at, strip.position, strip.total) == (3, 4, 5)


def test_thousands_of_films_are_windowed_around_the_one_in_question(small):
    """Ten films on each side are drawn, the rest is counted."""
    dataset, signal = one_patient(small, 3000, doubted=1700)
    strip = cases(dataset.images, signal, ("Mass",)).present[0].strip
    assert len(strip.films) == WINDOW
    assert strip.films[strip.at].says == "present"
    assert (strip.earlier, strip.later, strip.at) == (1690, 1289, 10)
    assert [words.replace("\N{NO-BREAK SPACE}", " ") for words in strip.undrawn] == [
        "1,690 earlier images",
        "1,289 later images",
    ]


def test_a_window_at_the_end_is_as_wide_as_in_the_middle(small):
    """The last film still has twenty others beside it."""
    for doubted, at in ((0, 0), (99, WINDOW - 1)):
        dataset, signal = one_patient(small, 100, doubted=doubted)
        strip = cases(dataset.images, signal, ("Mass",)).present[0].strip
        assert (len(strip.films), strip.at, strip.position) == (WINDOW, at, doubted + 1)


def test_a_film_without_a_patient_has_no_strip(patientless_page):
    """No patient, no before and after."""
    dataset = patientless_page.dataset
    shown = cases(dataset.images, patientless_page.signal, dataset.vocabulary.findings)
    assert shown.present
    assert all(case.strip is None and case.patient is None and case.facts == () for case in shown.present)


def test_silence_and_uncertainty_show_in_the_strip(small):
    """A film about which nothing is said has its place in the strip."""
    images = small.images(patients=1, longest=3)
    dataset = small.dataset(images, [("present",), ("uncertain",), ("",)], findings=("Mass",))
    flag = pl.when(pl.col("says") == "present").then(pl.lit("suspect")).otherwise(pl.lit("unjudged")).cast(FLAG)
    signal = small.signal(dataset).with_columns(flag=flag)
    films = cases(dataset.images, signal, ("Mass",)).present[0].strip.films
    assert [film.says for film in films] == ["present", "uncertain", None]
    assert films[1].p_present is not None
    assert films[2].p_present is None


def test_the_other_findings_of_the_film_are_told(small):
    """Only those that are claimed present, and not the one in question."""
    images = small.images(patients=1, longest=1)
    dataset = small.dataset(images, [("present", "present", "absent")])
    flag = pl.when(pl.col("finding") == "Effusion").then(pl.lit("suspect")).otherwise(pl.lit("trusted")).cast(FLAG)
    case = cases(images, small.signal(dataset).with_columns(flag=flag), small.findings).present[0]
    assert (case.finding, case.beside, case.facts) == ("Effusion", ("Nodule",), ("M", "20 years", "PA"))


def test_a_reason_is_shown_without_its_code():
    """The code is for programs; a colon inside the sentence stays."""
    assert sentence("alone: no other image: none") == "no other image: none"
    assert sentence("odd") == "odd"


def test_the_image_in_question_stands_between_its_neighbours(small):
    """In the order of the strip, each with its label; the one in question is marked."""
    dataset, signal = one_patient(small, 5, doubted=3)
    films = [f"film_{number:05}" for number in (3, 2, 1)]
    read = {name: tiny_film(seed=at).png for at, name in enumerate(films)}
    case = cases(dataset.images, signal, ("Mass",), read_images=lambda _: read).present[0]
    assert [picture.caption for picture in case.pictures] == [
        "Image 3: labelled absent", "Image 4: labelled present", "Image 5: labelled absent",
    ]  # fmt: skip
    assert [picture.in_question for picture in case.pictures] == [False, True, False]
    assert all(picture.source.startswith("data:image/png;base64,") and not picture.why for picture in case.pictures)
    assert case.shown


def test_an_image_that_cannot_be_shown_says_why_and_its_neighbours_are_left_out(small):
    """A broken image has its reason; one that nobody has is not at hand."""
    dataset, signal = one_patient(small, 5, doubted=3)
    broken = {"film_00002": "the file is truncated", "film_00001": "the file is empty"}
    for read, why in ((broken, "the file is truncated"), ({}, NOT_AT_HAND)):
        case = cases(dataset.images, signal, ("Mass",), read_images=lambda _, read=read: read).present[0]
        assert [(picture.source, picture.why) for picture in case.pictures] == [("", why)]
        assert not case.shown


def test_images_are_read_once_those_in_question_first_and_no_more_than_a_page_may_hold(small):
    """A hundred findings would ask for 1,200 images."""
    images = small.images(patients=90, longest=5)
    findings = tuple(f"Finding_{number}" for number in range(100))
    dataset = small.dataset(images, [("present",) * 100] * images.height, findings=findings)
    signal = small.signal(dataset).with_columns(flag=pl.lit("suspect").cast(FLAG))
    asked = []
    shown = cases(images, signal, findings, read_images=lambda ids: asked.append(list(ids)) or {})
    (wanted,) = asked
    assert len(wanted) == len(set(wanted)) == MOST_PICTURES
    in_question = [case.image_id for case in shown.present]
    assert wanted[: len(in_question)] == sorted(in_question, key=wanted.index)
    assert shown.pictures == 0


def test_without_images_no_case_has_a_picture(page, patientless_page):
    """Nobody told the workspace where they are; an image without a patient has no neighbour."""
    shown = cases(page.dataset.images, page.signal, page.dataset.vocabulary.findings)
    assert all(case.pictures == () for case in (*shown.present, *shown.absent))
    nameless = patientless_page.dataset
    seen = cases(
        nameless.images,
        patientless_page.signal,
        nameless.vocabulary.findings,
        read_images=lambda ids: dict.fromkeys(ids, tiny_film().png),
    )
    assert [picture.caption for picture in seen.present[0].pictures] == ["This image: labelled present"]
    assert seen.pictures > 0
