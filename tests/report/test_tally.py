"""The tally."""

import statistics

import polars as pl
import pytest

from bpals.report.tallies import BINS, Side, reasons, tally
from bpals.report.wording import FLAGS
from world.words import mentions

pytestmark = pytest.mark.quick


def test_the_tally_counts_what_a_plain_loop_counts(dataset, signal):
    """Claims, flags and medians are those of the rows."""
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    for finding in counted.findings:
        rows = [r for r in signal.iter_rows(named=True) if r["finding"] == finding.finding and r["says"] == "present"]
        assert finding.present.claims == len(rows)
        assert finding.present.flags == {flag: sum(r["flag"] == flag for r in rows) for flag in FLAGS}
        if rows:
            assert finding.present.median == statistics.median(r["trust"] for r in rows)
            assert finding.present.low <= finding.present.median <= finding.present.high


def test_the_whole_is_the_sum_of_its_findings(dataset, signal):
    """No claim is lost between the table and the headline."""
    counted = tally(signal, dataset.vocabulary.findings, len(dataset.images))
    assert counted.claims == len(signal)
    assert sum(counted.flags.values()) == len(signal)
    assert counted.present.claims == sum(f.present.claims for f in counted.findings)


def test_every_judged_claim_stands_in_one_bar(dataset, signal):
    """Trusts of exactly 0 and 1 belong to the first and the last bar."""
    ends = signal.head(2).with_columns(trust=pl.Series([0.0, 1.0]))
    counted = tally(ends, dataset.vocabulary.findings, 1)
    bars = [sum(bar) for bar in zip(*(s.bins for s in (counted.present, counted.absent)), strict=True)]
    assert bars == [1] + [0] * (BINS - 2) + [1]


def test_silence_and_uncertainty_are_counted_apart(patientless_page):
    """A silent film is no claim; an uncertain claim has a P(present) and no trust."""
    dataset = patientless_page.dataset
    counted = tally(patientless_page.signal, dataset.vocabulary.findings, len(dataset.images))
    _, nodule, thickening = counted.findings
    assert thickening.silent == len(dataset.images) // 2
    assert counted.silent == thickening.silent
    assert nodule.uncertain.claims == len(dataset.images) // 2
    assert nodule.uncertain.median is None
    assert 0 < nodule.uncertain.p_median < 1
    assert sum(nodule.uncertain.bins) == 0


def test_a_finding_without_claims_has_an_empty_side(dataset, signal):
    """Nothing is claimed present, nothing has a median."""
    side = tally(signal.head(0), dataset.vocabulary.findings, 0).findings[0].present
    assert side == Side()
    assert side.share_of(0, BINS) is None


def test_the_least_trusted_finding_comes_first_and_the_unclaimed_last(dataset, signal):
    """Nodule is never claimed present here."""
    ranked = tally(signal, dataset.vocabulary.findings, len(dataset.images)).by_trust
    medians = [f.present.median for f in ranked]
    assert medians[-1] is None
    assert medians[:-1] == sorted(medians[:-1])


def test_reasons_are_counted_over_flagged_claims_only(signal):
    """A reason of a trusted claim does not speak against anything."""
    doubted = signal.filter(pl.col("says") == "absent", pl.col("flag").is_in(["likely_mislabelled", "suspect"]))
    told = {reason.code: reason for reason in reasons(signal, "absent")}
    assert told["timeline_against"].claims == len(doubted)
    assert mentions(told["timeline_against"].sentence, "absent", "before and after")
    assert told["alone"].claims == doubted.select(pl.col("reasons").list.len() == 2).sum().item()


def test_the_most_frequent_reason_comes_first(signal):
    """The reader sees the main one at once."""
    claims = [reason.claims for reason in reasons(signal, "absent")]
    assert claims == sorted(claims, reverse=True)


def test_a_reason_without_a_sentence_is_shown_as_it_is(signal):
    """A word without a colon is still a reason."""
    bare = signal.with_columns(reasons=pl.lit(["odd"]))
    assert [(r.code, r.sentence) for r in reasons(bare, "absent")] == [("odd", "odd")]
