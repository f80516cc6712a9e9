"""Scores computed elsewhere: their file, their card, and what becomes an answer, stops or is counted."""

import gzip

import polars as pl
import pytest

from bpals.errors import BpalsError, JudgeError, UnknownName
from bpals.findings import NIH, Vocabulary
from bpals.judges import table
from bpals.judges.table import read_scores, read_table
from bpals.metrics import Curve
from bpals.registry import find, parse_spec
from bpals.sources import nih
from bpals.types import answers_schema
from world.words import mentions

pytestmark = pytest.mark.quick

VOCABULARY = Vocabulary(name="three", findings=("Effusion", "Mass", "Hernia"), aliases={"Pleural effusion": "Effusion"})
FILMS = ["p1/a.png", "p1/b.png", "p2/c.png"]
WIDE = "image_id,Effusion,Mass,Hernia\np1/a.png,0.9,0.2,0.01\np1/b.png,0.1,,0.02\n"
LONG = "image_id,finding,p_present\na.png,Effusion,0.9\na.png,Mass,0.2\nb.png,Effusion,0.1\nb.png,Mass,\n"


@pytest.fixture
def scores(tmp_path):
    """Write a file and read its scores."""

    def scores(text, *, name="", file="scores.csv", films=FILMS, vocabulary=VOCABULARY, **given):
        path = tmp_path / file
        path.write_text(text)
        return read_table(path, name, vocabulary, films, **given)

    return scores


def rows(scored):
    """Film, finding, outcome and probability of every row."""
    return list(scored.table.select("image_id", "finding", "outcome", "p_present").iter_rows())


def counts(scored):
    """Code and count of every notice."""
    return {notice.code: notice.count for notice in scored.notices}


def test_a_wide_file_has_a_column_a_finding(scores):
    """An empty cell is an abstention; a film that is not there has no rows, and is counted."""
    scored = scores(WIDE)
    assert scored.table.schema == answers_schema(VOCABULARY)
    assert rows(scored) == [
        ("p1/a.png", "Effusion", "answered", 0.9),
        ("p1/a.png", "Mass", "answered", 0.2),
        ("p1/a.png", "Hernia", "answered", 0.01),
        ("p1/b.png", "Effusion", "answered", 0.1),
        ("p1/b.png", "Mass", "abstained", None),
        ("p1/b.png", "Hernia", "answered", 0.02),
    ]
    assert counts(scored) == {"unscored_films": 1, "abstained_pairs": 1, "no_card": 1}
    assert scored.table["logit_present"][0] == pytest.approx(2.1972, abs=1e-4)
    assert scored.table["why"].to_list()[4] == "the file has no number here"
    assert set(scored.table["kind"]) == {"image"}


def test_a_long_file_has_a_row_a_pair(scores):
    """A finding that it never names is unsupported, and so is a pair that it leaves out; both are counted."""
    scored = scores(LONG + "c.png,Mass,1\n")
    assert [row[2:] for row in rows(scored)] == [
        ("answered", 0.9), ("answered", 0.2), ("unsupported", None),
        ("answered", 0.1), ("abstained", None), ("unsupported", None),
        ("unsupported", None), ("answered", 1.0), ("unsupported", None),
    ]  # fmt: skip
    assert counts(scored) == {"unscored_pairs": 1, "unscored_findings": 1, "abstained_pairs": 1, "no_card": 1}
    whys = scored.table.filter(pl.col("outcome") == "unsupported")["why"].to_list()
    assert ["this pair" if "this pair" in why else "this finding" for why in whys] == [
        *["this finding"] * 2, "this pair", "this finding"
    ]  # fmt: skip


def test_a_long_file_may_say_what_happened(scores):
    """All six outcomes are taken over, and none becomes a number."""
    words = ["answered", "abstained", "refused", "unparsed", "unsupported", "failed"]
    pairs = [(film, finding) for film in "ab" for finding in VOCABULARY.findings]
    text = "image_id,finding,p_present,outcome\n" + "".join(
        f"{film},{finding},{0.5 if word == 'answered' else ''},{word}\n"
        for (film, finding), word in zip(pairs, words, strict=True)
    )
    table = scores(text).table
    assert table["outcome"].to_list() == words
    assert table["p_present"].to_list() == [0.5] + [None] * 5
    assert table["logit_present"].null_count() == 5


