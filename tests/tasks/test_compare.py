"""`bpals judge compare` in one call: on made-up films, and on two real models of a public panel."""

import json
import re
import shutil
import subprocess
import sys

import polars as pl
import pytest

import bpals
import shape
from bpals.errors import FilmError, TruthError, UnknownName, UsageError, WorkspaceError
from bpals.findings import NIH
from bpals.score.intervals import Resampling
from bpals.store.workspace import Workspace
from bpals.tasks.compare import LABELS, comparison_page
from bpals.types import OUTCOME
from world import made_judges
from world.made_judges import EXPERTS

QUICK = Resampling(draws=200)
FINDINGS = ["Cardiomegaly", "Effusion", "Pneumothorax"]
PANEL = ("jrzech_densenet121", "haooyuee_preds")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A workspace without an audit: four table judges of the made-up films, and a stub with all six outcomes."""
    folder = made_judges.make_workspace(tmp_path_factory.mktemp("judged") / "mine")
    tally = {"films": 600, "attempts": 3700, "tokens": {"prompt": 600_000, "cached": 500_000, "output": 3600}}
    drift = {"questions": 20, "compared": 20, "mean": 0.01, "largest": 0.05, "other_outcome": 0, "beyond": 0}
    made_judges.seal_stub(folder, tally={**tally, "seconds": 1200.0}, drift=drift)
    return folder


@pytest.fixture(scope="module")
def audited(films_audit, tmp_path_factory):
    """The same judges beside an audit."""
    return made_judges.make_workspace(shutil.copytree(films_audit, tmp_path_factory.mktemp("audited") / "mine"))


@pytest.fixture(scope="module")
def found(judged):
    """The sharp and the blunt judge, against the labels and the experts."""
    return bpals.compare("sharp", "blunt", workspace=judged, reference=EXPERTS, resampling=QUICK)


def rows(found, table, against):
    """The rows of one yardstick, by finding."""
    return {row["finding"]: row for row in getattr(found, table) if row["against"] == against}


def test_the_sharper_judge_is_ahead_against_experts_and_against_labels(found):
    """Paired differences above 0 for every finding and the mean; 600 films, and the uncertain labels are not scored."""
    for against in ("table", LABELS):
        quality = rows(found, "quality", against)
        assert list(quality) == [*FINDINGS, "mean"]
        assert all(row["auroc_difference_low"] > 0 for row in quality.values())
        assert all(row["p_holm"] < 0.05 for row in quality.values() if "n" in row)
    assert {row["n"] for row in rows(found, "quality", "table").values() if "n" in row} == {600}
    assert all(row["n"] < 600 for row in rows(found, "quality", LABELS).values() if "n" in row)
    assert rows(found, "quality", "table")["mean"]["auroc_a"] == pytest.approx(0.92, abs=0.02)


def test_experts_have_every_figure_of_quality(found):
    """AUROC, average precision, Brier score and calibration error, each with an interval."""
    for row in rows(found, "quality", "table").values():
        for figure in ("auroc", "ap", "brier", "ece"):
            for name in (f"{figure}_a", f"{figure}_b", f"{figure}_difference"):
                assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_a_copy_is_no_second_judge(judged):
    """No difference, errors that correlate by 1, worth one judge, and no gap anywhere."""
    found = bpals.compare("sharp", "copy", workspace=judged, reference=EXPERTS, resampling=QUICK)
    for row in found.quality:
        assert (row["auroc_difference"], row["auroc_difference_low"], row["auroc_difference_high"]) == (0, 0, 0)
        assert row["p_value"] == 1
    for row in found.dependence:
        assert row["error_correlation"] == pytest.approx(1)
        assert row["effective_judges"] == pytest.approx(1)
    assert set(found.gaps.values()) == {0}


def test_two_judges_that_err_apart_are_worth_nearly_two(found):
    """Their noise is drawn apart, so the correlation of their errors is small."""
    mean = rows(found, "dependence", "table")["mean"]
    assert mean["error_correlation_low"] < mean["error_correlation"] < mean["error_correlation_high"] < 0.5
    assert mean["effective_judges"] > 1.5


@pytest.mark.parametrize("guesser", ["blind", "stub"])
def test_a_judge_without_a_signal_has_no_worth(judged, guesser):
    """Its errors hardly correlate with anybody's, which would make it a whole judge; its letter is named instead."""
    found = bpals.compare("sharp", guesser, workspace=judged, reference=EXPERTS, resampling=QUICK)
    for row in found.dependence:
        assert (row["no_signal"], row["effective_judges"]) == (["b"], None)
    both = bpals.compare("sharp", "blunt", workspace=judged, resampling=QUICK)
    assert all(row["no_signal"] == [] and row["effective_judges"] > 1 for row in both.dependence)


