"""The words of a command or a page, kept in tests/snapshots: one file for each, so that a better sentence is one diff.

`UPDATE_SNAPSHOTS=1 pytest FILE` writes them anew. Masked is what differs from run to run: versions, times, paths.
"""

from __future__ import annotations

import html.parser
import os
import re
import sys
import tempfile
from pathlib import Path

from bpals.version import VERSION

FOLDER = Path(__file__).parents[1] / "snapshots"
ROOT = Path(__file__).parents[2]
MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(re.escape(str(ROOT))), "ROOT"),
    (re.compile(re.escape(str(Path(sys.prefix)))), "PREFIX"),
    (re.compile(re.escape(tempfile.gettempdir()) + r"/[^\s'\",;:)<]*"), "TMP"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b\d+(\.\d+)? (m?s|min|h|MB|GB|kB)\b"), "AMOUNT"),
    (re.compile(r"\bprocess \d+"), "process N"),
    (re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?!\.?\d)"), "VERSION"),
    (re.compile(r"VERSION commit HASH(, with uncommitted changes)?"), "VERSION"),
    # Another processor may round the last digit otherwise; the width stays, and so do the columns of a table.
    (re.compile(r"(?<=\.)\d+\b"), lambda digits: "#" * len(digits[0])),
)


def mask(text, **more):
    """Put words in the place of what differs from run to run; further texts are given by the name to put there."""
    for name, value in sorted(more.items(), key=lambda item: -len(str(item[1]))):
        # A long path is broken over two lines of a table or a paragraph.
        text = re.sub(r"\n?".join(map(re.escape, str(value))), name.upper(), text)
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"


def assert_snapshot(text, name, **more):
    """Compare a text with tests/snapshots/NAME.txt, or write it there where UPDATE_SNAPSHOTS is set."""
    file, shown = FOLDER / f"{name}.txt", mask(text, **more)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    assert shown == kept, f"other words than in {file.name}: read them, then UPDATE_SNAPSHOTS=1 keeps them"


class _Text(html.parser.HTMLParser):
    """The words of a page, one line for each block; styles, scripts and drawings have none."""

    SILENT = frozenset({"style", "script", "svg", "template"})
    INLINE = frozenset(
        {"a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "sub", "sup", "time", "u"}
    )

    def __init__(self, page):
        """Read a whole page."""
        super().__init__()
        self.lines, self._silent = [""], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Begin a line with each block; a field is its placeholder or its label."""
        self._silent += tag in self.SILENT
        if tag not in self.INLINE:
            self.lines.append("")
        words = [value for name, value in attrs if name in {"placeholder", "aria-label", "alt", "title"} and value]
        if not self._silent:
            self.lines[-1] += "".join(f" [{value}]" for value in words)

    def handle_endtag(self, tag):
        """End the line of a block."""
        self._silent -= tag in self.SILENT
        if tag not in self.INLINE:
            self.lines.append("")

    def handle_data(self, data):
        """Take what is shown."""
        if not self._silent:
            self.lines[-1] += data


def page_text(page):
    """Give the words of an HTML page, one line for each block that has some."""
    lines = (" ".join(line.split()) for line in _Text(page).lines)
    return "\n".join(line for line in lines if line)
