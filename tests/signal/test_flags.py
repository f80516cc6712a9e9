"""Flags: what a calibrated trust and its interval allow, certificates beside them, and nothing without experts."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from bpals.numeric import NORMAL_95, logit, sigmoid
from bpals.signal import flags
from bpals.signal.certificates import Drawn
from bpals.signal.experts import rule_by_review
from bpals.signal.flags import (
    CLEAR,
    LIKELY_BELOW,
    LOW_TRUST,
    OPEN,
    WIDEST,
    WRONG_AMONG_TRUSTED,
    apply,
    rule_by_calibration,
    rule_without_experts,
)
from bpals.signal.layout import Estimate
from bpals.testing import tiny_dataset
from bpals.types import FLAG, REVIEWS, Reviews
from world.estimating import estimate
from world.words import mentions

pytestmark = pytest.mark.quick


def flagged(rule, trust, low=None, high=None, split=None):
    """The flags of labels, as words; the interval is the trust itself where none is given."""
    trust = np.asarray(trust, dtype=float)
    ends = tuple(trust if end is None else np.asarray(end, dtype=float) for end in (low, high))
    return [flags.NAMES[flag] for flag in apply(rule, trust, ends, None if split is None else np.asarray(split, float))]


def reviewed(trust, wrong, **more):
    """The rule that reviewed presences of a mass make."""
    return rule_by_review("Mass", "present", Drawn(trust=np.asarray(trust), wrong=np.asarray(wrong), **more))


def test_the_words_are_those_of_the_signal():
    """The same, in the same order; then those that people give."""
    assert [*flags.NAMES, "confirmed", "rejected"] == FLAG.categories.to_list()


# Without experts: ranked, and nothing else.


@pytest.mark.parametrize("says", ["present", "absent"])
def test_without_experts_nothing_is_claimed(says):
    """Whatever the trust: unverified, hard where judges split, unjudged where nobody answered."""
    rule = rule_without_experts("Mass", says)
    assert rule.basis == "none"
    trust = np.linspace(0, 1, 101)
    assert set(flagged(rule, trust)) == {"unverified"}
    assert flagged(rule, [0.0, 0.5, 1.0], split=[1, 0, np.nan]) == ["hard", "unverified", "unverified"]
    assert flagged(rule, [np.nan, 0.1], split=[1, 0]) == ["unjudged", "unverified"]
    assert (rule.trusted_from, rule.certified_from, rule.likely_below, rule.certified_below) == (None,) * 4
    assert not rule.stated


# With a calibrated trust: levels of it, and of its interval.


@pytest.mark.parametrize("says", ["present", "absent"])
def test_trusted_is_a_level_of_the_trust_and_of_its_interval(says):
    """Just at both levels, just below one, and just below the other."""
    rule, wrong = rule_by_calibration("Mass", says), WRONG_AMONG_TRUSTED[says]
    enough, widest, little = 1 - wrong, 1 - WIDEST * wrong, 1e-6
    assert rule.trusted_from == enough
    assert flagged(
        rule, [enough, enough, enough - little, 1.0], [widest, widest - little, enough - little, widest - little]
    ) == ["trusted", "unverified", "unverified", "unverified"]


def test_likely_mislabelled_is_a_level_and_the_rest_below_one_half_is_suspect_or_hard():
    """The interval of a likely mislabelled one is below one half; where nobody knows who splits, its width decides."""
    rule = rule_by_calibration("Mass", "present")
    trust = [LIKELY_BELOW, LIKELY_BELOW, LIKELY_BELOW + 1e-6, 0.49, 0.49, 0.5]
    high = [0.5, 0.51, 0.4, OPEN, OPEN + 0.01, 0.9]
    assert flagged(rule, trust, trust, high) == [
        "likely_mislabelled",
        "suspect",
        "suspect",
        "suspect",
        "hard",
        "unverified",
    ]
    assert flagged(rule, [0.4] * 3, [0.2] * 3, [0.8] * 3, [0.0, 1.0, np.nan]) == ["suspect", "hard", "hard"]


def test_labels_over_which_readers_split_are_hard():
    """Between clear and low; where the trust is lower than that the evidence is against the label all the same."""
    rule = rule_by_calibration("Mass", "present")
    trust = [CLEAR - 0.01, CLEAR, 0.4, LOW_TRUST - 0.01, LOW_TRUST]
    assert flagged(rule, trust, split=np.ones(5)) == ["likely_mislabelled", "hard", "hard", "hard", "trusted"]
    assert flagged(rule, trust, split=np.zeros(5)) == [
        "likely_mislabelled",
        "likely_mislabelled",
        "suspect",
        "unverified",
        "trusted",
    ]


@pytest.fixture
def flags_of(matrices):
    """Flag one finding's labels, all of one direction, by their logits of being right and a deviation."""

    def flags_of(z, spread=0.3, *, says="present", calibrated=True):
        p = sigmoid(np.asarray(z, dtype=float))[:, None]
        p = p if says == "present" else 1 - p
        pairs = matrices(np.full(p.shape, float(says == "present")), p, spread, findings=["Mass"])
        whole = Estimate(
            pairs=pairs,
            record=pairs,
            judges=(),
            moved=np.zeros(p.shape, dtype=bool),
            p_present=p,
            spread=pairs.spread,
            fitted=np.full(p.shape, calibrated),
            reviewed=np.zeros(p.shape, dtype=bool),
            notes={"Mass": "calibrated: made up"} if calibrated else {},
        )
        done = flags.flag(whole)
        words = np.array(flags.NAMES)[done.flag[:, 0]]
        return done, {name: int((words == name).sum()) for name in flags.NAMES}

    return flags_of


