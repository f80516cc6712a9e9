"""Learn-then-Test: what is certified, what is refused, and how often a certificate breaks its promise."""

import math

import numpy as np
import pytest

from bpals.signal.drawn import Drawn
from bpals.signal.precision import (
    DOUBT,
    ERROR_SHARE,
    PRECISION,
    Target,
    bound_errors,
    certify_precision,
    certify_trusted,
)
from world.words import mentions

MISLABELLED = Target(share=1 - PRECISION, doubt=DOUBT)
SOUND = Target(share=ERROR_SHARE, doubt=DOUBT)
FIRST = MISLABELLED.first


def precise(trust, wrong, **more):
    """A certificate of precision."""
    return certify_precision(Drawn(trust=np.asarray(trust, float), wrong=np.asarray(wrong, bool), **more))


def test_the_strictest_set_is_one_that_can_pass():
    """Forty flags of which four are false show a precision of 80 %; a fifth would not do."""
    assert (MISLABELLED.first, MISLABELLED.allowed(40)) == (40, 4)
    assert (SOUND.first, SOUND.allowed(160)) == (160, 4)
    assert MISLABELLED.shown(40, 4)
    assert not MISLABELLED.shown(40, 5)


def test_zero_bad_claims_take_as_many_reviews_as_the_powers_say():
    """(1 - share)^n <= doubt: 11 for a fifth, 45 for a twentieth, 230 for a hundredth."""
    for share, n in ((0.2, 11), (0.05, 45), (0.01, 230)):
        target = Target(share=share, doubt=0.1)
        assert target.shown(n, 0)
        assert not target.shown(n - 1, 0)
        assert (target.allowed(n), target.allowed(n - 1)) == (0, -1)


@pytest.mark.parametrize(
    ("reviews", "more", "words"),
    [
        (0, FIRST, "0 reviewed patients: of the 40 with the lowest trust at least 36 must be errors"),
        (1, 10, "1 reviewed patient: of the 11 with the lowest trust at least 11 must be errors"),
        (10, 1, "10 reviewed patients: of the 11 with the lowest trust at least 11 must be errors"),
    ],
)
def test_too_few_reviews_certify_nothing_and_say_what_it_takes(reviews, more, words):
    """However wrong the reviewed claims are."""
    refused = precise(np.linspace(0, 0.1, reviews), np.ones(reviews))
    assert not refused.certified
    assert refused.more == more
    assert mentions(refused.words, "nothing is certified", "80%", words)


@pytest.mark.parametrize(("reviews", "errors"), [(11, 11), (15, 15), (20, 19), (39, 35)])
def test_fewer_reviews_than_the_first_set_takes_are_one_set(reviews, errors):
    """All of them are certified where the test shows it, and with one error less none is."""
    trust = np.linspace(0, 0.1, reviews)
    given, refused = (precise(trust, np.arange(reviews) < count) for count in (errors, errors - 1))
    assert (given.cut, given.reviewed, given.wrong, given.more) == (trust[-1], reviews, errors, 0)
    assert not refused.certified
    if reviews > errors or reviews > 11:
        assert mentions(refused.words, f"at least {errors}", f"{errors - 1}")


def test_the_words_keep_their_promise():
    """With 36 errors of 40 there is a certificate, with 35 there is none."""
    trust = np.linspace(0.01, 0.4, FIRST)
    for errors, certified in ((36, True), (35, False)):
        assert precise(trust, np.arange(FIRST) < errors).certified is certified
    given = precise(trust, np.arange(40) < 36)
    assert (given.cut, given.reviewed, given.wrong, given.more) == (trust[-1], 40, 36, 0)
    assert mentions(given.words, "certified precision 80%", "10%", "36 of 40")


def test_a_refusal_says_how_many_more_reviews_it_takes_at_what_was_seen():
    """35 of 40 is 87.5 %: enough reviews of that kind would do, and half of them being wrong never would."""
    refused = precise(np.linspace(0, 0.4, 40), np.arange(40) < 35)
    assert 1 < refused.more < 100
    many = 40 + refused.more
    assert MISLABELLED.shown(many, math.ceil(many * 5 / 40))
    assert precise(np.linspace(0, 0.4, 40), np.arange(40) < 20).more is None


def test_a_certificate_reaches_as_far_as_the_errors_do():
    """Where all of the lowest 200 are errors and nothing after, the walk stops soon after them."""
    trust = np.linspace(0, 1, 1000)
    assert trust[130] < precise(trust, np.arange(1000) < 200).cut < trust[250]


def test_thousands_of_reviews_can_be_certified():
    """The binomial coefficients of a large review do not overflow."""
    assert precise(np.linspace(0, 1, 20_000), np.ones(20_000)).cut > 0.5


def test_reviews_that_tie_are_tested_together():
    """Forty errors among four hundred claims with one trust are no forty of forty."""
    assert not precise(np.full(400, 0.1), np.arange(400) < 40).certified
    assert precise(np.full(400, 0.1), np.arange(400) < 360).certified


