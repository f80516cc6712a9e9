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

from bpals.cli import terminal
from bpals.cli.compare import compare
from bpals.cli.terminal import AS_JSON, AUDIT, JUDGE, NEW_WORKSPACE, SPLIT, WORKSPACE, Row, number, sheet, takes
from bpals.errors import UnknownName, UsageError
from bpals.images.prepare import Preparation
from bpals.judges.fine_tuning import Schedule
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
from bpals.store.shards import Shard
from bpals.store.workspace import Workspace
from bpals.tasks.judge import JudgeRun, Order, run_judge
from bpals.tasks.judge_card import card_of
from bpals.tasks.judge_status import asked_status, looking_status, status_of
from bpals.tasks.merge import Merged
from bpals.tasks.merge import merge as merge_workspaces
from bpals.tasks.probe import run_probe
from bpals.tasks.train import Plan, train_judge
from bpals.text import several
from bpals.types import OUTCOME

KEY = "BPALS_API_KEY"
AWAY = "More than one process or machine"
EXIT = {"interrupted": 130, "budget": 3}
"""How a run ends that has not asked everything; one that had to stop raises Stopped."""
CLASHING = 2
"""The exit code of a merge under --strict."""
LISTED = 20
"""Conflicts of a merge that are printed; --json has up to a thousand."""
DIGITS = ("seed",)
"""Whole numbers that count nothing: a seed is a name made of digits, and has no thousands."""
RUN_NOW = [kind for kind in JUDGES.every() if kind.runs != "audit"]
LEDGER = Annotated[str | None, takes("URL", "Its ledger on PostgreSQL, if the workspace does not remember it.")]

app = terminal.group("judge", "Ask image judges about the images, and compare them.", "bpals judge list")


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

    engine: str = option("here", "What does the work: this process, or workers of Ray.", metavar="here|ray", panel=AWAY)
    ray_address: str | None = option(
        None, "A running cluster; else one is started.", metavar="HOST:PORT|auto", panel=AWAY
    )
    ray_workers: int | None = option(None, "Workers; by default one per core of this machine.", least=1, panel=AWAY)
    ray_gpus: float = option(0.0, "GPUs that each worker holds.", least=0, panel=AWAY)

    def open(self, note: Callable[[str], None]) -> RayExecutor | None:
        """Make the engine; options of Ray mean nothing to another."""
        ray: dict[str, Any] = {"address": self.ray_address, "workers": self.ray_workers, "gpus": self.ray_gpus or None}
        typed = {name: value for name, value in ray.items() if value is not None}
        if self.engine == "ray":
            return RayExecutor(**typed, say=note)
        if self.engine != "here":
            raise UnknownName.of("engine", self.engine, ("here", "ray"), where="--engine")
        if typed:
            raise UsageError(f"--ray-{min(typed)} means nothing without Ray. Add: --engine ray")
        return None


def _own_options(kinds: Sequence[JudgeKind]) -> type:
    """Make one class of the options that kinds of judge declare for themselves; None is what was not typed."""
    merged: dict[str, tuple[str, Any, Any]] = {}
    for kind in kinds:
        for name, (_, declared) in options_of(kind.options).items():
            hint = get_type_hints(kind.options)[name]
            # `None` comes off a type: what is not typed is None anyway.
            reads = declared.reads or next((each for each in get_args(hint) if each is not NoneType), hint)
            default = field(default=False if reads is bool else None, metadata={"option": declared})
            # Where two kinds declare one option, ours or the first is read; bpals.testing refuses two meanings.
            merged.setdefault(name, (name, reads if reads is bool else reads | None, default))
    made: type = make_dataclass("OwnOptions", merged.values(), frozen=True, kw_only=True)
    return made


