"""Datasets by name: which one a workspace is about, reading it, and the expert calibration that belongs to it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from bpals.errors import UnknownName, UsageError
from bpals.registry import SOURCES, options_of
from bpals.signal import prior
from bpals.signal.prior import ExpertCalibration
from bpals.store.workspace import Workspace
from bpals.text import several
from bpals.types import Dataset, Experts, Notice

DEFAULT_SOURCE = "nih"
"""The source where nobody names one: it is embedded, and needs no download."""
NONE, AUTO = "none", "auto"
SHIPPED = {"nih": "nih-experts-1"}
"""Dataset -> the calibration that an audit of it uses unless told otherwise."""
ENOUGH = 0.5
"""On fewer than this share of the images the metadata judge learns something else, and the file is not used unasked."""


class DatasetName(NamedTuple):
    """What `load_source` reads."""

    source: str
    mapping: str | None = None


def dataset_of(home: Workspace, source: str | None = None, mapping: str | None = None) -> DatasetName:
    """Say which dataset is meant: the one that is named, else the one that the workspace remembers, else NIH."""
    if source:
        return DatasetName(source, mapping)
    return DatasetName(home.remembered("source") or DEFAULT_SOURCE, mapping or home.remembered("mapping"))


def load_source(spec: str, mapping: str | None = None) -> Dataset:
    """Read the dataset that a spec names, such as `nih`, `nih:FILE` or `table:FILE` with a mapping."""
    name, _, target = spec.partition(":")
    if name not in SOURCES.names():
        raise _unknown(spec)
    kind = SOURCES.load(name)
    if mapping is None:
        return kind.load(target)
    if "mapping" not in options_of(kind.options):
        raise UsageError(
            f"--mapping {mapping} is for tables; the source {name} needs none. "
            f"Type: bpals audit --source table:FILE --mapping {mapping}"
        )
    return kind.load(target, mapping=mapping)


def _unknown(spec: str) -> UsageError:
    if Path(spec).is_file():
        return UsageError(f"--source {spec} is a file. Type: bpals audit --source table:{spec} --mapping FILE.toml")
    # `nih[:FILE]` is typed in two ways, and both are offered.
    forms = [form for kind in SOURCES.every() for form in (kind.short, re.sub(r"[\[\]]", "", kind.form))]
    return UnknownName.of("source", spec, dict.fromkeys(forms), where="--source")


def shipped_calibrations() -> list[str]:
    """Name the calibrations that come with bpals."""
    return sorted(path.name.removesuffix(".json") for path in _folder().iterdir() if path.name.endswith(".json"))


def _folder() -> Any:
    return files("bpals") / "calibrations"


def load_calibration(name: str | os.PathLike[str]) -> ExpertCalibration:
    """Read a calibration by the name of a shipped one, or from a file."""
    typed = os.fspath(name)
    path = _folder() / f"{typed}.json" if typed in shipped_calibrations() else Path(typed)
    if not path.is_file():
        known = ", ".join(shipped_calibrations()) or "none"
        raise UsageError(
            f"{typed} is neither a file nor a calibration that comes with bpals ({known}). Make one with: bpals "
            "calibration fit; to audit without any, type: --prior none"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as broken:
        raise UsageError(
            f"{typed} cannot be read as JSON ({broken}). Get it again, or fit it again with: bpals calibration fit"
        ) from broken
    if not isinstance(content, dict):
        raise UsageError(f"{typed} is no expert calibration. Make one with: bpals calibration fit")
    return prior.from_dict(content, typed)


def choose_calibration(
    name: str, dataset: Dataset, given: Experts, *, shipped: Mapping[str, str] = SHIPPED
) -> tuple[ExpertCalibration | None, list[Notice]]:
    """Find the calibration that an audit starts from, if any, and say why not where one was to be expected."""
    asked = name != AUTO
    if name == NONE or (not asked and dataset.name not in shipped):
        return None, []
    found = load_calibration(name if asked else shipped[dataset.name])
    why = prior.suits(found, dataset)
    if why and asked:
        raise UsageError(f"--prior {name}: {why}. Choose another, or type: --prior none")
    images = dataset.images.height
    if not why and not asked and images < ENOUGH * found.images:
        why = f"the metadata judge learns from {several(images, 'image')} here, and learned from {found.images:,} there"
    labels = [each for each in (given.reference, given.reviews, given.random_sample) if each is not None]
    if not why and found.inputs & {one for each in labels for one in each.inputs.values()}:
        why = "it was fitted on expert labels that are given here, which would count twice"
        if asked:
            raise UsageError(f"--prior {name}: {why}. Type: --prior none")
    if not why:
        return found, []
    message = f"{found.name} is not used: {why}"
    return None, [Notice(code="prior_left_out", count=1, message=message)]