def test_parquet_and_csv_say_the_same(scores, tmp_path):
    """Also with single precision."""
    path = tmp_path / "same.parquet"
    pl.read_csv(WIDE.encode()).with_columns(pl.col("Mass").cast(pl.Float32)).write_parquet(path)
    table = read_table(path, "", VOCABULARY, FILMS).table
    assert table["p_present"].to_list() == pytest.approx(scores(WIDE).table["p_present"].to_list(), abs=1e-7)


@pytest.mark.parametrize("key", ["a", "a.png", "a.JPG", "x/y/a.jpeg", "p1/a.png", "C:\\films\\a.dcm"])
def test_films_are_matched_by_stem(scores, key):
    """Resized copies in another folder, as another format, are the same film."""
    assert scores(f"image_id,Mass\n{key},0.5\n").table["image_id"].unique().to_list() == ["p1/a.png"]


def test_a_stem_that_two_films_share_matches_neither(scores):
    """CheXpert calls every film view1_frontal.jpg: there the whole id must match."""
    films = ["p1/view1.jpg", "p2/view1.jpg", "p2/view2.jpg"]
    scored = scores("image_id,Mass\np1/view1.jpg,0.5\nview1.jpg,0.6\nview2,0.7\n", films=films)
    assert sorted(set(scored.table["image_id"])) == ["p1/view1.jpg", "p2/view2.jpg"]
    assert counts(scored)["unknown_films"] == 1


def test_a_dicom_uid_keeps_its_dots(scores):
    """What stands after the last dot of 1.2.840.1 is no file type."""
    scored = scores("image_id,Mass\n1.2.840.1,0.5\n1.2.840.2.dcm,0.6\n", films=["1.2.840.1", "1.2.840.2"])
    assert scored.table.filter(pl.col("finding") == "Mass")["p_present"].to_list() == [0.5, 0.6]


@pytest.mark.parametrize("key", ["image_id", "Image Index", "IMAGE-ID", "filename", "path", "Unnamed thing", ""])
def test_the_films_column_has_a_usual_name_or_comes_first(scores, key):
    """NIH's name, ours, a path, or whatever stands first."""
    assert scores(f"{key},Mass\na.png,0.5\n").table.height == 3


def test_findings_are_spelled_as_people_spell_them(scores):
    """Case, blanks, _ and the aliases of the vocabulary."""
    assert scores("image_id,pleural EFFUSION\na,0.5\n").table["outcome"].to_list()[0] == "answered"
    assert scores("image_id,finding,p_present\na,pleural_effusion,0.5\n").table["outcome"].to_list()[0] == "answered"


def test_what_is_no_finding_is_counted(scores):
    """Columns and rows about what is not audited are left out, by name."""
    wide = scores("image_id,Mass,Fracture,No Finding\na,0.5,0.9,0.1\n")
    assert counts(wide)["unknown_columns"] == 2
    assert "Fracture, No Finding" in next(n.message for n in wide.notices if n.code == "unknown_columns")
    long = scores(LONG + "a.png,Fracture,0.9\nb.png,,0.9\n")
    assert counts(long)["unknown_findings"] == 2
    assert "Fracture" in next(n.message for n in long.notices if n.code == "unknown_findings")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (WIDE, "unscored_films", "1 film of the dataset that the file does not score"),
        (WIDE, "abstained_pairs", "1 pair without a number"),
        (WIDE.replace("Hernia", "Age"), "unknown_columns", "1 column of scores.csv that is no finding of the dataset"),
        (WIDE.replace("Hernia", "Age"), "unscored_findings", "1 finding that the file has no score for"),
        (WIDE.replace("p1/b", "p9/z"), "unknown_films", "1 film of scores.csv not in the dataset"),
        (LONG + "b.png,Hernia,0.1\n", "unscored_pairs", "1 pair that the file leaves out"),
        (LONG + "b.png,Fracture,0.1\n", "unknown_findings", "1 row of scores.csv about what is not audited"),
    ],
)
def test_one_of_a_kind_is_no_plural(scores, text, code, words):
    """A notice that counts one says so in the singular."""
    (notice,) = (notice for notice in scores(text).notices if notice.code == code)
    assert (notice.count, notice.message.startswith(words)) == (1, True), notice.message


