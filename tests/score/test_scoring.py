"""The scorecard of a workspace in one call, and the command `bpals score`."""

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import bpals
from bpals.cli.score import score
from bpals.errors import TruthError, UsageError, WorkspaceError, install_line
from bpals.score.intervals import Resampling
from bpals.store.workspace import Workspace
from bpals.tasks.score import scorecard
from world import made_judges
from world.words import mentions

pytestmark = pytest.mark.quick

FEW = Resampling(draws=20, seed=0)
KEYS = ["reference", "split", "finding", "given", "method", "n", "errors"]
FOUR = "Image Index,Fracture,Pneumothorax,Airspace opacity,Nodule or mass,Set Id\n"
OPACITY = ("Consolidation", "Infiltration", "Pneumonia", "Edema", "Atelectasis")
app = typer.Typer()
app.command()(score)

WITHOUT_CLEANLAB = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cleanlab":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from bpals.tasks.score import scorecard
card = scorecard(sys.argv[1], reference=f"table={sys.argv[2]}")
print({row["method"] for row in card.rows}, [note.message for note in card.notes])
"""


@pytest.fixture
def masses(audit):
    """Six films that claim masses or their absence; the two with the least trust are wrong."""
    says = ("present", "present", "present", "absent", "absent", "absent")
    trust = (0.1, 0.6, 0.7, 0.2, 0.8, 0.9)
    return audit([
        (film, "Mass", say, t if say == "present" else 1 - t)
        for film, say, t in zip("abcdef", says, trust, strict=True)
    ])  # fmt: skip


@pytest.fixture
def truth(sheet):
    """What experts say of them."""
    return sheet("image_id,Mass,split\na,NO,val\nb,YES,val\nc,YES,test\nd,YES,val\ne,NO,test\nf,NO,test\n")


def run(*arguments):
    """Run `bpals score`."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--bootstrap", "20"], catch_exceptions=False)
    assert done.exit_code == 0
    return done


def test_one_call_gives_rows_frame_curve_and_notes(masses, truth):
    """Everything that the command prints."""
    card = scorecard(masses, reference=f"table={truth}", resampling=FEW)
    assert list(card.rows[0])[:7] == KEYS
    ours = card.frame.filter(method="bpals", given="all", finding="Mass")
    assert ours.select("n", "errors", "error_ap", "error_auroc").rows() == [(6, 2, 1.0, 1.0)]
    assert [(curve["reference"], curve["finding"]) for curve in card.reliability] == [
        ("table", "Mass"), ("table", "pooled"),
    ]  # fmt: skip
    assert [note for note in card.notes if note.code != "no_cleanlab"] == []
    assert card.meta["bootstrap"] == 20


def test_a_split_is_scored_alone(masses, truth):
    """Three films of the validation images."""
    card = scorecard(masses, reference=f"table={truth}", split="val", resampling=FEW)
    assert {(row["split"], row["n"]) for row in card.rows if row["given"] == "all"} == {("val", 3)}


def test_several_references_are_called_by_kind_and_file(masses, truth, sheet):
    """Where one kind comes twice the file is named too."""
    other = sheet("image_id,Mass\na,NO\nb,YES\n", "other.csv")
    card = scorecard(masses, reference=[f"table={truth}", f"table={other}"], resampling=FEW)
    assert set(card.frame["reference"]) == {"table=truth.csv", "table=other.csv"}


def test_four_findings_are_scored_as_groups(audit, sheet):
    """Opacity has five members: the sum of their probabilities, a presence if any is claimed."""
    rows = []
    for film, says, p in (("a", "present", 0.12), ("b", "absent", 0.02), ("c", "absent", 0.1)):
        rows += [(film, finding, "absent", p) for finding in OPACITY[1:]] + [(film, OPACITY[0], says, p)]
        rows += [(film, finding, "absent", 0.1) for finding in ("Pneumothorax", "Nodule", "Mass")]
    path = sheet(FOUR + "a,NO,NO,YES,NO,val\nb,NO,NO,NO,NO,val\nc,NO,YES,YES,NO,val\n")
    card = scorecard(audit(rows), reference=f"four-findings={path}", resampling=FEW)
    assert card.frame["finding"].unique(maintain_order=True).to_list() == [
        "Pneumothorax", "Nodule or mass", "Airspace opacity", "pooled",
    ]  # fmt: skip
    opacity = card.frame.filter(finding="Airspace opacity", method="bpals", given="all")
    # Suspicions: a .4, b .1, c .5 and wrong; so the one error comes first. Brier: (.4^2 + .1^2 + .5^2) / 3.
    assert opacity.select("errors", "error_ap").rows() == [(1, 1.0)]
    assert opacity["brier"][0] == pytest.approx((0.16 + 0.01 + 0.25) / 3)


