"""Lists of labels and long tables become claims; silence and doubt are kept."""

import re

import polars as pl
import pytest

from bpals.sources import tabular
from world.mappings import LIST
from world.words import mentions

pytestmark = pytest.mark.quick

LONG = """
[columns]
image = "file"

[labels]
layout = "long"
finding = "label"
reader = "reader"
no_finding = "none"
unlisted = "absent"
audited = ["Mass", "Edema"]
"""


def lists(*cells):
    """A table with one list of labels a film: film a, b, c ..."""
    return "file,labels\n" + "".join(f"{chr(97 + place)},{cell}\n" for place, cell in enumerate(cells))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("Mass", "+-"),
        ("Mass|Edema", "++"),
        (" mass | EDEMA ", "++"),
        ("Edema|", "-+"),
        ("normal", "--"),
        ("Normal ", "--"),
        ("Mass|normal", "+-"),
        ("Fracture", "--"),
        ("unchanged", ".."),
        ("unchanged|Edema", ".+"),
        ("unchanged|normal", "--"),
        ("", ".."),
        ("|", ".."),
    ],
)
def test_a_list_says_what_it_names(load, cell, expected, said):
    """Case, blanks and a bar too many do not matter; who does not look is silent."""
    assert said(load(lists("Mass|Edema", cell), LIST))["b"] == expected


def test_unlisted_may_mean_silence(load, said):
    """Only `no finding` then makes an absence."""
    dataset = load(lists("Mass", "normal", "Fracture", "Edema"), LIST.replace('"absent"', '"silent"'))
    assert said(dataset) == {"a": "+.", "b": "--", "c": "..", "d": ".+"}


def test_a_blank_list_may_mean_absence(load, said, notices):
    """Some tables leave the cell of a healthy film empty."""
    dataset = load(lists("Mass", "", "Edema"), LIST.replace("unlisted", 'blank = "absent"\nunlisted'))
    assert said(dataset)["b"] == "--"
    assert notices(dataset) == {"unlabelled": 1}


@pytest.mark.parametrize(
    "cell",
    [
        "\"['Mass', ' Edema']\"",
        '"[""Mass"", ""Edema""]"',
        '"[Mass, Edema]"',
        '"Mass, Edema"',
        "\"['Mass' 'Edema', '']\"",
    ],
)
def test_a_bracketed_list_is_read_however_it_is_quoted(load, cell, said):
    """As Python, JSON or numpy writes it."""
    mapping = LIST.replace('delimiter = "|"', "brackets = true")
    assert said(load(lists(cell, "['normal']", "[]"), mapping)) == {"a": "++", "b": "--", "c": ".."}


def test_an_apostrophe_in_a_label_does_not_end_it(load, said):
    """Python quotes such a word with double quotes."""
    mapping = LIST.replace('delimiter = "|"', "brackets = true").replace('"Mass"', '"Hampton\'s hump"')
    assert said(load(lists('"[""Hampton\'s hump"", \'Edema\']"'), mapping)) == {"a": "++"}


def test_a_parquet_list_needs_no_delimiter(load, tmp_path, said):
    """The words of a list column are apart already, whatever is in them."""
    load(lists("Mass", "Edema"), LIST)
    pl.DataFrame({"file": ["a", "b", "c"], "labels": [["Mass", "Edema"], ["normal"], []]}).write_parquet(tmp_path / "p")
    assert said(tabular.load(tmp_path / "p", tmp_path / "my.toml")) == {"a": "++", "b": "--", "c": ".."}


def test_other_labels_are_counted_by_film(load):
    """A label twice on a film counts once; spellings of one word count together."""
    dataset = load(lists("Mass|Rib fracture", "rib_fracture|Rib fracture", "Edema|Scoliosis"), LIST)
    assert dataset.unaudited == {"Rib fracture": 2, "Scoliosis": 1}


def test_one_spelling_may_stand_for_two_findings(load, said):
    """An alias below both is present in both."""
    mapping = LIST + '[aliases]\nMass = ["wet lump"]\nEdema = ["wet lump"]\n'
    assert said(load(lists("wet lump"), mapping)) == {"a": "++"}


def test_contradictions_and_silences_are_counted(load, notices):
    """Each odd film is in a notice that names the first line."""
    dataset = load(lists("Mass|normal", "unchanged", "", "Edema|normal", "Mass"), LIST)
    assert notices(dataset) == {"contradiction": 2, "unread": 1, "unlabelled": 1}
    message = next(notice.message for notice in dataset.notices if notice.code == "contradiction")
    assert mentions(message, "'normal'", "2", "t.csv line 2")


def test_an_audited_finding_that_is_misspelt_is_refused(refusal):
    """It would be claimed absent on every film."""
    line = refusal(lists("Pneumothorax", "Edema"), LIST.replace('"Mass"', '"Pneumotorax"'))
    assert mentions(line, "[labels] audited", "'Pneumotorax'", "'Pneumothorax'")


