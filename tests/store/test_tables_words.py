"""The words of a refusal."""

from bpals.errors import SourceError, TruthError
from bpals.store.tables import TableWords


def test_a_refusal_is_the_error_of_whoever_reads():
    """With the words filled in; a brace in a file's name is no word."""
    words = TableWords(error=TruthError, empty="{name} has nothing")
    refusal = words.refusal(words.empty, name="{odd}.csv")
    assert isinstance(refusal, TruthError)
    assert str(refusal) == "{odd}.csv has nothing"


def test_words_that_are_not_handed_in_are_the_usual_ones():
    """A source says them all so."""
    words = TableWords(error=SourceError)
    assert str(words.refusal(words.empty, name="t.csv")).startswith("t.csv is empty.")
