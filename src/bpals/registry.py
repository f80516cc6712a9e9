"""A name -> a judge, loaded when it is asked for: `openai:MODEL@REVISION`, `table:FILE@NAME`, or a package's own kind.

Nothing is imported until then, so an optional package is missed only by those who ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bpals.errors import MissingExtra, UnknownName, UsageError, install_line
from bpals.optional import silence

GROUP = "bpals.judges"
"""The entry points of packages that bring a judge: name -> a function of target and revision that gives the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A sort of judge that a spec may name."""

    form: str
    """How it is typed."""
    what: str
    where: str
    """`module:attribute`, imported at use."""
    extra: str = ""
    """The extra that brings what it needs beyond the core install."""
    packages: tuple[str, ...] = ()
    """What that extra must have made importable."""
    names_file: bool = False
    """Its target is a path, in which an `@` before a `/` is part of a folder's name."""

    @property
    def short(self) -> str:
        """Write how it is typed without what follows the target: `xrv:FILE`."""
        return re.sub(r"\[[@:]\w+\]|[\[\]]", "", self.form)


SPECS: Mapping[str, Kind] = {
    "openai": Kind(
        form="openai:[MODEL[@REVISION]]",
        what="any OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp, Ollama, a hosted one",
        where="bpals.judges.openai:make",
        extra="vlm",
        packages=("aiohttp", "orjson"),
    ),
    "hf": Kind(
        form="hf:[MODEL[@REVISION]]",
        what="a local Hugging Face model: image-text-to-text, or a dual encoder like CLIP",
        where="bpals.judges.hf:open_hf",
        extra="torch",
        packages=("torch", "transformers"),
    ),
    "xrv": Kind(
        form="xrv:FILE[@SHA256]",
        what="weights of TorchXRayVision: DenseNet-121 of 18 targets",
        where="bpals.judges.checkpoint:open_xrv",
        extra="xrv",
        packages=("torch", "torchvision"),
        names_file=True,
    ),
    "chexnet": Kind(
        form="chexnet:FILE[@SHA256]",
        what="a CheXNet checkpoint: DenseNet-121 of NIH's 14 findings, also saved by an old torch",
        where="bpals.judges.checkpoint:open_chexnet",
        extra="xrv",
        packages=("torch", "torchvision"),
        names_file=True,
    ),
    "densenet121": Kind(
        form="densenet121:FILE[@SHA256]",
        what="a DenseNet-121 of your own, as torchvision has it",
        where="bpals.judges.checkpoint:open_densenet121",
        extra="xrv",
        packages=("torch", "torchvision"),
        names_file=True,
    ),
    "resnet50": Kind(
        form="resnet50:FILE[@SHA256]",
        what="a ResNet-50 of your own, as torchvision has it",
        where="bpals.judges.checkpoint:open_resnet50",
        extra="xrv",
        packages=("torch", "torchvision"),
        names_file=True,
    ),
    "onnx": Kind(
        form="onnx:FILE[@SHA256]",
        what="any classifier as ONNX, with a recipe of its labels (--recipe FILE.toml); no torch",
        where="bpals.judges.checkpoint:open_onnx",
        extra="probe",
        packages=("onnxruntime",),
        names_file=True,
    ),
    "probe": Kind(
        form="probe:[BACKBONE]",
        what="a linear probe on a frozen backbone: lite0 (the default), FILE.onnx, timm:NAME or hf:MODEL; on a CPU",
        where="bpals.judges.backbone:open_backbone",
        extra="probe",
        packages=("onnxruntime",),
        names_file=True,
    ),
    "table": Kind(
        form="table:FILE[@NAME]",
        what="scores computed elsewhere: CSV or Parquet",
        where="bpals.judges.table:read_table",
        names_file=True,
    ),
    "python": Kind(
        form="python:FILE.py[:NAME]",
        what="a function of your own under @bpals.judge, in a file or a module",
        where="bpals.judges.function:load",
        names_file=True,
    ),
    "stub": Kind(
        form="stub:[SEED]",
        what="seeded answers that know nothing, for tests and for trying things out",
        where="bpals.judges.stub:make",
    ),
}
"""The kinds that come with bpals."""

