"""The vocabulary: spellings as people write them, one spelling in every table."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpals.errors import UnknownName, UsageError
from bpals.findings import AIRSPACE_OPACITY, NIH, NODULE_OR_MASS, Vocabulary, fold

pytestmark = pytest.mark.quick


def test_nih_has_its_fourteen_findings():
    """Fourteen, none of them `No Finding`, which is the absence of all."""
    assert len(NIH.findings) == len(set(NIH.findings)) == 14
    assert "No Finding" not in NIH.findings


@pytest.mark.parametrize(
    "word", ["Pleural_Thickening", "pleural thickening", " PLEURAL-THICKENING ", "Pleural  Thickening"]
)
def test_blanks_case_and_dashes_do_not_matter(word):
    """A stray blank in a label list does not make a new finding."""
    assert NIH.resolve([word]) == ["Pleural_Thickening"]


def test_an_alias_is_another_spelling():
    """`Pleural effusion` is NIH's Effusion."""
    assert NIH.resolve(["Pleural effusion", "Mass"]) == ["Effusion", "Mass"]


def test_an_unknown_finding_is_answered_with_the_nearest():
    """The message names the word, the place, and what was probably meant."""
    with pytest.raises(UnknownName, match=r"a\.csv: .*'Efusion'.*'Effusion'"):
        NIH.resolve(["Mass", "Efusion"], where="a.csv")


def test_two_findings_that_fold_to_one_are_refused():
    """Otherwise one column of labels would silently become the other."""
    with pytest.raises(UsageError, match="'mine' has a finding twice"):
        Vocabulary(name="mine", findings=("Pleural_Thickening", "pleural thickening"))


def test_a_finding_wins_over_an_alias_of_the_same_spelling():
    """An alias cannot steal the name of a finding."""
    assert Vocabulary(name="mine", findings=("A", "B"), aliases={"a": "B"}).resolve(["A"]) == ["A"]


def test_the_column_type_keeps_the_order():
    """Sorting by finding gives the vocabulary's order, not the alphabet's."""
    column = pl.Series(["Hernia", "Mass", "Atelectasis"], dtype=NIH.enum)
    assert column.sort().to_list() == ["Atelectasis", "Mass", "Hernia"]


@pytest.mark.parametrize("group", [NODULE_OR_MASS, AIRSPACE_OPACITY])
def test_a_group_is_made_of_findings(group):
    """Each member is a finding of NIH, and the group is none itself."""
    assert set(group.members) <= set(NIH.findings)
    assert group.name not in NIH.findings


@given(st.text())
def test_folding_twice_is_folding_once(word):
    """A folded word stays as it is, so that spellings can be compared at any time."""
    assert fold(fold(word)) == fold(word)
