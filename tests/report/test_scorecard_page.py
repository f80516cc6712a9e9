"""The scorecard's page."""

import re

import pytest

from bpals.report.scorecard_page import boards, reliabilities, render_scorecard

pytestmark = pytest.mark.quick


def test_rows_are_sorted_into_boards_and_contests(small):
    """One board a reference and split; over all claims apart from within presences and absences."""
    rows = small.scores() + [row | {"split": "val"} for row in small.scores(("Effusion",))]
    made = boards(rows)
    assert [(b["reference"], b["split"], len(b["contests"]), len(b["within"])) for b in made] == [
        ("four-findings", "test", 2, 4),
        ("four-findings", "val", 1, 2),
    ]


def test_bpals_comes_first_in_tables_and_last_in_drawings(small):
    """The table starts with it, the drawing puts it on top."""
    contest = boards(small.scores())[0]["contests"][0]
    assert [row["method"] for row in contest["rows"]] == ["bpals", "cleanlab", "prevalence", "random", "oracle"]
    assert contest["found"][-1].name == "bpals"
    assert contest["ours"]["method"] == "bpals"


def test_a_method_that_nobody_knows_is_still_shown(small):
    """A later release may add one."""
    rows = [row | {"method": "novel"} for row in small.scores(("Effusion",)) if row["method"] == "random"]
    html = render_scorecard([*small.scores(("Effusion",)), *rows], [], {})
    assert "novel" in html


def test_the_page_holds_every_figure_with_its_interval(small):
    """The row of bpals over all claims, as text."""
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", render_scorecard(small.scores(), small.reliability, {})))
    assert "1,962 pairs" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "0.80 0.70\N{EN DASH}0.90" in text


def test_figures_that_do_not_exist_are_dashes(small):
    """A finding without errors has no error AP, and the page still stands."""
    blank = {key: None for key in small.scores()[0] if key.startswith(("error_", "found_", "ece", "brier"))}
    html = render_scorecard([row | blank | {"errors": 0} for row in small.scores()], [], {})
    assert "\N{EM DASH}" in html
    assert 'class="chart whisker"' not in html


def test_reliability_bins_that_hold_nothing_are_left_out(small):
    """An empty bin has no rate to draw."""
    curve = small.reliability[0]
    hollow = {"p_mean": 0.5, "rate": float("nan"), "n": 0, "low": float("nan"), "high": float("nan")}
    (drawn,) = reliabilities([curve | {"bins": [*curve["bins"], hollow]}], small.scores())
    assert len(drawn["series"][1].points) == 3
    assert drawn["n"] == 300
    assert drawn["ours"]["ece"] == 0.03


@pytest.mark.parametrize("rows", [[], ()])
def test_a_scorecard_of_nothing_says_so(rows):
    """No rows, no plots, one sentence."""
    html = render_scorecard(rows, [], {})
    assert "There is nothing to score" in html
    assert "<svg" not in html


def test_boxes_and_readers_have_tables_of_their_own():
    """They have no error columns, so they are not put into the board."""
    box = {"finding": "Mass", "n_boxed": 9, "n_other": 90, "trust_boxed_median": 0.75, "trust_other_median": 0.5}
    box |= {"boxed_auroc": 0.66, "boxed_auroc_low": 0.6, "boxed_auroc_high": 0.7}
    reader = {"finding": "Mass", "reader": "R1", "n": 50, "flags": 5, "precision": 0.39, "recall": None}
    reader |= {"signal_precision": 0.61, "signal_recall": 0.62}
    html = render_scorecard([], [], {}, boxes=[box], readers=[reader])
    assert "0.66 (0.60\N{EN DASH}0.70)" in html
    assert "reader R1" in html
    assert "There is nothing to score" not in html


def test_meta_is_shown_as_provenance(small):
    """Notes as a list, the source as the title, the rest as rows."""
    meta = {"bpals": "0.1.0", "source": {"title": "NIH <b>"}, "split": "test", "notes": ["2 pairs were left out"]}
    html = render_scorecard(small.scores(), [], meta)
    assert "NIH &lt;b&gt;" in html
    assert "<li>2 pairs" in html
    assert "Written by bpals 0.1.0" in html


def test_agreement_is_shown_as_in_the_terminal():
    """Readers together, then each beside the others; the same words in the same columns."""
    together = ("How far readers agree with one another", ["finding", "pairs", "alpha"], [["Mass", "50", ".41"]])
    html = render_scorecard([], [], {}, agreement=[together])
    assert "readers agree" in html
    assert re.search(r"<th[^>]*>Mass</th>.*?>50</td>.*?>.41</td>", re.sub(r"\s+", " ", html))
    assert "There is nothing to score" not in html
