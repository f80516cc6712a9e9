"""The section of a page that a benchmark writes: between two lines that name the command and its end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Section:
    """Where the figures of one benchmark stand in the documents."""

    page: Path
    opening: str
    closing: str

    def write(self, text: str) -> None:
        """Put a text in place of what stands there."""
        before, opened, rest = self.page.read_text(encoding="utf-8").partition(self.opening)
        _, closed, after = rest.partition(self.closing)
        if not opened or not closed:
            raise SystemExit(f"{self.page} lacks the lines {self.opening!r} and {self.closing!r}")
        text = re.sub(r"^\|.*$", lambda row: re.sub(r" *(?<!\\)\| *", "|", row[0]), text, flags=re.MULTILINE)
        self.page.write_text(f"{before}{self.opening}\n\n{text}\n\n{self.closing}{after}", encoding="utf-8")
