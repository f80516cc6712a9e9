"""Concordance: readers beside the label, the signal and the judges, worked out by hand."""

from dataclasses import replace

import polars as pl
import pytest

from bpals.findings import NIH, NODULE_OR_MASS
from bpals.reviews.agreement import MAJORITY, OTHERS
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited
from bpals.tasks.score import LABEL, SIGNAL, concordance, unlike_films
from bpals.types import REVIEWS, claims_schema
from world.words import mentions

FEW = Resampling(draws=20, seed=0)
FILMS = "abcdefgh"
P = dict(zip(FILMS, (0.40, 0.35, 0.30, 0.25, 0.20, 0.15, 0.10, 0.05), strict=True))


def reads(*letters, finding="Mass"):
    """One word a reader, one letter a film: `YYNN...`."""
    said = {"Y": "present", "N": "absent", "H": "uncertain"}
    rows = [
        (film, finding, f"r{place}", said[letter], None)
        for place, word in enumerate(letters)
        for film, letter in zip(FILMS, word, strict=True)
    ]
    return pl.DataFrame(rows, REVIEWS, orient="row")


def answers(p_present, findings=("Mass",)):
    """What a judge answered."""
    rows = [(film, finding, "answered", p) for film, p in p_present.items() for finding in findings]
    return pl.DataFrame(rows, ["image_id", "finding", "outcome", "p_present"], orient="row")


def audited(claimed="abcd", findings=("Mass",)):
    """An audit of eight films of eight patients."""
    claims = [(film, finding, "present" if film in claimed else "absent") for film in FILMS for finding in findings]
    trust = {film: p if film in claimed else 1 - p for film, p in P.items()}
    signal = [(film, finding, P[film], trust[film], "record-1") for film in FILMS for finding in findings]
    return Audited(
        images=pl.DataFrame({"image_id": list(FILMS), "patient_id": [f"p{film}" for film in FILMS]}),
        claims=pl.DataFrame(claims, claims_schema(NIH), orient="row"),
        judgments=answers(P, findings),
        signal=pl.DataFrame(signal, ["image_id", "finding", "p_present", "trust", "method"], orient="row"),
    )


def kappas(rows):
    """(first, second) -> Cohen's kappa."""
    return {(row["first"], row["second"]): row["kappa"] for row in rows if "first" in row}


def test_a_signal_calls_as_many_films_as_most_readers_do():
    """Readers see three; the three with the highest probability are called, though none is above one half."""
    found = kappas(concordance(reads("YYYNNNNN", "YYYNNNNN", "YYNNNNNN"), audited(), {}, (), FEW))
    assert found["r0", SIGNAL] == pytest.approx(1)
    assert found[SIGNAL, MAJORITY] == pytest.approx(1)
    assert found["record", MAJORITY] == pytest.approx(1)
    assert found["r2", SIGNAL] < 1


def test_the_label_is_taken_as_it_stands():
    """It claims four of eight, of which readers see two and no other: kappa 1/2."""
    found = kappas(concordance(reads("YYNNNNNN", "YYNNNNNN"), audited(), {}, (), FEW))
    assert found["r0", LABEL] == found[LABEL, MAJORITY] == pytest.approx(0.5)


def test_every_image_judge_is_set_beside_every_reader_and_the_majority():
    """A judge that says the opposite agrees less than by chance; films it did not answer are left out."""
    backwards = {film: 1 - p for film, p in P.items() if film != "a"}
    rows = concordance(reads("YYYYNNNN", "YYYYNNNN"), audited(), {"vlm": answers(backwards)}, (), FEW)
    found = kappas(rows)
    assert found["vlm", MAJORITY] < 0
    assert {("r0", "vlm"), ("r1", "vlm"), ("r0", OTHERS), ("r1", OTHERS)} <= set(found)
    assert {row["n"] for row in rows if row.get("first") == "vlm"} == {7}


def test_a_group_is_one_subject():
    """A film that claims a mass or a nodule claims the group, and its probabilities are added."""
    table = reads("YYYYNNNN", "YYYYNNNN", finding=NODULE_OR_MASS.name)
    rows = concordance(table, audited(findings=("Mass", "Nodule")), {}, (NODULE_OR_MASS,), FEW)
    found = kappas(rows)
    assert found[LABEL, MAJORITY] == found[SIGNAL, MAJORITY] == 1
    assert rows[0]["finding"] == NODULE_OR_MASS.name


def test_films_that_are_not_audited_are_left_out():
    """A read of a film that the dataset does not have says nothing here."""
    extra = pl.DataFrame([("z", "Mass", "r0", "present", None)], REVIEWS, orient="row")
    rows = concordance(pl.concat([reads("YYNNNNNN", "YYNNNNNN"), extra]), audited(), {}, (), FEW)
    assert rows[0]["n"] == 8


def test_an_audit_without_the_record_judge_has_no_row_for_it():
    """Nobody answered in its name."""
    alone = audited()
    silent = Audited(images=alone.images, claims=alone.claims, judgments=alone.judgments.clear(), signal=alone.signal)
    found = kappas(concordance(reads("YYNNNNNN", "YYNNNNNN"), silent, {}, (), FEW))
    assert not [pair for pair in found if "record" in pair]


def test_judges_that_answered_other_films_are_said_to():
    """Each is held against readers on its own films, so their rows do not compare; alike judges need no note."""
    some = {film: p for film, p in P.items() if film not in "ab"}
    table = reads("YYYYNNNN", "YYYYNNNN")
    whole = replace(audited(), judges={"vlm": answers(P)})
    assert unlike_films(table, whole) == []
    assert unlike_films(table, audited()) == []
    (notice,) = unlike_films(table, replace(whole, judges={"vlm": answers(some)}))
    assert (notice.code, notice.count) == ("unlike_films", 1)
    assert mentions(notice.message, "8 images", "record 8, vlm 6")
    assert notice.message.endswith("Type: --only-judged")