def test_boxes_give_other_rows(audit):
    """The embedded boxes against an audit of two of NIH's films; no error column, because no error can be seen."""
    card = scorecard(
        audit([("00013118_008.png", "Atelectasis", "present", 0.7), ("0x.png", "Atelectasis", "present", 0.4)]),
        reference="boxes",
        split="test",
        resampling=FEW,
    )
    assert card.rows == []
    assert card.boxes[0] | {"boxed_auroc_low": None, "boxed_auroc_high": None} == {
        "reference": "boxes", "split": "all", "finding": "Atelectasis", "n_boxed": 1, "n_other": 1,
        "trust_boxed_mean": 0.7, "trust_boxed_median": 0.7, "trust_other_mean": 0.4, "trust_other_median": 0.4,
        "boxed_auroc": 1.0, "boxed_auroc_low": None, "boxed_auroc_high": None,
    }  # fmt: skip
    assert [(note.code, note.count) for note in card.notes] == [("boxed_elsewhere", 983)]


def test_readers_alone_can_be_scored(masses, sheet):
    """No reference is needed: each reader is held against the others."""
    reads = "".join(f"{film},{reader},{'NO' if film in 'aef' else 'YES'}\n" for film in "abcdef" for reader in (1, 2))
    card = scorecard(masses, readers=sheet("image_id,reader,Mass\n" + reads), resampling=FEW)
    first = card.readers[0]
    assert (first["reader"], first["n"], first["flags"], first["precision"], first["recall"]) == ("1", 6, 2, 1, 1)
    assert (first["signal_precision"], first["signal_recall"]) == (1, 1)


def test_a_workspace_that_is_not_whole_is_not_scored(masses, truth):
    """A table that `run.json` does not name is no evidence."""
    (masses / "signal.parquet").write_bytes(b"something else")
    with pytest.raises(WorkspaceError, match="the set is broken"):
        scorecard(masses, reference=f"table={truth}")


def test_a_workspace_without_an_audit_is_refused(tmp_path, truth):
    """With the command that makes one."""
    with pytest.raises(WorkspaceError, match="bpals audit"):
        scorecard(tmp_path / "nothing", reference=f"table={truth}")


def test_calibrated_pairs_without_crossfitting_are_refused(audit, truth):
    """The scorecard would flatter the signal."""
    rows = [(film, "Mass", "present", 0.5) for film in "abcdef"]
    home = audit(rows, method="record/calibrated", calibration=[("c", "Mass")])
    with pytest.raises(UsageError, match=r"cross-fitted \(first: c, Mass\)"):
        scorecard(home, reference=f"table={truth}")
    assert scorecard(home, reference=f"table={truth}", split="val", resampling=FEW).rows


def test_a_reference_of_other_films_is_refused(masses, sheet):
    """None of its images is known."""
    with pytest.raises(TruthError, match=r"of 2 images .*none"):
        scorecard(masses, reference=f"table={sheet('image_id,Mass' + chr(10) + 'x,1' + chr(10) + 'y,0')}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--reference four-findings=PATH"),
        ({"reference": "table=x.csv", "min_readers": 2}, "--reference all-findings=PATH"),
    ],
)
def test_a_call_that_cannot_be_is_refused(options, says):
    """Before anything is read."""
    with pytest.raises(UsageError, match=says):
        scorecard("nowhere", **options)


def test_without_cleanlab_its_rows_are_left_out_with_a_note(masses, truth):
    """In a process where the package cannot be found; the note has the line to type."""
    command = [sys.executable, "-c", WITHOUT_CLEANLAB, masses, truth]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'self_confidence'" in done.stdout
    assert "'cleanlab'" not in done.stdout
    assert done.stdout.count(install_line("peers")) == 1


def test_the_json_is_a_list_of_rows(masses, truth):
    """And nothing else stands on stdout; notes go beside it."""
    done = run("--workspace", masses, "--reference", f"table={truth}", "--json")
    rows = json.loads(done.stdout)
    assert list(rows[0])[:7] == KEYS
    assert {row["method"] for row in rows} >= {
        "bpals",
        "self_confidence",
        "label_only",
        "prevalence",
        "random",
        "oracle",
    }


def test_the_json_of_readers_has_their_rows_too(masses, sheet):
    """One list: rows of readers have the key `reader`."""
    reads = sheet("image_id,reader,Mass\na,1,NO\na,2,NO\nb,1,YES\nb,2,HEDGE\n", "reads.csv")
    done = run("--workspace", masses, "--readers", reads, "--json")
    rows = json.loads(done.stdout)
    single = [row for row in rows if row["finding"] == "Mass" and "reader" in row]
    assert [(row["reader"], row["n"]) for row in single] == [("1", 1), ("2", 1), ("all", 2)]
    together, *two = [row for row in rows if "agreement" in row]
    assert (together["finding"], together["readers"], together["n"], together["agreement"]) == ("Mass", 2, 1, 1)
    assert {(row["first"], row["second"]) for row in two} >= {
        ("1", "the others"),
        ("1", "bpals"),
        ("label", "majority"),
    }
    assert mentions(done.stderr, "note: 1 uncertain verdict")


