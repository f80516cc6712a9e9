"""Replay real reads through the queue, beside other orders of reading.

    python benchmarks/review_replay.py --expert PATH --choose     what was chosen, on the validation images
    python benchmarks/review_replay.py --expert PATH              the test images: audits NIH first, two minutes
    python benchmarks/review_replay.py --expert PATH --write      and put table and curves into docs/
    python benchmarks/review_replay.py --simulated                made-up readers: no data needed, a few seconds

PATH is the folder of the four-findings labels and their reads. The audit is calibrated on the validation images alone.
The exit code is 1 if, in a finding, an order on the record judge's own answers finds more than bpals beyond chance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bpals
from bpals.findings import NIH
from bpals.numeric import logit, newton
from bpals.report.charts import element
from bpals.reviews import verdicts
from bpals.score.intervals import Resampling
from bpals.score.opinions import Audited, about
from bpals.signal.value import Worth, values
from bpals.store.workspace import Workspace
from bpals.testing.fakes import made_up_reads
from bpals.types import SAYS
from replay import OURS, SPENDING, Row, curves, holds, learning, replay, rivals, with_reads, yardsticks
from section import Section

Floats = NDArray[np.float64]

READS = "four_findings_readers.csv"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "queue.md"
OPENING = "<!-- printed by benchmarks/review_replay.py --write -->"
CLOSING = "<!-- end of the replay -->"
WAYS = {"settled": "a pair is read until two agree", "every": "all reads of a pair are spent"}
SIGNAL = ("image_id", "finding", "p_present", "trust", "trust_low", "trust_high", "method")
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Of information, among which the default was chosen."""
ON_TRUST = " on our trust"
LEARNING = "bpals, learning while reading"
DRAWN = (OURS, "active_label_cleaning", "self_confidence", "entropy", "random", "oracle")
NAMES = {
    OURS: "bpals",
    "active_label_cleaning": "active label cleaning",
    "self_confidence": "self-confidence",
    "entropy": "entropy",
    "random": "random",
    "oracle": "oracle",
}
STROKES = {
    OURS: ("#0b5cad", 2.6, None),
    "active_label_cleaning": ("#b3541e", 1.5, "7 3"),
    "self_confidence": ("#2e7d32", 1.5, "2 3"),
    "entropy": ("#7b4fa3", 1.5, "9 3 2 3"),
    "random": ("#777777", 1.2, "1 3"),
    "oracle": ("#222222", 1.2, "4 4"),
}


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert", type=Path, metavar="PATH", help="the folder of the labels and the reads")
    parser.add_argument("--workspace", type=Path, metavar="DIR", help="an audit that was calibrated on `val` already")
    parser.add_argument("--choose", action="store_true", help="print what was chosen on the validation images")
    parser.add_argument("--simulated", action="store_true", help="made-up readers instead")
    parser.add_argument("--bootstrap", type=int, default=1000, metavar="N", help="resamples of patients")
    parser.add_argument("--seed", type=int, default=0, help="of the readers' order and of the resamples")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curves as SVG")
    parser.add_argument("--write", action="store_true", help="put the table into docs/queue.md, the curves beside it")
    said = parser.parse_args()
    if said.simulated:
        sys.exit(show(*simulated(said.seed), said))
    if said.expert is None:
        parser.error("name the folder of the labels with --expert PATH, or type --simulated")
    if said.workspace is not None:
        sys.exit(real(said.workspace, said))
    with tempfile.TemporaryDirectory() as folder:
        bpals.audit(workspace=folder, calibrate=f"four-findings={said.expert}", calibrate_split="val")
        sys.exit(real(Path(folder), said))


def real(workspace: Path, said: argparse.Namespace) -> int:
    """Replay the reads of the test images, or choose on those of the validation images."""
    pairs = adjudicated(workspace, said.expert, "val" if said.choose else "test", said.seed)
    if said.choose:
        choose(pairs, common_findings(workspace))
        return 0
    orders = orders_of(pairs, values(pairs))
    return show(pairs, {**orders, LEARNING: learning(pairs, 1 - pairs["trust"].to_numpy())}, said)


