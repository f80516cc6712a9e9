"""Numbers, names and the record of a run as people read them."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bpals.types import Dataset

NBSP = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
NONE = "\N{EM DASH}"

FLAGS = {
    "rejected": "rejected",
    "likely_mislabelled": "likely mislabelled",
    "suspect": "suspect",
    "hard": "hard",
    "unverified": "unverified",
    "trusted": "trusted",
    "confirmed": "confirmed",
    "unjudged": "unjudged",
}
"""The flags in the order of every bar and table, from most to least doubtful."""
SETTLED_FLAGS = ("rejected", "confirmed")
"""Flags that people gave: a page without any does not name them."""

METHODS = {
    "bpals": "bpals",
    "cleanlab": "cleanlab",
    "self_confidence": "self-confidence",
    "label_only": "label only",
    "prevalence": "prevalence only",
    "random": "random order",
    "oracle": "oracle",
}
"""The methods of a scorecard, in the order of every table."""


def count(n: int) -> str:
    """Write 1569680 as 1,569,680."""
    return f"{n:,}"


def share(x: float | None) -> str:
    """Write a share in percent with the digits it deserves; a little is never shown as nothing."""
    if x is None:
        return NONE
    # 0.0 % would say that there is none.
    if 0 < x < 0.0005:
        return f"<0.1{NBSP}%"
    if 0.9995 < x < 1:
        return f">99.9{NBSP}%"
    digits = 0 if x in (0, 1) else 1
    return f"{100 * x:.{digits}f}{NBSP}%"


def of(part: int, whole: int) -> str:
    """Write part of whole as a share; nothing of nothing is a dash."""
    return share(part / whole) if whole else NONE


def probability(p: float | None) -> str:
    """Write a probability with two digits; what is not certain is never shown as 0 or 1."""
    if p is None:
        return NONE
    # A trust of 0.00 would say that the label is certainly wrong.
    if 0 < p < 0.005:
        return "<0.01"
    if 0.995 < p < 1:
        return ">0.99"
    return f"{p:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """Write an interval of a probability."""
    if low is None or high is None:
        return NONE
    return f"{probability(low)}{DASH}{probability(high)}"


def share_interval(low: float, high: float) -> str:
    """Write an interval of a share, with the percent sign once."""
    return f"{share(low).removesuffix(f'{NBSP}%')}{DASH}{share(high)}"


def plural(n: int, one: str, many: str = "") -> str:
    """Write 1 image, 2 images."""
    return f"{count(n)}{NBSP}{one if n == 1 else many or one + 's'}"


def spoken(name: str) -> str:
    """Show a finding as the dataset spells it, with blanks and a capital."""
    return name[:1].upper() + name[1:].replace("_", " ")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names into a phrase: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def seconds(s: float) -> str:
    """Write a duration: 41 s, 3 min 20 s."""
    whole = round(s)
    if whole < 60:
        return f"{s:.1f}{NBSP}s" if s < 10 else f"{whole}{NBSP}s"
    return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"


def picture_source(content: bytes) -> str:
    """Write a PNG or a JPEG as a data URI: a page is one file, and loads nothing."""
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


DEFAULT_WORKSPACE = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How flags were given: sentences, and the numbers behind them as a table."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """A name, then one cell per column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the audit comes from."""

    version: str
    command: str
    workspace: str
    commit: str
    dirty: bool
    seconds: float | None
    packages: Mapping[str, str]
    inputs: Mapping[str, str]
    values: tuple[tuple[str, str, str, str], ...]
    """Each setting of the run: its name, its value, whether it was passed, and why."""
    judges: tuple[Mapping[str, Any], ...]
    rules: Rules
    notices: tuple[Mapping[str, Any], ...]

    @property
    def here(self) -> str:
        """The workspace as a command takes it."""
        return f"--workspace {shlex.quote(self.workspace)}"

    @property
    def sees_pixels(self) -> bool:
        """Whether a judge that saw the images moves a trust."""
        return any(judge.get("kind") == "image" and judge.get("effective_weight") != 0 for judge in self.judges)

    @property
    def no_image_judge_counts(self) -> bool:
        """Whether image judges took part and none of them moves a trust."""
        return not self.sees_pixels and any(judge.get("kind") == "image" for judge in self.judges)

    @property
    def fingerprints(self) -> list[tuple[str, str]]:
        """Name each judge with its fingerprint."""
        return [(str(judge.get("judge", "?")), str(judge.get("fingerprint") or "")) for judge in self.judges]


def provenance(run: Mapping[str, Any], dataset: Dataset) -> Provenance:
    """Read a run record; what it leaves out is shown as left out."""
    values = tuple(_value(name, entry) for name, entry in (run.get("values") or {}).items())
    workspace = next((value for name, value, *_ in values if name == "workspace"), DEFAULT_WORKSPACE)
    source_inputs = (run.get("source") or {}).get("inputs") or {}
    # A page may be made of a dataset alone, before there is a run record.
    notices = run.get("notices") or [asdict(notice) for notice in dataset.notices]
    return Provenance(
        version=str(run.get("bpals", "?")),
        command=command_line(run.get("command")),
        workspace=workspace,
        commit=str(run.get("commit") or ""),
        dirty=bool(run.get("dirty")),
        seconds=run.get("seconds"),
        packages=run.get("packages") or {},
        inputs={**dataset.inputs, **source_inputs},
        values=values,
        judges=tuple(run.get("judges") or ()),
        rules=rules(run.get("flags") or {}),
        notices=tuple({"message": n} if isinstance(n, str) else n for n in notices),
    )


def command_line(command: Any) -> str:
    """Show a command as one line, however it was recorded."""
    return " ".join(map(str, command)) if isinstance(command, list | tuple) else str(command or "")


def plain(value: Any) -> str:
    """Write a recorded value without brackets and quotes."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return str(value)


def rules(flags: Mapping[str, Any]) -> Rules:
    """Divide the flag rules into sentences and one table with one row per finding and direction."""
    sentences = [value for value in flags.values() if isinstance(value, str)]
    table: dict[tuple[str, ...], dict[str, str]] = {}
    for path, leaf in _leaves({key: v for key, v in flags.items() if not isinstance(v, str)}):
        # What the trusts say of the flags has tables of its own.
        if {"stated", "confirmed"} & set(path):
            continue
        table.setdefault(path[:-1], {})[path[-1]] = plain(leaf)
    # A first word that all rows share says nothing in a table.
    shared = len(table) > 1 and len({path[:1] for path in table}) == 1
    names = [path[1:] if shared else path for path in table]
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    rows = (
        (" \N{MIDDLE DOT} ".join(name).replace("_", " "), *(row.get(column, "") for column in columns))
        for name, row in zip(names, table.values(), strict=True)
    )
    return Rules(
        sentences=tuple(sentences), columns=tuple(column.replace("_", " ") for column in columns), rows=tuple(rows)
    )


def _leaves(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def _value(name: str, entry: Any) -> tuple[str, str, str, str]:
    if not isinstance(entry, Mapping):
        return name, plain(entry), "", ""
    return name, plain(entry.get("value")), str(entry.get("given") or ""), str(entry.get("reason") or "")
