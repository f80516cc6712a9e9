"""Flags: shares without reviews, certificates with them, and what a certificate is worth."""

import math

import numpy as np
import pytest

import shape
from bpals.signal import flags
from bpals.signal.flags import (
    DOUBT,
    FIRST_FLAGS,
    LIKELY_SHARE,
    LOW_SHARE,
    PRECISION,
    apply,
    rule_by_review,
    rule_by_share,
)
from bpals.types import FLAG


def flagged(rule, trust, high=None):
    """The flags of claims, as words."""
    trust = np.asarray(trust, dtype=float)
    high = trust if high is None else np.asarray(high, dtype=float)
    return [flags.NAMES[flag] for flag in apply(rule, trust, high)]


def test_the_words_are_those_of_the_signal():
    """The same five, in the same order."""
    assert list(flags.NAMES) == FLAG.categories.to_list()


@pytest.mark.parametrize("says", ["present", "absent"])
def test_without_reviews_the_flags_are_shares(says):
    """The lowest share is likely mislabelled, the next is suspect where its interval ends below the cut."""
    trust = np.random.default_rng(0).permutation(np.linspace(0.01, 0.99, 10_000))
    rule = rule_by_share("Mass", says, trust)
    words = flagged(rule, trust)
    assert words.count("likely_mislabelled") == pytest.approx(10_000 * LIKELY_SHARE[says], abs=1)
    assert words.count("suspect") == pytest.approx(10_000 * (LOW_SHARE[says] - LIKELY_SHARE[says]), abs=1)
    assert words.count("trusted") == 10_000 - words.count("likely_mislabelled") - words.count("suspect")
    assert not rule.certified
    assert "no expert label was used" in rule.words


def test_a_low_trust_whose_interval_reaches_above_the_cut_is_hard():
    """The evidence is thin or split, so it is not clearly against the claim."""
    rule = rule_by_share("Mass", "present", np.linspace(0, 1, 100))
    low = rule.low_below
    assert flagged(rule, [low, low, 0.0, 0.9], [low, low + 0.2, 0.9, 0.9]) == [
        "suspect",
        "hard",
        "likely_mislabelled",
        "trusted",
    ]


def test_what_has_no_trust_is_unjudged():
    """Nobody answered, so nothing is said against it, or for it."""
    assert flagged(rule_by_share("Mass", "present", np.linspace(0, 1, 50)), [np.nan, 0.0]) == [
        "unjudged",
        "likely_mislabelled",
    ]


@pytest.mark.parametrize(
    ("count", "says"), [(0, "present"), (1, "present"), (9, "present"), (1, "absent"), (199, "absent")]
)
def test_a_share_of_less_than_one_claim_flags_nothing(count, says):
    """Of nine presences, a tenth is none."""
    trust = np.linspace(0.1, 0.2, count)
    rule = rule_by_share("Mass", says, trust)
    assert rule.likely_below is None
    assert "likely_mislabelled" not in flagged(rule, trust)


def test_a_judge_that_says_the_same_of_all_flags_none_of_them():
    """Where all claims tie, no share of them can be told from the rest."""
    for value in (0.0, 0.2, 1.0):
        trust = np.full(1000, value)
        assert set(flagged(rule_by_share("Mass", "present", trust), trust)) == {"trusted"}


def test_a_tie_at_the_cut_goes_one_way_together():
    """A small one is taken in; one that would double the share is left out."""
    small = np.sort(np.concatenate([np.linspace(0, 0.1, 95), np.full(10, 0.2), np.linspace(0.3, 1, 895)]))
    assert flagged(rule_by_share("Mass", "present", small), small).count("likely_mislabelled") == 105
    large = np.sort(np.concatenate([np.linspace(0, 0.1, 95), np.full(400, 0.2), np.linspace(0.3, 1, 505)]))
    words = flagged(rule_by_share("Mass", "present", large), large)
    assert words.count("likely_mislabelled") == 95


def test_with_reviews_one_half_divides():
    """A calibrated trust is a probability: below one half the claim is more likely wrong than right."""
    rule = rule_by_review("Mass", "present", np.array([0.2]), np.array([True]))
    assert flagged(rule, [0.2, 0.49, 0.5, 0.51], [0.3, 0.6, 0.5, 0.6]) == ["suspect", "hard", "trusted", "trusted"]


@pytest.mark.parametrize("reviews", [0, 1, FIRST_FLAGS - 1])
def test_too_few_reviews_certify_nothing_and_say_what_it_takes(reviews):
    """However wrong the reviewed claims are."""
    rule = rule_by_review("Mass", "present", np.linspace(0, 0.1, reviews), np.ones(reviews, dtype=bool))
    assert rule.likely_below is None
    assert not rule.certified
    assert rule.words == (
        f"nothing is certified at precision 80% by {reviews} reviewed patients: "
        "of the 40 with the lowest trust at least 36 must be errors"
    )


