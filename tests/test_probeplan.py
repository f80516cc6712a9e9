"""The plan of a probe: kept beside what was seen, read again, and that of a part made whole."""

import pytest

from bpals.errors import WorkspaceError
from bpals.store.features import PLAN, ProbePlan, begun, films_in, read_plan

SHARD = ProbePlan(judge="probe-lite0", spec="probe:lite0", films=10, part=4, shard="1/2")


def test_what_is_kept_is_what_is_read(tmp_path):
    """Nothing else is left in the folder; one that was never planned has no plan."""
    folder = tmp_path / "features" / "lite0-ab"
    assert read_plan(folder) is None
    SHARD.keep(folder)
    assert read_plan(folder) == SHARD
    assert [path.name for path in folder.iterdir()] == [PLAN]
    (found,) = begun(tmp_path)
    assert (found.plan, found.films, found.busy, found.seen) == (SHARD, 0, False, False)
    assert films_in(folder) == 0


def test_the_plan_of_all_parts_is_of_all_films():
    """What a merged workspace goes by."""
    assert (SHARD.whole.part, SHARD.whole.shard, SHARD.whole.films) == (10, "", 10)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"judge": 1, "strange": 2}'])
def test_a_plan_that_cannot_be_read_is_none(tmp_path, text):
    """The next run writes it anew: what was seen does not depend on it."""
    (tmp_path / PLAN).write_text(text)
    assert read_plan(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    """In one line, with what to type."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="--workspace DIR"):
        SHARD.keep(tmp_path / "file")
