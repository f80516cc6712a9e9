"""Soft targets to train a judge on, nested: those for a fold come from an audit that left the fold's patients out.

    audit of folds 1, 2, 3, 4 -> targets for the fit that answers about fold 0; and so for each fold

Each audit uses the metadata judge alone: no image judge, so none learns from what it said before; and no expert, so
that expert labels can calibrate and score the trained judge afterwards.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.judges.record import RecordJudge, fold_of
from bpals.numeric import patients
from bpals.signal.training import targets
from bpals.store.files import parquet, replace_file, sha256, writable
from bpals.store.workspace import Workspace
from bpals.tasks.audit import Answers, weigh
from bpals.tasks.chosen_judges import Chosen
from bpals.text import several
from bpals.types import Dataset, Experts

Floats = npt.NDArray[np.float32]
Progress = Callable[[float], None]

FOLDER = "targets"
VERSION = "1"
NETWORKS = 4
"""Of the metadata judge in each audit: half as many as usual, because only their mean becomes a target."""


def nested_targets(
    dataset: Dataset, *, judge: RecordJudge | None = None, progress: Progress = lambda _share: None
) -> Floats:
    """Audit the dataset once per fold, without the fold's patients, and give one matrix of targets per fold.

    A matrix has one row per image and one column per finding; NaN where nobody knows, as for the fold left out.
    """
    judge = judge or RecordJudge(networks=NETWORKS)
    folds = judge.folds
    fold = fold_of(patients(dataset.images).to_numpy().astype(np.str_), folds)
    findings = dataset.vocabulary.findings
    made = np.full((folds, dataset.images.height, len(findings)), np.nan, dtype=np.float32)
    for number in range(folds):
        kept = np.flatnonzero(fold != number)
        if len(kept) > 0:
            images = dataset.images[kept]
            claims = dataset.claims.join(images, on="image_id", how="semi", maintain_order="left")
            part = replace(dataset, images=images, claims=claims)
            step = _within(progress, number, folds)
            answers = judge.read(part.images, part.claims, part.vocabulary, progress=step)
            chosen = Chosen(record=judge, finished=())
            signal = weigh(part, chosen, Answers(claims=answers), Experts(), lambda _what, _share: None).signal
            its = targets(signal.table, pathologies=findings)
            rows = pl.DataFrame({"image_id": its.image_ids}).join(
                dataset.images.with_row_index("row"), on="image_id", how="left", maintain_order="left"
            )
            made[number, rows["row"].to_numpy()] = its.values
        progress((number + 1) / folds)
    return made


def _within(progress: Progress, number: int, folds: int) -> Progress:
    return lambda share: progress((number + 0.9 * share) / folds)


def tables_hash(dataset: Dataset) -> str:
    """Hash the images and labels themselves: the fingerprint of a dataset is that of its files."""
    hashes = sha256(parquet(dataset.images)), sha256(parquet(dataset.claims))
    return " ".join((*dataset.vocabulary.findings, *hashes))


def kept_targets(
    home: Workspace,
    dataset: Dataset,
    folds: int,
    *,
    say: Callable[[str], None] = lambda _sentence: None,
    progress: Progress = lambda _share: None,
) -> Floats:
    """Give the targets that the workspace keeps for this dataset, or make and keep them: they take minutes."""
    judge = RecordJudge(folds=folds, networks=NETWORKS)
    words = (VERSION, judge.card.fingerprint, tables_hash(dataset))
    name = f"{sha256(chr(10).join(words).encode()).removeprefix('sha256:')[:16]}.npy"
    shape = (folds, dataset.images.height, len(dataset.vocabulary.findings))
    try:
        found: Floats = np.load(home.path / FOLDER / name, allow_pickle=False)
    except (OSError, ValueError):  # none yet, or cut off
        found = np.zeros(0, dtype=np.float32)
    if found.shape == shape and found.dtype == np.float32:
        return found
    say(f"making soft targets: {several(folds, 'audit')}, each without the patients of one fold")
    made = nested_targets(dataset, judge=judge, progress=progress)
    stream = io.BytesIO()
    np.save(stream, made, allow_pickle=False)
    with writable(home.path / FOLDER):
        replace_file(home.path / FOLDER, name, stream.getvalue())
    return made