def test_a_judge_that_does_not_look_shows_it(judged):
    """It says yes to every film, moves by nothing when another film takes its place, and is at chance."""
    found = bpals.compare("blind", "sharp", workspace=judged, resampling=QUICK)
    ways = {row["judge"]: row for row in found.behaviour if row["finding"] == "mean"}
    assert (ways["blind"]["yes_rate"], ways["blind"]["depends"], ways["blind"]["reliance"]) == (1, 0, 0)
    assert ways["sharp"]["depends_low"] > 0.9
    assert [row["auroc_a"] for row in found.quality] == [0.5] * 4
    assert found.quality[0]["auroc_difference_high"] < 0


def test_coverage_has_all_six_outcomes(judged):
    """What one judge did not answer is counted by outcome, by finding, and left out of the pairs that are scored."""
    found = bpals.compare("stub", "sharp", workspace=judged, resampling=QUICK)
    stub, sharp = found.judges
    assert sum(stub[outcome] for outcome in OUTCOME.categories) == stub["asked"] == 1800
    assert all(stub[outcome] > 0 for outcome in ("answered", "abstained", "refused", "unparsed", "failed"))
    assert stub["unsupported"] == 0
    assert (sharp["films"], sharp["answered"]) == (600, 1800)
    by_finding = [row for row in found.behaviour if row["judge"] == "stub" and row["finding"] != "mean"]
    for outcome in OUTCOME.categories:
        assert sum(row[outcome] for row in by_finding) == stub[outcome]
    assert found.common == {"films": 600, "patients": 200, "pairs": 1800, "answered": stub["answered"]}
    for row in found.quality[:-1]:
        assert row["left_out"] > 0
        assert row["auroc_difference_filled"] is not None


def test_cost_drift_and_habit_come_from_the_seal(judged):
    """Tokens and seconds a film from the tally, drift as it was measured, and the answer without a film."""
    stub, sharp = bpals.compare("stub", "sharp", workspace=judged, resampling=QUICK).judges
    assert stub["cost"]["tokens_per_film"] == pytest.approx(1006)
    assert stub["cost"]["seconds_per_film"] == 2.0
    assert (stub["cost"]["cached_tokens"], stub["cost"]["requests"]) == (500_000, 3700)
    assert stub["drift"]["largest"] == 0.05
    assert (sharp["cost"], sharp["drift"]) == (None, None)


def test_the_polarities_of_a_judge_that_leans_to_yes_are_coherent(judged):
    """The stub adds 1 to both questions, with a film or without: less that, it never contradicts itself."""
    found = bpals.compare("stub", "sharp", workspace=judged, resampling=QUICK)
    mean = next(row for row in found.behaviour if (row["judge"], row["finding"]) == ("stub", "mean"))
    assert mean["coherent"] > 0.99
    assert mean["acquiescence"] == pytest.approx(0, abs=1e-6)
    first = found.behaviour[0]
    assert first["p_without_film"] == 0.5
    assert found.behaviour[-1]["coherent"] is None


