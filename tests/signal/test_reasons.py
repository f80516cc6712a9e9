"""Tests of signal.reasons."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest

import shape
from bpals.findings import Group
from bpals.numeric import reports_of_films
from bpals.signal import reasons
from bpals.signal.observations import CHECK_WORDS, DeviceAnswers, read_checks, read_devices
from bpals.signal.reasons import BLOCK, Sentences, listed
from bpals.testing import check_signal, tiny_dataset
from bpals.types import FILM_ANSWERS, FILM_CHECKS, IMAGES, REVIEWS, Reviews, judgments_schema
from world.estimating import estimate, used_judges

# Sentences: each pair's list holds what the kinds say of it, in their order.


def kinds_of(shape, seed=0):
    """Three kinds: one that always speaks, one that seldom does, one that is silent."""
    draw = np.random.default_rng(seed)
    always = Sentences(words=[None, "a: one", "a: two"], which=draw.integers(1, 3, shape))
    seldom = Sentences(words=[None, "b: here"], which=draw.random(shape) < 0.2)
    return [seldom, Sentences(words=[None, "never"], which=np.zeros(shape, dtype=int)), always]


@pytest.mark.parametrize("films", [0, 1, 50, BLOCK // 2 + 1])
def test_each_claim_gets_its_sentences_in_the_order_of_the_kinds(films):
    """Film by film and finding by finding, claims only, across the blocks in which they are gathered."""
    kinds = kinds_of((films, 3))
    claimed = np.random.default_rng(1).random((films, 3)) < 0.8
    made = listed(kinds, claimed)
    assert (made.name, made.dtype) == ("reasons", pl.List(pl.String))
    expected = [
        [kind.words[int(kind.which[row, column])] for kind in kinds if kind.which[row, column]]
        for row, column in zip(*np.nonzero(claimed), strict=True)
    ]
    assert made.to_list() == expected


def test_a_claim_of_which_nothing_is_said_has_an_empty_list():
    """It is not null, and it does not take its neighbour's."""
    kinds = kinds_of((40, 2))[:1]
    made = listed(kinds, np.ones((40, 2), dtype=bool))
    assert made.null_count() == 0
    assert made.to_list() == [["b: here"] if said else [] for said in kinds[0].which.ravel()]
    assert listed([], np.ones((2, 2), dtype=bool)).to_list() == [[]] * 4


# Devices: present, absent or unknown, from judges that were asked about the film.

IMAGES_OF_DEVICES = pl.DataFrame({"image_id": ["a", "b", "c", "d"]})


def asked(p_present, *, judge="eye", topic="devices", outcome="answered", offsets=None):
    """What a judge says of the films a, b, c: null where it was not asked."""
    rows = [(film, topic, outcome, p, None, None, None) for film, p in zip("abc", p_present, strict=True)]
    table = pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row").drop_nulls("p_present")
    return DeviceAnswers(judge=judge, answers=table, offsets=offsets or {})


def states(*judges):
    """The words for the films a, b, c and d."""
    return read_devices(IMAGES_OF_DEVICES, judges).column.to_list()


def test_above_one_half_is_present_below_absent_and_silence_unknown():
    """A film that nobody was asked about is never called free of devices."""
    assert states(asked([0.8, 0.2, None])) == ["present", "absent", "unknown", "unknown"]
    assert states() == ["unknown"] * 4


def test_what_a_judge_says_without_a_film_is_taken_off():
    """A judge that says yes to everything at .9 sees devices only where it says more than that."""
    lean = 2.2  # the logit of .9
    corrected = ["present", "absent", "absent", "unknown"]
    assert states(asked([0.95, 0.85, 0.5], offsets={"devices": [lean, -lean]})) == corrected
    assert states(asked([0.95, 0.85, 0.5], offsets={"devices": [lean, None]})) == corrected
    assert states(asked([0.95, 0.85, 0.5], offsets={"Mass": [9, -9]})) == ["present", "present", "absent", "unknown"]


def test_an_acquiescent_judge_is_not_corrected_twice():
    """Yes to both polarities cancels: what is left without a film is half the difference of the two."""
    assert states(asked([0.6, 0.4, 0.5], offsets={"devices": [3.0, 3.0]}))[:2] == ["present", "absent"]