def test_the_terminal_shows_tables_of_100_columns(masses, truth, sheet):
    """With every method, presences and absences apart, and the readers."""
    reads = sheet("image_id,reader,Mass\na,1,NO\na,2,NO\nb,1,YES\nb,2,YES\n", "reads.csv")
    shown = run("--workspace", masses, "--reference", f"table={truth}", "--readers", reads).stdout
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 100
    for words in ("Finding label errors", "self-confidence", "oracle", "By kind of label", "Single readers"):
        assert words in shown
    for words in ("How far readers agree with one another", "Cohen's kappa", "Fleiss kappa", "most readers"):
        assert words in shown
    assert "…" not in shown


def test_markdown_compares_the_error_ap(masses, truth):
    """One line a finding, with intervals."""
    shown = run("--workspace", masses, "--reference", f"table={truth}", "--markdown").stdout
    header, _rule, mass, pooled = [line for line in shown.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        "finding", "pairs", "errors", "bpals, error AP", "self-confidence, error AP", "cleanlab, error AP",
        "prevalence only, error AP", "bpals, found at 10 %",
    ]  # fmt: skip
    assert mass.startswith("| Mass | 6 | 2 | 1.000")
    assert pooled.startswith("| pooled | 6 | 2 |")


def test_two_outputs_at_once_are_refused(masses, truth):
    """One of them must be chosen."""
    with pytest.raises(UsageError, match="--json and --markdown"):
        run("--workspace", masses, "--reference", f"table={truth}", "--json", "--markdown")


def test_the_page_is_written_whole(masses, truth, tmp_path):
    """One file with the figures; a folder that does not exist is named."""
    page = tmp_path / "card.html"
    run("--workspace", masses, "--reference", f"table={truth}", "--html", page, "--json")
    text = page.read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    assert "Mass" in text
    with pytest.raises(UsageError, match="cannot be written"):
        run("--workspace", masses, "--reference", f"table={truth}", "--html", tmp_path / "no" / "card.html")


def test_the_page_has_the_agreement_that_the_terminal_has(masses, sheet, tmp_path):
    """Readers with one another, and each beside most readers, the label and bpals."""
    reads = sheet("image_id,reader,Mass\na,1,NO\na,2,NO\nb,1,YES\nb,2,YES\n", "reads.csv")
    page = tmp_path / "card.html"
    run("--workspace", masses, "--readers", reads, "--html", page, "--json")
    text = page.read_text(encoding="utf-8")
    for words in ("How far readers agree with one another", "Cohen&#39;s kappa", "Fleiss kappa", "most readers"):
        assert words in text


def test_reads_keep_to_judged_films_if_asked(tmp_path):
    """Without it a note says that the judges answered other films; with it the other reads are counted."""
    home = made_judges.make_workspace(tmp_path / "audit")
    half = Workspace(home)
    answers = half.judge("sharp").answers()
    some = answers.filter(pl.col("image_id").is_in(answers["image_id"].unique().sort()[:200].implode()))
    half.write_judge("half", {"judge": "half"}, some.with_columns(judge=pl.lit("half")))
    bpals.audit(made_judges.SOURCE, mapping=made_judges.MAPPING, workspace=home, judges="sharp,half")
    truth = pl.read_csv(made_judges.EXAMPLES / "experts.csv").head(400)
    reads = [truth.select("image_id", "Effusion", reader=pl.lit(name)) for name in ("a", "b")]
    pl.concat(reads).write_csv(tmp_path / "reads.csv")
    card = scorecard(home, readers=tmp_path / "reads.csv", resampling=FEW)
    assert "unlike_films" in {note.code for note in card.notes}
    kept = scorecard(home, readers=tmp_path / "reads.csv", only_judged=True, resampling=FEW)
    noted = {note.code: note.count for note in kept.notes}
    assert "unlike_films" not in noted
    assert noted["not_judged"] == 2 * (
        400 - some.filter(pl.col("image_id").is_in(truth["image_id"].implode()))["image_id"].n_unique()
    )


def test_the_same_seed_prints_the_same(masses, truth):
    """Byte for byte."""
    command = ("--workspace", masses, "--reference", f"table={truth}", "--json", "--seed")
    assert run(*command, 3).stdout == run(*command, 3).stdout
    assert run(*command, 3).stdout != run(*command, 4).stdout


def test_an_audit_that_is_replaced_while_it_is_read_is_not_mixed(audit, truth):
    """Two audits take turns in one folder: every scorecard is that of one of them, or an error to try again."""
    audits = [[(film, "Mass", says, p) for film in "abcdef"] for says, p in (("present", 0.9), ("absent", 0.2))]
    home = audit(audits[0])
    done = threading.Event()

    def take_turns():
        for turn in itertools.count(1):
            if done.is_set():
                return
            audit(audits[turn % 2])

    with ThreadPoolExecutor(1) as other:
        writing = other.submit(take_turns)
        seen = set()
        for _ in range(25):
            try:
                frame = scorecard(home, reference=f"table={truth}", resampling=Resampling(draws=1)).frame
            except WorkspaceError:
                continue
            seen |= set(frame.filter(method="bpals", finding="Mass", given="present").select("n", "brier").rows())
        done.set()
        writing.result()
    # Of the first audit six presences at .9, three of them right; of the second none.
    assert {(n, brier and round(brier, 9)) for n, brier in seen} <= {(6, 0.41), (0, None)}
