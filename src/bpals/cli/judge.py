"""`bpals judge`: ask image judges, see how far they are, who they are, and where two of them differ."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bpals.cli.compare import compare
from bpals.cli.score import number, sheet
from bpals.cli.terminal import Invocation, LiveLine, bar, span
from bpals.errors import UnknownName, UsageError
from bpals.images.prepare import Preparation
from bpals.judges.backbone import DEFAULT
from bpals.judges.runner.ray_executor import RayExecutor
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.transport import Endpoint
from bpals.registry import SPECS, known, parse_spec
from bpals.store.ledger.transfer import Clash
from bpals.store.shards import Shard
from bpals.store.workspace import Workspace
from bpals.tasks.judge import JudgeRun, Order, run_judge
from bpals.tasks.judge_card import card_of
from bpals.tasks.judge_status import asked_status, looking_status, status_of
from bpals.tasks.merge import Merged
from bpals.tasks.merge import merge as merge_workspaces
from bpals.tasks.probe import run_probe
from bpals.text import several
from bpals.types import OUTCOME

DIGITS = ("seed",)
"""Whole numbers that count nothing."""
WIDTH = 100
"""Columns of a table that is written to a file or a pipe."""


def card(
    judge: Annotated[str, typer.Argument(help="A judge of the workspace; `record` is the one that reads the record.")],
    workspace: Annotated[Path, typer.Option(help="The folder of the audit.")] = Path("audit"),
    reference: Annotated[
        str | None, typer.Option(metavar="KIND=PATH", help="Expert labels to score it against, as in `bpals score`.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of the reference: val, test or all.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """Say who a judge is, what its self-test saw, and how well it tells films with a finding from films without."""
    found = card_of(judge, workspace=workspace, reference=reference, split=split)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    for name, value in found["card"].items():
        _print_field(name.replace("_", " "), value)
    counts = ", ".join(f"{found[outcome]:,} {outcome}" for outcome in OUTCOME.categories if found[outcome])
    _print_field("answers", f"{several(found['films'], 'film')}, {several(found['asked'], 'pair')}: {counts}")
    for name in ("cost", "drift"):
        _print_field(name, found[name])
    if found["card"].get("commercial_use") == "no":
        print("This judge's licence forbids commercial use: no commercial edition may rest on it.")
    print()
    _print_skill(found["skill"])


def _print_field(name: str, value: Any) -> None:
    """Print what a card says, if it says anything."""
    if words := _card_words(value):
        print(f"{name:18} {words}")


def _card_words(value: Any, name: str = "") -> str:
    """Write a value without brackets and quotes, and nothing for what is empty; what could play with a terminal goes.

    A seed is a name made of digits: it has no thousands.
    """
    if isinstance(value, Mapping):
        said = {each: _card_words(inner, str(each)) for each, inner in value.items()}
        # What a network is shown has a side of its own beside that of the film: which is whose, the brackets say.
        inside = {each: f"({words})" if isinstance(value[each], Mapping) else words for each, words in said.items()}
        return ", ".join(f"{each.replace('_', ' ')} {inside[each]}" for each, words in said.items() if words)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_card_words, value)))
    if value is None:
        return ""
    plain = name in DIGITS or type(value) is not int
    text = f"{value:,.4g}" if isinstance(value, float) else str(value) if plain else f"{value:,}"
    return "".join(character if character.isprintable() else " " for character in text)


def _print_skill(rows: list[dict[str, Any]]) -> None:
    numbers = ("pairs", "present", "AUROC", "95 % interval", "verdict")
    table = sheet("How well it tells films apart, patients taken whole", ["finding", "against"], numbers)
    for row in rows:
        few = "no signal: too few" if row["asked"] else "not asked"
        verdict = "signal" if row["signal"] else "no signal" if row["auroc"] is not None else few
        interval = "-" if row["auroc"] is None else f"{number(row['low'])} to {number(row['high'])}"
        counts = [f"{row['n']:,}", f"{row['positives']:,}"]
        table.add_row(row["finding"], row["against"], *counts, number(row["auroc"]), interval, verdict)
    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)).print(table)


LISTED = 20
"""Conflicts that are printed; --json has up to a thousand."""
CLASHING = 2
"""The exit code under --strict."""


def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The workspaces of the shards; only read.")],
    workspace: Annotated[Path, typer.Option(help="The folder to write to.")],
    ledger: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep the answers on PostgreSQL: postgresql://NAME@HOST/DATABASE."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if two parts contradict each other.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for a program.")] = False,
) -> None:
    """Merge workspaces: in any order, as often as you like, the result is that of one run."""
    with bar() as drawn:
        task = drawn.add_task("merging", total=None)
        done = merge_workspaces(
            parts,
            workspace=workspace,
            ledger=ledger,
            watch=lambda judge, films: drawn.update(task, description=f"{judge}: {several(films, 'film')}"),
        )
    if as_json:
        print(json.dumps(_merge_json(done), indent=1))
    else:
        _print_merge(done, workspace)
    if strict and done.clashing:
        raise typer.Exit(CLASHING)


def _merge_json(done: Merged) -> dict[str, Any]:
    judges = [
        {
            "judge": each.run.name,
            "state": each.run.state,
            "films": each.run.films,
            "new": each.new,
            "known": each.known,
            "counts": dict(each.run.counts),
            "sealed": None if each.run.sealed is None else str(each.run.sealed),
        }
        for each in done.judges
    ]
    notices = [notice.message for notice in done.notices]
    clashes = [asdict(clash) for clash in done.clashes]
    return {"judges": judges, "notices": notices, "conflicts": done.clashing, "first_conflicts": clashes}


def _print_merge(done: Merged, workspace: Path) -> None:
    for each in done.judges:
        films = several(each.run.films, "film")
        print(f"{each.run.name}: {each.run.state}, {films} ({each.new:,} new, {each.known:,} known)")
        print("  " + ", ".join(f"{outcome} {count:,}" for outcome, count in each.run.counts.items()))
    for notice in done.notices:
        print(notice.message, file=sys.stderr)
    if done.clashing:
        print(f"{several(done.clashing, 'conflict')}; the first value stays:", file=sys.stderr)
    for clash in done.clashes[:LISTED]:
        print(f"  {_merge_words(clash)}", file=sys.stderr)
    print(f"Audit: bpals audit --workspace {workspace}")


def _merge_words(clash: Clash) -> str:
    what = f"{clash.image_id}, {clash.subject}" if clash.subject else f"{clash.image_id}, sha256 of the film"
    return f"{clash.judge}: {what}: {clash.here} here, {clash.there} there"


KEY = "BPALS_API_KEY"
ASKS = "How it is asked"
SERVER = "The endpoint"
LOCAL = "A model in this process"
RUN = "The run"
AWAY = "More than one process or machine"


def run(  # noqa: PLR0913  an option of the command is a parameter
    context: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help=f"{', '.join(kind.short for kind in SPECS.values())}; `bpals judge list` explains them.",
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The films: a folder, tar or zip, as it is. Remembered by the workspace."),
    ] = None,
    workspace: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("audit"),
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Keep the answers on PostgreSQL: postgresql://NAME@HOST/DATABASE. Remembered."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call the judge; by default after its model.")] = "",
    source: Annotated[str | None, typer.Option(help="The dataset, as in `bpals audit`; remembered.")] = None,
    mapping: Annotated[str | None, typer.Option(metavar="FILE.toml|NAME", help="How to read a table.")] = None,
    base_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="http://HOST:PORT/v1; repeat it for several servers.", rich_help_panel=SERVER),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host of your own network that may be asked.", rich_help_panel=SERVER),
    ] = None,
    ca_file: Annotated[str | None, typer.Option(help="Certificates to trust, as PEM.", rich_help_panel=SERVER)] = None,
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Seconds for one request, in all.", rich_help_panel=SERVER)
    ] = 120.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once, at most.", rich_help_panel=SERVER)] = 64,
    layout: Annotated[
        str | None, typer.Option(help="single or joint (one JSON for all questions).", rich_help_panel=ASKS)
    ] = None,
    method: Annotated[str | None, typer.Option(help="auto, top_k, token_ids or sampled.", rich_help_panel=ASKS)] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples where there are no log-probs.", rich_help_panel=ASKS)
    ] = None,
    pack: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.toml", help="The prompt pack.", rich_help_panel=ASKS)
    ] = None,
    side: Annotated[
        int,
        typer.Option(
            metavar="PX", min=32, help="The longer side of a film as the judge sees it.", rich_help_panel=ASKS
        ),
    ] = 512,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=LOCAL)] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.", rich_help_panel=LOCAL)] = None,
    batch: Annotated[int | None, typer.Option(help="Questions or films at once.", rich_help_panel=LOCAL)] = None,
    allow_code_revision: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="Run the model's own code, of this commit.", rich_help_panel=LOCAL),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Of the weights, for the card.", rich_help_panel=ASKS)] = None,
    trained_on_target: Annotated[
        str | None, typer.Option(metavar="yes|no|unknown", help="Was it trained on these labels?", rich_help_panel=ASKS)
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="The card of a table.", rich_help_panel=ASKS)
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="What a classifier's outputs mean and how it is shown a film.",
            rich_help_panel=LOCAL,
        ),
    ] = None,
    ocr: Annotated[
        bool,
        typer.Option("--ocr", help="Read what is written on each film too: half a second each.", rich_help_panel=LOCAL),
    ] = False,
    limit_images: Annotated[
        int | None, typer.Option(min=1, help="Ask about N films, drawn at random.", rich_help_panel=RUN)
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Ask about part I of N of the films, by their names.", rich_help_panel=RUN),
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Stop when so many are spent.", rich_help_panel=RUN)
    ] = None,
    failure_share: Annotated[
        float, typer.Option(min=0, max=1, help="Stop when more than this share fails.", rich_help_panel=RUN)
    ] = 0.005,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again what failed.", rich_help_panel=RUN)
    ] = False,
    require_all: Annotated[
        bool, typer.Option("--require-all", help="Refuse if a film is missing.", rich_help_panel=RUN)
    ] = False,
    verify: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Ask N stored questions again, in whole films: how far do they drift?",
            rich_help_panel=RUN,
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Where the order of the films starts.", rich_help_panel=RUN)] = 0,
    engine: Annotated[
        str, typer.Option(metavar="here|ray", help="Who asks: this process, or workers of Ray.", rich_help_panel=AWAY)
    ] = "here",
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="A running cluster; else one is started.", rich_help_panel=AWAY),
    ] = None,
    ray_workers: Annotated[
        int | None, typer.Option(min=1, help="Workers; by default one a core of this machine.", rich_help_panel=AWAY)
    ] = None,
    ray_gpus: Annotated[float, typer.Option(min=0, help="GPUs that each worker holds.", rich_help_panel=AWAY)] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for a program.")] = False,
) -> None:
    """Ask a judge about every film of the dataset; kill it when you like, the same command goes on."""  # fmt: skip
    _refuse_strange(parse_spec(spec).kind, context)
    context.ensure_object(Invocation).goes_on = True
    given = {"layout": layout, "method": method, "samples": samples, "pack": pack, "device": device, "dtype": dtype,
             "batch": batch, "licence": licence, "trained_on_target": trained_on_target, "card": card,
             "allow_code_revision": allow_code_revision, "recipe": recipe, "ocr": ocr or None}  # fmt: skip
    key, allow = os.environ.get(KEY, ""), tuple(allow_host or ())
    line = LiveLine()
    order = Order(
        name=name,
        source=source,
        mapping=mapping,
        endpoints=tuple(
            Endpoint(url=url, key=key, ca_file=ca_file, deadline_s=deadline, allow=allow) for url in base_url or ()
        ),
        pace=RunPolicy(in_flight=in_flight, budget_tokens=budget_tokens, failure_share=failure_share, seed=seed),
        preparation=Preparation(side_px=side),
        limit_images=limit_images,
        require_all=require_all,
        retry_failed=retry_failed,
        verify=verify,
        seed=seed,
        ledger=ledger,
        shard=None if shard is None else Shard.parse(shard),
        engine=_engine(engine, {"address": ray_address, "workers": ray_workers, "gpus": ray_gpus or None}, line.say),
        options={option: value for option, value in given.items() if value is not None},
    )
    with line:
        asked = parse_spec(spec)
        ask = run_probe if asked.kind == "probe" else run_judge
        if asked.kind == "probe" and not asked.target:
            line.say(f"{spec} names no backbone: probe:{DEFAULT} is taken")
        done = ask(spec, images=images, workspace=workspace, order=order, watch=line.draw, say=line.say)
    if as_json:
        print(json.dumps(_run_json(done), indent=1))
    else:
        _print_run(done, workspace)
    if code := EXIT.get(done.state, 0):
        raise typer.Exit(code)


EXIT = {"interrupted": 130, "budget": 3}
"""How a run ends that has not asked everything; one that had to stop raises Stopped."""

ALL = {
    "spec", "workspace", "name", "source", "mapping", "as_json", "engine", "ray_address", "ray_workers", "ray_gpus",
}  # fmt: skip
SHOWN = {
    "images", "ledger", "side", "limit_images", "shard", "failure_share", "retry_failed", "require_all", "verify",
    "seed",
}  # fmt: skip
"""Options of every judge that is shown films ..."""
SERVED = {"base_url", "allow_host", "ca_file", "deadline", "in_flight", "budget_tokens"}
"""... and of one behind an endpoint."""
WEIGHED = SHOWN | {"recipe", "device", "batch", "licence", "trained_on_target"}
"""... and of one that is a file of weights."""
TAKES = {
    "openai": SHOWN | SERVED | {"layout", "method", "samples", "pack", "licence", "trained_on_target"},
    "hf": SHOWN | {"pack", "device", "dtype", "batch", "licence", "trained_on_target", "allow_code_revision"},
    **dict.fromkeys(("xrv", "chexnet", "densenet121", "resnet50", "onnx"), WEIGHED),
    "stub": SHOWN,
    "probe": {"images", "ocr", "limit_images", "shard", "retry_failed", "require_all", "seed"},
    "table": {"card"},
}
"""What each kind of judge understands; a judge of your own may be behind an endpoint."""


def _refuse_strange(kind: str, context: typer.Context) -> None:
    """Refuse an option that this kind of judge does not know: what is typed is never ignored."""
    takes = ALL | TAKES.get(kind, SHOWN | SERVED)
    for parameter in context.command.params:
        origin = context.get_parameter_source(parameter.name or "")
        if origin and origin.name == "COMMANDLINE" and parameter.name not in takes:
            raise UsageError(f"{parameter.opts[0]} means nothing to a judge of kind {kind}. Leave it out")


def _engine(name: str, given: Mapping[str, Any], say: Callable[[str], None]) -> RayExecutor | None:
    """Make the engine that a name means; options of Ray mean nothing to another."""
    typed = {option: value for option, value in given.items() if value is not None}
    if name == "ray":
        return RayExecutor(**typed, say=say)
    if name != "here":
        raise UnknownName.of("engine", name, ("here", "ray"), where="--engine")
    if typed:
        raise UsageError(f"--ray-{min(typed)} means nothing without Ray. Add: --engine ray")
    return None


def _run_json(done: JudgeRun) -> dict[str, Any]:
    return {
        "judge": done.name,
        "state": done.state,
        "films": done.films,
        "counts": dict(done.counts),
        "sealed": None if done.sealed is None else str(done.sealed),
        "card": done.card.as_dict(),
        "tally": None if done.tally is None else done.tally.as_dict(),
        "drift": None if done.drift is None else done.drift.as_dict(),
        "looked": None if done.looked is None else {"films": done.looked[0], "of": done.looked[1]},
        "notices": [notice.message for notice in done.notices],
    }


def _print_run(done: JudgeRun, workspace: Path) -> None:
    """Print what became of the questions, all six outcomes, and what to do next."""
    if done.looked is not None:
        kept, films = done.looked
        print(f"{done.name}: {done.state}, {kept:,} of {several(films, 'film')} looked at and kept")
        if done.state == "interrupted":
            print("Nothing is lost: the same command goes on with the others, and then learns from all.")
        return
    pairs = several(sum(done.counts.values()), "pair")
    print(f"{done.name}: {done.state}, {several(done.films, 'film')}, {pairs}")
    print("  " + ", ".join(f"{outcome} {count:,}" for outcome, count in done.counts.items()))
    if done.drift is not None:
        print(f"  {done.drift.sentence}")
    if done.state == "budget":
        print("The tokens are spent. What is done is kept; the same command goes on.", file=sys.stderr)
    if done.sealed is not None:
        print(f"Card:  bpals judge card {done.name} --workspace {workspace}")
        print(f"Audit: bpals audit --workspace {workspace}")
    if done.counts and not done.counts["answered"]:
        print(_silence(done))


def _silence(done: JudgeRun) -> str:
    """Say why a judge that answered nothing did not."""
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in done.counts.items() if count)
    if not counted:
        return f"{done.name} was asked nothing yet, so it adds nothing to an audit."
    said = done.why or "no reason was given"
    return f"{done.name} answered nothing, so it adds nothing to an audit: {counted}. The first reason: {said}"


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
