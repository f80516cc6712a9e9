"""The card of scores computed elsewhere."""

import tomllib

import pytest

from bpals.errors import BpalsError, JudgeError
from bpals.judges import table

pytestmark = pytest.mark.quick


def write(folder, text):
    """Put a card there."""
    path = folder / "scores.csv.card.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_card_is_looked_for_beside_the_file(tmp_path):
    """With its whole name, so that scores.csv and scores.parquet have each their own."""
    assert table.beside(tmp_path / "scores.csv") == tmp_path / "scores.csv.card.toml"


def test_the_template_is_a_card(tmp_path):
    """Every field with what it means; it can be read as it is."""
    text = table.template("mine")
    assert list(tomllib.loads(text)) == list(table.FIELDS)
    assert table.read_card(write(tmp_path, text), "mine")["name"] == "mine"


def test_one_card_can_speak_of_several_judges(tmp_path):
    """What stands under a judge's name is its own; the rest is everybody's."""
    path = write(tmp_path, 'licence = "MIT"\nmodel = "a"\n[two]\nmodel = "b"\n')
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
    """With the file, and what to write instead."""
    with pytest.raises(BpalsError, match=words) as caught:
        table.read_card(write(tmp_path, text), "mine")
    assert "scores.csv.card.toml" in str(caught.value)


def test_a_card_that_is_not_there_is_one_line(tmp_path):
    """The one that --card named."""
    with pytest.raises(JudgeError, match=r"does not exist.*--card"):
        table.read_card(tmp_path / "gone.toml", "mine")
    with pytest.raises(JudgeError, match="cannot be read"):
        table.read_card(tmp_path, "mine")