def run(  # noqa: PLR0913  one object per group of options
    context: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC", help=f"{', '.join(kind.short for kind in RUN_NOW)}; `bpals judge list` explains them."
        ),
    ],
    dataset: DatasetOptions,
    image: ImageOptions,
    ask: AskOptions,
    server: ServerOptions,
    own: Any,
    engine: EngineOptions,
    as_json: AS_JSON = False,
) -> None:
    """Ask a judge about every image of the dataset; kill it when you like, the same command goes on."""
    named = parse_spec(spec)
    kind = JUDGES.load(named.kind)
    _refuse_unknown_options(kind, context)
    context.ensure_object(terminal.Invocation).goes_on = True
    line = terminal.LiveLine()
    order = Order(
        name=dataset.name,
        source=dataset.source,
        mapping=dataset.mapping,
        endpoints=_endpoints(server),
        pace=RunPolicy(
            in_flight=server.in_flight,
            budget_tokens=server.budget_tokens,
            failure_share=ask.failure_share,
            seed=image.seed,
        ),
        preparation=Preparation(side_px=ask.side),
        limit_images=image.limit_images,
        require_all=image.require_all,
        retry_failed=image.retry_failed,
        verify=ask.verify,
        seed=image.seed,
        ledger=ask.ledger,
        shard=None if image.shard is None else Shard.parse(image.shard),
        engine=engine.open(line.note),
        options={name: value for name, value in asdict(own).items() if value is not None and value is not False},
    )
    with line:
        if kind.default and not named.target:
            line.note(f"{spec} names no backbone: {kind.name}:{kind.default} is taken")
        start = run_probe if kind.runs == "learn" else run_judge
        done = start(
            spec, images=image.images, workspace=dataset.workspace, order=order, watch=line.draw, say=line.note
        )
    if as_json:
        print(json.dumps(_run_json(done), indent=1))
    else:
        _print_run(done, dataset.workspace)
    if code := EXIT.get(done.state, 0):
        raise typer.Exit(code)


def _refuse_unknown_options(kind: JudgeKind, context: typer.Context) -> None:
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


def _run_json(done: JudgeRun) -> Row:
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
        kept, images = done.looked
        print(f"{done.name}: {done.state}, {kept:,} of {several(images, 'image')} looked at and kept")
        if done.state == "interrupted":
            print("Nothing is lost: the same command goes on with the others, and then fits on all.")
        return
    pairs = several(sum(done.counts.values()), "pair")
    print(f"{done.name}: {done.state}, {several(done.films, 'image')}, {pairs}")
    print("  " + ", ".join(f"{outcome} {count:,}" for outcome, count in done.counts.items()))
    if done.drift is not None:
        print(f"  {done.drift.sentence}")
    if done.state == "budget":
        print("The tokens are spent. What is done is kept; the same command goes on.", file=sys.stderr)
    if done.sealed is not None:
        print(f"Card:  bpals judge card {done.name} --workspace {workspace}")
        print(f"Audit: bpals audit --workspace {workspace}")
    if done.counts and not done.counts["answered"]:
        print(_unanswered(done))


def _unanswered(done: JudgeRun) -> str:
    """Say why a judge that answered nothing did not."""
    counted = _counted(done.counts)
    if not counted:
        return f"{done.name} was asked nothing yet, so it adds nothing to an audit."
    reason = done.why or "no reason was given"
    return f"{done.name} answered nothing, so it adds nothing to an audit: {counted}. The first reason: {reason}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)


app.command(
    "run", epilog="Example: bpals judge run openai:my-model --base-url http://127.0.0.1:8000/v1 --images films"
)(terminal.expanded(run, own=_own_options(RUN_NOW)))


