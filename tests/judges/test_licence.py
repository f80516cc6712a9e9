"""What a licence says about commercial use."""

import pytest

from bpals.judges.cards import commercial_use


@pytest.mark.parametrize(
    ("licence", "said"),
    [
        ("Apache-2.0", "yes"),
        ("MIT", "yes"),
        ("BSD-3-Clause", "yes"),
        ("CC-BY-4.0", "yes"),
        ("CC-BY-NC-4.0", "no"),
        ("cc-by-nc-sa-4.0", "no"),
        ("for research only", "no"),
        ("Gemma terms of use", "unknown"),
        ("mitigated", "unknown"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_licence_is_known_by_name_or_not_at_all(licence, said):
    """Nothing is guessed: what is not known is `unknown`."""
    assert commercial_use(licence) == said
