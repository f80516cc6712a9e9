"""Write the scorecard of README.md: two audits, without and with expert labels, against the adjudicated test films.

python scripts/write_scorecard.py --reference four-findings=../shared/data/expert
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bpals

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- scorecard: scripts/write_scorecard.py -->\n", "<!-- end of scorecard -->"
METHODS = {
    "bpals": "bpals",
    "self_confidence": "self-confidence of the same judge",
    "cleanlab": "cleanlab 2.9 on the same judge",
    "prevalence": "prevalence only (no judge)",
}


def main() -> None:
    """Audit twice, score, and put the table between the markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, metavar="KIND=PATH")
    parser.add_argument("--calibrate-split", default="val")
    parser.add_argument("--split", default="test")
    parser.add_argument("--print", action="store_true", help="print the table and leave README.md alone")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, fitted = Path(folder) / "plain", Path(folder) / "fitted"
        bpals.audit(workspace=plain)
        bpals.audit(workspace=fitted, calibrate=said.reference, calibrate_split=said.calibrate_split)
        cards = [bpals.scorecard(home, reference=said.reference, split=said.split).rows for home in (plain, fitted)]
    table = "\n".join(lines(*cards)) + "\n"
    if said.print:
        print(table, end="")
        return
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    README.write_text(before + START + "\n" + table + "\n" + END + after, encoding="utf-8")


def lines(plain: list[dict[str, Any]], fitted: list[dict[str, Any]]) -> Iterable[str]:
    """Word the two scorecards as one Markdown table."""
    findings = [row for row in plain if row["given"] == "all" and row["method"] == "bpals"]
    yield "| error AP | " + " | ".join(f"{row['finding']} ({row['errors']} errors)" for row in findings) + " |"
    yield "|---|" + "--:|" * len(findings)
    yield _line("**bpals, calibrated on the 2,414 validation films**", fitted, "bpals", findings)
    yield _line("**bpals, no expert label**", plain, "bpals", findings)
    for method, words in list(METHODS.items())[1:]:
        yield _line(words, plain, method, findings)
    yield _line("bpals calibrated: found at 10 %", fitted, "bpals", findings, figure="found_10")
    yield _line("bpals, no expert label: found at 10 %", plain, "bpals", findings, figure="found_10")


def _line(
    words: str, rows: list[dict[str, Any]], method: str, findings: list[dict[str, Any]], figure: str = "error_ap"
) -> str:
    by_finding = {row["finding"]: row for row in rows if row["given"] == "all" and row["method"] == method}
    cells = [
        f"{by_finding[row['finding']][figure]:.3f} ({by_finding[row['finding']][f'{figure}_low']:.2f} to "
        f"{by_finding[row['finding']][f'{figure}_high']:.2f})"
        for row in findings
    ]
    return f"| {words} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
