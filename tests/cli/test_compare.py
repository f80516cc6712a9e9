"""`bpals judge compare` and `bpals judge card` as they are typed."""

import json
import math

import polars as pl
import pytest

from bpals.cli.main import obey
from world import datasets, made_judges
from world.made_judges import EXPERTS
from world.words import mentions


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Four table judges of the made-up films, and a stub with all six outcomes."""
    folder = made_judges.make_workspace(tmp_path_factory.mktemp("judged") / "mine")
    made_judges.seal_stub(
        folder,
        tally={
            "films": 600,
            "attempts": 9,
            "tokens": dict.fromkeys(("prompt", "cached", "output"), 7),
            "seconds": 60.0,
        },
    )
    return folder


def typed(judged, *words):
    """The words of a comparison that is quick."""
    return ["judge", "compare", *words, "--workspace", str(judged), "--bootstrap", "100"]


def test_the_tables_are_printed_and_the_page_is_written(judged, capsys):
    """Who is right, who is wrong together, how each answers, where they differ; and where the page is."""
    assert obey(typed(judged, "sharp", "blunt", "--reference", EXPERTS)) == 0
    shown = capsys.readouterr().out
    for title in (
        "A = sharp, B = blunt",
        "Who is right: AUROC against experts (table)",
        "Average precision, and the raw probability: against experts (table)",
        "Wrong together: calls against experts (table)",
        "Who is right: AUROC against the labels",
        "How each answers, mean over findings",
        "Where they differ most",
        "Against experts (table) A is ahead: AUROC +.",
        "independent judges",
    ):
        assert title in shown
    page = judged / "compare-sharp-blunt.html"
    assert f"Page: {page}" in shown
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "…" not in shown


def test_every_outcome_is_counted_and_what_is_left_out_is_said(judged, capsys):
    """A judge that refuses, and whose cost is known."""
    assert obey(typed(judged, "stub", "sharp")) == 0
    shown = capsys.readouterr().out
    for word in (
        "answered",
        "abstained",
        "refused",
        "unparsed",
        "unsupported",
        "failed",
        "left out",
        "seconds per film",
    ):
        assert word in shown
    assert "Against the labels B is ahead" in shown


def test_two_that_cannot_be_told_apart_are_not_ranked(judged, capsys):
    """A copy is worth one judge together with the original."""
    assert obey(typed(judged, "sharp", "copy")) == 0
    shown = capsys.readouterr().out
    assert "neither is ahead" in shown
    assert mentions(shown, "1.00 independent")


def test_a_judge_without_a_signal_is_named_in_place_of_a_worth(judged, capsys):
    """In the headline, in every row of the table, and on the page."""
    assert obey(typed(judged, "sharp", "blind")) == 0
    shown = capsys.readouterr().out
    assert shown.count("no signal: B") == 4
    assert "No signal, so no worth: B" in shown
    assert "independent judges" not in shown
    page = (judged / "compare-sharp-blind.html").read_text(encoding="utf-8")
    assert "No signal, so no worth: B" in page
    # Beside each AUROC, and in place of each worth.
    assert page.count("no signal: B") == 8


def test_json_is_all_that_is_printed_and_has_no_nan(judged, capsys, tmp_path):
    """A program can read it, for judges of every sort; the page is written where it was said."""
    for words in (("stub", "blind"), ("sharp", "blunt", "--reference", EXPERTS)):
        page = tmp_path / "pages.html"
        assert obey(typed(judged, *words, "--json", "--html", str(page))) == 0
        printed = capsys.readouterr()
        found = json.loads(printed.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert [judge["judge"] for judge in found["judges"]] == list(words[:2])
        assert all(math.isfinite(number) for number in numbers(found))
        assert page.exists()
        page.unlink()


def numbers(found):
    """Every number in what JSON holds."""
    if isinstance(found, float):
        yield found
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from numbers(inner)


def test_films_are_shown_from_where_they_are(judged, capsys, tmp_path):
    """With --images the page has pictures; the widest of those that are at hand."""
    films = datasets.write(tmp_path, count=40)
    page = tmp_path / "page.html"
    assert obey(typed(judged, "sharp", "blunt", "--images", str(films.images), "--html", str(page))) == 0
    capsys.readouterr()
    assert page.read_text(encoding="utf-8").count("data:image/png;base64,") == 13


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sharp", "sharp"), "sharp beside itself shows nothing"),
        (("sharp", "blumt"), "Did you mean 'blunt'?"),
        (("record", "sharp"), "bpals audit --workspace"),
        (("sharp", "blunt", "--reference", "table=nowhere.csv"), "nowhere.csv"),
        (("sharp", "blunt", "--reference", "nothing=x"), "no kind of reference is called 'nothing'"),
        (("sharp", "blunt", "--reference", "experts.csv"), "Type: --reference table=experts.csv"),
        (("sharp", "blunt", "--images", "nowhere"), "--images nowhere is no folder"),
        (("sharp", "blunt", "--html", "nowhere/page.html"), "Name another with --html FILE"),
        (("sharp", "blunt", "--bootstrap", "0"), "--bootstrap 1000"),
        (("sharp",), "--help"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(judged, capsys, words, said):
    """What, where, and what to type next; nothing on stdout."""
    assert obey([*typed(judged), *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert said in shown.err


def test_the_card_says_who_it_is_and_what_it_is_worth(judged, capsys):
    """Fields, answers, the licence that forbids, and the AUROC of each finding."""
    assert obey(["judge", "card", "sharp", "--workspace", str(judged), "--reference", EXPERTS]) == 0
    shown = capsys.readouterr().out
    for words in (
        "Sharp-1",
        "c0ffee",
        "600 images, 1,800 pairs: 1,800 answered",
        "forbids commercial use",
        "experts",
        ".92",
    ):
        assert words in shown
    assert obey(["judge", "card", "stub", "--workspace", str(judged)]) == 0
    shown = capsys.readouterr().out
    assert "no signal" in shown
    assert "seconds per film 0.1" in shown
    assert "[" not in shown


def test_the_card_says_where_the_labels_stood_in_for_the_experts(judged, capsys, tmp_path):
    """A finding that no expert read, and one that they read on too few images."""
    known = made_judges.truth().filter(finding="Effusion")
    few = known.head(8).with_columns(finding=pl.lit("Cardiomegaly"))
    pl.concat([known, few]).select("image_id", "finding", pl.col("present").cast(pl.Int8)).write_csv(tmp_path / "e.csv")
    line = ["judge", "card", "sharp", "--workspace", str(judged), "--reference", f"table={tmp_path / 'e.csv'}"]
    assert obey(line) == 0
    shown = capsys.readouterr()
    against = {row.split()[0]: row.split()[1] for row in shown.out.splitlines() if row.rstrip().endswith("signal")}
    assert against == {"Cardiomegaly": "labels", "Effusion": "experts", "Pneumothorax": "labels"}
    assert mentions(shown.err, "note: no expert label of Pneumothorax", "dataset's labels")
    assert mentions(shown.err, "note: too few expert labels of Cardiomegaly", "dataset's labels")
    assert obey([*line, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notices"]) == 2
    assert obey(line[:-2]) == 0
    assert capsys.readouterr().err == ""


def test_the_card_can_be_read_by_a_program(judged, capsys):
    """`--json`, without NaN; an unknown judge is one line."""
    assert obey(["judge", "card", "blind", "--workspace", str(judged), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert {row["signal"] for row in found["skill"]} == {False}
    assert obey(["judge", "card", "blimd", "--workspace", str(judged)]) == 2
    assert "Did you mean 'blind'?" in capsys.readouterr().err


def test_two_judges_with_hardly_a_film_in_common_are_told_first_and_without_empty_tables(judged, capsys):
    """One line says that there is too little; no table stands there without a figure."""
    few = judged.parent / "few.csv"
    few.write_text("image_id,Effusion\n00001.png,0.5\n", encoding="utf-8")
    film = made_judges.truth()["image_id"][0]
    few.write_text(f"image_id,Effusion\n{film},0.5\n", encoding="utf-8")
    assert obey(["judge", "run", f"table:{few}", "--workspace", str(judged)]) == 0
    capsys.readouterr()
    assert obey(typed(judged, "sharp", "few")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("Too few")
    assert "Who is right" not in "".join(lines)
    assert "The two judges" in "".join(lines)


def test_a_card_has_no_empty_values_and_no_comma_in_a_seed(judged, capsys):
    """What was never asked is told from what was asked too seldom."""
    made_judges.seal_stub(judged, "seeded", seed=20261116)
    assert obey(["judge", "card", "seeded", "--workspace", str(judged)]) == 0
    shown = capsys.readouterr().out
    assert "seed 20261116" in shown
    assert "None" not in shown
    assert ", ," not in shown
    film = made_judges.truth()["image_id"][0]
    scores = judged.parent / "one.csv"
    scores.write_text(f"image_id,Effusion\n{film},0.5\n", encoding="utf-8")
    assert obey(["judge", "run", f"table:{scores}", "--workspace", str(judged)]) == 0
    capsys.readouterr()
    assert obey(["judge", "card", "one", "--workspace", str(judged)]) == 0
    verdicts = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if " labels " in line}
    assert "too few" in verdicts["Effusion"]
    assert "not asked" in verdicts["Cardiomegaly"]