def test_a_label_that_is_misspelt_is_counted(load, notices):
    """One wrong row among right ones is not audited, and said."""
    dataset = load(lists("Pneumothorax", "Pneumotorax", "Edema"), LIST.replace('"Mass"', '"Pneumothorax"'))
    assert notices(dataset) == {"misspelt": 1}
    assert "'Pneumotorax' (like 'pneumothorax')" in dataset.notices[0].message


def test_an_unknown_label_may_be_refused(refusal):
    """Where the vocabulary is closed, another word is damage."""
    line = refusal(lists("Mass", "Normal", "Edem"), LIST.replace("unlisted", 'others = "refuse"\nunlisted'))
    assert re.search(r"t\.csv line 4: .*'Edem'.*'Edema'", line)


def test_a_column_without_any_finding_is_read_as_what_it_says(load, notices):
    """Free text names nothing: every label of it is counted, and the findings are never present."""
    dataset = load(lists("a long report", "another one"), LIST)
    assert notices(dataset) == {"never_present": 2}
    assert len(dataset.unaudited) == 2


def test_readers_are_combined_and_boxes_are_no_duplicates(load, said, notices):
    """Two boxes of one reader are one mark; a reader without a mark says absent."""
    text = "file,reader,label\na,R1,Mass\na,R1,Mass\na,R2,Mass\na,R3,none\nb,R1,Edema\nb,R2,none\nb,R3,none\n"
    dataset = load(text, LONG)
    assert said(dataset) == {"a": "+-", "b": "-?"}
    assert "repeated_rows" not in notices(dataset)


@pytest.mark.parametrize(("rule", "expected"), [("majority", "+?"), ("any", "++"), ("all", "??")])
def test_the_rule_for_readers_is_the_mappings(load, rule, expected, said):
    """Mass is marked by two of three, Edema by one."""
    text = "file,reader,label\na,R1,Mass\na,R2,Mass\na,R2,Edema\na,R3,none\n"
    assert said(load(text, LONG.replace("unlisted", f'readers = "{rule}"\nunlisted'))) == {"a": expected}


def test_a_reader_who_did_not_look_is_not_counted(load, said):
    """Of two who looked both mark it."""
    text = "file,reader,label\na,R1,Mass\na,R2,Mass\na,R3,unreadable\n"
    mapping = LONG.replace("unlisted", 'silent_if = "unreadable"\nreaders = "all"\nunlisted')
    assert said(load(text, mapping)) == {"a": "+-"}


def test_readers_may_give_a_value(load, said):
    """A row can deny or doubt a finding; what a reader leaves out is silence here."""
    mapping = LONG.replace('"absent"', '"silent"').replace("unlisted", 'value = "v"\nunlisted')
    mapping += "\n[values]\npresent = 1\nabsent = 0\nuncertain = -1\n"
    text = "file,reader,label,v\na,R1,Mass,1\na,R2,Mass,1\na,R3,Mass,0\nb,R1,Mass,-1\nb,R2,Edema,0\n"
    text += "c,R1,none,1\nd,R1,none,0\nd,R1,Edema,1\n"
    assert said(load(text, mapping)) == {"a": "+.", "b": "?-", "c": "--", "d": ".+"}


def test_a_reader_who_contradicts_himself_is_counted(load, said, notices):
    """Present counts before absent; so does a finding before `no finding`."""
    mapping = LONG.replace("unlisted", 'value = "v"\nunlisted') + "\n[values]\npresent = 1\nabsent = 0\n"
    text = "file,reader,label,v\na,R1,Mass,1\na,R1,Mass,0\nb,R1,none,1\nb,R1,Edema,1\n"
    dataset = load(text, mapping)
    assert said(dataset) == {"a": "+-", "b": "-+"}
    assert notices(dataset) == {"reader_contradiction": 1, "contradiction": 1}


def test_a_long_table_needs_no_reader(load, said):
    """Then all rows of a film are one speaker, in whatever order they come."""
    mapping = LONG.replace('reader = "reader"\n', "")
    assert said(load("file,label\na,Mass\nb,none\na,Edema\n", mapping)) == {"a": "++", "b": "--"}


def test_other_labels_of_a_long_table_are_counted_by_film(load):
    """Three readers of one film are one film."""
    text = "file,reader,label\na,R1,Rib\na,R2,Rib\nb,R1,Rib\nb,R1,Mass\nb,R2,Edema\n"
    assert load(text, LONG).unaudited == {"Rib": 2}


def test_a_row_without_a_reader_is_refused(refusal):
    """A vote without a voter cannot be counted."""
    assert mentions(refusal("file,reader,label\na,R1,Mass\na,,Mass\n", LONG), "t.csv line 3", "'reader'")


def test_rows_of_one_film_must_agree_on_it(refusal):
    """One film cannot have two patients."""
    mapping = LONG.replace('image = "file"', 'image = "file"\npatient = "who"')
    line = refusal("file,who,reader,label\na,1,R1,Mass\nb,2,R1,Mass\na,2,R2,Mass\n", mapping)
    assert re.search(r"t\.csv line 4 .*'a' .*t\.csv line 2", line)