def adjudicated(workspace: Path, expert: Path, split: str, seed: int) -> pl.DataFrame:
    """The adjudicated pairs of a split: claim, trust, interval, the record judge's answer, and what reading takes."""
    audit = Workspace(workspace).open()
    signal, groups = (audit.table(f"{name}.parquet", *SIGNAL) for name in ("signal", "groups"))
    audited = Audited(
        images=audit.table("images.parquet", "image_id", "patient_id"),
        claims=audit.table("claims.parquet"),
        judgments=audit.table("judgments/record.parquet", "image_id", "finding", "outcome", "p_present"),
        signal=signal,
        groups=groups,
        calibration=audit.table("calibration.parquet", "image_id", "finding"),
    )
    reference = verdicts.load(f"four-findings={expert}", vocabulary=NIH, split=split)
    asked, _ = about(reference.truth.drop("split"), audited, reference.groups, baselines=False)
    beside = pl.concat([part.with_columns(pl.col("finding").cast(pl.String)) for part in (signal, groups)])
    beside = beside.select("image_id", "finding", "trust_low", "trust_high", "method")
    pairs = asked.join(beside, on=["image_id", "finding"], how="left", maintain_order="left")
    pairs = pairs.with_columns(says=pl.when("claimed").then(pl.lit("present")).otherwise(pl.lit("absent")).cast(SAYS))
    if split == "val" and not pairs["method"].str.ends_with("/crossfit").all():
        raise SystemExit(f"{workspace} has trusts of validation images that saw their own labels")
    reads = verdicts.load_reads(expert / READS, vocabulary=NIH, split=split)
    replayed, notices = with_reads(pairs, reads.table, seed=seed)
    for notice in (*reads.notices, *notices):
        print(f"note: {notice.message}")
    print(f"{split}: {replayed['image_id'].n_unique():,} images, {int(replayed['every'].sum()):,} reads of pairs")
    return replayed


def simulated(seed: int) -> tuple[pl.DataFrame, dict[str, Floats]]:
    """Made-up readers, where the trust is the exact probability that a claim is right."""
    pairs, _ = with_reads(*made_up_reads(films=4000, seed=seed), seed=seed)
    return pairs, orders_of(pairs, 1 - pairs["trust"].to_numpy())


def orders_of(pairs: pl.DataFrame, ours: Floats) -> dict[str, Floats]:
    """Ours, the rivals on the record judge's own probabilities, the same on our trust, and the yardsticks."""
    p_judge = pairs["p_judge"].to_numpy()
    right = np.where(pairs["claimed"].to_numpy(), p_judge, 1 - p_judge)
    on_trust = {name + ON_TRUST: score for name, score in rivals(pairs["trust"].to_numpy()).items()}
    return {OURS: ours, **rivals(right), **on_trust, **yardsticks(pairs)}


def show(pairs: pl.DataFrame, orders: Mapping[str, Floats], said: argparse.Namespace) -> int:
    """Print the tables, draw the curves, and say whether ours holds."""
    resampling = Resampling(draws=said.bootstrap, seed=said.seed)
    judged = [name for name in orders if name in NAMES and name not in (OURS, "oracle")]
    tables = {spending: replay(pairs, orders, resampling, spending=spending) for spending in SPENDING}
    failed = [spending for spending, rows in tables.items() if not holds(rows, OURS, judged)]
    for spending, rows in tables.items():
        print_table(rows, spending)
        held = "NO" if spending in failed else "yes"
        print(f"\nours has the largest area, or lies within the paired interval of the largest: {held}")
    if said.write:
        write_page(tables, said.bootstrap)
    if plot := said.plot or (PAGE.with_name("replay.svg") if said.write else None):
        plot.write_text(picture(curves(pairs, orders)), encoding="utf-8")
        print(f"curves in {plot}")
    return int(bool(failed))


def write_page(tables: Mapping[str, list[Row]], draws: int) -> None:
    """Put a short table between the markers of the page."""
    Section(PAGE, OPENING, CLOSING).write("\n".join(page_lines(tables, draws)))
    print(f"table in {PAGE}")


def page_lines(tables: Mapping[str, list[Row]], draws: int) -> list[str]:
    """Word the replay: the area of each order, bpals less it, and the errors found at 20 % as times random."""
    rows = tables["first"]
    ours = [row for row in rows if row["method"] == OURS]
    every = sum(row["reads"] for row in tables["every"] if row["method"] == OURS)
    pairs = sum(row["n"] for row in ours)
    told = (
        f"{ours[0]['n']:,} test images, a first read of each of their {pairs:,} pairs; the last two lines spend all "
        f"{every:,} reads. In brackets 95 % intervals over patients, {draws:,} resamples. "
        "After a semicolon: bpals minus that order."
    )
    lines = [
        told,
        "",
        line("area up to 20 % of the reads", [f"{row['finding']}, {row['errors']} errors" for row in ours]),
        "|---|" + "--:|" * len(ours),
        line("**bpals**", [f"**{figure(row, 'area')}**" for row in ours]),
    ]
    for method in list(dict.fromkeys(row["method"] for row in rows))[1:]:
        its = [row for row in rows if row["method"] == method]
        cells = [f"{row['area']:.3f}; {figure(row, 'gain', '+.3f')}" for row in its]
        lines.append(line(NAMES.get(method, method.replace("_", " ")), cells))
    lines.append(line("errors found by bpals at 20 %, times random", [figure(row, "factor", ".2f") for row in ours]))
    for spending in ("settled", "every"):
        best = [against_best(tables[spending], row["finding"]) for row in ours]
        lines.append(line(f"bpals, where {WAYS[spending]}", best))
    return lines


