"""A mapping is read and checked; every mistake in it is one line that names the file and the key."""

import re
from pathlib import Path

import pytest

from bpals.errors import SourceError, UnknownName
from bpals.sources.mapping import LAYOUTS, ROLES, SHIPPED, STATES, load_mapping, parse_mapping

pytestmark = pytest.mark.quick

COLUMNS = """
[columns]
image = "file"

[labels]
layout = "columns"
audited = ["Mass", "Edema"]

[values]
present = 1
absent = [0, "no"]
"""
LIST = """
[columns]
image = "file"

[labels]
layout = "list"
column = "labels"
delimiter = "|"
unlisted = "absent"
audited = ["Mass", "Edema"]
"""
LONG = """
[columns]
image = "file"

[labels]
layout = "long"
finding = "label"
unlisted = "absent"
audited = ["Mass", "Edema"]
"""


def parse(text):
    """Read a mapping from a text."""
    return parse_mapping(text.encode(), origin="my.toml")


def refusal(text):
    """The one line that a mapping is refused with."""
    with pytest.raises(SourceError) as caught:
        parse(text)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("my.toml")
    return line


def test_a_small_mapping_is_enough():
    """What is not said has a stated default."""
    mapping = parse(COLUMNS)
    assert mapping.name == "my"
    assert mapping.title == "my"
    assert mapping.films == {"image": ("file",)}
    assert mapping.labels.values == {"": "silent", "1": "present", "0": "absent", "no": "absent"}
    assert mapping.vocabulary.findings == ("Mass", "Edema")
    assert parse(LONG).labels.readers == "majority"
    assert parse(LIST).labels.blank == "silent"


def test_one_finding_may_stand_without_brackets():
    """A text is a list of one, also where its name has a blank; brackets keep a name that has a comma whole."""
    for written, findings in (
        ('"Mass"', ("Mass",)),
        ('"Lung mass"', ("Lung mass",)),
        ('["Mass, solitary"]', ("Mass, solitary",)),
    ):
        assert parse(COLUMNS.replace('["Mass", "Edema"]', written)).vocabulary.findings == findings


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_mapping_is_whole(name):
    """Each names its dataset and whom to thank."""
    mapping = load_mapping(name)
    assert mapping.name == name
    assert mapping.title != name
    assert len(mapping.attribution) > 60
    assert len(mapping.vocabulary.findings) >= 13


