"""The words of each page that bpals writes, in tests/snapshots."""

import pytest

from bpals.report.comparison_page import render_comparison
from bpals.report.page import render
from bpals.report.scorecard_page import render_scorecard
from world.snapshots import assert_snapshot, page_text

pytestmark = pytest.mark.quick


def test_the_report(page, ranked_page, calibrated_page, patientless_page):
    """By an expert calibration, without experts, with expert labels, and of a dataset that names no patients."""
    assert_snapshot(page_text(render(page)), "page-report")
    assert_snapshot(page_text(render(ranked_page)), "page-report-ranked")
    assert_snapshot(page_text(render(calibrated_page)), "page-report-calibrated")
    assert_snapshot(page_text(render(patientless_page)), "page-report-patientless")


def test_the_scorecard(small):
    """Rows and notes."""
    notes = {"source": "NIH", "notices": ["2 pairs were left out"], "bpals": "0.1.0"}
    assert_snapshot(page_text(render_scorecard(small.scores(), [], notes)), "page-scorecard")


def test_the_comparison(comparison):
    """Two judges beside each other."""
    assert_snapshot(page_text(render_comparison(comparison)), "page-comparison")
