"""`bpals judge`: ask image judges, see how far they are, who they are, and where two of them differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bpals.cli.judgecard import card
from bpals.cli.judgecompare import compare
from bpals.cli.judgemerge import merge
from bpals.cli.judgerun import run
from bpals.cli.liveline import span
from bpals.judgestatus import asked_status, looking_status, status_of
from bpals.plural import several
from bpals.registry import known
from bpals.workspace import Workspace

WIDTH = 100
WORKSPACE = Annotated[Path, typer.Option(help="The folder of the audit.")]
LEDGER = Annotated[
    str | None, typer.Option(metavar="URL", help="Its ledger on PostgreSQL, if the workspace does not remember it.")
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]

app = typer.Typer(
    name="judge",
    help="Ask image judges about the films, and compare them.",
    epilog="Example: bpals judge list",
    no_args_is_help=True,
)
app.command(
    "run", epilog="Example: bpals judge run openai:my-model --base-url http://127.0.0.1:8000/v1 --images films"
)(run)
app.command("merge", epilog="Example: bpals judge merge shard-1 shard-2 --workspace audit")(merge)
app.command("compare", epilog="Example: bpals judge compare qwen chexnet --reference four-findings=expert")(compare)
app.command("card", epilog="Example: bpals judge card qwen --reference four-findings=expert")(card)


@app.command("list", epilog="Example: bpals judge list --workspace audit")
def list_judges(workspace: WORKSPACE = Path("audit"), ledger: LEDGER = None, as_json: AS_JSON = False) -> None:
    """List the kinds of judge there are, what each lacks here, and the judges that the workspace holds."""
    kinds = [kind._asdict() for kind in known()]
    sealed = [{"judge": judge.name, **judge.record["counts"]} for judge in Workspace(workspace).judges()]
    names = [judge["judge"] for judge in sealed]
    asked = [*asked_status(workspace, ledger=ledger), *looking_status(workspace)]
    unsealed = [row for row in asked if row["judge"] not in names]
    if as_json:
        print(json.dumps({"kinds": kinds, "judges": sealed, "unsealed": unsealed}, indent=1))
        return
    for kind in kinds:
        print(f"{kind['kind']:26} {kind['what']}")
        if kind["missing"]:
            print(f"{'':26} missing; type: {kind['missing']}")
    print(f"\njudges of {workspace}")
    for judge in sealed:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in judge.items() if outcome != "judge")
        print(f"{judge['judge']:26} {counts}")
    for row in unsealed:
        print(f"{row['judge']:26} not sealed yet: {_how_far(row)}")
        if row["next"]:
            print(f"{'':26} {row['next']}")
    if not asked and not sealed:
        print("none yet. Type: bpals judge run SPEC --images PATH")


@app.command("status", epilog="Example: bpals judge status --workspace audit")
def status(
    judge: Annotated[str | None, typer.Argument(help="A judge; by default all that are here.")] = None,
    workspace: WORKSPACE = Path("audit"),
    ledger: LEDGER = None,
    as_json: AS_JSON = False,
) -> None:
    """Say how far each judge is, while it runs or afterwards."""
    rows = status_of(workspace, judge, ledger=ledger)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['judge']}: {_how_far(row)}")
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in row["replies"].items() if count)
        print(f"  {row['next']}" if row["next"] else f"  replies: {counts or 'none yet'}")
        if row["tokens"]["prompt"]:
            print(f"  tokens: {row['tokens']['prompt']:,} read ({row['cached_share']:.0%} cached), "
                  f"{row['tokens']['output']:,} written; {several(row['attempts'], 'request')}")  # fmt: skip
    if not rows:
        print(f"no judge has been asked in {workspace}. Type: bpals judge run SPEC --images PATH")


def _how_far(row: dict[str, Any]) -> str:
    share = f"{row['state']}, {row['films']:,} of {several(row['films_all'], 'film')}"
    if row["state"] != "running":
        return share
    left = f", {span(row['eta_s'])} left" if row["eta_s"] is not None else ""
    return f"{share}, {row['films_per_s']:.1f} films/s, p50 {row['p50_s']:.2f} s, p95 {row['p95_s']:.2f} s{left}"