def test_several_judges_are_averaged_by_their_evidence():
    """The surer one prevails, and those who see devices are named."""
    found = read_devices(IMAGES_OF_DEVICES, [asked([0.9, 0.6, 0.6]), asked([0.6, 0.1, 0.7], judge="other")])
    assert found.column.to_list() == ["present", "absent", "present", "unknown"]
    assert found.seen_by.to_list() == [
        "devices: eye and other see support devices on the image",
        None,
        "devices: eye and other see support devices on the image",
        None,
    ]
    alone = read_devices(IMAGES_OF_DEVICES, [asked([0.99, None, None]), asked([0.4, None, None], judge="other")])
    assert alone.seen_by[0] == "devices: eye sees support devices on the image"


@pytest.mark.parametrize("outcome", ["abstained", "refused", "unparsed", "unsupported", "failed"])
def test_a_failure_is_not_an_absence(outcome):
    """Nor is an answer about another topic."""
    assert states(asked([0.2, 0.2, 0.2], outcome=outcome)) == ["unknown"] * 4
    assert states(asked([0.2, 0.2, 0.2], topic="quality")) == ["unknown"] * 4


def test_the_column_and_the_reason_reach_every_claim_of_the_film(judged, panel, seen):
    """And they change no trust."""
    dataset = tiny_dataset()
    films = dataset.images["image_id"]
    rows = [(film, "devices", "answered", p, None, None, None) for film, p in zip(films[:2], (0.9, 0.1), strict=True)]
    told = DeviceAnswers(judge="eye", answers=pl.DataFrame(rows, schema=FILM_ANSWERS, orient="row"), offsets={})
    with_it = estimate(dataset, judged(dataset), panel=panel(dataset, seen(dataset), asked=[told])).table
    without = estimate(dataset, judged(dataset), panel=panel(dataset, seen(dataset))).table
    check_signal(with_it, dataset.claims)
    by_film = dict(with_it.group_by("image_id").agg(pl.col("devices").unique()).iter_rows())
    unasked = {film: ["unknown"] for film in films[2:]}
    assert by_film == {films[0]: ["present"], films[1]: ["absent"], **unasked}
    said = with_it.select(pl.col("image_id"), pl.col("reasons").list.join("|").str.contains("devices: eye sees"))
    assert said.filter("reasons")["image_id"].unique().to_list() == [films[0]]
    changed = [name for name in with_it.columns if not with_it[name].equals(without[name])]
    assert changed == ["reasons", "devices"]
    assert np.array_equal(with_it["trust"].to_numpy(), without["trust"].to_numpy(), equal_nan=True)


# Film checks in the signal: a column, and reasons; null where nobody looked.

IMAGES_OF_FILMCHECKS = pl.DataFrame({"image_id": ["a", "b", "c"]})


def films(**rows):
    """What was found out about films: each film's own values, the rest null."""
    listed = [dict.fromkeys(FILM_CHECKS) | {"image_id": name} | its for name, its in rows.items()]
    return pl.DataFrame(listed, schema=FILM_CHECKS)


def told(checks, film=0):
    """The sentences about one film."""
    return [said[film] for said in checks.fired if said[film] is not None]


def test_a_film_that_nobody_looked_at_is_not_called_sound():
    """Null is not known; an empty list is nothing odd."""
    checks = read_checks(
        IMAGES_OF_FILMCHECKS, films(b={"checks": []}, a={"checks": ["blank"]}, stranger={"checks": ["blank"]})
    )
    assert checks.column.to_list() == [["blank"], [], None]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"checks": ["turned"], "turned": 90},
            "film_turned: the image lies on its side, turned 90 degrees anticlockwise",
        ),
        (
            {"checks": ["turned"], "turned": 180},
            "film_turned: the image stands on its head, turned 180 degrees anticlockwise",
        ),
        (
            {"checks": ["near_duplicate"], "near_duplicate_of": "z", "same_patient": False},
            "film_near_duplicate: the image is the same exposure as z, of another patient",
        ),
        (
            {"checks": ["near_duplicate"], "near_duplicate_of": "z", "same_patient": True},
            "film_near_duplicate: the image is the same exposure as z, of the same patient",
        ),
        ({"checks": ["view"], "view": "PA"}, "film_view: recorded as PA, the image looks AP"),
        (
            {"checks": ["view"], "view": "PA", "view_marked": "AP", "markers": ["PORTABLE"]},
            "film_view: recorded as PA, the image is marked PORTABLE",
        ),
    ],
)
def test_a_check_says_what_it_found(row, sentence):
    """The number, the other film or the marker stands in the sentence."""
    assert told(read_checks(IMAGES_OF_FILMCHECKS, films(a=row))) == [sentence]


