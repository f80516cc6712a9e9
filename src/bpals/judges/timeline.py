"""What the rest of the record says about a film: the patient's other reports, and the film's own circumstances.

Nothing here depends on the claims of the film itself, so one table serves all findings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.chronology import reports_of_films
from bpals.findings import Vocabulary

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

DECAYS = (0.5, 0.85)
"""How much less each further report of the patient weighs: one short memory, one long."""
NO_OTHER = -1.0
"""The value of a mean over no report at all."""
MOST_VIEWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record as matrices: a row a film, a column a finding."""

    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    patients: npt.NDArray[np.str_]
    others: Ints
    """How many other reports of the patient there are."""
    evidence: Floats
    """The features: a row a film."""


def read_record(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Record:
    """Lay the record out as matrices."""
    states = state_matrix(images, claims, vocabulary)
    films = reports_of_films(images)
    order = _Order.of(films)
    evidence = np.concatenate([_history(states, images, order), _circumstances(images, order)], axis=1)
    return Record(
        states=states,
        patients=films["patient"].to_numpy().astype(np.str_),
        others=films["size"].to_numpy() - 1,
        evidence=evidence.astype(np.float32),
    )


def state_matrix(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Floats:
    """Turn claims into a matrix: 1 present, 0 absent, 0.5 uncertain, NaN silent."""
    rows = images.select("image_id").with_row_index("row")
    placed = claims.join(rows, on="image_id", how="left", maintain_order="left")
    states = np.full((images.height, len(vocabulary.findings)), np.nan, dtype=np.float32)
    value = placed["says"].cast(pl.String).replace_strict({"present": 1.0, "absent": 0.0, "uncertain": 0.5})
    states[placed["row"].to_numpy(), placed["finding"].to_physical().to_numpy()] = value.to_numpy()
    return states


def fold_of(patients: npt.NDArray[np.str_], folds: int) -> Ints:
    """Give each film a fold by a hash of its patient's id alone."""
    names, place = np.unique(patients, return_inverse=True)
    fold = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % folds for name in names.tolist()]
    return np.asarray(fold, dtype=np.int64)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The reports in the order of their patients and of time, as arrays: a row a report."""

    report_of_film: Ints
    rank: Ints
    """0 for the patient's first report."""
    size_of_patient: Ints
    follow_up: Floats

    @classmethod
    def of(cls, films: pl.DataFrame) -> _Order:
        reports = films.unique("report").sort("report")
        return cls(
            report_of_film=films["report"].to_numpy(),
            rank=reports["rank"].to_numpy(),
            size_of_patient=reports["size"].to_numpy(),
            follow_up=reports["follow_up"].cast(pl.Float32).fill_null(0.0).to_numpy(),
        )

    @property
    def ranks_left(self) -> Ints:
        return self.size_of_patient - 1 - self.rank

    def of_reports(self, films: Floats) -> Floats:
        """Average the films of each report."""
        count = np.bincount(self.report_of_film).astype(np.float32)
        total = np.zeros((len(count), films.shape[1]), dtype=np.float32)
        np.add.at(total, self.report_of_film, films)
        return total / count[:, None]


def _history(states: Floats, images: pl.DataFrame, order: _Order) -> Floats:
    """Summarise what the patient's other reports say, before and after, near and far."""
    channels = order.of_reports(_channels(states, images))
    columns = []
    for decay in DECAYS:
        columns += _decayed(channels, order.rank, decay)
        later = _decayed(channels[::-1], order.ranks_left[::-1], decay)
        columns += [column[::-1] for column in later]
    columns += _all_others(channels, order)
    return np.concatenate(columns, axis=1)[order.report_of_film]


def _channels(states: Floats, images: pl.DataFrame) -> Floats:
    """List what a report says to the others: each finding, silence where there is any, no finding, the view."""
    silent = np.isnan(states)
    said = np.where(silent, 0.0, states)
    nothing = (said.sum(axis=1, keepdims=True) == 0).astype(np.float32)
    columns = [said, silent[:, silent.any(axis=0)], nothing, _views(images)]
    return np.concatenate(columns, axis=1).astype(np.float32)


def _views(images: pl.DataFrame) -> Floats:
    """Mark the view, one column each; the most frequent is the ground and has none."""
    counted = images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    names = counted["view"].to_list()[1:MOST_VIEWS]
    marks = [(images["view"] == name).fill_null(value=False).to_numpy() for name in names]
    return np.stack(marks, axis=1).astype(np.float32) if marks else np.zeros((images.height, 0), np.float32)


def _decayed(channels: Floats, rank: Ints, decay: float) -> list[Floats]:
    """Average the earlier reports of the patient, each further one weighing `decay` times less; and say how many."""
    total = np.zeros_like(channels)
    weight = np.zeros(len(channels), dtype=np.float32)
    by_rank = np.argsort(rank, kind="stable")
    edges = np.searchsorted(rank[by_rank], np.arange(int(rank.max(initial=0)) + 2))
    for start, end in pairwise(edges[1:]):
        now = by_rank[start:end]
        total[now] = (total[now - 1] + channels[now - 1]) * decay
        weight[now] = (weight[now - 1] + 1) * decay
    mean = total / np.maximum(weight, 1e-6)[:, None]
    mean[weight == 0] = NO_OTHER
    return [mean, np.log1p(weight)[:, None]]


def _all_others(channels: Floats, order: _Order) -> list[Floats]:
    """Average all other reports of the patient alike, and count those that say each thing."""
    patient = np.cumsum(order.rank == 0) - 1
    total = np.zeros((int(patient[-1]) + 1 if len(patient) else 0, channels.shape[1]), dtype=np.float64)
    np.add.at(total, patient, channels)
    others = (order.size_of_patient - 1)[:, None]
    count = total[patient] - channels
    mean = np.where(others > 0, count / np.maximum(others, 1), NO_OTHER)
    return [mean.astype(np.float32), np.log1p(np.maximum(count, 0)).astype(np.float32)]


def _circumstances(images: pl.DataFrame, order: _Order) -> Floats:
    """List the film's own circumstances: age, sex, view, size, its place in the patient's follow-up."""
    columns = [_views(images)]
    for name in ("age", "width_px", "height_px"):
        known = images[name].is_not_null().to_numpy()
        value = images[name].cast(pl.Float32).fill_null(0.0).to_numpy()
        middle = value[known].mean() if known.any() else 0.0
        columns += [np.where(known, value, middle)[:, None], known[:, None]]
    sex = images["sex"].str.to_uppercase().str.slice(0, 1)
    columns += [(sex == letter).fill_null(value=False).to_numpy()[:, None] for letter in ("M", "F")]
    before, after = _gaps(order)
    place = np.stack([order.rank, order.ranks_left, order.size_of_patient, before, after], axis=1)
    columns.append(np.log1p(np.maximum(place, 0))[order.report_of_film])
    return np.concatenate(columns, axis=1).astype(np.float32)


def _gaps(order: _Order) -> tuple[Floats, Floats]:
    """Measure how far the previous and the next report are, in the dataset's own unit of follow-up."""
    step = np.diff(order.follow_up, prepend=np.float32(0))
    before = np.where(order.rank == 0, 0, step)
    after = np.where(order.ranks_left == 0, 0, np.append(step[1:], np.float32(0)))
    return before.astype(np.float32), after.astype(np.float32)