def line(name: str, cells: list[str]) -> str:
    """Write one line of a Markdown table."""
    return f"|{name}|{'|'.join(cells)}|"


def against_best(rows: list[Row], finding: str) -> str:
    """Word our area beside the best of the rivals on the record judge's own answers."""
    by_method = {row["method"]: row for row in rows if row["finding"] == finding}
    best = max((by_method[name] for name in NAMES if name not in (OURS, "oracle")), key=lambda row: float(row["area"]))
    return f"{by_method[OURS]['area']:.3f}; minus {NAMES[best['method']]} {figure(best, 'gain', '+.3f')}"


def print_table(rows: list[Row], spending: str) -> None:
    """Print one line a finding and method, as Markdown."""
    print(f"\nreads spent: {spending}; area and errors found at 20 % of the reads, 95 % intervals over patients\n")
    print("| finding | method | area | bpals minus it | found at 20 % | times random |")
    print("|---|---|--:|--:|--:|--:|")
    for row in rows:
        counts = f"{row['finding']} ({row['errors']} of {row['n']:,} pairs, {row['reads']:,} reads)"
        cells = [figure(row, "area"), "" if row["method"] == OURS else figure(row, "gain", "+.3f")]
        cells += [figure(row, "found"), figure(row, "factor", ".2f")]
        print(f"| {counts} | {row['method'].replace('_', ' ')} | {' | '.join(cells)} |")


def figure(row: Row, name: str, form: str = ".3f") -> str:
    """Word a figure with its interval."""
    return f"{row[name]:{form}} ({row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}})"


def common_findings(workspace: Path) -> dict[str, float]:
    """Say which share of the claims of each finding and group are presences, in the whole dataset."""
    audit = Workspace(workspace).open()
    tables = [audit.table(f"{name}.parquet", "finding", "says") for name in ("signal", "groups")]
    said = pl.concat([table.with_columns(pl.col("finding").cast(pl.String)) for table in tables])
    return dict(said.group_by("finding").agg((pl.col("says") == "present").mean()).iter_rows())


def choose(pairs: pl.DataFrame, common: Mapping[str, float]) -> None:
    """Print what the constants of the value rest on: areas by the weight of information, and two small fits."""
    print("\n| weight of a bit | " + " | ".join(pairs["finding"].unique(maintain_order=True)) + " | sum |")
    print("|---|--:|--:|--:|--:|")
    resampling = Resampling(draws=1)
    for weight in WEIGHTS:
        ours = {OURS: values(pairs, Worth(information=weight))}
        areas = [row["area"] for row in replay(pairs, ours, resampling, spending="settled")]
        print(f"| {weight} | " + " | ".join(f"{area:.4f}" for area in [*areas, sum(areas)]) + " |")
    trust = pairs["trust"].to_numpy()
    read = pairs["every"].to_numpy() > 2
    unclear = np.stack([np.ones(read.sum()), (4 * trust * (1 - trust))[read]], axis=1)
    split = (pairs["settled"].to_numpy() > 2)[read].astype(np.float64)
    least, slope = np.linalg.lstsq(unclear, split, rcond=None)[0]
    print(f"\nP(first two readers disagree) = {least:.3f} + {slope:.3f} x 4 p (1 - p), {len(split):,} pairs")
    errors = pairs.filter(pl.col("claimed") != pl.col("present"))
    agreed = (
        errors.group_by("finding").agg((pl.col("read") == pl.col("present").cast(pl.Float64)).mean()).sort("finding")
    )
    told = ", ".join(f"{finding} {share:.2f}" for finding, share in agreed.iter_rows())
    print(f"the first reader of an error says what was adjudicated: {told}")
    wrong = (pairs["claimed"] != pairs["present"]).to_numpy()
    p_judge, claimed = pairs["p_judge"].to_numpy(), pairs["claimed"].to_numpy()
    for side, chosen, suspicion in (("presence", claimed, 1 - p_judge), ("absence", ~claimed, p_judge)):
        z = logit(suspicion[chosen])
        inputs = np.stack([np.ones(len(z)), z], axis=1)
        (rest, by_z), _ = newton(inputs, np.zeros(len(z)), wrong[chosen].astype(np.float64), np.full(2, 1e-3))
        told = f"logit P(error) = {rest:.2f} + {by_z:.2f} x logit(1 - trust)"
        print(f"{side} without expert labels: {told}, {len(z):,} pairs, {int(wrong[chosen].sum())} errors")

    mixed(pairs, common)


