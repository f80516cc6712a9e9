"""`bpals calibration`: an expert calibration is fitted and written as a file of figures, and checked.

The one that comes with bpals is in `calibrations/`; `make calibration` fits it anew. No expert label is in a file.
Whoever only uses one finds it in `datasets.py`, and `signal.prior` applies it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.judges.record import RecordJudge
from bpals.numeric import PAIR, patients
from bpals.reviews import verdicts
from bpals.signal import experts
from bpals.signal.layout import lay_out
from bpals.signal.prior import ExpertCalibration, from_dict, suits
from bpals.store.files import replace_file, writable
from bpals.tasks.datasets import DEFAULT_SOURCE, load_calibration, load_source
from bpals.text import several
from bpals.types import Dataset, Notice, Reference
from bpals.version import VERSION

Progress = Callable[[str, float], None]

TRUTH = "what most radiologists who see this image alone would say, not what the patient has"
THEIRS = "what the experts who made these labels would say, not what the patient has"
CITATIONS = {
    "four-findings": "Majkowska et al., Radiology 2020;294(2):421-431 (four findings, adjudicated)",
    "all-findings": "Nabulsi et al., Scientific Reports 2021;11:15523 (all findings, three of five readers)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A calibration that was fitted, and what was noticed on the way."""

    path: Path
    calibration: ExpertCalibration
    notices: tuple[Notice, ...]


def fit(  # noqa: PLR0913  an option of the command is a parameter
    references: Sequence[str],
    *,
    name: str,
    terms: str,
    out: str | os.PathLike[str] | None = None,
    split: str = "all",
    reviews: Sequence[str | os.PathLike[str]] = (),
    commercial_use: bool = False,
    source: str | None = None,
    mapping: str | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Fit:
    """Fit a calibration on expert labels, and write it to a file.

    `references` are KIND=PATH as in `bpals audit --calibrate`, `split` which rows of those that have splits; `reviews`
    are files of single reads. `terms` says under which terms the labels may be used.
    """
    if not references and not reviews:
        raise UsageError("there is nothing to fit on. Add: --reference KIND=PATH, or --reviews PATH")
    if not name or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_."):
        raise UsageError(f"--name {name!r}: use small letters, digits, - and _ only, such as my-readers-1")
    target = Path(f"{name}.json" if out is None else out)
    progress("reading the dataset", 0.0)
    dataset = load_source(source or DEFAULT_SOURCE, mapping)
    given, notices = _references(references, split, reviews, dataset)
    progress("asking the metadata judge", 0.05)
    answers = RecordJudge().read(
        dataset.images,
        dataset.claims,
        dataset.vocabulary,
        progress=lambda share: progress("asking the metadata judge", 0.05 + 0.8 * share),
    )
    progress("fitting", 0.9)
    groups = list(dict.fromkeys(group for each in given for group in each.groups_within(dataset.vocabulary)))
    with threadpool_limits(1):
        found = experts.fit_calibration(lay_out(dataset, answers, None, groups), joined(given, groups))
    if found is None:
        raise UsageError("no expert label is of an image and finding of this dataset. Give labels of this dataset")
    about = {
        "truth": TRUTH if all(each.kind in CITATIONS for each in given) else THEIRS,
        "judge": "record-1",
        "sources": [_source(each, dataset) for each in given],
        "citations": [CITATIONS[each.kind] for each in given if each.kind in CITATIONS],
        "terms": terms,
        "commercial_use": "yes" if commercial_use else "no",
        "made_with": f"bpals {VERSION}",
    }
    whole = experts.as_dict(replace(found, name=name, about=about))
    target.parent.mkdir(parents=True, exist_ok=True)
    with writable(target.parent):
        replace_file(target.parent, target.name, (json.dumps(whole, separators=(",", ":")) + "\n").encode())
    progress("done", 1.0)
    return Fit(path=target, calibration=from_dict(whole, str(target)), notices=tuple(notices))


def _references(
    references: Sequence[str], split: str, reviews: Sequence[str | os.PathLike[str]], dataset: Dataset
) -> tuple[list[Reference], list[Notice]]:
    """Read every source of expert labels."""
    given, notices = [], []
    for spec in references:
        kind = verdicts.parse(spec)[0]
        if kind == "boxes":
            raise UsageError("--reference boxes: they are presences only, and nothing can be fitted without absences")
        whole = verdicts.load(spec, vocabulary=dataset.vocabulary)
        # A file that names no split is used whole, also beside one that does.
        named = whole.truth["split"].is_not_null().any() or split not in verdicts.SPLITS
        given.append(verdicts.load(spec, vocabulary=dataset.vocabulary, split=split) if named else whole)
    if reviews:
        reads = verdicts.load_many([os.fspath(path) for path in reviews], vocabulary=dataset.vocabulary)
        settled = experts.majority_of(reads)
        if settled.is_empty():
            raise UsageError(
                f"--reviews: none of its {several(reads.table.height, 'read')} settles a label. A calibration takes "
                "labels on which two or more readers agree, or that were adjudicated; `bpals audit --reviews` learns "
                "from single reads"
            )
        given.append(
            Reference(
                kind="reviews",
                truth=settled,
                groups=reads.groups,
                inputs=reads.inputs,
                notices=reads.notices,
            )
        )
    for each in given:
        notices += [*each.notices, *verdicts.unknown_films(each.kind, each.truth, dataset.images)]
    return given, notices


def joined(given: Sequence[Reference], groups: Sequence[Group]) -> Reference:
    """Put all sources into one; a pair that two of them have counts once. Groups follow where all members were read."""
    truth = pl.concat([each.truth for each in given]).unique(PAIR, keep="first", maintain_order=True)
    derived = []
    for group in groups:
        its = truth.filter(pl.col("finding").is_in(list(group.members)))
        whole = its.group_by("image_id", maintain_order=True).agg(pl.len(), pl.col("present").any(), pl.first("split"))
        whole = whole.filter(pl.col("len") == len(group.members))
        derived.append(whole.with_columns(finding=pl.lit(group.name)).select(truth.columns))
    truth = pl.concat([truth, *derived]).unique(PAIR, keep="first", maintain_order=True)
    inputs = {name: digest for each in given for name, digest in each.inputs.items()}
    return Reference(kind="+".join(each.kind for each in given), truth=truth, groups=tuple(groups), inputs=inputs)


def _source(given: Reference, dataset: Dataset) -> dict[str, Any]:
    """Describe one source of labels."""
    here = given.truth.join(dataset.images.select("image_id", "view"), on="image_id", how="inner")
    images = dataset.images.join(here.select("image_id").unique(), on="image_id", how="semi")
    return {
        "kind": given.kind,
        "inputs": dict(given.inputs),
        "images": here["image_id"].n_unique(),
        "patients": patients(images).n_unique(),
        "labels": here.height,
        "views": dict(sorted(images["view"].fill_null("unknown").value_counts().rows())),
    }


def check(name: str | os.PathLike[str], source: str | None = None, mapping: str | None = None) -> ExpertCalibration:
    """Read a calibration with all checks; with a source, also whether it is one for that dataset."""
    found = load_calibration(name)
    if source is not None and (why := suits(found, load_source(source, mapping))):
        raise UsageError(f"{os.fspath(name)}: {why}")
    return found