def test_independence_is_told_by_the_cards(judged):
    """Model, revision, licence and whether it was trained on these labels stand side by side."""
    sharp, copy = bpals.compare("sharp", "copy", workspace=judged, resampling=QUICK).judges
    told = ("model", "revision", "licence", "commercial_use", "trained_on_target")
    assert [sharp["card"][name] for name in told] == ["Sharp-1", "c0ffee", "CC-BY-NC-4.0", "no", "no"]
    assert [copy["card"][name] for name in told] == ["", "", "unknown", "unknown", "unknown"]


def test_films_and_patients_come_by_how_far_the_two_differ(found):
    """Every film once, those that one judge calls first, with the label and what experts say."""
    films = found.films
    assert films.height == films["image_id"].n_unique() == 600
    calls = (films["called_a"] != films["called_b"]).to_list()
    assert calls == sorted(calls, reverse=True)
    first = films.filter(pl.Series(calls))["gap"].abs()
    assert first.to_list() == sorted(first, reverse=True)
    said = films.join(made_judges.truth(), on=["image_id", "finding"], how="left")
    assert said["experts"].to_list() == said["present"].to_list()
    assert {patient.rstrip("+") for patient in films["patient"]} == {f"P{patient:03}" for patient in range(200)}
    assert set(found.patients["patient"]) <= set(films["patient"])
    assert set(found.gaps) == set(FINDINGS)


def test_everything_can_be_written_as_json(found):
    """No NaN, no infinity, no table; the films are the first ones."""
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert {"judges", "common", "quality", "dependence", "behaviour", "gaps", "films", "patients", "notes"} < set(
        written
    )
    assert len(written["films"]) == 12


def test_the_same_command_gives_the_same_figures(judged, found):
    """Seeded: again the same; and the record has the command that says so."""
    again = bpals.compare("sharp", "blunt", workspace=judged, reference=EXPERTS, resampling=QUICK)
    assert again.as_dict() == found.as_dict()
    assert found.meta["command"].startswith(f"bpals judge compare sharp blunt --workspace {judged} --reference table=")
    assert found.meta["command"].endswith("--split all --bootstrap 200 --seed 0")
    assert list(found.meta["inputs"]) == ["experts.csv"]


def test_an_audit_changes_nothing_but_where_the_labels_are_read(audited, found):
    """With an audit its claims are the labels, without one those of the remembered source: the same figures."""
    again = bpals.compare("sharp", "blunt", workspace=audited, reference=EXPERTS, resampling=QUICK)
    assert again.quality == found.quality
    assert again.dependence == found.dependence


def test_the_record_judge_can_be_one_side(audited):
    """Its answers are those of the audit; it has no polarities, and its card is the audit's."""
    found = bpals.compare("record", "sharp", workspace=audited, reference=EXPERTS, resampling=QUICK)
    record = found.judges[0]
    assert record["card"]["kind"] == "record"
    assert not {"skill", "effective_weight"} & set(record["card"])
    assert rows(found, "quality", "table")["mean"]["auroc_difference_high"] < 0
    assert found.behaviour[0]["coherent"] is None


def test_the_record_judge_needs_an_audit(judged):
    """The message has the command that makes one."""
    with pytest.raises(WorkspaceError, match=r"bpals audit --workspace"):
        bpals.compare("record", "sharp", workspace=judged)


def test_a_broken_audit_is_not_passed_over(audited, tmp_path):
    """What does not match its record stops, and is not replaced by the dataset in silence."""
    shutil.copytree(audited, tmp_path / "mine")
    (tmp_path / "mine" / "claims.parquet").write_bytes(b"broken")
    with pytest.raises(WorkspaceError, match=r"claims\.parquet"):
        bpals.compare("sharp", "blunt", workspace=tmp_path / "mine")


def test_a_judge_beside_itself_is_refused(judged):
    """With the line to type."""
    with pytest.raises(UsageError, match="compare sharp OTHER"):
        bpals.compare("sharp", "sharp", workspace=judged)


def test_an_unknown_judge_is_answered_with_the_nearest(judged):
    """And with all that are there."""
    with pytest.raises(UnknownName, match=r"'blunt'\?.* sharp, stub"):
        bpals.compare("sharp", "blumt", workspace=judged)


