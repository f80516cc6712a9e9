"""A table becomes a dataset: one column per finding, headers, and files in other forms."""

import gzip
import re
from pathlib import Path

import polars as pl
import pytest

from bpals.sources import tabular
from bpals.types import IMAGES, claims_schema
from world.mappings import COLUMNS, HEADER, LIST
from world.words import mentions

pytestmark = pytest.mark.quick


def test_a_table_becomes_images_and_claims(load, said, notices):
    """Every column arrives with its type, and blanks in a label column are silence."""
    dataset = load(HEADER + "a.png,p1,1,61,Male,PA,1,0\nb.png,p1,2,62.5,M,AP,-1,\nc.png,,,,,,yes,0.0\n", COLUMNS)
    assert dataset.images.schema == IMAGES
    assert dataset.images.rows() == [
        ("a.png", "p1", None, 1, "PA", 61.0, "M", None, None),
        ("b.png", "p1", None, 2, "AP", 62.5, "M", None, None),
        ("c.png", None, None, None, None, None, None, None, None),
    ]
    assert dataset.claims.schema == claims_schema(dataset.vocabulary)
    assert said(dataset) == {"a.png": "+-", "b.png": "?.", "c.png": "+-"}
    assert set(dataset.inputs) == {"t.csv", "my.toml"}
    assert notices(dataset) == {"patient_missing": 1, "never_present": 1}


def test_parquet_and_gzip_say_the_same_as_csv(load, tmp_path):
    """The form of the file does not matter."""
    text = HEADER + "a.png,p1,1,61,M,PA,1,0\nb.png,p1,2,62,M,AP,-1,\n"
    plain = load(text, COLUMNS)
    packed = load(gzip.compress(text.encode()), COLUMNS, "t.csv.gz")
    pl.read_csv(text.encode()).write_parquet(tmp_path / "t.parquet")
    columnar = tabular.load(tmp_path / "t.parquet", tmp_path / "my.toml")
    for other in (packed, columnar):
        assert other.images.equals(plain.images)
        assert other.claims.equals(plain.claims)


def test_one_film_is_a_dataset(load, said):
    """The smallest table that makes a claim."""
    assert said(load(HEADER + "a.png,p1,1,61,M,PA,1,0\n", COLUMNS)) == {"a.png": "+-"}


def test_a_value_that_the_mapping_does_not_name_is_refused(refusal):
    """A 2 is not taken for a 1."""
    line = refusal(HEADER + "a.png,p,1,61,M,PA,1,0\nb.png,p,2,61,M,PA,2,0\n", COLUMNS)
    assert re.search(r"t\.csv line 3, .*'Mass', .*'2', .*\[values\].*my\.toml", line)


def test_a_finding_nobody_claims_is_counted(load, said, notices):
    """A column that is blank from top to bottom makes no claim, and the others do."""
    dataset = load(HEADER + "a.png,p,1,61,M,PA,1,\nb.png,p,2,61,M,PA,0,\n", COLUMNS)
    assert said(dataset) == {"a.png": "+.", "b.png": "-."}
    assert "never_present" in notices(dataset)


def test_a_table_that_is_silent_all_over_is_refused(refusal):
    """There is nothing to audit."""
    assert "makes no claim" in refusal(HEADER + "a.png,p,1,61,M,PA,,\n", COLUMNS)


def test_two_columns_of_one_finding_are_read_as_the_stronger(load, said):
    """Present counts before uncertain before absent before silence."""
    text = "file,Nodule,Lump\na,0,1\nb,-1,0\nc,0,\nd,,\ne,1,0\n"
    mapping = '[columns]\nimage = "file"\n' + COLUMNS[COLUMNS.index("\n[labels]") :].replace(', "Edema"', "")
    mapping += '[aliases]\nMass = ["Nodule", "Lump"]\n'
    assert said(load(text, mapping)) == {"a": "+", "b": "?", "c": "-", "d": ".", "e": "+"}


def test_a_no_finding_column_turns_silence_into_absence_only_if_asked(load, said, notices):
    """Where the mapping names it, a contradiction is counted and the finding stays present."""
    text = "file,Normal,Mass,Edema\na,1,,\nb,1,1,\nc,0,,1\n"
    mapping = COLUMNS.replace("audited", 'no_finding = "Normal"\naudited')
    films = '[columns]\nimage = "file"\n' + mapping[mapping.index("\n[labels]") :]
    dataset = load(text, films)
    assert said(dataset) == {"a": "--", "b": "+-", "c": ".+"}
    assert notices(dataset)["contradiction"] == 1


def test_labels_that_are_not_audited_are_counted(load):
    """A column that the mapping calls unaudited is no claim, and is not lost."""
    text = "file,Devices,Mass,Edema\na,1,1,0\nb,1,0,1\nc,0,0,0\n"
    mapping = '[columns]\nimage = "file"\n' + COLUMNS[COLUMNS.index("\n[labels]") :]
    dataset = load(text, mapping.replace("audited", 'unaudited = ["Devices"]\naudited', 1))
    assert dataset.unaudited == {"Devices": 2}
    assert dataset.claims.height == 6


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            HEADER.replace("file", "File"),
            "wanted for [columns] image: no column is called 'file'. Did you mean 'File'?",
        ),
        (
            HEADER.replace("Edema", "Oedema"),
            "wanted for [labels] audited: no column is called 'Edema'. Did you mean 'Oedema'?",
        ),
        (HEADER.replace("view", "Mass"), "t.csv has the column 'Mass' 2 times. Keep one of them"),
    ],
)
def test_a_missing_or_doubled_column_is_refused(refusal, header, message):
    """With what was meant."""
    mapping = COLUMNS if "view" in header else COLUMNS.replace('view = "view"\n', "")
    assert message in refusal(header + "a,p,1,61,M,PA,1,0\n", mapping)


def test_columns_that_nobody_asks_for_may_be_doubled(load, said):
    """Extra columns do not matter, whatever they are called."""
    text = "x,x,,file,labels\n1,2,3,a,Mass\n1,2,3,b,Edema\n"
    assert said(load(text, LIST)) == {"a": "+-", "b": "-+"}


@pytest.mark.parametrize(("separator", "name"), [(";", "';'"), ("\t", r"'\t'")])
def test_another_separator_is_recognised(refusal, load, separator, name, said):
    """And read, once the mapping names it."""
    text = "file,labels\na,Mass\nb,Edema\n".replace(",", separator)
    assert mentions(refusal(text, LIST), "line 1", f"separator = {name}")
    assert said(load(text, f'separator = "{separator}"\n'.replace("\t", "\\t") + LIST)) == {"a": "+-", "b": "-+"}


def test_a_header_without_rows_is_refused(refusal):
    """An empty table is nobody's dataset."""
    assert "has a header line but no rows" in refusal(HEADER, COLUMNS)


def test_the_example_of_the_docs_does_what_the_docs_say(load, said):
    """The mapping in docs/sources.md reads the table beside it."""
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(csv|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    dataset = load(blocks["csv"], blocks["toml"])
    promised = re.findall(r"^\|`(\S+)`\|(\w+)\|(\w+)\|$", page, re.MULTILINE)
    letters = {"present": "+", "absent": "-", "uncertain": "?", "silent": "."}
    assert said(dataset) == {film: letters[mass] + letters[edema] for film, mass, edema in promised}
    assert len(promised) == dataset.images.height
