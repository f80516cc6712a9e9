"""A reading study: its settings and their file, the keys of its findings, and who takes part."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from bpals.errors import UnknownName, UsageError
from bpals.findings import Vocabulary


@dataclass(frozen=True, slots=True)
class ToolKey:
    """One key, or a combination, and what it does."""

    key: str  # as a browser names it (`KeyboardEvent.key`, letters small), with `Shift+` before it where Shift is held
    shown: str  # as it is printed on the key
    does: str  # what the page's script does at it
    words: str  # the same for people


TOOLS: tuple[ToolKey, ...] = (
    ToolKey("Enter", "Enter", "save", "save and lock; after the reveal: store the second verdict and go on"),
    ToolKey("Shift+Enter", "Shift Enter", "rest", "mark every finding that has no verdict as absent"),
    ToolKey("z", "Z", "undo", "undo"),
    ToolKey("Shift+z", "Shift Z", "redo", "redo"),
    ToolKey("s", "S", "skip", "skip this case; Z brings it back"),
    ToolKey("n", "N", "note", "write a note; Esc leaves it"),
    ToolKey("q", "Q", "quality", "film quality: good, limited, unreadable, not said"),
    ToolKey("d", "D", "devices", "devices on the film: present, absent, not said"),
    ToolKey(",", ",", "less", "less confident of the finding you marked last"),
    ToolKey(".", ".", "more", "more confident of it"),
    ToolKey("b", "B", "box", "box around the finding you marked last: drag, or arrows and Enter"),
    ToolKey("r", "R", "ruler", "ruler: drag, or arrows and Enter"),
    ToolKey("Escape", "Esc", "leave", "leave box, ruler or note"),
    ToolKey("i", "I", "invert", "invert"),
    ToolKey("0", "0", "fit", "fit the film into its place"),
    ToolKey("9", "9", "whole", "one pixel of the film to one of the screen"),
    ToolKey("1", "1", "preset1", "narrow window: twice the contrast"),
    ToolKey("2", "2", "preset2", "lungs: the darker half"),
    ToolKey("3", "3", "preset3", "mediastinum and bones: the brighter half"),
    ToolKey("4", "4", "preset4", "the film's own window, with which it opens"),
    ToolKey("5", "5", "preset5", "wide window: every grey that the film has"),
    ToolKey("+", "+", "nearer", "zoom in"),
    ToolKey("=", "=", "nearer", "zoom in"),
    ToolKey("-", "-", "farther", "zoom out"),
    ToolKey("ArrowLeft", "arrows", "left", "move the film"),
    ToolKey("ArrowRight", "", "right", ""),
    ToolKey("ArrowUp", "", "up", ""),
    ToolKey("ArrowDown", "", "down", ""),
    ToolKey("Shift+ArrowUp", "Shift arrows", "brighter", "up and down: level; left and right: window"),
    ToolKey("Shift+ArrowDown", "", "darker", ""),
    ToolKey("Shift+ArrowLeft", "", "narrower", ""),
    ToolKey("Shift+ArrowRight", "", "wider", ""),
    ToolKey("[", "[", "earlier", "the patient's film before, beside this one"),
    ToolKey("]", "]", "later", "the patient's film after"),
    ToolKey("PageUp", "Page Up", "earlier", "the same as ["),
    ToolKey("PageDown", "Page Down", "later", "the same as ]"),
    ToolKey("?", "?", "help", "these keys"),
)
"""In the order in which help lists them; a row without words belongs to the one before."""

TOOL_CHARACTERS = frozenset(tool.key for tool in TOOLS if len(tool.key) == 1)  # keys that no finding can have

FINDING_KEYS = (
    ("its letter", "present; pressed again: uncertain, absent, unreadable, no verdict"),
    ("Shift and its letter", "absent"),
)
"""What the key of a finding does; which key it is stands in the list."""


def key_table() -> list[tuple[str, str]]:
    """Give the rows of the help: what is printed on the key, and what it does."""
    return [*FINDING_KEYS, *((tool.shown, tool.words) for tool in TOOLS if tool.words)]


FREE_KEYS = tuple(key for key in "abcdefghijklmnopqrstuvwxyz678;'" if key not in TOOL_CHARACTERS)


def check_keys(keys: Mapping[str, str], *, origin: str) -> None:
    """Refuse a key that is not one character, that a tool has, or that two findings share."""
    owner: dict[str, str] = {}
    for finding, key in keys.items():
        folded = key.lower()
        wrong = ""
        if len(folded) != 1 or not folded.isprintable() or folded.isspace():
            wrong = f"the key of {finding} is {key!r}; wanted is one character"
        elif folded in TOOL_CHARACTERS:
            wrong = f"the key of {finding} is {key!r}, which is a tool's"
        elif folded in owner:
            wrong = f"{owner[folded]} and {finding} have the same key {key!r}"
        if wrong:
            raise UsageError(f"{origin}: {wrong}. Free are: {' '.join(_left(owner))}")
        owner[folded] = finding


def assign_keys(findings: Sequence[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Give every finding a key: the one wanted, else the first letter of its name, else another, else a free one."""
    keys = {finding: key.lower() for finding, key in wanted.items()}
    for finding in findings:
        if finding not in keys and finding[:1].lower() in _left(keys.values()):
            keys[finding] = finding[:1].lower()
    for finding in findings:
        if finding not in keys:
            left = _left(keys.values())
            if not left:
                raise UsageError(f"{len(findings)} findings are more than there are keys. Name fewer: findings = [...]")
            keys[finding] = next((letter for letter in finding.lower() if letter in left), left[0])
    return {finding: keys[finding] for finding in findings}