MEANT = {".py": "python", ".onnx": "onnx", **dict.fromkeys((".csv", ".gz", ".tsv", ".parquet"), "table")}
"""What is meant where a file is typed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Which judge is meant: `openai:org/model@abc` is kind, target and revision."""

    kind: str
    target: str = ""
    revision: str = ""
    """What stands after the last `@`: the commit of the weights, or the name of one judge of a table."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + (f"@{self.revision}" if self.revision else "")


class Known(NamedTuple):
    """A kind of judge, for `bpals judge list`."""

    kind: str
    what: str
    missing: str
    """What it lacks here, with the line to type; empty where it can be used."""


def parse_spec(text: str) -> Spec:
    """Take a spec apart; what cannot be one is answered with what to type."""
    kind, colon, rest = text.strip().partition(":")
    built_in = SPECS.get(kind)
    if built_in is None and kind not in _offers():
        raise _unknown(text, kind)
    target, revision = _split(text, rest, names_file=built_in is not None and built_in.names_file)
    if built_in and not target and not built_in.form.partition(":")[2].startswith("["):
        raise UsageError(f"{kind}{colon} names no judge. Type: bpals judge run {built_in.form}")
    return Spec(kind=kind, target=target, revision=revision)


def find(kind: str) -> Callable[..., Any]:
    """Load what makes judges of a kind; one that is missing, or offered twice, is an error that says what to do."""
    offers = _offers().get(kind, [])
    if kind in SPECS and offers:
        raise UsageError(_collision(kind, ["bpals", *_packages(offers)]))
    if len(offers) > 1:
        raise UsageError(_collision(kind, _packages(offers)))
    if offers:
        return _load_offer(offers[0])
    if kind not in SPECS:
        raise _unknown(kind, kind)
    built_in = SPECS[kind]
    if _missing(built_in):
        raise MissingExtra.of(f"{kind}:", built_in.extra)
    module, _, attribute = built_in.where.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), attribute)
    return made


def known() -> list[Known]:
    """List every kind of judge, ours and those of installed packages, and what each lacks here."""
    offers = _offers()
    listed = []
    for name, kind in SPECS.items():
        lacks = install_line(kind.extra) if _missing(kind) else ""
        clash = _collision(name, ["bpals", *_packages(offers[name])]) if name in offers else ""
        listed.append(Known(kind.form, kind.what, clash or lacks))
    for name in sorted(offers.keys() - SPECS.keys()):
        packages = _packages(offers[name])
        clash = _collision(name, packages) if len(packages) > 1 else ""
        listed.append(Known(f"{name}:", f"from the package {' and '.join(packages)}", clash))
    return listed


def _split(text: str, rest: str, *, names_file: bool) -> tuple[str, str]:
    target, at, revision = rest.rpartition("@")
    if not at or (names_file and "/" in revision):
        return rest, ""
    if not revision:
        raise UsageError(f"{text}: nothing stands after the @. Type {text.rstrip('@')}, or name what follows it")
    return target, revision


def _unknown(text: str, kind: str) -> UsageError:
    path = Path(kind)
    meant = MEANT.get(path.suffix.lower())
    if meant:
        what = "is a file, not a judge" if path.is_file() else "names no kind of judge"
        return UsageError(f"{text} {what}. Type: bpals judge run {meant}:{text}")
    return UnknownName.of("kind of judge", kind, [*SPECS, *_offers()], where=text if text != kind else "")


def _missing(kind: Kind) -> bool:
    return any(find_spec(package) is None for package in kind.packages)


def _offers() -> dict[str, list[EntryPoint]]:
    """What installed packages bring, by name."""
    offers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        if entry not in offers.setdefault(entry.name, []):
            offers[entry.name].append(entry)
    return offers


def _packages(offers: list[EntryPoint]) -> list[str]:
    return sorted(entry.dist.name if entry.dist else entry.value for entry in offers)


def _collision(kind: str, packages: list[str]) -> str:
    return (
        f"{' and '.join(packages)} all call a judge {kind!r}: one name cannot mean two judges. "
        f"Uninstall the package that you do not want: pip uninstall {packages[-1]}"
    )


def _load_offer(offer: EntryPoint) -> Callable[..., Any]:
    silence()  # the package may import what reports to its makers
    try:
        made: Callable[..., Any] = offer.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{offer.name}: the package {_packages([offer])[0]} names {offer.value}, which cannot be loaded "
            f"({error}). Install that package again, or tell its authors"
        ) from None
    return made