def test_two_judges_of_other_films_have_no_pair_in_common(tmp_path):
    """One was asked about the first films, the other about the rest."""
    home = Workspace(tmp_path / "mine")
    made_judges.make_workspace(home.path)
    answers = home.judge("sharp").answers()
    films = answers["image_id"].unique(maintain_order=True)
    for name, part in (("first", films[:300]), ("rest", films[300:])):
        home.write_judge(name, {"judge": name}, answers.filter(pl.col("image_id").is_in(part.implode())))
    with pytest.raises(UsageError, match="first and rest"):
        bpals.compare("first", "rest", workspace=home.path)


def test_judges_of_another_dataset_are_refused(judged, tmp_path):
    """Their films are not those of the labels: say so, with the first film."""
    home = Workspace(tmp_path / "nih")
    for name in ("one", "two"):
        home.write_judge(name, {"judge": name}, Workspace(judged).judge("sharp").answers())
    with pytest.raises(UsageError, match=r"one and two .*\.png.* NIH"):
        bpals.compare("one", "two", workspace=home.path)


def test_answers_about_films_that_the_dataset_does_not_have_are_counted(tmp_path):
    """Passed over, with a note."""
    home = Workspace(tmp_path / "mine")
    made_judges.make_workspace(home.path)
    answers = home.judge("sharp").answers()
    strange = answers.head(6).with_columns(image_id="x" + pl.col("image_id"))
    home.write_judge("wide", {"judge": "wide"}, pl.concat([answers, strange]))
    found = bpals.compare("wide", "blunt", workspace=home.path, resampling=QUICK)
    assert [(note.code, note.count) for note in found.notes] == [("foreign_films", 2)]
    assert found.common["films"] == 600


def test_a_reference_about_other_films_is_refused(judged, tmp_path):
    """With its first film, so that one sees why."""
    file = tmp_path / "others.csv"
    file.write_text("image_id,Effusion\nnobody_1.png,1\nnobody_2.png,0\n", encoding="utf-8")
    with pytest.raises(TruthError, match=r"of 2 images .*nobody_1\.png"):
        bpals.compare("sharp", "blunt", workspace=judged, reference=f"table={file}")


def test_boxes_cannot_say_who_is_right(judged):
    """They are presences only."""
    with pytest.raises(UsageError, match="presences only"):
        bpals.compare("sharp", "blunt", workspace=judged, reference="boxes")


def test_two_references_of_one_kind_keep_their_names(judged, tmp_path):
    """Each is a yardstick of its own, called by its file."""
    half = tmp_path / "half.csv"
    pl.read_csv(made_judges.EXAMPLES / "experts.csv").head(300).write_csv(half)
    found = bpals.compare("sharp", "blunt", workspace=judged, reference=[EXPERTS, f"table={half}"], resampling=QUICK)
    assert list(dict.fromkeys(row["against"] for row in found.quality)) == [
        LABELS,
        "table=experts.csv",
        "table=half.csv",
    ]
    assert rows(found, "quality", "table=half.csv")["Effusion"]["n"] == 300


def test_a_page_without_films_says_so_and_one_with_a_wrong_path_does_not_exist(judged, found, tmp_path):
    """Without --images there are placeholders, and so if the films are gone; a path that is not there is refused."""
    assert "image not at hand" in comparison_page(found, workspace=judged)
    with pytest.raises(FilmError, match="nowhere"):
        comparison_page(found, workspace=judged, images=tmp_path / "nowhere")
    home = Workspace(tmp_path / "mine")
    home.remember(images=str(tmp_path / "gone"))
    assert "image not at hand" in comparison_page(found, workspace=home.path)


@pytest.fixture(scope="module")
def panel(data_folder, tmp_path_factory):
    """Two real models of the panel, sealed, in a workspace that has no audit: the labels are NIH's."""
    folder, file = tmp_path_factory.mktemp("panel") / "audit", data_folder / "predictions" / "chexnet_panel.parquet"
    for name in PANEL:
        bpals.run_judge(f"table:{file}@{name}", workspace=folder)
    return folder


