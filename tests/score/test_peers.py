"""cleanlab as a baseline, and a scorecard without it."""

import subprocess
import sys

import numpy as np
import pytest

from bpals.errors import install_line
from bpals.score import opinions

WITHOUT_CLEANLAB = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cleanlab":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from bpals.score import opinions
import numpy as np
from bpals.errors import MissingExtra
try:
    opinions.cleanlab_suspicion(np.array([True, False]), np.array([0.1, 0.2]))
except MissingExtra as missing:
    print(missing)
"""


def test_pruned_claims_come_first_and_then_self_confidence():
    """As `find_label_issues(filter_by="prune_by_noise_rate")` flags them, called here by itself."""
    cleanlab_filter = pytest.importorskip("cleanlab.filter", reason="cleanlab is in the extra bpals[peers]")
    rng = np.random.default_rng(0)
    p_present = rng.beta(1, 3, 4000)
    claimed = rng.random(4000) < np.where(rng.random(4000) < 0.1, 0.5, p_present)
    pruned = cleanlab_filter.find_label_issues(
        claimed.astype(int), np.c_[1 - p_present, p_present], filter_by="prune_by_noise_rate", n_jobs=1
    )
    doubt = np.where(claimed, 1 - p_present, p_present)
    order = np.argsort(-opinions.cleanlab_suspicion(claimed, p_present), kind="stable")
    assert 0 < pruned.sum() < 4000
    assert pruned[order].tolist() == sorted(pruned, reverse=True)
    for chosen in (pruned[order], ~pruned[order]):
        assert (np.diff(doubt[order][chosen]) <= 0).all()


def test_without_cleanlab_the_line_to_type_is_given():
    """In a process where the package cannot be found."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_CLEANLAB], capture_output=True, text=True, check=True)
    assert install_line("peers") in done.stdout