def test_strangers_are_counted(scores):
    """Films of another dataset in the same file do no harm; a file of nothing else is refused."""
    scored = scores(WIDE + "zzz.png,0.1,0.1,0.1\n")
    assert counts(scored)["unknown_films"] == 1
    assert scored.table["image_id"].n_unique() == 2
    with pytest.raises(JudgeError, match="of its 1 film none"):
        scores("image_id,Mass\nzzz.png,0.5\n")


TWO = "model,image_id,Mass\none,a,0.1\ntwo,a,0.2\none,b,0.3\n"


def test_a_name_picks_one_judge_of_a_file(scores):
    """By a column `model` or `judge`; its card has that name."""
    scored = scores(TWO, name="two")
    assert (scored.table.height, scored.card.judge, scored.table["judge"][0]) == (3, "two", "two")
    assert scores(TWO.replace("model", "judge"), name="one").table.height == 6


def test_several_judges_and_no_name_is_an_error_that_lists_them(scores):
    """With a line to type."""
    with pytest.raises(JudgeError, match=r"one, two.*scores.csv@one"):
        scores(TWO)
    with pytest.raises(UnknownName, match=r"judge .*'tow'.*'two'"):
        scores(TWO, name="tow")
    with pytest.raises(JudgeError, match=r"judge or model.* @two"):
        scores(WIDE, name="two")
    assert scores(TWO.replace("two", "one").replace("one,a,0.2\n", "")).card.judge == "one"


