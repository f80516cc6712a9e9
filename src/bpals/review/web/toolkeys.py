"""The keys of the tools on the reading page: it listens to this table, shows it as help, and the docs print it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKey:
    """One key, or a combination, and what it does."""

    key: str
    """As a browser names it (`KeyboardEvent.key`, letters small), with `Shift+` before it where Shift is held."""
    shown: str
    """As it is printed on the key."""
    does: str
    """What the page's script does at it."""
    words: str
    """The same for people."""


def _tool(key: str, shown: str, does: str, words: str) -> ToolKey:
    return ToolKey(key=key, shown=shown, does=does, words=words)


TOOLS: tuple[ToolKey, ...] = (
    _tool("Enter", "Enter", "save", "save and lock; after the reveal: store the second verdict and go on"),
    _tool("Shift+Enter", "Shift Enter", "rest", "mark every finding that has no verdict as absent"),
    _tool("z", "Z", "undo", "undo"),
    _tool("Shift+z", "Shift Z", "redo", "redo"),
    _tool("s", "S", "skip", "skip this case; Z brings it back"),
    _tool("n", "N", "note", "write a note; Esc leaves it"),
    _tool("q", "Q", "quality", "film quality: good, limited, unreadable, not said"),
    _tool("d", "D", "devices", "devices on the film: present, absent, not said"),
    _tool(",", ",", "less", "less confident of the finding you marked last"),
    _tool(".", ".", "more", "more confident of it"),
    _tool("b", "B", "box", "box around the finding you marked last: drag, or arrows and Enter"),
    _tool("r", "R", "ruler", "ruler: drag, or arrows and Enter"),
    _tool("Escape", "Esc", "leave", "leave box, ruler or note"),
    _tool("i", "I", "invert", "invert"),
    _tool("0", "0", "fit", "fit the film into its place"),
    _tool("9", "9", "whole", "one pixel of the film to one of the screen"),
    _tool("1", "1", "preset1", "narrow window: twice the contrast"),
    _tool("2", "2", "preset2", "lungs: the darker half"),
    _tool("3", "3", "preset3", "mediastinum and bones: the brighter half"),
    _tool("4", "4", "preset4", "the film's own window, with which it opens"),
    _tool("5", "5", "preset5", "wide window: every grey that the film has"),
    _tool("+", "+", "nearer", "zoom in"),
    _tool("=", "=", "nearer", "zoom in"),
    _tool("-", "-", "farther", "zoom out"),
    _tool("ArrowLeft", "arrows", "left", "move the film"),
    _tool("ArrowRight", "", "right", ""),
    _tool("ArrowUp", "", "up", ""),
    _tool("ArrowDown", "", "down", ""),
    _tool("Shift+ArrowUp", "Shift arrows", "brighter", "up and down: level; left and right: window"),
    _tool("Shift+ArrowDown", "", "darker", ""),
    _tool("Shift+ArrowLeft", "", "narrower", ""),
    _tool("Shift+ArrowRight", "", "wider", ""),
    _tool("[", "[", "earlier", "the patient's film before, beside this one"),
    _tool("]", "]", "later", "the patient's film after"),
    _tool("PageUp", "Page Up", "earlier", "the same as ["),
    _tool("PageDown", "Page Down", "later", "the same as ]"),
    _tool("?", "?", "help", "these keys"),
)
"""In the order in which help lists them; a row without words belongs to the one before."""

TOOL_CHARACTERS = frozenset(tool.key for tool in TOOLS if len(tool.key) == 1)
"""Keys that no finding can have."""

FINDING_KEYS = (
    ("its letter", "present; pressed again: uncertain, absent, unreadable, no verdict"),
    ("Shift and its letter", "absent"),
)
"""What the key of a finding does; which key it is stands in the list."""


def key_table() -> list[tuple[str, str]]:
    """Give the rows of the help: what is printed on the key, and what it does."""
    return [*FINDING_KEYS, *((tool.shown, tool.words) for tool in TOOLS if tool.words)]