def test_the_words_keep_their_promise():
    """With 36 errors of 40 there is a certificate, with 35 there is none."""
    trust = np.linspace(0.01, 0.4, FIRST_FLAGS)
    for errors, certified in ((36, True), (35, False)):
        rule = rule_by_review("Mass", "present", trust, np.arange(FIRST_FLAGS) < errors)
        assert rule.certified is certified
    assert rule_by_review("Mass", "present", trust, np.arange(40) < 36).words == (
        "certified precision 80%, doubt 10%: 36 of 40 reviewed flags were errors"
    )


def test_a_certificate_reaches_as_far_as_the_errors_do():
    """Where all of the lowest 200 are errors and nothing after, the walk stops soon after them."""
    trust = np.linspace(0, 1, 1000)
    rule = rule_by_review("Mass", "present", trust, np.arange(1000) < 200)
    assert trust[130] < rule.likely_below < trust[250]
    assert flagged(rule, [rule.likely_below]) == ["likely_mislabelled"]


def test_thousands_of_reviews_can_be_certified():
    """The binomial coefficients of a large review do not overflow."""
    rule = rule_by_review("Mass", "present", np.linspace(0, 1, 20_000), np.ones(20_000, dtype=bool))
    assert rule.certified
    assert rule.likely_below > 0.5


def test_reviews_that_tie_are_tested_together():
    """Forty errors among four hundred claims with one trust are no forty of forty."""
    wrong = np.arange(400) < 40
    assert not rule_by_review("Mass", "present", np.full(400, 0.1), wrong).certified
    assert rule_by_review("Mass", "present", np.full(400, 0.1), np.arange(400) < 360).certified


def certified_share(rate, runs=600, reviews=300):
    """How often a certificate breaks its promise, where a claim of trust t is wrong with probability `rate(t)`."""
    draw = np.random.default_rng(11)
    broken = 0
    for _ in range(runs):
        trust = draw.random(reviews)
        rule = rule_by_review("Mass", "present", trust, draw.random(reviews) < rate(trust))
        if rule.certified:
            below = np.linspace(0, rule.likely_below, 200)
            broken += rate(below).mean() < PRECISION
    return broken / runs


@pytest.mark.parametrize("at", [0.5, 0.75, 0.799])
def test_a_judge_that_is_not_precise_enough_is_seldom_certified(at):
    """Learn-then-Test: where no threshold keeps the promise, a certificate is given in at most DOUBT of the runs."""
    assert certified_share(lambda trust: np.full(trust.shape, at)) <= DOUBT + 3 * math.sqrt(DOUBT * (1 - DOUBT) / 600)


def test_a_certified_precision_holds_as_often_as_promised():
    """Where strict thresholds keep it and loose ones do not, the walk goes too far in at most DOUBT of the runs."""
    share = certified_share(lambda trust: 0.97 - 0.6 * trust)
    assert share <= DOUBT + 3 * math.sqrt(DOUBT * (1 - DOUBT) / 600)


def test_a_precise_judge_is_certified():
    """The guarantee is not kept by never giving one."""
    draw = np.random.default_rng(5)
    given = [
        rule_by_review("Mass", "present", trust, draw.random(300) < 1 - trust**3).certified
        for trust in (draw.random(300) for _ in range(50))
    ]
    assert np.mean(given) > 0.9


@pytest.mark.parametrize(("n", "p", "k"), [(10, 0.2, 0), (40, 0.2, 4), (7, 0.5, 7), (300, 0.2, 60)])
def test_the_binomial_tail_is_the_sum_of_its_terms(n, p, k):
    """Against the textbook, where that does not overflow."""
    exact = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert flags._binomial_below(n, p, k) == pytest.approx(exact, rel=1e-9)


def test_the_docs_give_the_shares_and_the_promise():
    """docs/signal.md has the numbers of this file."""
    page = (shape.ROOT / "docs" / "signal.md").read_text(encoding="utf-8")
    section = " ".join(page.split("## Flags")[1].split("\n## ")[0].split())
    likely = [f"{100 * LIKELY_SHARE[says]:g} %" for says in ("present", "absent")]
    lowest = [f"{100 * LOW_SHARE[says]:g} %" for says in ("present", "absent")]
    assert f"the {likely[0]} of the finding's presences, and the {likely[1]} of its absences" in section
    assert f"among the lowest {lowest[0]} of the presences and {lowest[1]} of the absences" in section
    assert f"at least {PRECISION:.0%}".replace("%", " %") in section
    assert f"at most {DOUBT:.0%}".replace("%", " %") in section
    assert f"the {FIRST_FLAGS} reviewed claims with the lowest trust, then {flags.WIDER:g} times as many" in section


def test_without_reviews_no_claim_that_is_more_likely_right_is_called_mislabelled():
    """The lowest share is flagged only as far as the trust is below one half."""
    trust = np.linspace(0.9, 1.0, 1000)
    rule = flags.rule_by_share("Hernia", "absent", trust)
    given = flags.apply(rule, trust, trust)
    assert flags.LIKELY not in given
    assert flags.SUSPECT in given
