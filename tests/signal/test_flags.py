"""Flags: shares without reviews, certificates with them, and what is hard rather than wrong."""

import numpy as np
import polars as pl
import pytest

import shape
from bpals.signal import flags
from bpals.signal.certificates import DOUBT, PRECISION, WIDER, Drawn, Target
from bpals.signal.flags import (
    CLEAR,
    LIKELY_SHARE,
    LOW_SHARE,
    LOW_TRUST,
    apply,
    rule_by_group,
    rule_by_review,
    rule_by_share,
)
from bpals.signal.trust import estimate
from bpals.testing import tiny_dataset
from bpals.types import FLAG, REVIEWS, Reviews
from world.words import mentions

pytestmark = pytest.mark.quick


def flagged(rule, trust, high=None, split=None):
    """The flags of claims, as words."""
    trust = np.asarray(trust, dtype=float)
    high = trust if high is None else np.asarray(high, dtype=float)
    return [flags.NAMES[flag] for flag in apply(rule, trust, high, None if split is None else np.asarray(split, float))]


def reviewed(trust, wrong, **more):
    """The rule that reviewed presences of a mass make."""
    return rule_by_review("Mass", "present", Drawn(trust=np.asarray(trust), wrong=np.asarray(wrong), **more))


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
    assert "no expert label was fitted" in rule.words


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
    rule = reviewed([0.2], [True])
    assert flagged(rule, [0.2, 0.49, 0.5, 0.51], [0.3, 0.6, 0.5, 0.6]) == ["suspect", "hard", "trusted", "trusted"]


def test_the_rule_says_what_its_flags_promise():
    """In words: the precision of one flag, and the errors left under the other."""
    rule = reviewed(np.linspace(0.01, 0.99, 400), np.arange(400) < 100)
    assert rule.certified
    assert mentions(rule.words, "trust 0.5", "80%", "10%", "90 of 90", "1.2%", "10%", "0 of 200")
    assert [each.promise for each in rule.certificates] == ["precision", "trusted", "trusted_above", "misses"]


def test_where_a_high_precision_cannot_be_shown_more_wrong_than_right_may_be():
    """Three in four are wrong: not four in five, but more than half; and none with a trust of one half is flagged."""
    rule = reviewed(np.linspace(0.01, 0.9, 200), np.arange(200) % 4 > 0)
    assert rule.certified
    assert mentions(rule.words, "trust 0.5", "nothing is certified", "80%", "110")
    assert mentions(rule.words, "certified precision 50%", "10%", "82 of 110")
    assert flagged(rule, [0.49, 0.5]) == ["likely_mislabelled", "trusted"]


def test_claims_that_nobody_read_are_listed_where_the_chances_are_known():
    """Else nobody knows whether they are like those that were read, and no list is promised."""
    trust, wrong, unread = np.linspace(0.01, 0.99, 400), np.arange(400) < 100, np.linspace(0, 1, 1000)
    known = Drawn(trust=trust, wrong=wrong, inclusion=np.full(400, 0.01))
    rule = rule_by_review("Mass", "present", known, unread)
    assert rule.certificates[0].cut == rule.likely_below
    assert rule.certificates[-1].promise == "discoveries"
    assert rule.certificates[-1].certified
    unknown = rule_by_review("Mass", "present", Drawn(trust=trust, wrong=wrong), unread)
    assert "discoveries" not in {each.promise for each in unknown.certificates}


def test_a_direction_that_nobody_read_has_one_refusal():
    """Only presences were read: one sentence says so of the absences."""
    (refused,) = reviewed(np.zeros(0), np.zeros(0, dtype=bool)).certificates
    assert mentions(refused.words, "nothing is certified", "80%", "0")


def test_nothing_is_promised_of_a_member_that_nobody_read_apart():
    """Nor is it said how many more reviews would do it: the group is what is read."""
    rule = rule_by_group("Mass", "present")
    assert not rule.certified
    assert not rule.certificates
    assert "part of a group" in rule.words
    assert flagged(rule, [0.1, 0.49, 0.5], [0.2, 0.6, 0.6]) == ["suspect", "hard", "trusted"]