def mixed(pairs: pl.DataFrame, common: Mapping[str, float]) -> None:
    """Print the area over all three findings at once where some of them have no expert labels."""
    print("\n| without expert labels | order of 1 - trust | order of value, no weight on information |\n|---|--:|--:|")
    findings = pairs["finding"].unique(maintain_order=True).to_list()
    record = pl.when("claimed").then("p_judge").otherwise(1 - pl.col("p_judge"))
    for without in ([], *([name] for name in findings), findings):
        here = pl.col("finding").is_in(without)
        trust = pl.when(here).then(record).otherwise("trust")
        part = pairs.with_columns(
            trust=trust, trust_low=trust, trust_high=trust, method=pl.when(here).then(pl.lit("")).otherwise("method")
        )
        orders = {"trust": 1 - part["trust"].to_numpy(), "value": values(part, Worth(information=0, common=common))}
        rows = replay(part.with_columns(finding=pl.lit("pooled")), orders, Resampling(draws=1))
        print(line(", ".join(without) or "none", [f"{row['area']:.4f}" for row in rows]))


def picture(drawn: pl.DataFrame) -> str:
    """Draw the curves, a panel a finding."""
    wide, tall, gap = 260.0, 250.0, 40.0
    findings = drawn["finding"].unique(maintain_order=True).to_list()
    width, height = len(findings) * (wide + gap) + gap, tall + 110
    parts: list[str] = [element("rect", width=width, height=height, fill="#ffffff")]
    for place, finding in enumerate(findings):
        left = gap + place * (wide + gap)
        parts += panel(drawn.filter(pl.col("finding") == finding), finding, (left, 34.0, wide, tall))
    x = gap
    for method in DRAWN:
        colour, thick, dashes = STROKES[method]
        y = height - 16
        parts.append(element("line", x1=x, y1=y - 4, x2=x + 26, y2=y - 4, stroke=colour, stroke_width=thick,
                             stroke_dasharray=dashes))  # fmt: skip
        parts.append(words(NAMES[method], x + 32, y, "start"))
        x += 52 + 7.2 * len(NAMES[method])
    title = element("title", "Share of label errors found against share of reads spent, by order of reading")
    return str(
        element("svg", title, *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}",
                width=width, height=height, role="img", font_family="sans-serif", font_size=12)
    )  # fmt: skip


def panel(drawn: pl.DataFrame, finding: str, place: tuple[float, float, float, float]) -> list[str]:
    """Draw the curves of one finding; the line at 20 % is where the area ends."""
    left, top, wide, tall = place

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * wide, top + (1 - y) * tall

    parts: list[str] = [words(finding, left, top - 12, "start", weight="bold")]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        (x, below), (start, y) = at(tick, 0), at(0, tick)
        parts.append(element("line", x1=start, y1=y, x2=left + wide, y2=y, stroke="#dddddd"))
        parts += [words(f"{tick:.0%}", x, below + 16, "middle"), words(f"{tick:.0%}", start - 5, y + 4, "end")]
    x, below = at(0.2, 0)
    parts.append(element("line", x1=x, y1=below, x2=x, y2=top, stroke="#999999", stroke_width=1))
    for method in reversed(DRAWN):
        colour, thick, dashes = STROKES[method]
        curve = drawn.filter(pl.col("method") == method)
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(at, curve["reads"], curve["found"]))
        parts.append(element("polyline", points=points, fill="none", stroke=colour, stroke_width=thick,
                             stroke_dasharray=dashes))  # fmt: skip
    parts.append(words("reads spent", left + wide / 2, top + tall + 34, "middle"))
    return parts


def words(text: str, x: float, y: float, anchor: str, weight: str | None = None) -> str:
    """Set a short text."""
    return element("text", text, x=x, y=y, text_anchor=anchor, font_weight=weight, fill="#222222")


if __name__ == "__main__":
    main()
