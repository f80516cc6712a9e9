"""Voices: what image judges say, laid out beside films and findings."""

import numpy as np
import polars as pl
import pytest

from bpals.findings import Group
from bpals.signal.pairs import lay_out
from bpals.signal.voices import hear
from bpals.testing import tiny_dataset
from bpals.types import OUTCOME

BOTH = Group(name="Nodule or mass", members=("Nodule", "Mass"))


@pytest.fixture(scope="module")
def dataset():
    """A few patients."""
    return tiny_dataset(patients=30)


def test_an_answer_stands_at_its_film_and_finding(dataset, seen):
    """Whatever the order of the rows, to the last bit."""
    answers = seen(dataset).sample(fraction=1.0, shuffle=True, seed=3)
    voice = hear("eye", answers, dataset.images, dataset.vocabulary.findings)
    film, finding, p = answers.select("image_id", "finding", "p_present").row(7)
    row = dataset.images["image_id"].to_list().index(film)
    assert voice.p_present[row, dataset.vocabulary.findings.index(finding)] == p
    assert voice.answered.all()
    assert voice.usual == pytest.approx(voice.p_present.mean(axis=0))


@pytest.mark.parametrize("outcome", [name for name in OUTCOME.categories if name != "answered"])
def test_a_failure_is_never_evidence(dataset, seen, outcome):
    """Whatever the judge did instead of answering, even if somebody left a number beside it."""
    failed = seen(dataset).with_columns(outcome=pl.lit(outcome, dtype=OUTCOME))
    voice = hear("eye", failed, dataset.images, dataset.vocabulary.findings)
    assert not voice.answered.any()
    assert np.isnan(voice.usual).all()
    assert np.isnan(voice.evidence).all()


def test_what_is_said_of_other_films_and_findings_is_passed_over(dataset, seen):
    """A judge that was run over another dataset too is not refused."""
    answers = seen(dataset).with_columns(pl.col("finding").cast(pl.String))
    strange = answers.head(4).with_columns(image_id=pl.lit("elsewhere.png"))
    other = answers.head(4).with_columns(finding=pl.lit("Fracture"))
    findings = dataset.vocabulary.findings
    heard = hear("eye", pl.concat([answers, strange, other]), dataset.images, findings)
    assert np.array_equal(heard.p_present, hear("eye", answers, dataset.images, findings).p_present)


def test_evidence_has_mean_0_and_deviation_1_and_the_judge_s_order(dataset, seen):
    """So that a judge's bias or scale changes nothing; scores below any reported probability keep their order."""
    answers = seen(dataset, share=0.7)
    tiny = answers.with_columns(p_present=pl.col("p_present") ** 4 * 1e-7)
    for table in (answers, tiny):
        voice = hear("eye", table, dataset.images, dataset.vocabulary.findings)
        assert np.nanmean(voice.evidence, axis=0) == pytest.approx([0, 0, 0], abs=1e-9)
        assert np.nanstd(voice.evidence, axis=0) == pytest.approx([1, 1, 1])
        for column in range(3):
            known = voice.answered[:, column]
            order = np.argsort(voice.p_present[known, column])
            assert (np.diff(voice.evidence[known, column][order]) > 0).all()


def test_a_judge_that_always_says_the_same_says_nothing(dataset, seen):
    """Its evidence is 0, not a division by zero."""
    voice = hear("eye", seen(dataset).with_columns(p_present=pl.lit(0.3)), dataset.images, dataset.vocabulary.findings)
    assert voice.evidence == pytest.approx(np.zeros_like(voice.evidence), abs=1e-9)


def test_a_group_is_as_evident_as_its_most_evident_member(dataset, seen, judged):
    """And it is answered if all its members are."""
    answers = seen(dataset).filter(~((pl.col("finding") == "Mass") & (pl.int_range(pl.len()) % 5 == 0)))
    voice = hear("eye", answers, dataset.images, dataset.vocabulary.findings)
    pairs = lay_out(dataset.images, dataset.claims, judged(dataset), dataset.vocabulary)
    group = voice.of_groups(pairs, [BOTH])
    members = [pairs.column(name) for name in BOTH.members]
    whole = voice.answered[:, members].all(axis=1)
    assert np.array_equal(group.answered[:, 0], whole)
    most = voice.evidence[whole][:, members].max(axis=1)
    assert np.corrcoef(group.evidence[whole, 0], most)[0, 1] == pytest.approx(1)
    p = voice.p_present[whole][:, members]
    assert group.p_present[whole, 0] == pytest.approx(1 - (1 - p[:, 0]) * (1 - p[:, 1]))


def test_who_is_heeded_is_measured_and_the_record_too(dataset, seen, judged, panel):
    """One row a judge and finding; a judge without a signal is heeded nowhere."""
    pairs = lay_out(dataset.images, dataset.claims, judged(dataset), dataset.vocabulary)
    seated = panel(dataset, seen(dataset), seen(dataset, judge="blind"), heeded={"eye": ("Mass",), "blind": ()})
    (eye, blind), skill = seated.heed(pairs)
    assert eye.heeded.tolist() == [False, False, True]
    assert blind.heeded.tolist() == [False] * 3
    assert skill["judge"].unique(maintain_order=True).to_list() == ["record", "eye", "blind"]
    assert skill.height == 9
