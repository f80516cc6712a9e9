"""A judge that knows nothing: seeded, fast, and as biased and as unreliable as it is told to be."""

import math
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.findings import NIH
from bpals.judges.runner.messages import to_judgments
from bpals.judges.stub import StubJudge, ToldToFail, make
from bpals.metrics import Curve
from bpals.sources import nih
from bpals.testing import check_image_judge, tiny_film
from bpals.types import OUTCOME, Film, ImageJudge, answers_schema

pytestmark = pytest.mark.quick

MIX = {"abstained": 0.05, "refused": 0.1, "unparsed": 0.02, "unsupported": 0.03, "failed": 0.04}


def film_called(name):
    """A film with a name for its hash."""
    return Film(sha256=name, png=tiny_film().png, width_px=64, height_px=64)


def test_it_keeps_the_contract():
    """As any judge must."""
    assert isinstance(StubJudge(), ImageJudge)
    assert check_image_judge(StubJudge(seed=3, bias=1.5), again=StubJudge(seed=3, bias=1.5), any_finding=True) == ()


def test_asked_film_by_film_and_in_bulk_it_says_the_same():
    """The table is what a run over the films would seal."""
    judge = StubJudge(seed=5, bias=0.7, shares={"abstained": 0.2, "refused": 0.2})
    names = [f"{number:064}" for number in range(20)]
    questions = judge.questions(NIH)
    judged = [each for name in names for each in to_judgments(questions, judge.ask(film_called(name), questions))]
    table = judge.scores(names, NIH)
    assert table.schema == answers_schema(NIH)
    assert table["finding"].to_list() == [each.subject for each in judged]
    assert table["outcome"].to_list() == [each.outcome for each in judged]
    assert {"answered", "abstained", "refused"} == set(table["outcome"])
    for column in ("p_present", "logit_present", "logit_absent"):
        given = np.array([getattr(each, column) for each in judged], dtype=float)
        np.testing.assert_allclose(table[column].cast(pl.Float64).to_numpy(), given, atol=2e-6)


def test_a_film_that_fails_fails_whole():
    """In bulk all its rows are `failed`; asked, the judge raises as a broken one would."""
    judge = StubJudge(shares={"failed": 0.5})
    names = [f"{number:064}" for number in range(40)]
    table = judge.scores(names, NIH)
    failed = table.group_by("image_id", maintain_order=True).agg((pl.col("outcome") == "failed").mean())["outcome"]
    assert set(failed) == {0.0, 1.0}
    for name, lost in zip(names, failed, strict=True):
        if lost:
            with pytest.raises(ToldToFail, match="told to"):
                judge.ask(film_called(name), judge.questions(NIH))
        else:
            judge.ask(film_called(name), judge.questions(NIH))


def test_the_outcomes_are_mixed_as_told():
    """All six, in their shares, and a number exactly where it answered."""
    table = StubJudge(shares=MIX).scores(map(str, range(20_000)), NIH)
    share = table["outcome"].cast(pl.String).value_counts(normalize=True)
    found = dict(share.iter_rows())
    assert set(found) == set(OUTCOME.categories)
    for word, expected in MIX.items():
        assert found[word] == pytest.approx(expected, abs=0.005), word
    answered = table["outcome"] == "answered"
    for column in ("p_present", "logit_present", "logit_absent"):
        assert (table[column].is_not_null() == answered).all()
    assert (table["why"].is_null() == answered).all()


def test_the_bias_is_what_is_left_without_a_film():
    """The no-image control finds it; the evidence, half the difference of the polarities, is free of it."""
    biased, fair = StubJudge(bias=1.25), StubJudge()
    assert {reply.logit for reply in biased.ask(None, biased.questions(NIH))} == {1.25}
    one, other = (judge.scores(["a", "b"], NIH) for judge in (biased, fair))
    assert one["p_present"].equals(other["p_present"])
    assert ((one["logit_present"] + one["logit_absent"]) / 2).to_list() == pytest.approx([1.25] * 28)


def test_the_answer_depends_on_seed_film_and_finding_alone():
    """Not on the company it is asked in, the process, or the order."""
    whole = StubJudge(seed=1).scores(["a", "b", "c"], NIH)
    alone = StubJudge(seed=1).scores(["c"], NIH)
    assert whole.filter(pl.col("image_id") == "c").equals(alone)
    assert not alone.equals(StubJudge(seed=2).scores(["c"], NIH))
    assert alone["p_present"].n_unique() == 14
    script = (
        "from bpals.judges.stub import StubJudge; from bpals.findings import NIH; "
        "print(StubJudge(seed=1).scores(['c'], NIH)['logit_present'].to_list())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(alone["logit_present"].to_list())


def test_the_answers_are_these():
    """Written down, so that a change of the hash is seen: a stub of last year must answer as today."""
    table = StubJudge().scores(["00000001_000.png"], NIH)
    assert table["logit_present"].to_list()[:2] == [-1.216445, 1.419206]


def test_it_knows_nothing_of_the_whole_of_nih():
    """1,569,680 answers, evenly spread and independent of the labels: AUROC .5 but for chance, on every finding."""
    dataset = nih.load()
    table = StubJudge(seed=7).scores(dataset.images["image_id"], dataset.vocabulary)
    assert table.height == dataset.claims.height
    assert np.histogram(table["p_present"], bins=10, range=(0, 1))[0] == pytest.approx(156_968, rel=0.02)
    said = table.with_columns(says=dataset.claims["says"])
    assert table.select("image_id", "finding").equals(dataset.claims.select("image_id", "finding"))
    for finding in NIH.findings:
        those = said.filter(pl.col("finding") == finding)
        present = those["says"] == "present"
        chance = math.sqrt(1 / 12 / int(present.sum()))
        assert Curve.of(those["p_present"], present).auroc()[0] == pytest.approx(0.5, abs=4 * chance), finding


@pytest.mark.parametrize(
    ("target", "judge"),
    [
        ("", StubJudge()),
        ("7", StubJudge(seed=7)),
        ("seed=7,bias=1.5", StubJudge(seed=7, bias=1.5)),
        ("7, refused=.1, failed=.2", StubJudge(seed=7, shares={"refused": 0.1, "failed": 0.2})),
    ],
)
def test_a_spec_says_how_it_is(target, judge):
    """`stub:7`, `stub:seed=7,refused=.1`."""
    assert make(target) == judge


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x", "'x' is no number"),
        ("answered=.5", "'answered' is no outcome without an answer"),
        ("perhaps=.5", "'perhaps' is no outcome"),
        ("refused=2", "are no shares"),
        ("refused=.6,failed=.6", "are no shares"),
        ("refused=nan", "are no shares"),
        ("seed=.5", "no whole number"),
    ],
)
def test_a_wrong_spec_is_one_line(target, words):
    """With what may stand there."""
    with pytest.raises(UsageError, match=words):
        make(target)


def test_a_stub_has_no_revision():
    """It has a seed."""
    with pytest.raises(UsageError, match="a stub has no revision"):
        make("7", "abc")


def test_settings_are_who_it_is_and_the_name_is_not():
    """Another seed, bias or mix is another judge."""
    same = StubJudge().card.fingerprint
    assert StubJudge(name="other").card.fingerprint == same
    others = [StubJudge(seed=1), StubJudge(bias=1), StubJudge(shares={"refused": 0.1})]
    assert len({same, *(other.card.fingerprint for other in others)}) == 4
