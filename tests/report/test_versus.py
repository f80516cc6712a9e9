"""Charts of two judges."""

import re

import pytest

from bpals.report import charts
from bpals.report.charts import Span
from world.words import mentions

ROW = {
    "auroc_a": 0.9, "auroc_a_low": 0.85, "auroc_a_high": 0.95, "auroc_b": 0.7, "auroc_b_low": 0.6, "auroc_b_high": 0.8,
    "auroc_difference": 0.2, "auroc_difference_low": 0.1, "auroc_difference_high": 0.3,
}  # fmt: skip
HALF = Span(low=0.5, high=1.0, ticks=(0.5, 0.75, 1.0))
COUNTS = {"answered": 80, "abstained": 5, "refused": 10, "unparsed": 5, "unsupported": 0, "failed": 0}
ALL = {
    "two": charts.two(ROW, HALF, figure="auroc", title="AUROC"),
    "difference": charts.difference(ROW, Span.of_differences([0.3]), figure="auroc", title="A less B"),
    "share": charts.share(0.6, 0.5, 0.7, title="Error correlation"),
    "ranks": charts.ranks({"rank_a": 0.99, "rank_b": 0.2}),
    "outcome_bar": charts.outcome_bar(COUNTS, what="a judge"),
    "axis": HALF.axis(("B ahead", "A ahead")),
}


@pytest.mark.parametrize("name", ALL)
def test_every_chart_is_an_image_with_a_title_and_without_colours_of_its_own(name):
    """Nobody is left out who cannot see it; light, dark and print each paint it."""
    assert re.search(r'<svg role="img"[^>]*><title>[^<]+</title>', ALL[name])
    assert not re.search(r'(fill|stroke)="|#[0-9a-f]{3}', ALL[name])


def dots(chart):
    """Where the dots of a chart stand, by tone."""
    return {tone: float(x) for x, tone in re.findall(r'cx="([\d.]+)%"[^>]*class="(?:mark )?([\w-]+)"', chart)}


def test_both_judges_stand_at_their_figures():
    """On a scale from .5 to 1, .9 is at 80 % and .7 at 40 %."""
    assert dots(ALL["two"]) == {"side-a": 80, "side-b": 40}
    assert mentions(ALL["two"], "A 0.900", "0.850", "0.950", "B 0.700", "0.600", "0.800")


@pytest.mark.parametrize(
    ("low", "high", "tone"), [(0.1, 0.3, "side-a"), (-0.3, -0.1, "side-b"), (-0.1, 0.3, "side-none")]
)
def test_a_difference_has_the_colour_of_the_one_that_is_ahead(low, high, tone):
    """Nobody's where the interval holds 0."""
    row = {"auroc_difference": (low + high) / 2, "auroc_difference_low": low, "auroc_difference_high": high}
    chart = charts.difference(row, Span.of_differences([low, high]), figure="auroc", title="A less B")
    assert list(dots(chart)) == [tone]


def test_a_scale_holds_all_that_is_drawn_on_it():
    """From a tenth below the lowest, round, with zero in the middle of differences."""
    assert (Span.of_aurocs([0.72, 0.9]).low, Span.of_aurocs([0.38]).low, Span.of_aurocs([]).low) == (0.5, 0.3, 0.5)
    span = Span.of_differences([-0.03, 0.012])
    assert (span.low, span.high, span.place(0)) == (-0.05, 0.05, 0.5)
    assert (span.place(9), span.place(-9)) == (1, 0)
    assert Span.of_differences([]).high == 0.01


def test_the_outcome_bar_shows_each_outcome_at_its_share():
    """80 of 100 are 80 % of the width, and what did not happen is not drawn; nothing asked is an empty bar."""
    widths = dict(re.findall(r'width="([\d.]+)%" height="22" class="out-(\w+)"', ALL["outcome_bar"]))
    assert {tone: width for width, tone in widths.items()} == {"answered": "80", "refused": "10", "unparsed": "5"}
    assert "out-" not in charts.outcome_bar(dict.fromkeys(COUNTS, 0), what="nobody")


def test_two_equal_ranks_can_both_be_read():
    """A stands above the line and B below it; a dot at the edge stays inside."""
    chart = charts.ranks({"rank_a": 1.0, "rank_b": 1.0})
    assert dots(chart) == {"side-a": 98, "side-b": 98}
    assert re.findall(r'y="(\d+)"[^>]*>([AB])<', chart) == [("10", "A"), ("38", "B")]
