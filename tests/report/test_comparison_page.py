"""The page of a comparison as text; test_browser.py looks at it in a browser."""

import base64
import html.parser
import re

import pytest

from bpals.report import comparison_page
from bpals.report.comparison_page import OUTCOMES, Span, render_comparison
from world.words import mentions

VOID = {"meta", "link", "br", "img", "rect", "circle", "line", "path"}
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"


class Skeleton(html.parser.HTMLParser):
    """Reads a page and keeps its open elements, its ids, its links, its pictures and its text."""

    def __init__(self, page):
        """Read the whole page at once."""
        super().__init__()
        self.open, self.ids, self.targets, self.pictures, self.words = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Note what is opened."""
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.targets += [found["href"]] if tag == "a" else []
        self.pictures += [found] if tag == "img" else []

    def handle_startendtag(self, tag, attrs):
        """An element that closes itself leaves nothing open."""

    def handle_endtag(self, tag):
        """What is closed must be what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Keep what a reader reads."""
        if self.open and self.open[-1] not in {"style", "title", "desc"}:
            self.words.append(data)

    @property
    def text(self):
        """The words of the page, with plain blanks."""
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def page(comparison):
    """The page, read."""
    return Skeleton(render_comparison(comparison))


@pytest.mark.parametrize("name", ["comparison", "hostile_comparison"])
def test_the_page_is_whole_and_its_links_lead_somewhere(name, request):
    """Every element is closed, every section that is linked is there, once."""
    page = Skeleton(render_comparison(request.getfixturevalue(name)))
    assert page.open == []
    assert page.ids == ["quality", "dependence", "films", "behaviour", "judges", "origin"]
    assert [target.removeprefix("#") for target in page.targets] == page.ids


def test_the_page_asks_nobody_for_anything(comparison):
    """S03: one file with a policy that forbids all else; pictures are in it."""
    page = render_comparison(comparison)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert not re.search(r"<script|<iframe|<object|@import|url\(|\son\w+=[\"']", page)
    assert {source[:22] for source in re.findall(r'(?:src|href)="(?!#)([^"]*)"', page)} == {
        "data:,",
        "data:image/png;base64,",
    }


def test_texts_of_judges_films_and_files_cannot_break_out(hostile_comparison):
    """S03: names, reasons, image ids, patients, findings, notes and the command are text, never markup or template."""
    page = render_comparison(hostile_comparison)
    assert "<script>" not in page
    assert "onerror=alert(2)>" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 50
    assert "{{ 7*7 }}" in page
    assert "the file is truncated&#34;&#39;&gt;&lt;script&gt;" in page


def test_films_are_in_the_page_or_it_says_why_not(comparison, page):
    """A PNG as it is, the reason for a film that cannot be read, and a placeholder for one that is not at hand."""
    sources = [picture["src"].removeprefix("data:image/png;base64,") for picture in page.pictures]
    shown = [film["picture"] for film in comparison["films"] if isinstance(film["picture"], bytes)]
    assert [base64.b64decode(source) for source in sources] == [shown[0], *shown]
    assert all(picture["alt"] for picture in page.pictures)
    assert "the file is truncated" in page.text
    assert page.text.count("image not at hand") == 1
    for film in comparison["films"]:
        assert film["image_id"] in page.text


def test_without_any_film_the_page_says_how_to_name_them(comparison):
    """Placeholders, and no picture at the head."""
    bare = {**comparison, "films": [{**film, "picture": None} for film in comparison["films"]]}
    page = Skeleton(render_comparison(bare))
    assert page.pictures == []
    assert "name them with --images" in page.text


def written(value, digits=3, sign=""):
    """A number as the page writes it."""
    return f"{value:{sign}.{digits}f}".replace("-", MINUS)


def test_every_figure_of_quality_is_on_the_page(comparison, page):
    """Each figure of either judge, each difference, and both ends of each interval."""
    for row in comparison["quality"]:
        for figure in ("auroc", "ap", "brier", "ece"):
            for letter in "ab":
                value, low, high = (row[f"{figure}_{letter}{end}"] for end in ("", "_low", "_high"))
                assert f"{written(value)} {written(low)}{DASH}{written(high)}" in page.text
        for name in ("auroc_difference", "ap_difference", "auroc_difference_filled"):
            if name in row:
                value, low, high = (written(row[f"{name}{end}"], sign="+") for end in ("", "_low", "_high"))
                assert f"{value} {low} to {high}" in page.text
        for name in ("n", "positives", "left_out"):
            assert name not in row or f"{row[name]:,}" in page.text


def test_every_figure_of_dependence_and_behaviour_is_on_the_page(comparison, page):
    """Agreement, kappa, error correlation and what the two are worth; how each answers, finding by finding."""
    names = {"dependence": ("agreement", "kappa", "error_correlation"),
             "behaviour": ("yes_rate", "coherent", "acquiescence", "depends", "reliance")}  # fmt: skip
    for table, figures in names.items():
        for row in comparison[table]:
            for figure in figures:
                if row[figure] is not None:
                    low, high = row[f"{figure}_low"], row[f"{figure}_high"]
                    between = " to " if low < 0 else DASH
                    assert f"{written(row[figure])} {written(low)}{between}{written(high)}" in page.text
    for row in comparison["dependence"]:
        assert row["effective_judges"] is not None or row["no_signal"] == ["b"]
        assert "no signal: B" in page.text if row["no_signal"] else written(row["effective_judges"], 2) in page.text


def test_outcomes_cost_drift_and_cards_are_on_the_page(comparison, page):
    """All six outcomes with their counts; tokens, seconds and drift; model, licence and training."""
    for judge in comparison["judges"]:
        for outcome in OUTCOMES:
            assert f"{outcome} {judge[outcome]:,}" in page.text
    for words in ("3,700", "600,000", "1,006", "2.0", "0.012 nat on average over 20 answers, 0.055 at most",
                  "Sharp-1", "c0ffee", "CC-BY-NC-4.0", "trained on these labels", "drawn from a hash"):  # fmt: skip
        assert words in page.text
    assert "no signal: B" in page.text


def test_gaps_and_patients_are_on_the_page(comparison, page):
    """Finding by finding, and the patients who add most."""
    for finding, gap in comparison["gaps"].items():
        assert f"{finding} {gap:.3f}" in page.text
    for row in comparison["patients"]:
        assert f"{row['patient']} {row['films']} {row['pairs']} {row['mean_gap']:.3f} {row['beyond']:.1f}" in page.text


def test_the_headline_is_against_experts_and_says_who_is_ahead(comparison, page):
    """The mean over findings, with its interval; the labels are called what they are."""
    mean = next(row for row in comparison["quality"] if (row["against"], row["finding"]) == ("table", "mean"))
    assert mentions(page.text, "experts (table)", "3 findings", f"{mean['auroc_a']:.3f}")
    assert "A is ahead by +0." in page.text
    assert "being audited" in page.text
    assert comparison["meta"]["command"] in page.text


def changed(comparison, **figures):
    """The comparison against the labels alone, with some figures of quality changed."""
    quality = [row | figures for row in comparison["quality"] if row["against"] == "labels"]
    together = [row for row in comparison["dependence"] if row["against"] == "labels"]
    return {**comparison, "quality": quality, "dependence": together}


def test_the_headline_without_experts_asks_for_them(comparison):
    """Agreement with the labels is not quality."""
    text = Skeleton(render_comparison(changed(comparison))).text
    assert mentions(text, "dataset's own labels", "3 findings")
    assert mentions(text, "expert labels", "--reference")


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.2, -0.1, "B is ahead by"), (-0.1, 0.1, "These images cannot tell them apart")]
)
def test_the_headline_says_nothing_that_chance_could_say(comparison, low, high, verdict):
    """An interval that holds 0 names no winner; one below 0 names B."""
    figures = {"auroc_difference": (low + high) / 2, "auroc_difference_low": low, "auroc_difference_high": high}
    assert verdict in Skeleton(render_comparison(changed(comparison, **figures))).text


def test_with_too_little_to_score_the_page_says_so(comparison):
    """No figure, no chart of one, and no crash."""
    names = [name for name in comparison["quality"][0] if name.startswith(("auroc", "ap", "brier", "ece", "p_"))]
    bare = changed(comparison, **dict.fromkeys(names))
    empty = ("agreement", "kappa", "error_correlation", "effective_judges")
    bare["dependence"] = [row | dict.fromkeys(empty) for row in bare["dependence"]]
    text = Skeleton(render_comparison({**bare, "films": [], "gaps": {}, "patients": []})).text
    assert mentions(text, "Too few of the pairs")
    few = "Too few patients with it, or without it, that both answered for: "
    assert few + "Cardiomegaly, Effusion" in text
    assert "no pair that both answered" in text


# Its charts.

ROW = {
    "auroc_a": 0.9, "auroc_a_low": 0.85, "auroc_a_high": 0.95, "auroc_b": 0.7, "auroc_b_low": 0.6, "auroc_b_high": 0.8,
    "auroc_difference": 0.2, "auroc_difference_low": 0.1, "auroc_difference_high": 0.3,
}  # fmt: skip
HALF = Span(low=0.5, high=1.0, ticks=(0.5, 0.75, 1.0))
COUNTS = {"answered": 80, "abstained": 5, "refused": 10, "unparsed": 5, "unsupported": 0, "failed": 0}
COMPARED = {
    "two": comparison_page.two(ROW, HALF, figure="auroc", title="AUROC"),
    "difference": comparison_page.difference(ROW, Span.of_differences([0.3]), figure="auroc", title="A less B"),
    "share": comparison_page.share(0.6, 0.5, 0.7, title="Error correlation"),
    "ranks": comparison_page.ranks({"rank_a": 0.99, "rank_b": 0.2}),
    "outcome_bar": comparison_page.outcome_bar(COUNTS, what="a judge"),
    "axis": HALF.axis(("B ahead", "A ahead")),
}


@pytest.mark.parametrize("name", COMPARED)
def test_every_chart_is_an_image_with_a_title_and_without_colours_of_its_own(name):
    """Nobody is left out who cannot see it; light, dark and print each paint it."""
    assert re.search(r'<svg role="img"[^>]*><title>[^<]+</title>', COMPARED[name])
    assert not re.search(r'(fill|stroke)="|#[0-9a-f]{3}', COMPARED[name])


def dots(chart):
    """Where the dots of a chart stand, by tone."""
    return {tone: float(x) for x, tone in re.findall(r'cx="([\d.]+)%"[^>]*class="(?:mark )?([\w-]+)"', chart)}


def test_both_judges_stand_at_their_figures():
    """On a scale from .5 to 1, .9 is at 80 % and .7 at 40 %."""
    assert dots(COMPARED["two"]) == {"side-a": 80, "side-b": 40}
    assert mentions(COMPARED["two"], "A 0.900", "0.850", "0.950", "B 0.700", "0.600", "0.800")


@pytest.mark.parametrize(
    ("low", "high", "tone"), [(0.1, 0.3, "side-a"), (-0.3, -0.1, "side-b"), (-0.1, 0.3, "side-none")]
)
def test_a_difference_has_the_colour_of_the_one_that_is_ahead(low, high, tone):
    """Nobody's where the interval holds 0."""
    row = {"auroc_difference": (low + high) / 2, "auroc_difference_low": low, "auroc_difference_high": high}
    chart = comparison_page.difference(row, Span.of_differences([low, high]), figure="auroc", title="A less B")
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
    widths = dict(re.findall(r'width="([\d.]+)%" height="22" class="out-(\w+)"', COMPARED["outcome_bar"]))
    assert {tone: width for width, tone in widths.items()} == {"answered": "80", "refused": "10", "unparsed": "5"}
    assert "out-" not in comparison_page.outcome_bar(dict.fromkeys(COUNTS, 0), what="nobody")


def test_two_equal_ranks_can_both_be_read():
    """A stands above the line and B below it; a dot at the edge stays inside."""
    chart = comparison_page.ranks({"rank_a": 1.0, "rank_b": 1.0})
    assert dots(chart) == {"side-a": 98, "side-b": 98}
    assert re.findall(r'y="(\d+)"[^>]*>([AB])<', chart) == [("10", "A"), ("38", "B")]
