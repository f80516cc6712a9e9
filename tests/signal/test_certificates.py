"""Tests of signal.certificates."""

import dataclasses
import math

import numpy as np
import pytest

from bpals.signal.certificates import (
    DOUBT,
    ERROR_SHARE,
    FALSE_SHARE,
    PRECISION,
    Certificate,
    Drawn,
    Read,
    Target,
    bound_errors,
    certify_precision,
    certify_trusted,
    control_discoveries,
    control_misses,
    p_values,
)

# A certificate says what is promised, or what it would take.

GIVEN = Certificate(
    promise="precision",
    level=0.8,
    doubt=0.1,
    cut=0.3,
    reviewed=40,
    wrong=36,
    more=0,
    population="claims on films like those that were read, one a patient",
    words="certified",
)


def test_what_has_a_cut_is_certified():
    """Without one nothing is promised."""
    assert GIVEN.certified
    assert not dataclasses.replace(GIVEN, cut=None, more=12).certified
    assert dataclasses.replace(GIVEN, cut=0.0).certified


def test_it_can_be_written_down():
    """As a record of plain values, for run.json."""
    assert dataclasses.asdict(GIVEN)["promise"] == "precision"
    assert all(isinstance(value, str | int | float) for value in dataclasses.asdict(GIVEN).values())


# How reviewed claims were drawn: one a patient, and each with the same chance.


def drawn(count=1000, **more):
    """Claims with a trust each."""
    return Drawn(trust=np.linspace(0, 1, count), wrong=np.zeros(count, dtype=bool), **more)


def test_one_claim_a_patient_is_kept():
    """Which one is drawn by lot, the same on every run."""
    some = drawn(patient=np.arange(1000) % 100)
    kept = some.take(some.fair(some.every))
    assert len(kept) == len(np.unique(kept.patient)) == some.patients == 100
    assert np.array_equal(some.fair(some.every), some.fair(some.every))
    assert kept.trust.mean() == pytest.approx(0.5, abs=0.1)


def test_without_patients_every_claim_stands_for_itself():
    """Nobody is taken for somebody else."""
    assert drawn().fair(drawn().every).all()
    assert drawn().patients == 1000


def test_claims_that_were_drawn_more_often_are_kept_less_often():
    """Half were drawn with chance .8, half with .2: a quarter of the first half stays, and all of the second."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    fair = some.fair(some.every)
    assert fair[500:].all()
    assert fair[:500].mean() == pytest.approx(0.25, abs=0.06)


def test_within_a_patient_a_likely_claim_is_no_more_likely_to_stand_for_it():
    """Each of 500 patients has a claim drawn with chance .8 and one with .2: after thinning the second leads 4 to 1."""
    some = drawn(inclusion=np.where(np.arange(1000) % 2 == 0, 0.8, 0.2), patient=np.arange(1000) // 2)
    fair = some.fair(some.every)
    assert fair.sum() == 500
    # Of a patient's two, the first stays with chance 1/4, and is then chosen in half the cases.
    assert fair[::2].mean() == pytest.approx(1 / 8, abs=0.04)


def test_only_the_claims_in_question_set_the_chance():
    """Among the first half all were drawn alike, so none of them is lost, unless a smaller chance is named."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    first = np.arange(1000) < 500
    assert np.array_equal(some.fair(first), first)
    assert some.fair(first, 0.2)[:500].mean() == pytest.approx(0.25, abs=0.06)
    assert not some.fair(np.zeros(1000, dtype=bool)).any()


def test_where_nobody_knows_the_chances_all_are_kept():
    """They stand for claims like themselves, and the population says so."""
    some = drawn()
    assert some.population(some.every) == "claims on films like those that were read, one a patient"


def test_the_population_is_who_could_have_been_drawn():
    """The smallest chance in question is named."""
    some = drawn(inclusion=np.where(np.arange(1000) < 500, 0.8, 0.2))
    assert "a chance of at least 0.2 to be read" in some.population(some.every)
    assert "a chance of at least 0.8 to be read" in some.population(np.arange(1000) < 500)
    assert some.population(np.zeros(1000, dtype=bool)).startswith("none")


