"""The peer of an audit: scikit-learn's cross-validated gradient boosting a finding, then cleanlab's issues a finding.

python benchmarks/peer.py part.npz [--findings N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from cleanlab.filter import find_label_issues
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import PredefinedSplit, cross_val_predict


def main() -> None:
    """Find the label issues of each finding in turn and print how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("--findings", type=int, default=None, help="only the first few findings")
    given = parser.parse_args()
    part = np.load(given.matrices)
    findings, folds = part["findings"][: given.findings], PredefinedSplit(part["fold"])
    for column, finding in enumerate(findings):
        claimed = part["labels"][:, column]
        p_present = cross_val_predict(
            HistGradientBoostingClassifier(), part["features"], claimed, cv=folds, method="predict_proba"
        )
        issues = find_label_issues(claimed, p_present, filter_by="prune_by_noise_rate", n_jobs=1)
        print(f"  {column + 1} of {len(findings)}: {finding}, {issues.sum():,} issues", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