@pytest.mark.parametrize(("left", "more"), [(0, None), (25, None), (26, 26), (1000, 26)])
def test_no_more_reviews_are_asked_for_than_claims_are_left(left, more):
    """19 right ones among the trusted; it takes 45, if there are so many."""
    drawn = Drawn(trust=np.linspace(0.6, 1, 19), wrong=np.zeros(19, dtype=bool))
    given = {each.promise: each for each in rule_by_review("Mass", "present", drawn, np.full(left, 0.9)).certificates}
    assert given["trusted_above"].more == more
    assert "and it takes 45 with none" in given["trusted_above"].words


def test_low_trust_over_which_readers_split_is_hard_and_not_mislabelled():
    """Between clear and low; where the trust is lower than that the evidence is against the claim all the same."""
    rule = reviewed(np.linspace(0.0, 0.45, 100), np.ones(100, dtype=bool))
    trust = [CLEAR - 0.01, CLEAR, 0.4, LOW_TRUST - 0.01, LOW_TRUST]
    assert flagged(rule, trust, split=np.ones(5)) == ["likely_mislabelled", "hard", "hard", "hard", "trusted"]
    assert flagged(rule, trust, split=np.zeros(5)) == ["likely_mislabelled"] * 3 + ["trusted"] * 2


def test_where_readers_would_not_split_a_wide_interval_is_not_hard():
    """What reads taught stands over the width; where nobody knows, the width decides."""
    rule = reviewed([0.2], [True])
    assert flagged(rule, [0.4] * 3, [0.6] * 3, [0.0, 1.0, np.nan]) == ["suspect", "hard", "hard"]


def test_a_certificate_rests_on_no_claim_that_is_hard():
    """Where readers split claims are right half the time: among the others all are wrong, and that is certified."""
    trust = np.tile(np.linspace(0.21, 0.45, 100), 2)
    split = np.repeat([0.0, 1.0], 100)
    wrong = (split == 0) | (np.arange(200) % 2 == 0)
    assert not reviewed(trust, wrong).certificates[0].certified
    assert reviewed(trust, wrong, split=split).certified


def test_without_reviews_low_trust_over_which_judges_split_is_hard():
    """Only within the lowest share: a high trust is not made hard by one judge that stands apart."""
    trust = np.linspace(0.01, 0.99, 1000)
    rule = rule_by_share("Mass", "present", trust)
    assert flagged(rule, [0.05, rule.low_below, 0.6], split=np.ones(3)) == ["hard", "hard", "trusted"]
    assert flagged(rule, [0.05, rule.low_below, 0.6], split=np.zeros(3)) == ["likely_mislabelled", "suspect", "trusted"]


def test_the_docs_give_the_shares_and_the_promise():
    """docs/signal.md has the numbers of this file."""
    page = (shape.ROOT / "docs" / "signal.md").read_text(encoding="utf-8")
    section = " ".join(page.split("## Flags")[1].split("\n## ")[0].split())
    likely = [f"{100 * LIKELY_SHARE[says]:g} %" for says in ("present", "absent")]
    lowest = [f"{100 * LOW_SHARE[says]:g} %" for says in ("present", "absent")]
    assert mentions(section, str(likely[0]), "presences", str(likely[1]), "absences")
    assert mentions(section, f"lowest {lowest[0]}", "presences", str(lowest[1]), "absences")
    first = Target(share=1 - PRECISION, doubt=DOUBT).first
    assert f"at least {PRECISION:.0%}".replace("%", " %") in section
    assert f"at most {DOUBT:.0%}".replace("%", " %") in section
    assert mentions(section, str(first), "lowest trust", f"{WIDER:g} times")


def test_without_reviews_no_claim_that_is_more_likely_right_is_called_mislabelled():
    """The lowest share is flagged only as far as the trust is below one half."""
    trust = np.linspace(0.9, 1.0, 1000)
    rule = flags.rule_by_share("Hernia", "absent", trust)
    given = flags.apply(rule, trust, trust)
    assert flags.LIKELY not in given
    assert flags.SUSPECT in given


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