def test_films_of_a_patient_count_once():
    """Four hundred wrong claims of ten patients are ten."""
    refused = precise(np.linspace(0, 0.4, 400), np.ones(400), patient=np.arange(400) % 10)
    assert not refused.certified
    assert refused.more == 1


def test_trusted_claims_are_certified_from_a_trust_on():
    """No error among the 300 most trusted, all below wrong: from about there on at most 5 % are."""
    trust = np.linspace(0.5, 1, 600)
    given = certify_trusted(Drawn(trust=trust, wrong=np.arange(600) < 300))
    assert given.promise == "trusted_above"
    assert 0.72 < given.cut < 0.84
    assert given.words.startswith("certified error share 5%")


@pytest.mark.parametrize(("reviews", "certified"), [(44, False), (45, True), (160, True)])
def test_few_trusted_claims_without_an_error_are_one_set(reviews, certified):
    """45 right ones are enough, 44 are not."""
    given = certify_trusted(Drawn(trust=np.linspace(0.6, 1, reviews), wrong=np.zeros(reviews, bool)))
    assert given.certified is certified
    assert given.more == max(0, 45 - reviews)
    assert (given.cut == 0.6) is certified


def test_what_is_left_wrong_under_a_fixed_cut_is_bounded():
    """Two of a hundred may be 5.2 % at the most, with a doubt of 10 %: the bound of Clopper and Pearson."""
    given = bound_errors(Drawn(trust=np.linspace(0.5, 1, 100), wrong=np.arange(100) < 2), 0.5)
    assert given.level == pytest.approx(0.0523, abs=5e-4)
    assert mentions(given.words, "at most 5.3%", "10%", "2 of 100")


@pytest.mark.parametrize("wrong", [[], [True, True]])
def test_nothing_right_bounds_nothing(wrong):
    """Without a review, or with errors alone, every claim may be wrong."""
    refused = bound_errors(Drawn(trust=np.full(len(wrong), 0.9), wrong=np.array(wrong, dtype=bool)), 0.5)
    assert not refused.certified
    assert refused.level == 1


def broken(rate, *, runs=600, reviews=300, keen=None, known=True):
    """How often a certificate breaks its promise, where a claim of trust t is wrong with probability `rate(t)`."""
    draw = np.random.default_rng(11)
    count = 0
    for _ in range(runs):
        trust = draw.random(reviews)
        inclusion = None
        if keen is not None:
            chance = keen(trust)
            kept = draw.random(len(trust)) < chance
            trust, inclusion = trust[kept], chance[kept] if known else None
        given = precise(trust, draw.random(len(trust)) < rate(trust), inclusion=inclusion)
        if given.certified:
            count += rate(np.linspace(0, given.cut, 200)).mean() < PRECISION
    return count / runs


BAND = DOUBT + 3 * math.sqrt(DOUBT * (1 - DOUBT) / 600)


@pytest.mark.parametrize("at", [0.5, 0.75, 0.799])
def test_a_judge_that_is_not_precise_enough_is_seldom_certified(at):
    """Where no set keeps the promise, a certificate is given in at most DOUBT of the runs."""
    assert broken(lambda trust: np.full(trust.shape, at)) <= BAND


def test_a_certified_precision_holds_as_often_as_promised():
    """Where strict sets keep it and loose ones do not, the walk goes too far in at most DOUBT of the runs."""
    assert broken(lambda trust: 0.97 - 0.6 * trust) <= BAND


def test_reviews_that_were_chosen_certify_no_more_than_they_show():
    """Drawn where errors are, they look better than they are: thinned by their chances they keep the promise."""

    def rate(trust):
        return np.where((trust * 40).astype(int) % 2 == 0, 0.95, 0.6)

    def keen(trust):
        return np.where((trust * 40).astype(int) % 2 == 0, 0.9, 0.2)

    assert broken(rate, keen=keen, reviews=600) <= BAND
    assert broken(rate, keen=keen, reviews=600, known=False, runs=50) > 0.3


def test_a_precise_judge_is_certified():
    """The guarantee is not kept by never giving one."""
    draw = np.random.default_rng(5)
    trusts = [draw.random(300) for _ in range(50)]
    assert np.mean([precise(trust, draw.random(300) < 1 - trust**3).certified for trust in trusts]) > 0.9


def test_the_loosest_set_is_all_that_was_reviewed():
    """Sixty right claims of thirty patients, and sixty more alone: they are tested although a patient counts once."""
    trust = np.linspace(0.5, 1, 120)
    patient = np.concatenate([np.arange(60) // 2, 100 + np.arange(60)])
    given = certify_trusted(Drawn(trust=trust, wrong=np.zeros(120, bool), patient=patient))
    assert (given.cut, given.reviewed) == (0.5, 90)