def test_a_spelling_of_two_findings_is_an_alias_of_neither():
    """A hydropneumothorax is both, so a reader who types it must say which is meant."""
    vocabulary = load_mapping("padchest").vocabulary
    assert vocabulary.resolve(["Hernia", "laminar atelectasis"]) == ["hiatal hernia", "atelectasis"]
    with pytest.raises(UnknownName):
        vocabulary.resolve(["hydropneumothorax"])


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        # unknown keys
        (COLUMNS, "[columns]", "[colums]", "no key is called 'colums'. Did you mean 'columns'?"),
        (COLUMNS, "image =", "imgae =", "[columns]: no key is called 'imgae'. Did you mean 'image'?"),
        (COLUMNS, "audited", "auditted", "Did you mean 'audited'?"),
        (LIST, "unlisted", "unlited", "[labels]: no key is called 'unlited'. Did you mean 'unlisted'?"),
        (COLUMNS, "absent =", "abscent =", "[values]: no key is called 'abscent'. Did you mean 'absent'?"),
        (COLUMNS, "audited", 'unlisted = "absent"\naudited', "no key with layout = 'columns' is called 'unlisted'"),
        (LIST, "column =", 'reader = "r"\ncolumn =', "no key with layout = 'list' is called 'reader'"),
        # missing keys
        (COLUMNS, 'image = "file"', "", "[columns] image is missing"),
        (COLUMNS, 'layout = "columns"', "", "[labels] layout is missing"),
        (COLUMNS, 'audited = ["Mass", "Edema"]', "", "[labels] audited is missing"),
        (COLUMNS, "present = 1", "", "[values] present is missing"),
        (LIST, 'column = "labels"', "", "[labels] column is missing"),
        (LIST, 'unlisted = "absent"', "", "[labels] unlisted is missing"),
        (LIST, 'delimiter = "|"', "", "[labels] delimiter or brackets = true: exactly one"),
        (LONG, 'finding = "label"', "", "[labels] finding is missing"),
        # wrong values
        (COLUMNS, '"columns"', '"colums"', "[labels] layout: no choice is called 'colums'. Did you mean 'columns'?"),
        (LIST, '"absent"', '"abscent"', "[labels] unlisted: no choice is called 'abscent'. Did you mean 'absent'?"),
        (LONG, "finding", 'readers = "mayority"\nfinding', "Did you mean 'majority'? Known: majority, any, all."),
        (LIST, 'delimiter = "|"', 'delimiter = "|"\nbrackets = true', "exactly one of the two"),
        (LIST, 'delimiter = "|"', 'brackets = "yes"', "[labels] brackets is 'yes'; true or false is wanted"),
        (LIST, 'delimiter = "|"', "delimiter = 3", "[labels] delimiter is 3; a text is wanted"),
        (COLUMNS, '["Mass", "Edema"]', "[]", "[labels] audited is empty"),
        (
            COLUMNS,
            '["Mass", "Edema"]',
            '"Mass, Edema"',
            """'Mass, Edema'; write several findings as a list: ["Mass", "Edema"]""",
        ),
        (LIST, '["Mass", "Edema"]', '"Mass|Edema"', """write several findings as a list: ["Mass", "Edema"]"""),
        (COLUMNS, '["Mass", "Edema"]', '["Mass", "mass "]', "[labels] audited has 'mass' twice or blank"),
        (COLUMNS, '["Mass", "Edema"]', '["Mass", 3]', "[labels] audited has 3; a text or a list of texts is wanted"),
        (COLUMNS, "present = 1", "present = {a = 1}", "[values] present has {'a': 1}; texts, numbers"),
        (COLUMNS, "present = 1", "present = [1, 0.0]", "[values] absent has the value 0, which 'present' has too"),
        (COLUMNS, "[columns]", 'separator = ";;"\n[columns]', "separator is ';;'; one ASCII character is wanted"),
        (COLUMNS, "[columns]", 'date_format = "%H"\n[columns]', "date_format is '%H', which reads no date"),
        (COLUMNS, "[columns]", "columns = 3\n[other]", "no key is called 'other'"),
        (COLUMNS, '[columns]\nimage = "file"', "columns = 3", "[columns] is not a table of keys"),
        (LIST, "[labels]", "[values]\npresent = 1\n[labels]", "values has nothing to speak of"),
        # words with two meanings
        (LIST, "column =", 'no_finding = "mass"\ncolumn =', "[labels] no_finding has 'mass', which 'audited' has too"),
        (
            LIST,
            "column =",
            'no_finding = "x"\nsilent_if = ["X"]\ncolumn =',
            "silent_if has 'X', which 'no_finding' has",
        ),
        (
            LIST,
            "[labels]",
            '[aliases]\nMas = ["tumour"]\n[labels]',
            "no audited finding is called 'Mas'. Did you mean 'Mass'?",
        ),
        # films
        (COLUMNS, "image =", 'order = "a"\ndate = "b"\nimage =', "[columns] date stands beside 'order'"),
        (COLUMNS, "image =", 'age = "a"\nbirth = "b"\ndate = "c"\nimage =', "[columns] birth stands beside 'age'"),
        (COLUMNS, "image =", 'birth = "b"\nimage =', "[columns] birth needs 'date'"),
        # patterns
        (COLUMNS, "[labels]", "[pattern]\ncolumn = 'file'\n[labels]", "[pattern] regex is missing"),
        (COLUMNS, "[labels]", "[pattern]\nregex = '(?P<patient>.)'\n[labels]", "[pattern] column is missing"),
        (
            COLUMNS,
            "[labels]",
            "[pattern]\ncolumn = 'file'\nregex = '(p'\n[labels]",
            "regex is no regular expression: unclosed",
        ),
        (COLUMNS, "[labels]", "[pattern]\ncolumn = 'file'\nregex = '(?=p)'\n[labels]", "look-around"),
        (COLUMNS, "[labels]", "[pattern]\ncolumn = 'file'\nregex = '(p)'\n[labels]", "regex has no named group"),
        (
            COLUMNS,
            "[labels]",
            "[pattern]\ncolumn = 'file'\nregex = '(?P<patent>p)'\n[labels]",
            "Did you mean 'patient'?",
        ),
        (
            COLUMNS,
            "[labels]",
            "[pattern]\ncolumn = 'file'\nregex = '(?P<image>p)'\n[labels]",
            "which [columns] names too",
        ),
        # no TOML at all
        (COLUMNS, "[columns]", "[columns", "is not TOML: "),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(text, old, new, message):
    """Where it is, what is wrong, and what was meant."""
    assert old in text
    assert message in refusal(text.replace(old, new, 1))


def test_every_key_is_in_the_docs():
    """docs/sources.md has the reference of a mapping."""
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    keys = {*ROLES, *STATES, *(key for extra in LAYOUTS.values() for key in extra)} - {"brackets"}
    keys |= {
        "name",
        "title",
        "attribution",
        "separator",
        "date_format",
        "layout",
        "audited",
        "regex",
        "brackets = true",
    }
    assert not [key for key in keys if f"`{key}`" not in page]


def test_the_line_of_a_toml_mistake_is_named():
    """The reader of TOML knows the line."""
    assert re.search(r"is not TOML: .*line 3", refusal("\n\nname = \n"))


def test_a_mapping_that_is_no_text_is_refused():
    """Latin-1 is no TOML."""
    with pytest.raises(SourceError, match=r"my\.toml is not UTF-8"):
        parse_mapping("title = 'é'".encode("latin-1"), origin="my.toml")


def test_an_unknown_mapping_name_is_answered_with_the_nearest():
    """A name that is no file and no shipped mapping."""
    with pytest.raises(UnknownName, match=r"mapping .*'chexprt'.*'chexpert'"):
        load_mapping("chexprt")


def test_a_missing_mapping_file_is_refused(tmp_path):
    """It ends in .toml, so a file was meant."""
    with pytest.raises(SourceError, match=r"none\.toml does not exist"):
        load_mapping(tmp_path / "none.toml")


def test_a_mapping_can_be_named_as_a_file(tmp_path):
    """Any file that exists is read, whatever it is called."""
    (tmp_path / "mine").write_text(COLUMNS)
    assert load_mapping(str(tmp_path / "mine")).name == "mine"