def test_every_check_has_a_sentence_and_several_may_speak_of_one_film():
    """No check that fires is left without words."""
    row = {"turned": 90, "near_duplicate_of": "z", "same_patient": True, "view": "PA", "unlike": 1.9}
    sentences = told(read_checks(IMAGES_OF_FILMCHECKS, films(a=row | {"checks": list(CHECK_WORDS)})))
    assert [sentence.partition(":")[0] for sentence in sentences] == [f"film_{check}" for check in CHECK_WORDS]


def test_checks_change_a_column_and_reasons_and_nothing_else(panel, judged):
    """Trust, flags and the order of reading are what they were."""
    dataset = tiny_dataset()
    film = dataset.images["image_id"][0]
    checks = read_checks(dataset.images, films(**{film: {"checks": ["inverted", "lateral"]}}))
    plain = estimate(dataset, judged(dataset), panel=panel(dataset)).table
    noted = estimate(dataset, judged(dataset), panel=panel(dataset, checks=checks)).table
    check_signal(noted, dataset.claims)
    assert [name for name in plain.columns if not plain[name].equals(noted[name])] == ["reasons", "film_checks"]
    its = noted.filter(pl.col("image_id") == film)
    assert its["film_checks"].to_list() == [["inverted", "lateral"]] * its.height
    assert all(reasons[-2].startswith("film_inverted: ") for reasons in its["reasons"])
    assert noted.filter(pl.col("image_id") != film)["film_checks"].is_null().all()


# Reasons: each code occurs, says what is so, and can be looked up.

STATES = {"+": 1.0, "-": 0.0, "?": 0.5, ".": np.nan}


@pytest.fixture
def told_of_reasons(matrices):
    """What the timeline of one patient says of each film, from a string: + present, - absent, ? uncertain, . silent."""

    def told_of_reasons(strip, *, patient="p", studies=None):
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

    return told_of_reasons


@pytest.mark.parametrize(
    ("strip", "film", "sentence"),
    [
        ("+", 0, "alone: no other image of this patient"),
        ("-", 0, "alone: no other image of this patient"),
        ("?", 0, "alone: no other image of this patient"),
        ("--+-", 2, "only_here: absent on all 3 other images of this patient"),
        ("..+.", 2, "only_here: labelled on none of the 3 other images of this patient"),
        (".-+-", 2, "only_here: labelled on none of the 3 other images of this patient"),
        ("+-++", 1, "missing_here: present on all 3 other images of this patient"),
        ("+?++", 1, "missing_here: present on all 3 other images of this patient"),
        ("+--+-", 3, "timeline_against: absent on the images before and after"),
        ("+-", 0, "timeline_against: absent on the image after"),
        ("-+", 1, "timeline_against: absent on the image before"),
        ("+-.+", 3, None),
        ("-+++", 2, "timeline_for: present on the images before and after too"),
        ("-++", 2, "timeline_for: present on the image before too"),
        ("++.-", 1, "timeline_for: present on the image before too"),
        ("-+-+", 2, "timeline_against: present on the images before and after"),
        ("+-", 1, "timeline_against: present on the image before"),
        ("---", 1, "timeline_for: absent on both other images of this patient too"),
        ("--", 0, "timeline_for: absent on the only other image of this patient too"),
        ("-..", 0, None),
        ("--.", 0, "timeline_for: absent on the image after too"),
        ("+---", 2, "timeline_for: absent on the images before and after too"),
        ("+-+", 0, "timeline_against: absent on the image after"),
        ("+?-", 0, "only_here: labelled on none of the 2 other images of this patient"),
        ("-?", 0, None),
        ("+-?+", 1, None),
        ("-.-", 1, None),
    ],
)
def test_what_the_neighbours_say(told_of_reasons, strip, film, sentence):
    """The first case that holds speaks; silence is never called absence, and an uncertain film is no witness."""
    assert told_of_reasons(strip)[film] == sentence


def test_where_a_dataset_has_studies_they_are_what_is_counted(told_of_reasons):
    """Two films of one study are one witness, and no witness for one another."""
    first, _, _, last = told_of_reasons("++--", studies=["a", "a", "b", "b"])
    assert first == "timeline_against: absent on the study after"
    assert last == "timeline_against: present on the study before"
    assert told_of_reasons("+-", studies=["a", "a"]) == ["alone: no other study of this patient"] * 2
    assert (
        told_of_reasons("+---", studies=["a", "b", "c", "c"])[0]
        == "only_here: absent on both other studies of this patient"
    )


