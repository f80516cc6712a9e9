"""`bpals judge`: ask image judges, see how far they are, who they are, and where two of them differ."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console

from bpals.cli.compare import compare
from bpals.cli.score import number, sheet
from bpals.cli.terminal import Invocation, LiveLine, bar, expanded, span
from bpals.errors import UnknownName, UsageError
from bpals.images.prepare import Preparation
from bpals.judges.runner.ray_executor import RayExecutor
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.transport import Endpoint
from bpals.registry import (
    JUDGES,
    AskOptions,
    ImageOptions,
    JudgeKind,
    ServerOptions,
    known,
    option,
    options_of,
    parse_spec,
)
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
AWAY = "More than one process or machine"
EXIT = {"interrupted": 130, "budget": 3}
"""How a run ends that has not asked everything; one that had to stop raises Stopped."""


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """The options of every run: what is judged, and where the answers go."""

    workspace: Path = option(Path("audit"), "The folder to write to.")
    name: str = option("", "What to call the judge; by default after its model.")
    source: str | None = option(None, "The dataset, as in `bpals audit`; remembered.")
    mapping: str | None = option(None, "How to read a table.", metavar="FILE.toml|NAME")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of every run: which processes do the work."""

    engine: str = option("here", "Who asks: this process, or workers of Ray.", metavar="here|ray", panel=AWAY)
    ray_address: str | None = option(
        None, "A running cluster; else one is started.", metavar="HOST:PORT|auto", panel=AWAY
    )
    ray_workers: int | None = option(None, "Workers; by default one a core of this machine.", least=1, panel=AWAY)
    ray_gpus: float = option(0.0, "GPUs that each worker holds.", least=0, panel=AWAY)

    def open(self, say: Callable[[str], None]) -> RayExecutor | None:
        """Make the engine; options of Ray mean nothing to another."""
        ray: dict[str, Any] = {"address": self.ray_address, "workers": self.ray_workers, "gpus": self.ray_gpus or None}
        typed = {name: value for name, value in ray.items() if value is not None}
        if self.engine == "ray":
            return RayExecutor(**typed, say=say)
        if self.engine != "here":
            raise UnknownName.of("engine", self.engine, ("here", "ray"), where="--engine")
        if typed:
            raise UsageError(f"--ray-{min(typed)} means nothing without Ray. Add: --engine ray")
        return None


def _own_options(kinds: Sequence[JudgeKind]) -> type:
    """Make one class of the options that kinds of judge declare for themselves; None is what was not typed."""
    merged: dict[str, tuple[str, Any, Any]] = {}
    for kind in kinds:
        for name, (_, said) in options_of(kind.options).items():
            reads = said.reads or _plain(get_type_hints(kind.options)[name])
            # Where two kinds declare one option, ours or the first is read; bpals.testing refuses two meanings.
            merged.setdefault(name, (name, reads if reads is bool else reads | None, said))
    made: type = make_dataclass(
        "OwnOptions",
        [
            (name, reads, field(default=False if reads is bool else None, metadata={"option": said}))
            for name, reads, said in merged.values()
        ],
        frozen=True,
        kw_only=True,
    )
    return made


def _plain(hint: Any) -> Any:
    """Take `None` off a type: what is not typed is None anyway."""
    kinds = [each for each in get_args(hint) if each is not NoneType]
    return kinds[0] if kinds else hint


RUN_NOW = [kind for kind in JUDGES.every() if kind.runs != "audit"]


def run(  # noqa: PLR0913  one object per group of options
    context: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC", help=f"{', '.join(kind.short for kind in RUN_NOW)}; `bpals judge list` explains them."
        ),
    ],
    dataset: DatasetOptions,
    shown: ImageOptions,
    asked: AskOptions,
    server: ServerOptions,
    own: Any,
    where: EngineOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for a program.")] = False,
) -> None:
    """Ask a judge about every film of the dataset; kill it when you like, the same command goes on."""
    named = parse_spec(spec)
    kind = JUDGES.load(named.kind)
    _refuse_strange(kind, context)
    context.ensure_object(Invocation).goes_on = True
    line = LiveLine()
    order = Order(
        name=dataset.name,
        source=dataset.source,
        mapping=dataset.mapping,
        endpoints=_endpoints(server),
        pace=RunPolicy(
            in_flight=server.in_flight,
            budget_tokens=server.budget_tokens,
            failure_share=asked.failure_share,
            seed=shown.seed,
        ),
        preparation=Preparation(side_px=asked.side),
        limit_images=shown.limit_images,
        require_all=shown.require_all,
        retry_failed=shown.retry_failed,
        verify=asked.verify,
        seed=shown.seed,
        ledger=asked.ledger,
        shard=None if shown.shard is None else Shard.parse(shown.shard),
        engine=where.open(line.say),
        options={name: value for name, value in asdict(own).items() if value is not None and value is not False},
    )
    with line:
        if kind.default and not named.target:
            line.say(f"{spec} names no backbone: {kind.name}:{kind.default} is taken")
        start = run_probe if kind.runs == "learn" else run_judge
        done = start(spec, images=shown.images, workspace=dataset.workspace, order=order, watch=line.draw, say=line.say)
    if as_json:
        print(json.dumps(_run_json(done), indent=1))
    else:
        _print_run(done, dataset.workspace)
    if code := EXIT.get(done.state, 0):
        raise typer.Exit(code)


def _refuse_strange(kind: JudgeKind, context: typer.Context) -> None:
    """Refuse an option that this kind of judge does not know: what is typed is never ignored."""
    every = {"spec", "as_json", *options_of(DatasetOptions, EngineOptions)}
    for parameter in context.command.params:
        name = parameter.name or ""
        origin = context.get_parameter_source(name)
        if origin and origin.name == "COMMANDLINE" and name not in every and not kind.understands(name):
            raise UsageError(f"{parameter.opts[0]} means nothing to a judge of kind {kind.name}. Leave it out")


def _endpoints(server: ServerOptions) -> tuple[Endpoint, ...]:
    key, allow = os.environ.get(KEY, ""), tuple(server.allow_host or ())
    return tuple(
        Endpoint(url=url, key=key, ca_file=server.ca_file, deadline_s=server.deadline, allow=allow)
        for url in server.base_url or ()
    )


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
    add_completion=False,
    no_args_is_help=True,
)
app.command(
    "run", epilog="Example: bpals judge run openai:my-model --base-url http://127.0.0.1:8000/v1 --images films"
)(expanded(run, own=_own_options(RUN_NOW)))
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