def test_reads_of_a_finding_become_reviewed_claims_of_one_direction():
    """Films that claim something else are left out, and each keeps its patient, chance and split."""
    read = Read(
        films=np.array([1, 3, 4]),
        wrong=np.array([True, False, True]),
        patient=np.array([7, 8, 9]),
        inclusion=np.array([0.1, 0.2, 0.3]),
    )
    films, some = read.among(np.array([1, 1, 1, 0, 1], dtype=bool), np.arange(5) / 10, np.array([0, 1, 0, 0, np.nan]))
    assert films.tolist() == [1, 4]
    assert (some.trust.tolist(), some.wrong.tolist()) == ([0.1, 0.4], [True, True])
    assert (some.patient.tolist(), some.inclusion.tolist()) == ([7, 9], [0.1, 0.3])
    assert some.split[0] == 1
    assert np.isnan(some.split[1])


# Miss control: how far one must read, and how many errors must be known to say so.


def control(trust, wrong, missed=0.1, **more):
    """A certificate of misses."""
    return control_misses(Drawn(trust=np.asarray(trust, float), wrong=np.asarray(wrong, bool), **more), missed=missed)


@pytest.mark.parametrize(("errors", "certified"), [(8, False), (9, True)])
def test_it_takes_one_over_the_level_minus_one_errors(errors, certified):
    """For a tenth of the errors to be missed nine must be known: then one reads up to the last of them."""
    given = control(np.linspace(0.1, 0.9, errors), np.ones(errors))
    assert given.certified is certified
    assert given.cut == (pytest.approx(0.9) if certified else None)


def test_with_many_errors_a_tenth_may_be_left_out():
    """Of 99 errors (9 + 1) / 100 is a tenth: nine are left out, not ten."""
    assert control(np.arange(99) / 100, np.ones(99)).cut == pytest.approx(0.89)
    assert control(np.arange(98) / 100, np.ones(98)).cut == pytest.approx(0.89)


def test_errors_that_tie_with_the_cut_are_read():
    """So a tie never counts as left out."""
    assert control(np.full(50, 0.3), np.ones(50)).cut == pytest.approx(0.3)


def test_a_refusal_says_how_many_errors_and_reviews_it_takes():
    """Four errors in a hundred reviews: five more, which at that rate is about 112 reviews."""
    refused = control(np.linspace(0, 1, 100), np.arange(100) < 4)
    assert refused.more == 113
    assert refused.words == (
        "misses of 10% take 9 reviewed errors, and there are 4: about 113 more reviews at the share of errors seen"
    )


def test_without_a_review_it_is_refused():
    """And the words still say what it takes."""
    refused = control([], [])
    assert not refused.certified
    assert "take 9 reviewed errors, and there are 0" in refused.words


def test_errors_of_a_patient_count_once():
    """Twelve errors of three patients are three."""
    refused = control(np.linspace(0, 1, 12), np.ones(12), patient=np.arange(12) % 3)
    assert (refused.certified, refused.wrong) == (False, 3)


def test_targeted_errors_count_by_their_chance():
    """Ten errors drawn ten times as often as the least are worth one; with the least among them they are two."""
    trust = np.linspace(0.1, 0.5, 10)
    assert control(trust, np.ones(10), inclusion=np.full(10, 0.5)).certified
    likely = control(np.append(trust, 0.9), np.ones(11), inclusion=np.append(np.full(10, 0.5), 0.05))
    assert not likely.certified


def test_the_share_left_out_is_at_most_the_level_on_average():
    """Targeted at low trust, where errors are, the reviews miss what lies above; the weights make up for it."""
    draw = np.random.default_rng(3)
    even, chosen, careless = [], [], []
    for _ in range(600):
        trust = draw.beta(2, 3, size=2000)
        inclusion = np.where(trust < 0.4, 0.1, 0.02)
        read = draw.random(2000) < inclusion
        given = control(trust[read], np.ones(read.sum()), inclusion=inclusion[read])
        chosen.append((trust > given.cut).mean())
        careless.append((trust > control(trust[read], np.ones(read.sum())).cut).mean())
        plain = draw.random(2000) < 0.02
        even.append((trust > control(trust[plain], np.ones(plain.sum())).cut).mean())
    assert np.mean(even) <= 0.1 + 3 * np.std(even) / np.sqrt(600)
    assert np.mean(chosen) <= 0.1 + 3 * np.std(chosen) / np.sqrt(600)
    assert np.mean(careless) > 0.15


# Conformal selection: p-values worked out by hand, and a list whose share of false discoveries is held.


def drawn_of_selection(trust, wrong, **more):
    """Reviewed claims."""
    return Drawn(trust=np.asarray(trust, float), wrong=np.asarray(wrong, bool), **more)