@pytest.mark.parametrize("says", ["present", "absent"])
def test_no_flag_is_a_fixed_share(flags_of, says):
    """Shift the logits of a finding: the counts of its flags move, from none trusted to all, and so does the other."""
    z = np.random.default_rng(0).normal(0.5, 1.5, 4000)
    counts = [flags_of(z + shift, says=says)[1] for shift in (-8, -2, -1, 0, 1, 2, 8)]
    trusted, likely = ([each[name] for each in counts] for name in ("trusted", "likely_mislabelled"))
    assert trusted == sorted(set(trusted))
    assert likely == sorted(set(likely), reverse=True)
    assert (trusted[0], likely[-1]) == (0, 0)
    assert trusted[-1] > 3900
    assert likely[0] > 3900
    assert set(flags_of(z, says=says, calibrated=False)[1]) == set(flags.NAMES)
    assert flags_of(z, says=says, calibrated=False)[1]["unverified"] == 4000


@pytest.mark.parametrize("says", ["present", "absent"])
def test_the_stated_shares_are_those_of_the_trusts(flags_of, says):
    """Of every flag: how many, one less their mean trust, and the mean of their intervals' ends around it."""
    z = np.random.default_rng(1).normal(0.5, 2.0, 3000)
    done, counts = flags_of(z, says=says)
    (rule,) = [rule for rule in done.rules if rule["says"] == says]
    assert rule["basis"] == "calibrated"
    assert {name: one["labels"] for name, one in rule["stated"].items()} == {k: v for k, v in counts.items() if v}
    for name, one in rule["stated"].items():
        its = done.flag[:, 0] == flags.NAMES.index(name)
        assert one["wrong"] == pytest.approx(1 - done.trust[its].mean(), abs=1e-4)
        ends = [1 - sigmoid(logit(sigmoid(z[its])) + side * NORMAL_95 * 0.3).mean() for side in (1, -1)]
        assert [one["low"], one["high"]] == pytest.approx(ends, abs=2e-4)
        assert one["low"] < one["wrong"] < one["high"]
    assert rule["stated"]["trusted"]["wrong"] < WRONG_AMONG_TRUSTED[says]
    assert rule["stated"]["likely_mislabelled"]["wrong"] > 1 - LIKELY_BELOW
    unsure = flags_of(z, 1.5, says=says)[1]
    assert unsure["trusted"] < counts["trusted"]


# With reads here: certificates widen both flags, and promise what they can.


def test_certificates_widen_what_the_trust_allows():
    """From the certified trust on a label is trusted whatever its interval, and up to the other likely mislabelled."""
    plain = rule_by_calibration("Mass", "present")
    rule = dataclasses.replace(plain, basis="certified", certified_from=0.6, certified_below=0.4)
    trust, low, high = [0.4, 0.41, 0.59, 0.6, 0.9], [0.02] * 5, [0.98] * 5
    assert flagged(plain, trust, low, high) == ["hard", "hard", "unverified", "unverified", "unverified"]
    assert flagged(rule, trust, low, high) == ["likely_mislabelled", "hard", "unverified", "trusted", "trusted"]
    assert flagged(rule, [0.4, 0.6], split=np.ones(2)) == ["hard", "hard"]


def test_an_interval_that_says_nothing_leaves_a_label_unverified():
    """Of findings and images that nobody read: neither trusted, nor suspect, nor hard; a certificate still counts."""
    plain = rule_by_calibration("Mass", "present")
    certified = dataclasses.replace(plain, basis="certified", certified_from=0.9, certified_below=0.01)
    trust = np.array([0.001, 0.01, 0.4, 0.9, 0.999])
    flags_by_spread = {}
    for spread in (0.5, 2.1):
        low, high = (sigmoid(logit(trust) + side * NORMAL_95 * spread) for side in (-1, 1))
        flags_by_spread[spread] = flagged(plain, trust, low, high)
    assert set(flags_by_spread[2.1]) == {"unverified"}
    assert flags_by_spread[0.5] == ["likely_mislabelled", "likely_mislabelled", "suspect", "trusted", "trusted"]
    assert flagged(certified, trust, low, high)[1:] == ["likely_mislabelled", "unverified", "trusted", "trusted"]


