"""How many reads buy which width."""

import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.signal.planning import WIDTHS, reads_for, widths
from bpals.signal.strata import stratify
from world import known_labels

PLACED = stratify(known_labels.claims())
TABLE = widths(PLACED, reads=(30, 100, 300))


def test_more_reads_buy_a_narrower_interval():
    """One row a finding and number of reads; the width falls."""
    assert TABLE.schema == WIDTHS
    for (_,), part in TABLE.group_by("finding"):
        assert part["reads"].to_list() == [30, 100, 300]
        assert part["width"].to_list() == sorted(part["width"], reverse=True)
    assert TABLE.equals(widths(PLACED, reads=(30, 100, 300)))


def test_no_more_is_planned_than_there_is():
    """60 claims cannot be read 100 times."""
    few = stratify(known_labels.claims(films=60, presences=(("Mass", 0.2),)))
    assert widths(few, reads=(30, 100))["reads"].to_list() == [30]
    assert widths(few, reads=(100,))["width"].to_list() == [0.0]


def test_the_reads_for_a_width_lie_between_those_of_the_table():
    """And every finding gets its width."""
    wanted = TABLE.filter(pl.col("reads") == 100)["width"].max()
    assert reads_for(TABLE, wanted) == 100
    assert 30 < reads_for(TABLE, wanted * 1.2) < 100 < reads_for(TABLE, wanted / 1.2) < 300
    assert 300 < reads_for(TABLE, TABLE["width"].min() / 1.5) < 2000


@pytest.mark.parametrize("width", [0.0, -0.1, 1.0, float("nan")])
def test_a_width_that_cannot_be_is_refused(width):
    """A width lies between 0 and 1."""
    with pytest.raises(UsageError, match=r"--width 0\.02"):
        reads_for(TABLE, width)