WRONG = {
    "line 2, Mass: 1.2 is no probability. If these are logits, write 1": "image_id,Mass\na,1.2\n",
    "line 3, Mass: -3.5 is no probability": "image_id,Mass\na,0.5\nb,-3.5\n",
    "line 2, Mass: NaN is no score": "image_id,Mass\na,nan\n",
    "line 2, Mass: inf is no probability": "image_id,Mass\na,inf\n",
    "line 3, column Mass: 'high' is no number": "image_id,Mass\na,0.5\nb,high\n",
    "line 4: (p1/a.png, Mass) is scored a second time, first in": "image_id,Mass\na,0.5\nb,0.5\na.jpg,0.5\n",
    "line 3: (p1/a.png, Mass) is scored a second": "image_id,finding,p_present\na,Mass,0.5\na,Mass,0.5\n",
    "line 3: image_id is empty": "image_id,Mass\na,0.5\n,0.5\n",
    "line 3: the column judge is empty": "judge,image_id,Mass\nx,a,0.5\n,b,0.5\n",
    "has no column that is a finding of three, only image_id, x": "image_id,x\na,0.5\n",
    "has no column that names the films": "Mass,Hernia\n0.5,0.5\n",
    "'Effusion' and 'pleural effusion' are both Effusion": "image_id,Effusion,pleural effusion\na,0.5,0.5\n",
    "has a column finding and none called p_present": "image_id,finding,yes\na,Mass,0.5\n",
    "line 2: no finding is called 'Masss'. Did you mean 'Mass'": "image_id,finding,p_present\na,Masss,0.5\n",
    "line 2: no outcome is called 'anwsered'": "image_id,finding,p_present,outcome\na,Mass,0.5,anwsered\n",
    "line 2: no outcome is called ''": "image_id,finding,p_present,outcome\na,Mass,0.5,\n",
    "line 2: the outcome is refused and p_present is 0.5": "image_id,finding,p_present,outcome\na,Mass,0.5,refused\n",
    "line 2: the outcome is answered and p_present is None": "image_id,finding,p_present,outcome\na,Mass,,answered\n",
    "line 2: a record judge is no image judge": "image_id,finding,p_present,kind\na,Mass,0.5,record\n",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_a_score_stops_with_its_place(scores, words):
    """In one line, with the first of them and what to do."""
    with pytest.raises(BpalsError) as caught:
        scores(WRONG[words])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_in_a_parquet_column_are_no_scores(tmp_path):
    """True and False are refused by type; a null column is an abstention."""
    path = tmp_path / "labels.parquet"
    pl.DataFrame({"image_id": ["a"], "Mass": [True]}).write_parquet(path)
    with pytest.raises(JudgeError, match=r"Mass is Boolean"):
        read_table(path, "", VOCABULARY, FILMS)
    pl.DataFrame({"image_id": ["a"], "Mass": [None]}).write_parquet(path)
    assert read_table(path, "", VOCABULARY, FILMS).table["outcome"].to_list()[1] == "abstained"


def test_the_card_stands_beside_the_file_or_is_named(scores, tmp_path):
    """Without one everything is unknown and a notice asks for it, with what to write."""
    bare = scores(WIDE)
    notice = next(notice for notice in bare.notices if notice.code == "no_card")
    assert mentions(notice.message, "scores.csv.card.toml")
    assert "trained_on_target" in notice.message
    assert (bare.card.judge, bare.card.licence, bare.card.trained_on_target) == ("scores", "unknown", "unknown")
    text = 'name = "net"\nmodel = "n"\nrevision = "r"\nlicence = "MIT"\ntrained_on_target = "yes"\nevidence = "paper"\n'
    (tmp_path / "scores.csv.card.toml").write_text(text)
    scored = scores(WIDE)
    card = scored.card
    assert "no_card" not in counts(scored)
    assert (card.judge, card.model, card.revision, card.licence) == ("net", "n", "r", "MIT")
    assert (card.commercial_use, card.trained_on_target, card.evidence) == ("yes", "yes", "paper")
    assert set(scored.table["judge"]) == {"net"}
    assert not card.held_out
    (tmp_path / "apart.toml").write_text(f'{text}held_out = "yes"\n')
    apart = scores(WIDE, card=tmp_path / "apart.toml").card
    assert apart.held_out
    assert apart.fingerprint == card.fingerprint
    (tmp_path / "other.toml").write_text(text.replace("net", "other"))
    assert scores(WIDE, card=tmp_path / "other.toml").card.judge == "other"


def test_a_changed_file_is_another_judge(scores):
    """The card has the hash of the file; its name and folder do not matter."""
    same = scores(WIDE).card.fingerprint
    assert scores(WIDE, file="renamed.csv").card.fingerprint == same
    assert scores(WIDE.replace("0.9", "0.8")).card.fingerprint != same
    assert scores(TWO, name="one").card.fingerprint != scores(TWO, name="two").card.fingerprint


def test_the_order_of_the_file_does_not_matter(scores):
    """Rows come in the order of the dataset and the vocabulary."""
    header, *lines = LONG.splitlines(keepends=True)
    assert scores(header + "".join(reversed(lines))).table.equals(scores(LONG).table)


def test_a_sealed_table_of_a_judge_can_be_read_again(scores, tmp_path):
    """What bpals writes, bpals reads: the answers of another workspace."""
    before = scores(WIDE)
    path = tmp_path / "sealed.parquet"
    before.table.write_parquet(path)
    after = read_table(path, "", VOCABULARY, FILMS)
    kept = ["image_id", "finding", "outcome", "p_present", "logit_present", "judge"]
    assert after.table.select(kept).equals(before.table.select(kept))


AUROCS = {
    "Atelectasis": 0.818, "Cardiomegaly": 0.909, "Effusion": 0.883, "Infiltration": 0.716, "Mass": 0.838,
    "Nodule": 0.776, "Pneumonia": 0.762, "Pneumothorax": 0.878, "Consolidation": 0.800, "Edema": 0.894,
    "Emphysema": 0.932, "Fibrosis": 0.825, "Pleural_Thickening": 0.789, "Hernia": 0.918,
}  # fmt: skip


def test_the_chexnet_panel_has_the_aurocs_that_are_known(data_folder):
    """22,433 films x 14 findings of one model of the panel, against NIH's labels by the scorecard's own code."""
    dataset = nih.load()
    spec = parse_spec(f"table:{data_folder / 'predictions' / 'chexnet_panel.parquet'}@jrzech_densenet121")
    scored = find(spec.kind)(spec.target, spec.revision, dataset.vocabulary, dataset.images["image_id"])
    assert scored.table.height == 22_433 * len(NIH.findings)
    assert set(scored.table["outcome"]) == {"answered"}
    assert counts(scored) == {"unscored_films": 112_120 - 22_433, "no_card": 1}
    said = scored.table.join(dataset.claims, on=["image_id", "finding"], how="left", maintain_order="left")
    found = {}
    for finding in NIH.findings:
        those = said.filter(pl.col("finding") == finding)
        found[finding] = Curve.of(those["p_present"], those["says"] == "present").auroc()[0].round(3)
    assert found == AUROCS


def test_a_guessed_column_is_said_in_one_notice(scores):
    """Which column names the films, and which are the scores."""
    guess = [n.message for n in scores(WIDE.replace("image_id", "file")).notices if n.code == "guessed_columns"]
    assert [mentions(line, "scores.csv", "'file'", "Effusion, Mass, Hernia") for line in guess] == [True]
    guess = [n.message for n in scores(LONG.replace("image_id", "study")).notices if n.code == "guessed_columns"]
    assert [mentions(line, "scores.csv", "'study'", "p_present") for line in guess] == [True]
    assert "guessed_columns" not in counts(scores(WIDE))


def test_two_columns_that_may_name_the_films_are_refused(scores):
    """Unless one of them is called image_id."""
    text = "path,file,Effusion\nx/p1/a.png,p1/a.png,0.5\n"
    with pytest.raises(JudgeError, match=r" 2 columns .*: file, path"):
        scores(text)
    assert counts(scores(text.replace("file", "image_id")))["unscored_films"] == 2


def write(folder, content, name="scores.csv"):
    """Put a file there."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"image_id,Mass\na.png,0.5\nb.png,\n"),
        ("crlf.csv", b"image_id,Mass\r\na.png,0.5\r\nb.png,\r\n"),
        ("bom.csv", b"\xef\xbb\xbfimage_id,Mass\na.png,0.5\nb.png,\n"),
        ("semicolons.csv", b"image_id;Mass\na.png;0.5\nb.png;\n"),
        ("tabs.tsv", b"image_id\tMass\na.png\t0.5\nb.png\t\n"),
        ("quoted.csv", b'"image_id","Mass"\n"a.png","0.5"\n"b.png",""\n'),
        ("blanks.csv", b"\n image_id , Mass \n\n a.png , 0.5 \n\nb.png,\n\n"),
        ("cut-newline.csv", b"image_id,Mass\na.png,0.5\nb.png,"),
        ("packed.csv.gz", gzip.compress(b"image_id,Mass\na.png,0.5\nb.png,\n", mtime=0)),
    ],
)
def test_text_is_read_as_it_is_written(tmp_path, name, content):
    """Whatever wrote it: line ends, marks, separators, quotes, blanks, gzip."""
    file = read_scores(write(tmp_path, content, name))
    assert file.frame.to_dict(as_series=False) == {"image_id": ["a.png", "b.png"], "Mass": ["0.5", ""]}


def test_parquet_keeps_its_types(tmp_path):
    """And has rows, not lines."""
    path = tmp_path / "scores.parquet"
    pl.DataFrame({"image_id": ["a.png"], "Mass": [0.5]}).write_parquet(path)
    file = read_scores(path)
    assert file.frame["Mass"].dtype == pl.Float64
    assert file.place(0) == f"{path} row 1"


def test_a_row_knows_its_line(tmp_path):
    """Also after blank lines and line breaks inside quotes."""
    file = read_scores(write(tmp_path, 'image_id,note,Mass\n\na.png,"two\nlines",1\nb.png,x,1\n'))
    assert file.place(1).endswith("scores.csv line 5")


def test_a_column_is_found_however_it_is_spelled(tmp_path):
    """Blanks, case, _ and - do not matter; the first spelling that is there wins."""
    file = read_scores(write(tmp_path, "Image Index,P-Present\na,1\n"))
    assert file.column("image_index", "p_present") == "Image Index"
    assert file.column("P PRESENT") == "P-Present"
    assert file.column("judge") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"image_id,Mass\n", "has columns but no row"),
        (b"image_id,Mass\na.png,0.5,0.6\n", "line 2 has 3 fields where the header has 2"),
        (b"image_id,Mass\na.png,0.5\nb.p", "line 3 has 1 field where the header has 2.*cut off"),
        (b'image_id,Mass\na.png,"0.5\n', "line 2: unexpected end of data"),
        (b"image_id,Mass,mass\na.png,1,1\n", "the column 'mass' stands there twice"),
        (b"image_id,Mass,Mass\na.png,1,1\n", "the column 'Mass' stands there twice"),
        (b"image_id,Mass\n\xff\xfe,1\n", "line 2 is no UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is a PNG image, not a CSV or Parquet table"),
        (b"PAR1 and then nothing", "is no whole Parquet file"),
        (gzip.compress(b"image_id,Mass\na.png,0.5\n", mtime=0)[:-9], "is cut off or damaged"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, content, words):
    """What it is, where, and what to do; never a half of it."""
    with pytest.raises(JudgeError, match=words) as caught:
        read_scores(write(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    """Nor a folder, which is none."""
    with pytest.raises(JudgeError, match="does not exist"):
        read_scores(tmp_path / "gone.csv")
    with pytest.raises(JudgeError, match="Is a directory"):
        read_scores(tmp_path)


def write_card(folder, text):
    """Put a card there."""
    path = folder / "scores.csv.card.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_card_is_looked_for_beside_the_file(tmp_path):
    """With its whole name, so that scores.csv and scores.parquet have each their own."""
    assert table.beside(tmp_path / "scores.csv") == tmp_path / "scores.csv.card.toml"


def test_one_card_can_speak_of_several_judges(tmp_path):
    """What stands under a judge's name is its own; the rest is everybody's."""
    path = write_card(tmp_path, 'licence = "MIT"\nmodel = "a"\n[two]\nmodel = "b"\n')
    assert table.read_card(path, "one") == {"licence": "MIT", "model": "a"}
    assert table.read_card(path, "two") == {"licence": "MIT", "model": "b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("licence = \n", "is no TOML"),
        ('license = "MIT"\n', "no field of a card is called 'license'. Did you mean 'licence'"),
        ("revision = 3\n", "revision = 3 is no text. Put it in quotes"),
        ('trained_on_target = "maybe"\n', "no trained_on_target is called 'maybe'"),
        ('trained_on_target = "yes"\n', "nothing says how you know. Add: evidence"),
        ('held_out = "perhaps"\n', "no held_out is called 'perhaps'"),
        ('[mine]\nlicens = "MIT"\n', "'licens'"),
    ],
)
def test_a_wrong_card_is_one_line(tmp_path, text, words):
    """With the file, and what to write_card instead."""
    with pytest.raises(BpalsError, match=words) as caught:
        table.read_card(write_card(tmp_path, text), "mine")
    assert "scores.csv.card.toml" in str(caught.value)


def test_a_card_that_is_not_there_is_one_line(tmp_path):
    """The one that --card named."""
    with pytest.raises(JudgeError, match=r"does not exist.*--card"):
        table.read_card(tmp_path / "gone.toml", "mine")
    with pytest.raises(JudgeError, match="cannot be read"):
        table.read_card(tmp_path, "mine")