def test_the_rule_says_what_its_flags_promise():
    """In words: the precision of one flag, and the errors left under the other; and it has their cuts."""
    rule = reviewed(np.linspace(0.01, 0.99, 400), np.arange(400) < 100)
    assert rule.basis == "certified"
    assert [each.promise for each in rule.certificates] == ["precision", "trusted", "trusted_above", "misses"]
    likely, _, trusted, _ = rule.certificates
    assert (rule.certified_below, rule.certified_from) == (likely.cut, trusted.cut)
    assert likely.certified
    assert trusted.certified
    assert rule.certified_below > LIKELY_BELOW
    assert mentions(rule.words, rule_by_calibration("Mass", "present").words, likely.words, trusted.words)
    assert flagged(rule, [rule.certified_below], [0.0], [1.0]) == ["likely_mislabelled"]


def test_few_reads_certify_nothing_and_leave_the_calibrated_flags():
    """Of five labels nothing is promised: the trust decides as without them."""
    rule = reviewed([0.1, 0.2, 0.6, 0.7, 0.9], [True, True, False, False, False])
    assert (rule.basis, rule.certified_from, rule.certified_below) == ("calibrated", None, None)
    trust = np.linspace(0, 1, 101)
    assert flagged(rule, trust) == flagged(rule_by_calibration("Mass", "present"), trust)


def test_claims_that_nobody_read_are_listed_where_the_chances_are_known():
    """Else nobody knows whether they are like those that were read, and no list is promised."""
    trust, wrong, unread = np.linspace(0.01, 0.99, 400), np.arange(400) < 100, np.linspace(0, 1, 1000)
    known = Drawn(trust=trust, wrong=wrong, inclusion=np.full(400, 0.01))
    rule = rule_by_review("Mass", "present", known, unread)
    assert rule.certificates[0].cut == rule.certified_below
    assert rule.certificates[-1].promise == "discoveries"
    assert rule.certificates[-1].certified
    unknown = rule_by_review("Mass", "present", Drawn(trust=trust, wrong=wrong), unread)
    assert "discoveries" not in {each.promise for each in unknown.certificates}


def test_a_direction_that_nobody_read_has_one_refusal():
    """Only presences were read: one sentence says so of the absences."""
    (refused,) = reviewed(np.zeros(0), np.zeros(0, dtype=bool)).certificates
    assert mentions(refused.words, "nothing is certified", "80%", "0")


@pytest.mark.parametrize(("left", "more"), [(0, None), (25, None), (26, 26), (1000, 26)])
def test_no_more_reviews_are_asked_for_than_claims_are_left(left, more):
    """19 right absences among the trusted; it takes 45, if there are so many."""
    drawn = Drawn(trust=np.linspace(0.6, 1, 19), wrong=np.zeros(19, dtype=bool))
    given = {each.promise: each for each in rule_by_review("Mass", "absent", drawn, np.full(left, 0.9)).certificates}
    assert given["trusted_above"].more == more
    assert "and it takes 45 with none" in given["trusted_above"].words


def test_a_certificate_rests_on_no_claim_that_is_hard():
    """Where readers split claims are right half the time: among the others all are wrong, and that is certified."""
    trust = np.tile(np.linspace(0.21, 0.45, 100), 2)
    split = np.repeat([0.0, 1.0], 100)
    wrong = (split == 0) | (np.arange(200) % 2 == 0)
    assert not reviewed(trust, wrong).certificates[0].certified
    assert reviewed(trust, wrong, split=split).basis == "certified"


def test_reviews_with_known_chances_are_promised_to_all_that_could_have_been_drawn(judged):
    """From a table of reads through the signal to the certificate; and a list is promised too."""
    dataset = tiny_dataset(patients=80, seed=4)
    films = dataset.images["image_id"].sample(120, seed=1, shuffle=True)
    there = np.random.default_rng(2).random(120) < 0.4
    reads = pl.DataFrame({"image_id": films, "finding": "Effusion", "reader": "ann", "inclusion": 0.25})
    words = pl.Series(["absent", "present"]).gather(there.astype(np.int64))
    table = reads.with_columns(verdict=words).select(REVIEWS.names()).cast(REVIEWS)
    made = estimate(dataset, judged(dataset), reviews=Reviews(table=table))
    promises = [each for rule in made.rules if rule["finding"] == "Effusion" for each in rule["certificates"]]
    whole = {each["population"] for each in promises if each["promise"] == "misses"}
    assert [mentions(words, "at least 0.25") for words in whole] == [True]
    assert "discoveries" in {each["promise"] for each in promises}