def _left(taken: Collection[str]) -> list[str]:
    return [key for key in FREE_KEYS if key not in taken]


Asks = Literal["all", "drawn"]
Unmarked = Literal["absent", "ask"]
Settling = Literal["third", "discussion", "adjudicator", "none"]

# What may be set anew in a study that has begun: nothing of it changes what a read means.
MAY_CHANGE = ("keys", "queue_size", "lease_minutes", "learn_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The settings of a study; they are kept with it, and hold to its end."""

    name: str
    findings: tuple[str, ...]
    asks: Asks = "all"  # every finding of the study on every film, or only those the film was drawn for
    unmarked: Unmarked = "absent"  # what a finding without a verdict means at the lock; `ask` refuses the lock
    queue_size: int = 500
    batch: int = 50  # cases that are shuffled together
    random_share: float = 0.2
    repeats: float = 0.05  # share of readings that are a film the reader has read before, unmarked
    readers_per_case: int = 2
    reveal: bool = True  # show label, judges and trust after the lock, and ask for a second verdict
    priors: bool = True  # show the patient's other films
    adjudication: Settling = "third"
    rounds: int = 5
    lease_minutes: float = 60.0
    stop_width: float | None = None  # stop when the 95 % interval of the error rate is this narrow
    stop_reads: int | None = None  # stop after this many locked readings, repeats not counted
    learn_every: int = 50
    seed: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)  # finding -> key

    @property
    def settles(self) -> bool:
        """Say whether there is anything to settle: not where each film has one reader."""
        return self.adjudication != "none"

    def as_json(self) -> str:
        """Write it as the ledger keeps it."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Study:
        """Read what the ledger kept."""
        kept = json.loads(text)
        return cls(**{**kept, "findings": tuple(kept["findings"])})


_WORDS = {"asks": get_args(Asks), "unmarked": get_args(Unmarked), "adjudication": get_args(Settling)}
_WHOLE = {
    "queue_size": (1, 1_000_000),
    "batch": (1, 1_000),
    "readers_per_case": (1, 50),
    "rounds": (1, 50),
    "stop_reads": (1, 10**9),
    "learn_every": (1, 10**6),
    "seed": (0, 2**31 - 1),
}
_NUMBER = {
    "random_share": (0.0, 1.0),
    "repeats": (0.0, 0.5),
    "lease_minutes": (0.1, 10_080.0),
    "stop_width": (0.0, 1.0),
}
_SWITCH = ("reveal", "priors")


def default_study(vocabulary: Vocabulary) -> Study:
    """Give the study of one reader at their own machine: one read per case, nothing to settle."""
    findings = vocabulary.findings
    return Study(
        name="reading", findings=findings, readers_per_case=1, adjudication="none", keys=assign_keys(findings, {})
    )


def load_study(path: str | Path, vocabulary: Vocabulary) -> Study:
    """Read a study from a TOML file; every mistake in it is one line that names the file and the key."""
    origin = str(path)
    try:
        written = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no study file {origin}. docs/studies.md has one to copy") from None
    except OSError as error:
        raise UsageError(f"{origin} cannot be read: {error.strerror}. Name another with --study FILE.toml") from None
    except UnicodeDecodeError:
        raise UsageError(f"{origin} is not UTF-8, so it is no TOML. Save it as UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{origin} is not TOML: {reason}. Mend that place; docs/studies.md has an example") from None
    return read_study(written, vocabulary, origin=origin)


def read_study(written: Mapping[str, Any], vocabulary: Vocabulary, *, origin: str) -> Study:
    """Check what a study file says, and fill in the rest."""
    known = [setting.name for setting in fields(Study)]
    for key in written:
        if key not in known:
            raise UnknownName.of("setting of a study", key, known, where=origin)
    settings = {key: _checked(key, value, origin) for key, value in written.items() if key not in {"findings", "keys"}}
    settings.setdefault("name", Path(origin).stem)
    findings = _findings(written.get("findings"), vocabulary, origin)
    keys = _keys(written.get("keys", {}), vocabulary, findings, origin)
    study = Study(**settings, findings=findings, keys=keys)
    if study.readers_per_case == 1 and study.adjudication != "none":
        if "adjudication" not in written:
            return replace(study, adjudication="none")
        raise UsageError(
            f'{origin}: one reader per case leaves nothing to settle, but adjudication is "{study.adjudication}". '
            'Set readers_per_case = 2, or adjudication = "none"'
        )
    return study


def differences(kept: Study, given: Study) -> list[str]:
    """Name the settings in which two studies differ and may not, each with both values."""
    before, after = asdict(kept), asdict(given)
    return [
        f"{name} is {before[name]!r} there and {after[name]!r} here"
        for name in before
        if name not in MAY_CHANGE and before[name] != after[name]
    ]


def _checked(key: str, value: Any, origin: str) -> Any:
    """Give the value of a setting in its own type, or say what was wanted."""
    if key in _WORDS:
        if value not in _WORDS[key]:
            raise UsageError(f"{origin}: {key} is {value!r}; wanted is one of {', '.join(_WORDS[key])}")
        return value
    if key in _SWITCH:
        if not isinstance(value, bool):
            raise UsageError(f"{origin}: {key} is {value!r}; wanted is true or false")
        return value
    if key in _WHOLE or key in _NUMBER:
        return _number(key, value, origin)
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or not value.isprintable():
        raise UsageError(f"{origin}: {key} is {value!r}; wanted is a text of 1 to 200 characters")
    return value.strip()


def _number(key: str, value: Any, origin: str) -> int | float:
    whole = key in _WHOLE
    low, high = _WHOLE[key] if whole else _NUMBER[key]
    right_type = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise UsageError(f"{origin}: {key} is {value!r}; wanted is {kind} from {low:,} to {high:,}")
    return int(value) if whole else float(value)


def _findings(named: Any, vocabulary: Vocabulary, origin: str) -> tuple[str, ...]:
    """Give the findings in the order of the vocabulary; all of them where none is named."""
    if named is None:
        return vocabulary.findings
    if not isinstance(named, list) or not named or not all(isinstance(word, str) for word in named):
        raise UsageError(f'{origin}: findings is {named!r}; wanted is a list such as ["Mass", "Nodule"]')
    resolved = vocabulary.resolve(named, where=f"{origin}, findings")
    if doubled := {finding for finding in resolved if resolved.count(finding) > 1}:
        raise UsageError(f"{origin}: findings names {', '.join(sorted(doubled))} twice. Name it once")
    return tuple(finding for finding in vocabulary.findings if finding in resolved)


def _keys(named: Any, vocabulary: Vocabulary, findings: tuple[str, ...], origin: str) -> dict[str, str]:
    """Give every finding its key: those of the file, and free ones for the rest."""
    if not isinstance(named, dict) or not all(isinstance(key, str) for key in named.values()):
        raise UsageError(f'{origin}: keys is {named!r}; wanted is a table such as [keys] with Mass = "m"')
    wanted = dict(zip(vocabulary.resolve(named, where=f"{origin}, [keys]"), named.values(), strict=True))
    if foreign := [finding for finding in wanted if finding not in findings]:
        raise UsageError(f"{origin}: [keys] has {foreign[0]!r}, which the study does not ask. Add it to findings")
    check_keys(wanted, origin=origin)
    return assign_keys(findings, wanted)


Role = Literal["reader", "adjudicator", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One person, as the desk knows them: everybody may read, adjudicators and admins may settle."""

    account_id: int
    name: str
    role: Role = "reader"

    @property
    def may_settle(self) -> bool:
        """Say whether this one may settle what readers disagree about."""
        return self.role in {"adjudicator", "admin"}
