"""What `bpals.find_label_issues` takes beside cleanlab's function of the same name, and whether they agree.

    python benchmarks/label_issues.py             one class per image, and 14 findings per image: 112,120 images
    python benchmarks/label_issues.py --quick     a tenth of the images
    python benchmarks/label_issues.py --write     the table of docs/training.md

Rounds are interleaved in one process, so that both meet the same machine; the least wall time of each counts. Each uses
one process: cleanlab runs with n_jobs=1. It takes several findings per image as lists only. The exit code is 1 if an
index differs, or bpals is not faster. `--write` puts the table into docs/training.md.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cleanlab.filter import find_label_issues as of_classes
from cleanlab.multilabel_classification.filter import find_label_issues as of_findings

from bpals.signal.label_issues import find_label_issues
from section import Section

SECTION = Section(
    Path(__file__).resolve().parent.parent / "docs" / "training.md",
    "<!-- printed by benchmarks/label_issues.py -->",
    "<!-- end of label issues -->",
)
IMAGES = 112_120
CLASSES = 14
ROUNDS = 3
RANKED = "self_confidence"

Task = tuple[str, Callable[[], npt.NDArray[Any]], Callable[[], npt.NDArray[Any]]]


def tasks(images: int) -> list[Task]:
    """Draw labels and probabilities, and say what each side does with them."""
    draw = np.random.default_rng(0)
    odds = np.exp(2 * draw.normal(size=(images, CLASSES)))
    shares = odds / odds.sum(axis=1, keepdims=True)
    truth = (draw.random((images, 1)) > shares.cumsum(axis=1)).sum(axis=1).clip(max=CLASSES - 1)
    labels = np.where(draw.random(images) < 0.1, draw.integers(0, CLASSES, images), truth)
    # Findings as rare as in NIH: from about 1 to 15 in a hundred.
    probs = 1 / (1 + np.exp(-2 * draw.normal(size=(images, CLASSES)) + np.linspace(3, 7, CLASSES)))
    table = (draw.random(probs.shape) < probs) ^ (draw.random(probs.shape) < 0.01)
    lists = [np.flatnonzero(row).tolist() for row in table]
    array = table.astype(np.int64)
    return [
        (
            f"{images:,} images, one of {CLASSES} classes each",
            lambda: find_label_issues(labels, shares),
            lambda: np.asarray(of_classes(labels, shares, return_indices_ranked_by=RANKED, n_jobs=1)),
        ),
        (
            f"{images:,} images, {CLASSES} findings each, as lists",
            lambda: find_label_issues(lists, probs),
            lambda: np.asarray(of_findings(lists, probs, return_indices_ranked_by=RANKED, n_jobs=1)),
        ),
        (
            f"{images:,} images, {CLASSES} findings each, as an array",
            lambda: find_label_issues(array, probs),
            lambda: np.asarray(of_findings(lists, probs, return_indices_ranked_by=RANKED, n_jobs=1)),
        ),
    ]


def timed(function: Callable[[], npt.NDArray[Any]]) -> tuple[float, npt.NDArray[Any]]:
    """Take the time of one call."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main() -> None:
    """Measure, print a table, and fail where bpals is slower or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the images")
    parser.add_argument("--write", action="store_true", help="write the table into docs/training.md")
    given = parser.parse_args()
    failed, lines = (
        False,
        ["|task|issues|same order|bpals, s|cleanlab, s|cleanlab / bpals|", "|---|---|---|---|---|---|"],
    )
    for name, ours, theirs in tasks(IMAGES // 10 if given.quick else IMAGES):
        rounds = [(timed(ours), timed(theirs)) for _ in range(ROUNDS)]
        (_, mine), (_, peers) = rounds[0]
        mine_s, peers_s = (min(each[side][0] for each in rounds) for side in (0, 1))
        same = np.array_equal(mine, peers)
        times = f"{mine_s:.2f}|{peers_s:.2f}|{peers_s / mine_s:.1f}"
        lines.append(f"|{name}|{len(mine):,}|{'yes' if same else 'NO'}|{times}|")
        failed |= not same or mine_s >= peers_s
    print("\n".join(lines))
    if given.write and not failed:
        SECTION.write("\n".join(lines))
    sys.exit(int(failed))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