@pytest.fixture(scope="module")
def panel_found(panel, data_folder):
    """The two against NIH's labels and the adjudicated images."""
    return bpals.compare(*PANEL, workspace=panel, reference=f"four-findings={data_folder / 'expert'}")


def test_two_members_of_the_panel_differ_with_intervals_and_err_together(panel_found):
    """Issue 3: paired differences with intervals, and their error correlation; the two are not independent."""
    assert panel_found.common == {"films": 22_433, "patients": 6187, "pairs": 314_062, "answered": 314_062}
    labels, experts = (rows(panel_found, "quality", against) for against in (LABELS, "four-findings"))
    assert list(labels) == [*NIH.findings, "mean"]
    for row in labels.values():
        assert row["auroc_difference_low"] < row["auroc_difference"] < row["auroc_difference_high"]
    assert list(experts) == ["Pneumothorax", "Nodule or mass", "Airspace opacity", "mean"]
    assert [experts[name]["n"] for name in list(experts)[:-1]] == [935] * 3
    for against in (LABELS, "four-findings"):
        mean = rows(panel_found, "dependence", against)["mean"]
        assert 0.5 < mean["error_correlation_low"] < mean["error_correlation"] < mean["error_correlation_high"] < 0.65
        assert 1.2 < mean["effective_judges"] < 1.35


def test_the_page_of_the_docs_has_the_figures_of_the_panel(panel_found):
    """docs/compare.md: every row of its tables is what the command gives today."""
    page = (shape.ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    told = re.findall(r"^\|(experts|labels), (.+?)\|(.+)\|$", page, re.MULTILINE)
    assert len(told) == 6
    for against, finding, cells in told:
        name = "four-findings" if against == "experts" else against
        right, wrong = (rows(panel_found, table, name)[finding] for table in ("quality", "dependence"))
        ends = [f"{right[f'auroc_difference{end}']:+.3f}" for end in ("", "_low", "_high")]
        rho = [f"{wrong[f'error_correlation{end}']:.3f}" for end in ("", "_low", "_high")]
        counts = [f"{right['n']:,}", f"{right['positives']:,}"] if "n" in right else ["", ""]
        aurocs = [f"{right[f'auroc_{letter}']:.3f}" for letter in "ab"]
        expected = [*counts, *aurocs, f"{ends[0]} ({ends[1]} to {ends[2]})", f"{rho[0]} ({rho[1]} to {rho[2]})"]
        assert [cell.strip() for cell in cells.split("|")] == [cell.replace("0.", ".") for cell in expected], finding


COST = """
import resource, sys
import bpals
from bpals.findings import NIH
from bpals.judges.stub import StubJudge
from bpals.sources import nih
from bpals.store.workspace import Workspace
home, ids = Workspace(sys.argv[1]), nih.load(None).images["image_id"]
for seed in (1, 2):
    stub = StubJudge(seed=seed, name=f"stub{seed}", shares={"refused": 0.02})
    home.write_judge(stub.name, stub.card.as_dict(), stub.scores(ids, NIH))
before = resource.getrusage(resource.RUSAGE_SELF)
bpals.compare("stub1", "stub2", workspace=home.path)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, used.ru_maxrss / 2**20)
"""


@pytest.mark.sweep
def test_all_of_nih_is_compared_in_twenty_seconds(tmp_path):
    """Two judges of 112,120 films: 1,569,680 pairs, at most 20 s of CPU and 2 GB."""
    line = [sys.executable, "-c", COST, tmp_path / "audit"]
    done = subprocess.run(
        line, env={"PYTHONPATH": str(shape.SRC), "OMP_NUM_THREADS": "1"}, capture_output=True, check=True
    )
    cpu_s, peak_gb = map(float, done.stdout.split())
    assert cpu_s < 20
    assert peak_gb < 2
