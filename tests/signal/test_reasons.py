"""Reasons: each code occurs, says what is so, and can be looked up."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest

import shape
from bpals.findings import Group
from bpals.numeric import reports_of_films
from bpals.signal import reasons
from bpals.signal.devices import Asked
from bpals.signal.filmchecks import WORDS, read_checks
from bpals.signal.pairs import lay_out
from bpals.signal.trust import estimate
from bpals.testing import tiny_dataset
from bpals.types import FILM_ANSWERS, FILM_CHECKS, IMAGES, REVIEWS, Reviews, judgments_schema
from world.words import mentions

pytestmark = pytest.mark.quick

STATES = {"+": 1.0, "-": 0.0, "?": 0.5, ".": np.nan}


@pytest.fixture
def told(matrices):
    """What the timeline of one patient says of each film, from a string: + present, - absent, ? uncertain, . silent."""

    def told(strip, *, patient="p", studies=None):
        images = pl.DataFrame(
            {
                "image_id": [f"{number}.png" for number in range(len(strip))],
                "patient_id": [patient] * len(strip),
                "study_id": studies,
                "follow_up": range(len(strip)),
            },
            schema={name: IMAGES[name] for name in ("image_id", "patient_id", "study_id", "follow_up")},
        )
        pairs = matrices([[STATES[mark]] for mark in strip], [[0.3]] * len(strip))
        return reasons.timeline_reasons(pairs, images, reports_of_films(images)).of(0).to_list()

    return told


@pytest.mark.parametrize(
    ("strip", "film", "sentence"),
    [
        ("+", 0, "alone: no other film of this patient"),
        ("-", 0, "alone: no other film of this patient"),
        ("?", 0, "alone: no other film of this patient"),
        ("--+-", 2, "only_here: absent on all 3 other films of this patient"),
        ("..+.", 2, "only_here: claimed on none of the 3 other films of this patient"),
        (".-+-", 2, "only_here: claimed on none of the 3 other films of this patient"),
        ("+-++", 1, "missing_here: present on all 3 other films of this patient"),
        ("+?++", 1, "missing_here: present on all 3 other films of this patient"),
        ("+--+-", 3, "timeline_against: absent on the films before and after"),
        ("+-", 0, "timeline_against: absent on the film after"),
        ("-+", 1, "timeline_against: absent on the film before"),
        ("+-.+", 3, None),
        ("-+++", 2, "timeline_for: present on the films before and after too"),
        ("-++", 2, "timeline_for: present on the film before too"),
        ("++.-", 1, "timeline_for: present on the film before too"),
        ("-+-+", 2, "timeline_against: present on the films before and after"),
        ("+-", 1, "timeline_against: present on the film before"),
        ("---", 1, "timeline_for: absent on both other films of this patient too"),
        ("--", 0, "timeline_for: absent on the only other film of this patient too"),
        ("-..", 0, None),
        ("--.", 0, "timeline_for: absent on the film after too"),
        ("+---", 2, "timeline_for: absent on the films before and after too"),
        ("+-+", 0, "timeline_against: absent on the film after"),
        ("+?-", 0, "only_here: claimed on none of the 2 other films of this patient"),
        ("-?", 0, None),
        ("+-?+", 1, None),
        ("-.-", 1, None),
    ],
)
def test_what_the_neighbours_say(told, strip, film, sentence):
    """The first case that holds speaks; silence is never called absence, and an uncertain film is no witness."""
    assert told(strip)[film] == sentence


def test_where_a_dataset_has_studies_they_are_what_is_counted(told):
    """Two films of one study are one witness, and no witness for one another."""
    first, _, _, last = told("++--", studies=["a", "a", "b", "b"])
    assert mentions(first, "timeline_against:", "absent", "after")
    assert mentions(last, "timeline_against:", "present", "before")
    assert [reason.partition(":")[0] for reason in told("+-", studies=["a", "a"])] == ["alone"] * 2
    assert mentions(told("+---", studies=["a", "b", "c", "c"])[0], "only_here:", "absent on both")


def test_a_film_without_a_patient_says_so(told):
    """It is not called alone: the dataset does not know."""
    assert [reason.partition(":")[0] for reason in told("+-", patient=None)] == ["no_patient"] * 2


def test_a_co_label_is_named_where_it_makes_the_finding_more_common(matrices):
    """With the times as common it is; never the finding itself, and never on a handful of films."""
    states = np.zeros((400, 3))
    states[:100, 0] = states[:60, 1] = 1
    states[:20, 2] = 1
    pairs = matrices(states, np.full(states.shape, 0.2), findings=("Effusion", "Edema", "Mass"))
    made = reasons.colabel_reasons(pairs)
    effusion, edema, mass = (made.of(column) for column in range(3))
    assert mentions(edema[0], "seen_with: Effusion", "4.0 times")
    assert edema[99] == edema[0]
    assert edema[100] is None
    assert mentions(effusion[0], "seen_with: Edema", "4.0 times")
    assert mass[0] is None


def test_what_the_record_gives_stands_beside_what_is_usual(matrices):
    """In whole per cent; where nobody answered that is said instead."""
    pairs = matrices([[1], [0], [0]], [[0.309], [0.011], [np.nan]], findings=("Mass",))
    first, second, third = reasons.record_reasons(pairs, pairs).of(0)
    assert mentions(first, "record:", "31 %", "16.0 %", "Mass")
    assert mentions(second, "record:", "1 %", "16.0 %", "Mass")
    assert mentions(third, "unjudged:")


def test_a_judge_that_is_heeded_stands_beside_what_is_usual_for_it(panel, seen):
    """In whole per cent, and only where it is heeded and answered."""
    dataset = tiny_dataset()
    answers = seen(dataset, share=0.5)
    (voice,), _ = panel(dataset, answers, heeded={"eye": ("Mass",)}).heed(lay_out_nobody(dataset))
    made = reasons.judge_reasons(voice)
    of_effusion, _, of_mass = (made.of(column) for column in range(3))
    its = answers.filter(pl.col("finding") == "Mass")
    usual, film = 100 * its["p_present"].mean(), dataset.images["image_id"].to_list().index(its["image_id"][0])
    assert mentions(of_mass[film], "judge: eye", f"{100 * its['p_present'][0]:.0f} %", f"{usual:.1f} %")
    assert of_mass.null_count() == dataset.images.height - its.height > 0
    assert of_effusion.null_count() == dataset.images.height


def lay_out_nobody(dataset):
    """The claims of a dataset without an answer."""
    return lay_out(
        dataset.images, dataset.claims, pl.DataFrame(schema=judgments_schema(dataset.vocabulary)), dataset.vocabulary
    )


def test_nothing_is_said_about_nothing(matrices):
    """No film, no warning."""
    pairs = matrices(np.zeros((0, 2)), np.zeros((0, 2)))
    images = pl.DataFrame(schema=IMAGES)
    for made in (
        reasons.timeline_reasons(pairs, images, reports_of_films(images)),
        reasons.colabel_reasons(pairs),
        reasons.record_reasons(pairs, pairs),
    ):
        assert [len(made.of(column)) for column in range(2)] == [0, 0]


def odd_films(image_ids):
    """One film on which every check fires, and one on which its markers speak against its view."""
    row = {"turned": 90, "near_duplicate_of": "other", "same_patient": False, "view": "PA", "unlike": 1.9}
    rows = [row | {"image_id": image_ids[0], "checks": list(WORDS)}]
    marked = {"view_marked": "AP", "markers": ["AP", "PORTABLE"], "turned": 180, "same_patient": True}
    rows.append(row | marked | {"image_id": image_ids[1], "checks": ["view", "turned", "near_duplicate"]})
    return pl.DataFrame([dict.fromkeys(FILM_CHECKS) | each for each in rows], schema=FILM_CHECKS)


@pytest.fixture(scope="module")
def every_reason(judged, reviews, seen, panel):
    """The reasons of a calibrated signal of a dataset that has everything."""
    dataset = tiny_dataset(patients=160, uncertain=0.05, silent=0.05, findings=("Effusion", "Edema", "Nodule", "Mass"))
    beside = pl.col("says").filter(pl.col("finding") == "Effusion").first().over("image_id")
    dataset = dataclasses.replace(
        dataset,
        claims=dataset.claims.with_columns(
            says=pl.when(pl.col("finding") == "Edema").then(pl.coalesce(beside, "says")).otherwise("says")
        ),
        images=dataset.images.with_columns(
            patient_id=pl.when(pl.int_range(pl.len()) % 40 == 0).then(None).otherwise("patient_id")
        ),
    )
    films = dataset.images["image_id"].sample(120, seed=0, shuffle=True)
    together, draw = Group(name="Nodule or mass", members=("Nodule", "Mass")), np.random.default_rng(0)
    parts = [reviews(films, finding, draw.random(120) < 0.4, [together]) for finding in ("Effusion", together.name)]
    reference = dataclasses.replace(parts[0], truth=pl.concat([part.truth for part in parts]))
    judgments = judged(dataset, failed=0.1)
    eyes, blind = seen(dataset, share=0.6), seen(dataset, judge="blind", strength=0.0, share=0.5)
    saw = dataset.images.select("image_id", topic=pl.lit("devices"), outcome=pl.lit("answered"), p_present=pl.lit(0.9))
    missing = [pl.lit(None).alias(name) for name in FILM_ANSWERS if name not in saw.columns]
    asked = Asked(judge="eye", answers=saw.with_columns(missing).select(FILM_ANSWERS.names()), offsets={})
    heeded = {"eye": ("Effusion", "Edema", "Nodule or mass"), "blind": ()}
    second = np.where(draw.random(120) < 0.4, "uncertain", "present")
    words = {"a": ["present"] * 120, "b": second.tolist()}
    said = [(film, "Effusion", who, word, None) for who in words for film, word in zip(films, words[who], strict=True)]
    read = Reviews(table=pl.DataFrame(said, schema=REVIEWS, orient="row"))
    checks = read_checks(dataset.images, odd_films(dataset.images["image_id"]))
    seated = panel(dataset, eyes, blind, heeded=heeded, asked=[asked], checks=checks)
    signal = estimate(dataset, judgments, reference, panel=seated, reviews=read)
    return [reason for row in signal.table["reasons"] for reason in row]


@pytest.mark.parametrize("code", reasons.CODES)
def test_every_code_occurs(every_reason, code):
    """A code that nothing gives is a promise that nothing keeps."""
    assert [reason for reason in every_reason if reason.startswith(f"{code}: ")]


def test_every_reason_reads_well(every_reason):
    """A known code, a sentence of letters and figures, no full stop, no half-filled place."""
    for reason in set(every_reason):
        code, sentence = reason.split(": ", 1)
        assert code in reasons.CODES
        assert re.fullmatch(r"[A-Za-z][\w ,;%.'()-]*[\w%)]", sentence), reason
        assert not re.search(r"None|nan|null|  |_", sentence.replace("Pleural_Thickening", "")), reason


def test_every_code_can_be_looked_up():
    """docs/signal.md has a row for each, in the words of CODES, and for no other."""
    page = (shape.ROOT / "docs" / "signal.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page.split("## Reasons")[1].split("\n## ")[0], re.MULTILINE))
    assert rows == dict(reasons.CODES)
