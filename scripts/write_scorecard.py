"""Write the scorecard: the table in docs/score.md, and the chart of README.md from that table.

    python scripts/write_scorecard.py --reference four-findings=PATH    three audits, then the table and the chart
    python scripts/write_scorecard.py --chart                           only the chart, from the table as it stands

The three audits are one as bpals comes, from its expert calibration; one fitted on the validation images; and one
without expert knowledge. All are scored against the adjudicated test images.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import bpals

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, CHART = DOCS / "score.md", DOCS / "scorecard.svg"
START, END = "<!-- scorecard: scripts/write_scorecard.py -->\n", "<!-- end of scorecard -->"
CALIBRATED = "**bpals, calibrated on the 2,414 validation images**"
SHIPPED = "**bpals as it comes, with `nih-experts-1`**"
PLAIN = "**bpals without expert knowledge**"
METHODS = {
    "self_confidence": "self-confidence of the same judge",
    "cleanlab": "cleanlab 2.9 on the same judge",
    "prevalence": "prevalence only (no judge)",
}
DRAWN = {
    SHIPPED: ("bpals as it comes", "ours"),
    PLAIN: ("without expert knowledge", "plain"),
    METHODS["cleanlab"]: ("cleanlab, same judge", "peer"),
    METHODS["prevalence"]: ("prevalence only", "floor"),
}
"""The rows of the table that the chart shows: row -> its name in the chart, its colour."""

Cell = tuple[float, float, float]


def main() -> None:
    """Audit, score, and write the table and the chart; or only the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--reference", metavar="KIND=PATH")
    what.add_argument("--chart", action="store_true", help="draw the chart from the table in docs/score.md")
    parser.add_argument("--calibrate-split", default="val")
    parser.add_argument("--split", default="test")
    parser.add_argument("--print", action="store_true", help="print the table and write nothing")
    options = parser.parse_args()
    if options.reference:
        table = measure(options.reference, options.calibrate_split, options.split)
        if options.print:
            print(table, end="")
            return
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")
    CHART.write_text(draw(read_table(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")


def measure(reference: str, calibrate_split: str, split: str) -> str:
    """Make the audits in a temporary folder and give their scorecards as one Markdown table."""
    kinds: dict[str, dict[str, Any]] = {
        SHIPPED: {},
        CALIBRATED: {"prior": "none", "calibrate": reference, "calibrate_split": calibrate_split},
        PLAIN: {"prior": "none"},
    }
    with tempfile.TemporaryDirectory() as folder:
        cards = {}
        for number, (name, given) in enumerate(kinds.items()):
            home = Path(folder) / str(number)
            bpals.audit(workspace=home, **given)
            cards[name] = bpals.scorecard(home, reference=reference, split=split).rows
    return "\n".join(lines(cards)) + "\n"


def lines(cards: Mapping[str, list[dict[str, Any]]]) -> Iterable[str]:
    """Word the scorecards as one Markdown table."""
    plain = cards[PLAIN]
    findings = [row for row in plain if row["given"] == "all" and row["method"] == "bpals"]
    yield "|error AP|" + "|".join(f"{row['finding']} ({row['errors']} errors)" for row in findings) + "|"
    yield "|---|" + "--:|" * len(findings)
    for name, rows in cards.items():
        yield _line(name, rows, "bpals", findings)
    for method, words in METHODS.items():
        yield _line(words, plain, method, findings)
    for name, rows in cards.items():
        yield _line(f"{name.strip('*')}: found at 10 %", rows, "bpals", findings, figure="found_10")


def _line(
    words: str, rows: list[dict[str, Any]], method: str, findings: list[dict[str, Any]], figure: str = "error_ap"
) -> str:
    by_finding = {row["finding"]: row for row in rows if row["given"] == "all" and row["method"] == method}
    cells = [
        f"{by_finding[row['finding']][figure]:.3f} ({by_finding[row['finding']][f'{figure}_low']:.2f} to "
        f"{by_finding[row['finding']][f'{figure}_high']:.2f})"
        for row in findings
    ]
    return f"|{words}|" + "|".join(cells) + "|"


def read_table(page: str) -> dict[str, dict[str, Cell]]:
    """Read the table back: method -> finding -> figure, low, high."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition(START)[2].partition(END)[0].strip().splitlines()
    ]
    header, _, *body = rows
    findings = [name.partition(" (")[0] for name in header[1:]]
    return {method: dict(zip(findings, (_cell(text) for text in cells), strict=True)) for method, *cells in body}


def _cell(text: str) -> Cell:
    value, low, high = (float(number) for number in re.findall(r"\d\.\d+", text))
    return value, low, high


STYLE = """
.back { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif } .head { font-weight: 600 }
.note { fill: #59636e } .grid { stroke: #d1d9e0 } .span { stroke: #1f2328; stroke-width: 1.5 }
.ours { fill: #0a6ebd } .plain { fill: #6fb1e0 } .peer { fill: #d08a2e } .floor { fill: #a5adb6 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } text { fill: #e6edf3 } .note { fill: #9198a1 } .grid { stroke: #3d444d }
.span { stroke: #e6edf3 } .ours { fill: #3f9be8 } .plain { fill: #2a5f8f } .peer { fill: #b8741a }
.floor { fill: #656c76 } }
"""
WIDTH, LEFT, SCALE, TOP, BAR, GAP = 760, 150, 520, 64, 15, 18


def draw(table: Mapping[str, Mapping[str, Cell]]) -> str:
    """Draw the error AP of each finding as bars with their 95 % intervals, on a background of its own."""
    shown = {name: table[name] for name in DRAWN}
    findings = list(next(iter(shown.values())))
    block = len(shown) * BAR + GAP
    floor = TOP + len(findings) * block
    title = "Error AP: how well each method finds the labels that radiologists reject (higher is better)"
    parts = [f'<text class="head" x="12" y="22">{escape(title)}</text>', *_legend()]
    for tenth in range(0, 10, 2):
        x = LEFT + SCALE * tenth / 10
        parts.append(f'<line class="grid" x1="{x:g}" y1="{TOP - 6}" x2="{x:g}" y2="{floor - GAP + 6}"/>')
        parts.append(f'<text class="note" x="{x:g}" y="{floor + 6}" text-anchor="middle">{tenth / 10:.1f}</text>')
    for number, finding in enumerate(findings):
        top = TOP + number * block
        middle = top + len(shown) * BAR / 2 + 4
        parts.append(f'<text class="head" x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(finding)}</text>')
        for place, (name, cells) in enumerate(shown.items()):
            parts += _bar(top + place * BAR, DRAWN[name][1], cells[finding])
    height = floor + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>\n'
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend() -> list[str]:
    parts, x = [], 12.0
    for words, colour in DRAWN.values():
        parts.append(f'<rect class="{colour}" x="{x:g}" y="34" width="12" height="12"/>')
        parts.append(f'<text x="{x + 17:g}" y="45">{escape(words)}</text>')
        x += 36 + 6.6 * len(words)
    return parts


def _bar(y: float, colour: str, cell: Cell) -> list[str]:
    value, low, high = cell
    left, right = LEFT + SCALE * low, LEFT + SCALE * high
    middle = y + BAR / 2 - 1
    return [
        f'<rect class="{colour}" x="{LEFT}" y="{y:g}" width="{SCALE * value:g}" height="{BAR - 2}"/>',
        f'<line class="span" x1="{left:g}" y1="{middle:g}" x2="{right:g}" y2="{middle:g}"/>',
        f'<text x="{right + 8:g}" y="{y + 11:g}">{value:.3f}'.replace(">0.", ">.") + "</text>",
    ]


if __name__ == "__main__":
    main()
