"""The provenance: a run record as rows that a page can show, whatever else the record may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bpals.types import Dataset

DEFAULT_WORKSPACE = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One setting of the run."""

    name: str
    value: str
    given: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How flags were given: sentences, and the numbers behind them as a table."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """A name, then a cell a column."""


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
    values: tuple[Value, ...]
    judges: tuple[Mapping[str, Any], ...]
    rules: Rules
    notices: tuple[Mapping[str, Any], ...]

    @property
    def sees_pixels(self) -> bool:
        """Say whether a judge that looked at films moves a trust."""
        return any(judge.get("kind") == "image" and judge.get("effective_weight") != 0 for judge in self.judges)

    @property
    def deaf(self) -> bool:
        """Say whether judges looked at films and none of them is heeded."""
        return not self.sees_pixels and any(judge.get("kind") == "image" for judge in self.judges)

    @property
    def fingerprints(self) -> list[tuple[str, str]]:
        """Name each judge with its fingerprint."""
        return [(str(judge.get("judge", "?")), str(judge.get("fingerprint") or "")) for judge in self.judges]


def provenance(run: Mapping[str, Any], dataset: Dataset) -> Provenance:
    """Read a run record; what it leaves out is shown as left out."""
    values = tuple(_value(name, entry) for name, entry in (run.get("values") or {}).items())
    workspace = next((v.value for v in values if v.name == "workspace"), DEFAULT_WORKSPACE)
    source_inputs = (run.get("source") or {}).get("inputs") or {}
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
    """Divide the flag rules into sentences and one table with a row a finding and direction."""
    sentences = [value for value in flags.values() if isinstance(value, str)]
    table: dict[tuple[str, ...], dict[str, str]] = {}
    for path, leaf in _leaves({key: v for key, v in flags.items() if not isinstance(v, str)}):
        table.setdefault(path[:-1], {})[path[-1]] = plain(leaf)
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


def _value(name: str, entry: Any) -> Value:
    if not isinstance(entry, Mapping):
        return Value(name=name, value=plain(entry), given="", reason="")
    return Value(
        name=name,
        value=plain(entry.get("value")),
        given=str(entry.get("given") or ""),
        reason=str(entry.get("reason") or ""),
    )