def test_a_film_without_a_patient_says_so(told_of_reasons):
    """It is not called alone: the dataset does not know."""
    assert (
        told_of_reasons("+-", patient=None)
        == ["no_patient: the dataset names no patient, so no other image can speak"] * 2
    )


def test_a_co_label_is_named_where_it_makes_the_finding_more_common(matrices):
    """With the times as common it is; never the finding itself, and never on a handful of films."""
    states = np.zeros((400, 3))
    states[:100, 0] = states[:60, 1] = 1
    states[:20, 2] = 1
    pairs = matrices(states, np.full(states.shape, 0.2), findings=("Effusion", "Edema", "Mass"))
    made = reasons.colabel_reasons(pairs)
    effusion, edema, mass = (made.of(column) for column in range(3))
    assert edema[0] == "seen_with: Effusion is labelled here too, beside which it is 4.0 times as common"
    assert edema[99] == edema[0]
    assert edema[100] is None
    assert effusion[0] == "seen_with: Edema is labelled here too, beside which it is 4.0 times as common"
    assert mass[0] is None


def test_what_the_record_gives_stands_beside_what_is_usual(matrices):
    """In whole per cent; where nobody answered that is said instead."""
    pairs = matrices([[1], [0], [0]], [[0.309], [0.011], [np.nan]], findings=("Mass",))
    assert reasons.record_reasons(pairs, pairs).of(0).to_list() == [
        "record: the metadata gives 31 %; 16.0 % is usual for Mass",
        "record: the metadata gives 1 %; 16.0 % is usual for Mass",
        "unjudged: no judge answered",
    ]


def test_a_judge_that_is_heeded_stands_beside_what_is_usual_for_it(panel, seen):
    """In whole per cent, and only where it is used and answered."""
    dataset = tiny_dataset()
    answers = seen(dataset, share=0.5)
    nobody = pl.DataFrame(schema=judgments_schema(dataset.vocabulary))
    (judge,) = used_judges(dataset, nobody, panel(dataset, answers, used={"eye": ("Mass",)}))
    made = reasons.judge_reasons(judge)
    of_effusion, _, of_mass = (made.of(column) for column in range(3))
    its = answers.filter(pl.col("finding") == "Mass")
    usual, film = 100 * its["p_present"].mean(), dataset.images["image_id"].to_list().index(its["image_id"][0])
    assert of_mass[film] == f"judge: eye gives {100 * its['p_present'][0]:.0f} %; {usual:.1f} % is usual for it"
    assert of_mass.null_count() == dataset.images.height - its.height > 0
    assert of_effusion.null_count() == dataset.images.height


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
    rows = [row | {"image_id": image_ids[0], "checks": list(CHECK_WORDS)}]
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
    # Edema is read often enough to be suspect, Mass so seldom that its intervals stay wide.
    parts += [reviews(films, "Edema", draw.random(120) < 0.1), reviews(films[:12], "Mass", draw.random(12) < 0.4)]
    reference = dataclasses.replace(parts[0], truth=pl.concat([part.truth for part in parts]))
    judgments = judged(dataset, failed=0.1)
    eyes, blind = seen(dataset, share=0.6), seen(dataset, judge="blind", strength=0.0, share=0.5)
    saw = dataset.images.select("image_id", topic=pl.lit("devices"), outcome=pl.lit("answered"), p_present=pl.lit(0.9))
    missing = [pl.lit(None).alias(name) for name in FILM_ANSWERS if name not in saw.columns]
    asked = DeviceAnswers(judge="eye", answers=saw.with_columns(missing).select(FILM_ANSWERS.names()), offsets={})
    used = {"eye": ("Effusion", "Edema", "Mass", "Nodule or mass"), "blind": ()}
    second = np.where(draw.random(120) < 0.4, "uncertain", "present")
    words = {"a": ["present"] * 120, "b": second.tolist()}
    said = [(film, "Effusion", who, word, None) for who in words for film, word in zip(films, words[who], strict=True)]
    read = Reviews(table=pl.DataFrame(said, schema=REVIEWS, orient="row"))
    checks = read_checks(dataset.images, odd_films(dataset.images["image_id"]))
    seated = panel(dataset, eyes, blind, used=used, asked=[asked], checks=checks)
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
    rows = dict(re.findall(r"^\|`(\w+)`\|(.+?)\|$", page.split("## Reasons")[1].split("\n## ")[0], re.MULTILINE))
    assert rows == dict(reasons.CODES)