@app.command("train", epilog="Example: bpals judge train lite0 --images films --epochs 4")
def train(  # noqa: PLR0913  an option of the command is a parameter
    backbone: Annotated[str, typer.Argument(metavar="BACKBONE", help="lite0, timm:NAME or hf:FOLDER.")] = "lite0",
    images: Annotated[Path | None, takes("PATH", "The images: a folder, tar or zip. Remembered.")] = None,
    workspace: NEW_WORKSPACE = AUDIT,
    source: Annotated[str | None, takes("SOURCE", "The dataset, as in `bpals audit`; remembered.")] = None,
    mapping: Annotated[str | None, takes("FILE.toml|NAME", "How to read a table.")] = None,
    targets: Annotated[str, takes("labels|signal", "Train on the labels, or on soft targets.")] = "signal",
    size: Annotated[str, takes("PXxEPOCHS", "The side of an image, and how often each is seen.")] = "160x4",
    folds: Annotated[int, takes("K", "Folds of patients: one network each.")] = 5,
    fold: Annotated[int | None, takes("I", "Train this fold alone, as one of several machines.")] = None,
    device: Annotated[str, takes("DEVICE", "auto, cpu, cuda or mps.")] = "auto",
    seed: Annotated[int, takes("N", "Where the draws start.")] = 0,
    limit_images: Annotated[int | None, takes("N", "Train on N images, drawn at random.")] = None,
) -> None:
    """Fine-tune a judge on the images, one network per fold of patients; kill it when you like, it goes on."""
    side, _, epochs = size.partition("x")
    if not (side.isdigit() and epochs.isdigit()):
        raise UsageError(f"--size {size} is no side and number of epochs. Type: --size 160x4")
    plan = Plan(
        backbone=backbone,
        targets=targets,
        folds=folds,
        only_fold=fold,
        device=device,
        schedule=Schedule(side_px=int(side), epochs=int(epochs), seed=seed),
    )
    order = Order(source=source, mapping=mapping, limit_images=limit_images, seed=seed)
    line = terminal.LiveLine()
    with line:
        done = train_judge(plan, images=images, workspace=workspace, order=order, watch=line.draw, say=line.note)
    _print_run(done, workspace)
    if code := EXIT.get(done.state, 0):
        raise typer.Exit(code)


