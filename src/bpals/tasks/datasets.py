"""Datasets by name: which one a workspace is about, and reading it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from bpals.errors import UnknownName, UsageError
from bpals.registry import SOURCES, options_of
from bpals.store.workspace import Workspace
from bpals.types import Dataset

DEFAULT_SOURCE = "nih"
"""The source where nobody names one: it is embedded, and needs no download."""


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