def test_a_p_value_counts_the_right_claims_that_are_no_more_trusted():
    """Of four reviewed claims those at .3 and .6 are right: (1 + 0) / 5, (1 + 1) / 5, (1 + 2) / 5; ties count."""
    some = drawn_of_selection([0.1, 0.3, 0.5, 0.6], [True, False, True, False])
    assert p_values(some, np.array([0.2, 0.3, 0.4, 0.7])) == pytest.approx([0.2, 0.4, 0.4, 0.6])


def test_the_list_is_that_of_benjamini_and_hochberg():
    """Nine wrong reviewed claims below one right one: candidates below it have p = .1, others .2."""
    some = drawn_of_selection(np.linspace(0.1, 0.9, 9), np.arange(9) < 8)
    given = control_discoveries(some, np.array([0.2, 0.3, 0.95, 0.97]))
    assert given.cut == pytest.approx(0.97)
    assert given.words == "4 claims are listed, of which on average at most 20% are right after all"
    stricter = control_discoveries(some, np.array([0.2, 0.3, 0.95, 0.97]), false_share=0.1)
    assert stricter.cut is None


def test_a_refusal_says_how_many_more_reviews_it_takes():
    """Ten of a thousand candidates lie below every right claim: p = 1 / (n + 1) must come down to .2 x 10 / 1000."""
    some = drawn_of_selection(np.linspace(0, 1, 50), np.arange(50) < 5)
    candidates = np.append(np.full(10, 0.01), np.full(990, 0.9))
    refused = control_discoveries(some, candidates)
    assert refused.more == 500 - 1 - 50
    assert "it takes about 449 more" in refused.words
    assert control_discoveries(drawn_of_selection(np.linspace(0, 1, 50), np.zeros(50)), candidates + 0.1).more is None


@pytest.mark.parametrize("candidates", [[], [0.1]])
def test_without_reviews_nothing_is_listed(candidates):
    """One over one is no small p-value."""
    assert not control_discoveries(drawn_of_selection([], []), np.array(candidates)).certified


def test_the_share_of_false_discoveries_is_held_on_average():
    """Reviews that were aimed at low trust count by their chance; taken as they come they would list too much."""
    draw = np.random.default_rng(4)
    thinned, careless = [], []
    for _ in range(500):
        trust = draw.random(3000)
        odd = (trust * 20).astype(int) % 2 == 0
        wrong = draw.random(3000) < np.where(odd, (1 - trust) ** 0.5, (1 - trust) ** 4)
        inclusion = np.where(odd, 0.4, 0.05)
        read = draw.random(3000) < inclusion
        for shares, chances in ((thinned, inclusion[read]), (careless, None)):
            given = control_discoveries(drawn_of_selection(trust[read], wrong[read], inclusion=chances), trust[~read])
            listed = np.zeros(3000, bool) if given.cut is None else ~read & (trust <= given.cut)
            shares.append((~wrong[listed]).mean() if listed.any() else 0.0)
    assert np.mean(thinned) <= FALSE_SHARE + 3 * np.std(thinned) / np.sqrt(500)
    assert np.mean(careless) > FALSE_SHARE + 0.05


# Learn-then-Test: what is certified, what is refused, and how often a certificate breaks its promise.

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
    assert refused.words == f"nothing is certified at precision 80% by {words}"


@pytest.mark.parametrize(("reviews", "errors"), [(11, 11), (15, 15), (20, 19), (39, 35)])
def test_fewer_reviews_than_the_first_set_takes_are_one_set(reviews, errors):
    """All of them are certified where the test shows it, and with one error less none is."""
    trust = np.linspace(0, 0.1, reviews)
    given, refused = (precise(trust, np.arange(reviews) < count) for count in (errors, errors - 1))
    assert (given.cut, given.reviewed, given.wrong, given.more) == (trust[-1], reviews, errors, 0)
    assert not refused.certified
    if reviews > errors or reviews > 11:
        assert refused.words.endswith(f"at least {errors} must be errors, and {errors - 1} are")


def test_the_words_keep_their_promise():
    """With 36 errors of 40 there is a certificate, with 35 there is none."""
    trust = np.linspace(0.01, 0.4, FIRST)
    for errors, certified in ((36, True), (35, False)):
        assert precise(trust, np.arange(FIRST) < errors).certified is certified
    given = precise(trust, np.arange(40) < 36)
    assert (given.cut, given.reviewed, given.wrong, given.more) == (trust[-1], 40, 36, 0)
    assert given.words == "certified precision 80%, doubt 10%: 36 of 40 reviewed flags were errors"


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
    assert given.words.startswith("certified error share 5% from trust 0.")


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
    assert given.words == "at most 5.3% of trusted claims are wrong, doubt 10%: 2 of 100 reviewed ones were"


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