@app.command("merge", epilog="Example: bpals judge merge shard-1 shard-2 --workspace audit")
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The workspaces of the shards; only read.")],
    workspace: NEW_WORKSPACE,
    ledger: Annotated[
        str | None, takes("URL", "Keep the answers on PostgreSQL: postgresql://NAME@HOST/DATABASE.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if two parts contradict each other.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """Merge workspaces: in any order, as often as you like, the result is that of one run."""
    with terminal.progress("merging", total=None) as show:
        done = merge_workspaces(
            parts,
            workspace=workspace,
            ledger=ledger,
            watch=lambda judge, images: show(f"{judge}: {several(images, 'image')}", 0),
        )
    if as_json:
        print(json.dumps(_merge_json(done), indent=1))
    else:
        _print_merge(done, workspace)
    if strict and done.clashing:
        raise typer.Exit(CLASHING)


def _merge_json(done: Merged) -> Row:
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
        images = several(each.run.films, "image")
        print(f"{each.run.name}: {each.run.state}, {images} ({each.new:,} new, {each.known:,} known)")
        print("  " + ", ".join(f"{outcome} {count:,}" for outcome, count in each.run.counts.items()))
    for notice in done.notices:
        print(notice.message, file=sys.stderr)
    if done.clashing:
        print(f"{several(done.clashing, 'conflict')}; the first value stays:", file=sys.stderr)
    for clash in done.clashes[:LISTED]:
        what = f"{clash.image_id}, {clash.subject or 'sha256 of the image'}"
        print(f"  {clash.judge}: {what}: {clash.here} here, {clash.there} there", file=sys.stderr)
    print(f"Audit: bpals audit --workspace {workspace}")


app.command("compare", epilog="Example: bpals judge compare qwen chexnet --reference four-findings=expert")(compare)


@app.command("card", epilog="Example: bpals judge card qwen --reference four-findings=expert")
def card(
    judge: Annotated[str, typer.Argument(help=JUDGE)],
    workspace: WORKSPACE = AUDIT,
    reference: Annotated[
        str | None, takes("KIND=PATH", "Expert labels to score it against, as in `bpals score`.")
    ] = None,
    split: SPLIT = "all",
    as_json: AS_JSON = False,
) -> None:
    """Say who a judge is, what its self-test saw, and how well it tells images with a finding from images without."""
    found = card_of(judge, workspace=workspace, reference=reference, split=split)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    for name, value in found["card"].items():
        _print_field(name.replace("_", " "), value)
    counts = _counted({outcome: found[outcome] for outcome in OUTCOME.categories})
    _print_field("answers", f"{several(found['films'], 'image')}, {several(found['asked'], 'pair')}: {counts}")
    for name in ("cost", "drift"):
        _print_field(name, found[name])
    if found["card"].get("commercial_use") == "no":
        print("This judge's licence forbids commercial use: no commercial edition may rest on it.")
    print()
    _print_skill(found["skill"])
    terminal.print_notes(found["notices"])


def _print_field(name: str, value: Any) -> None:
    """Print what a card says, if it says anything."""
    if words := _card_words(value):
        print(f"{name:18} {words}")


def _card_words(value: Any, name: str = "") -> str:
    """Write a value without brackets and quotes, and nothing for what is empty."""
    if isinstance(value, Mapping):
        texts = {each: _card_words(inner, str(each)) for each, inner in value.items()}
        # What a network is shown has a side of its own beside that of the image: which is whose, the brackets say.
        inside = {each: f"({text})" if isinstance(value[each], Mapping) else text for each, text in texts.items()}
        return ", ".join(f"{each.replace('_', ' ')} {inside[each]}" for each, text in texts.items() if text)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_card_words, value)))
    if value is None:
        return ""
    plain = name in DIGITS or type(value) is not int
    text = f"{value:,.4g}" if isinstance(value, float) else str(value) if plain else f"{value:,}"
    return terminal.printable(text)


def _print_skill(rows: list[Row]) -> None:
    numbers = ("pairs", "present", "AUROC", "95 % interval", "verdict")
    lines = []
    for row in rows:
        few = "no signal: too few" if row["asked"] else "not asked"
        verdict = "signal" if row["signal"] else "no signal" if row["auroc"] is not None else few
        interval = "-" if row["auroc"] is None else f"{number(row['low'])} to {number(row['high'])}"
        counts = [f"{row['n']:,}", f"{row['positives']:,}"]
        against = "labels" if row["against"] == "claims" else row["against"]
        lines.append([row["finding"], against, *counts, number(row["auroc"]), interval, verdict])
    title = "How well it tells images apart, patients taken whole"
    terminal.print_tables([sheet(title, ["finding", "against"], numbers, lines)], markup=False)


@app.command("list", epilog="Example: bpals judge list --workspace audit")
def list_judges(workspace: WORKSPACE = AUDIT, ledger: LEDGER = None, as_json: AS_JSON = False) -> None:
    """List the kinds of judge there are, what each lacks here, and the judges that the workspace holds."""
    kinds = [kind._asdict() for kind in known()]
    finished = {judge.name: judge.record["counts"] for judge in Workspace(workspace).judges()}
    asked = [*asked_status(workspace, ledger=ledger), *looking_status(workspace)]
    unfinished = [row for row in asked if row["judge"] not in finished]
    if as_json:
        judges = [{"judge": name, **counts} for name, counts in finished.items()]
        print(json.dumps({"kinds": kinds, "judges": judges, "unsealed": unfinished}, indent=1))
        return
    for kind in kinds:
        print(f"{kind['kind']:26} {kind['what']}")
        if kind["missing"]:
            print(f"{'':26} missing; type: {kind['missing']}")
    print(f"\njudges of {workspace}")
    for name, counts in finished.items():
        print(f"{name:26} {', '.join(f'{count:,} {outcome}' for outcome, count in counts.items())}")
    for row in unfinished:
        print(f"{row['judge']:26} not finished yet: {_how_far(row)}")
        if row["next"]:
            print(f"{'':26} {row['next']}")
    if not asked and not finished:
        print("none yet. Type: bpals judge run SPEC --images PATH")


@app.command("status", epilog="Example: bpals judge status --workspace audit")
def status(
    judge: Annotated[str | None, typer.Argument(help="A judge; by default all that are here.")] = None,
    workspace: WORKSPACE = AUDIT,
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
        print(f"  {row['next']}" if row["next"] else f"  replies: {_counted(row['replies']) or 'none yet'}")
        if row["tokens"]["prompt"]:
            read = f"{row['tokens']['prompt']:,} read ({row['cached_share']:.0%} cached)"
            print(f"  tokens: {read}, {row['tokens']['output']:,} written; {several(row['attempts'], 'request')}")
    if not rows:
        print(f"no judge has been asked in {workspace}. Type: bpals judge run SPEC --images PATH")


def _how_far(row: Row) -> str:
    share = f"{row['state']}, {row['films']:,} of {several(row['films_all'], 'image')}"
    if row["state"] != "running":
        return share
    left = f", {terminal.span(row['eta_s'])} left" if row["eta_s"] is not None else ""
    return f"{share}, {row['films_per_s']:.1f} images/s, p50 {row['p50_s']:.2f} s, p95 {row['p95_s']:.2f} s{left}"
