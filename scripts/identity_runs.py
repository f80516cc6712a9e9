"""What identity.py runs on each side: public commands only, each part in a folder of its own.

A part writes what is compared into `out/` of its folder. Commands run in that folder and are given relative paths, so
that no output depends on where it was made.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from identity_servers import MODEL, Browser, Recorder, chat_server, open_room, postgres

OURS = "1.2.826.0.1.3680043.8.498"
PASSWORD = "seven lamps by the sea"  # noqa: S105  of accounts that live for one run
EXAMPLES = ("films.csv", "films.toml", "experts.csv", "mean_brightness.py")
FILMS = ("--source", "table:films.csv", "--mapping", "films.toml")
FORMATS = {
    "csv": "reads.csv",
    "parquet": "reads.parquet",
    "label-studio": "label-studio.json",
    "fiftyone": "fiftyone.json",
    "coco": "coco.json",
}
SEALED = ("*.parquet", "judgments/*.parquet", "run.json", "judgments/*.json")
"""What an audit and its judges leave in a workspace; not report.html, which is prose."""
PANEL = {"one": "jrzech_densenet121", "two": "haooyuee_preds"}
CARD = 'model = "published"\nlicence = "BSD-3-Clause"\ntrained_on_target = "yes"\nevidence = "Its authors say so."\n'
VERDICTS = ("absent", "present", "uncertain")
SPENT = {"active_s": 3.0, "wall_s": 5.0}


class Failed(Exception):
    """A command of one side ended badly."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One version: the interpreter that has it, and the folder of the part that runs."""

    name: str
    python: Path
    folder: Path
    examples: Path
    data: Path | None = None
    old: Path | None = None
    """The base's folder of a part that goes on with what the base wrote."""
    log: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The folder of what is compared."""
        (self.folder / "out").mkdir(exist_ok=True)
        return self.folder / "out"

    def begin(self) -> None:
        """Begin with an empty folder, the examples, and the data under `data`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in EXAMPLES:
            shutil.copy(self.examples / name, self.folder / name)
        if self.data is not None:
            (self.folder / "data").symlink_to(self.data.resolve())

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """Start `bpals ...` in the folder of the part."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("BPALS_", "PYTHON"))}
        environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "XDG_CACHE_HOME": str(self.folder / "cache")}
        line = [str(self.python), "-m", "bpals", *map(str, words)]
        return subprocess.Popen(line, cwd=self.folder, env=environment, text=True, **options)

    def bpals(self, *words: object, given: str = "", code: int = 0) -> str:
        """Run `bpals ...` to its end, and give what it prints."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(*words, **pipes)
        out, errors = process.communicate(given)
        if process.returncode != code:
            line = " ".join(map(str, words))
            raise Failed(f"{self.name}: bpals {line}: exit {process.returncode}: {errors.strip()[-600:]}")
        return out

    def keep(self, name: str, *words: object, code: int = 0) -> Any:
        """Run a command that prints JSON, and keep what it prints to be compared."""
        printed = self.bpals(*words, "--json", code=code)
        (self.out / name).write_text(self.placeless(printed), encoding="utf-8")
        return json.loads(printed)

    def placeless(self, text: str) -> str:
        """Leave out where the part ran."""
        return text.replace(str(self.folder), ".")

    def keep_workspace(self, workspace: str, name: str | None = None) -> None:
        """Keep the tables of a workspace to be compared."""
        home = self.folder / workspace
        for pattern in SEALED:
            for file in sorted(home.glob(pattern)):
                kept = self.out / (name or workspace) / file.relative_to(home)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, kept)
                if kept.suffix == ".json":
                    kept.write_text(self.placeless(file.read_text(encoding="utf-8")), encoding="utf-8")

    @contextmanager
    def room(self, recorder: Recorder, *words: object) -> Iterator[Callable[[str], Browser]]:
        """Open a reading room; what is given makes a browser of somebody who is logged in."""
        with (self.folder / "room.log").open("a") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            process = self.start("review", "serve", "--port", "0", "--no-browser", *words, **options)
            with open_room(process) as origin:

                def enter(who: str) -> Browser:
                    browser = Browser(origin, who, recorder)
                    browser.post("/login", {"name": who, "password": PASSWORD})
                    return browser

                yield enter

    def accounts(self, workspace: str, *more: object) -> None:
        """Make the people of a study."""
        for name, role in (("anna", "reader"), ("ben", "reader"), ("cora", "adjudicator"), ("dora", "admin")):
            self.bpals(
                "review", "account", "add", name, "--role", role, "--workspace", workspace, *more, given=PASSWORD
            )


# ---------------------------------------------------------------- audits


def nih_audit(side: Side) -> None:
    """Audit the embedded NIH record, as `make audit` does, and score it."""
    side.bpals("audit", "--workspace", "audit")
    side.keep_workspace("audit")
    _nih_scores(side, "audit")
    side.keep("next.json", "review", "next", "--workspace", "audit", "--n", 200)
    words = ("--findings", "Pneumothorax,Hernia", "--reads", 300, "--out", "plan.csv")
    side.keep("plan.json", "rate", "plan", "--workspace", "audit", *words)
    shutil.copy(side.folder / "plan.csv", side.out / "plan.csv")


def nih_calibrated(side: Side) -> None:
    """Audit the NIH record, fitted on the adjudicated validation films."""
    side.bpals("audit", *_nih_experts(), "--workspace", "calibrated")
    side.keep_workspace("calibrated")
    _nih_scores(side, "calibrated")


def nih_table_judge(side: Side) -> None:
    """Audit the NIH record with two tables of scores, which are no independent judges."""
    _nih_panel(side, "panel")
    side.bpals("audit", "--workspace", "panel")
    side.keep_workspace("panel")
    _nih_scores(side, "panel")
    words = ("--workspace", "panel", "--reference", "four-findings=data/expert", "--bootstrap", 100)
    side.keep("compare.json", "judge", "compare", "one", "two", *words)
    side.keep("card.json", "judge", "card", "one", "--workspace", "panel", "--reference", "four-findings=data/expert")


def nih_reviews(side: Side) -> None:
    """Audit the NIH record with single reads of the validation films."""
    side.bpals("audit", *_nih_reads(), "--workspace", "reviews")
    side.keep_workspace("reviews")
    _nih_scores(side, "reviews")


def nih_together(side: Side) -> None:
    """Audit the NIH record with two table judges, expert labels and single reads at once."""
    _nih_panel(side, "together")
    side.bpals("audit", *_nih_experts(), *_nih_reads(), "--workspace", "together")
    side.keep_workspace("together")
    _nih_scores(side, "together")


def _nih_experts() -> tuple[str, ...]:
    return ("--calibrate", "four-findings=data/expert", "--calibrate-split", "val")


def _nih_reads() -> tuple[str, ...]:
    return ("--reviews", "data/expert/four_findings_readers.csv", "--reviews-split", "val")


def _nih_panel(side: Side, workspace: str) -> None:
    (side.folder / "card.toml").write_text(CARD, encoding="utf-8")
    for name, model in PANEL.items():
        words = (f"table:data/predictions/chexnet_panel.parquet@{model}", "--name", name, "--card", "card.toml")
        side.keep(f"judge-{name}.json", "judge", "run", *words, "--workspace", workspace)


def _nih_scores(side: Side, workspace: str) -> None:
    experts = ("--reference", "four-findings=data/expert", "--split", "test")
    side.keep("score.json", "score", "--workspace", workspace, *experts, "--bootstrap", 200)


def examples(side: Side) -> None:
    """Audit the made-up films in every way, and score, rate, compare and list them."""
    (side.folder / "card.toml").write_text(CARD, encoding="utf-8")
    _example_tables(side)
    side.keep("audit.json", "audit", *FILMS, "--workspace", "films")
    side.keep_workspace("films")
    fitted = ("--calibrate", "table=taught.csv", "--refit", "table=sample.csv")
    side.bpals("audit", *FILMS, *fitted, "--workspace", "calibrated")
    side.keep_workspace("calibrated")
    side.bpals("audit", *FILMS, "--reviews", "single.csv", "--workspace", "reviews")
    side.keep_workspace("reviews")
    for name in PANEL:
        words = (*FILMS, "--name", name, "--card", "card.toml", "--workspace", "judged")
        side.keep(f"judge-{name}.json", "judge", "run", f"table:scores-{name}.csv", *words)
    side.bpals("audit", *FILMS, "--workspace", "judged")
    side.keep_workspace("judged")
    side.bpals("audit", *FILMS, *fitted[:2], "--reviews", "single.csv", "--judges", "one,two", "--workspace", "judged")
    side.keep_workspace("judged", "judged-calibrated")
    _example_answers(side)


def _example_answers(side: Side) -> None:
    """Keep what the commands that only read print."""
    truth = ("--reference", "table=experts.csv")
    for workspace in ("films", "calibrated", "judged"):
        words = ("--workspace", workspace, *truth, "--bootstrap", 200)
        side.keep(f"score-{workspace}.json", "score", *words)
        side.keep(f"next-{workspace}.json", "review", "next", "--workspace", workspace, "--n", 40)
    side.keep("score-judges.json", "score", "--workspace", "judged", *truth, "--only-judged", "--bootstrap", 200)
    side.keep("compare.json", "judge", "compare", "one", "two", "--workspace", "judged", *truth, "--bootstrap", 200)
    for judge, workspace in (("record", "films"), ("one", "judged")):
        side.keep(f"card-{judge}.json", "judge", "card", judge, "--workspace", workspace, *truth)
    side.keep("list.json", "judge", "list", "--workspace", "judged")
    side.keep("status.json", "judge", "status", "--workspace", "judged")
    drawn = ("--findings", "Cardiomegaly,Effusion", "--reads", 120, "--out", "drawn.csv")
    side.keep("plan.json", "rate", "plan", "--workspace", "films", *drawn)
    truth_of = {(film, finding): shows for film, finding, shows in _truth(side)}
    listed = pl.read_csv(side.folder / "drawn.csv", infer_schema=False)
    shows = [truth_of[film, finding] for film, finding in listed.select("image_id", "finding").iter_rows()]
    listed.with_columns(
        verdict=pl.Series(["present" if one else "absent" for one in shows]), reader=pl.lit("Ann")
    ).write_csv(side.folder / "filled.csv")
    groups = ("--group-by", "sex", "--group-by", "view")
    side.keep("rate.json", "rate", "--reviews", "filled.csv", "--workspace", "films", *groups, "--out", "rated.csv")
    shutil.copy(side.folder / "rated.csv", side.out / "rated.csv")
    side.keep("rate-random.json", "rate", "--reviews", "single.csv", "--simple-random", "--workspace", "reviews")


def _truth(side: Side) -> list[tuple[str, str, bool]]:
    table = pl.read_csv(side.folder / "experts.csv").unpivot(index="image_id", variable_name="finding")
    return [(film, finding, value == 1) for film, finding, value in table.iter_rows() if value is not None]


def _example_tables(side: Side) -> None:
    """Make the tables that the examples lack: part of the experts, three readers, two judges; from a fixed seed."""
    dice = np.random.default_rng(14)
    experts = pl.read_csv(side.folder / "experts.csv")
    experts.head(400).write_csv(side.folder / "taught.csv")
    experts.tail(150).write_csv(side.folder / "sample.csv")
    reads = []
    for film, finding, shows in _truth(side)[::3]:
        for reader in ("Ann", "Ben", "Cid"):
            right = dice.random() < 0.92
            word = "uncertain" if dice.random() < 0.04 else "present" if shows is bool(right) else "absent"
            reads.append({"image_id": film, "finding": finding, "reader": reader, "verdict": word})
    pl.DataFrame(reads).write_csv(side.folder / "single.csv")
    findings = [name for name in experts.columns if name != "image_id"]
    for name, strays in zip(PANEL, (1.6, 2.2), strict=True):
        noise = strays * dice.standard_normal((experts.height, len(findings)))
        logits = 3 * (experts.select(findings).fill_null(0).to_numpy() - 0.5) + noise
        scores = (1 / (1 + np.exp(-logits))).round(4)
        made = {"image_id": experts["image_id"]} | {finding: scores[:, at] for at, finding in enumerate(findings)}
        pl.DataFrame(made).write_csv(side.folder / f"scores-{name}.csv")


# ---------------------------------------------------------------- judges


def judges(side: Side) -> None:
    """Run a judge of each way of asking: at once, over a network, as a function, in shards that are merged."""
    _demo(side, "demo")
    words = (*_demo_films("demo"), "--seed", 3)
    side.keep("stub.json", "judge", "run", "stub:seed=7,refused=.1", "--name", "stub", *words)
    side.keep("brightness.json", "judge", "run", "python:mean_brightness.py", *words)
    for shard in (1, 2):
        home = f"shard-{shard}"
        shutil.copytree(side.folder / "demo", side.folder / home)
        side.bpals("judge", "run", "stub:9", "--name", "parts", "--shard", f"{shard}/2", *_demo_films(home))
    side.keep("merge.json", "judge", "merge", "shard-1", "shard-2", "--workspace", "merged")
    side.keep_workspace("merged")
    with chat_server() as server:
        for layout in ("single", "joint"):
            asked = ("--base-url", server.url, "--name", layout, "--layout", layout, "--limit-images", 12)
            side.keep(f"openai-{layout}.json", "judge", "run", f"openai:{MODEL}", *asked, *words)
        side.keep("verify.json", "judge", "run", f"openai:{MODEL}", *_single(server.url), "--verify", 20, *words)
    side.keep("status.json", "judge", "status", "--workspace", "demo")
    side.bpals("audit", *_demo_labels("demo"))
    side.keep_workspace("demo")


def _single(url: str) -> tuple[object, ...]:
    return ("--base-url", url, "--name", "single", "--layout", "single", "--limit-images", 12)


def _demo_films(workspace: str) -> tuple[str, ...]:
    return ("--images", f"{workspace}/films", *_demo_labels(workspace))


def _demo_labels(workspace: str) -> tuple[str, ...]:
    """Name the labels: what a workspace remembers of them is a place, and these have moved."""
    return (
        "--source",
        f"table:{workspace}/labels.csv",
        "--mapping",
        f"{workspace}/labels.toml",
        "--workspace",
        workspace,
    )


def _demo(side: Side, workspace: str, *more: object) -> None:
    """Make the demo: a room on drawn films, closed as soon as it is open."""
    with side.room(Recorder(), "--demo", "--workspace", workspace, *more):
        pass


# ---------------------------------------------------------------- the reading room and exports

STUDY = """\
name = "{name}"
findings = ["Effusion", "Mass", "Pneumothorax"]
readers_per_case = 2
adjudication = "{rule}"
rounds = 2
reveal = {reveal}
queue_size = 10
batch = 10
repeats = 0.1
learn_every = 1000
"""


def room(side: Side) -> None:
    """Read, differ, settle and discuss in the room; then export and audit what was read."""
    _demo(side, "demo")
    shutil.copytree(side.folder / "demo", side.folder / "elsewhere")
    side.accounts("demo")
    recorder = Recorder()
    _write_study(side, "settled", rule="adjudicator", reveal=True)
    with side.room(recorder, "--workspace", "demo", "--images", "demo/films", "--study", "settled.toml") as enter:
        _walk_entrance(enter)
        _walk_reading(enter)
        _walk_office(enter)
    _write_study(side, "discussed", rule="discussion", reveal=False)
    with side.room(recorder, "--workspace", "demo", "--study", "discussed.toml") as enter:
        _walk_discussion(enter)
    (side.out / "answers.json").write_text(json.dumps(recorder.answers, indent=1), encoding="utf-8")
    side.keep("progress-settled.json", "review", "progress", "--workspace", "demo", "--study", "settled")
    side.keep("progress.json", "review", "progress", "--workspace", "demo")
    side.keep("log.json", "review", "verify-log", "--workspace", "demo")
    side.keep("accounts.json", "review", "account", "list", "--workspace", "demo")
    _export(side, "demo")
    _import_back(side, "demo", FORMATS)
    side.bpals("audit", *_demo_labels("demo"))
    side.keep_workspace("demo")


def _write_study(side: Side, name: str, *, rule: str, reveal: bool) -> None:
    text = STUDY.format(name=name, rule=rule, reveal=str(reveal).lower())
    (side.folder / f"{name}.toml").write_text(text, encoding="utf-8")


def _walk_entrance(enter: Callable[[str], Browser]) -> None:
    """Try what is refused."""
    stranger = enter("nobody")
    stranger.get("/healthz")
    stranger.post("/api/next")
    stranger.get("/api/progress")
    stranger.get("/api/no-such-route")
    stranger.post("/enter", {"token": "no-such-link"})
    anna = enter("anna")
    anna.get("/api/accounts")
    anna.post("/api/adjudication/next")


def _answer(reading: Any, who: str, *, finished: bool = True) -> dict[str, Any]:
    """Answer by rule: anna marks what ben does not on every second case."""
    number = reading["case_no"]
    first = VERDICTS[(number + (who == "ben")) % 3 if number % 2 else 1]
    answer: dict[str, Any] = {"verdicts": {"Effusion": first}, "confidence": {"Effusion": 60 + number}, "note": who}
    if number % 3 == 0:
        answer["verdicts"]["Mass"] = "present"
        answer["boxes"] = [{"finding": "Mass", "x": 10.5, "y": 20.0, "width": 30.0, "height": 40.25}]
    if finished and number % 4 == 0:
        answer |= {"quality": "limited", "devices": "present"}
    return answer


def _walk_reading(enter: Callable[[str], Browser]) -> None:
    """Read every case as two readers, settle what they differ in, and look at the numbers."""
    anna, ben, cora = enter("anna"), enter("ben"), enter("cora")
    first = anna.post("/api/next")["reading"]
    anna.get(f"/api/readings/{first['reading_id']}")
    anna.get(f"/api/readings/{first['reading_id']}/films/0")
    anna.get(f"/api/readings/{first['reading_id']}/films/99")
    anna.post(f"/api/readings/{first['reading_id']}/reveal")
    anna.act("second", first, answer={}, spent=SPENT)
    drafted = anna.act("draft", first, answer=_answer(first, "anna", finished=False))
    anna.act("draft", first, answer={"note": "from an old page"})
    anna.act("draft", {**first, "version": drafted["version"]}, answer={"verdicts": {"Effusion": "perhaps"}})
    ben.get(f"/api/readings/{first['reading_id']}")
    skipped = anna.post("/api/next")["reading"]
    anna.act("skip", skipped)
    for browser, who in ((anna, "anna"), (ben, "ben")):
        _read_all(browser, who)
    anna.post("/api/bring-back")
    _read_all(anna, "anna")
    anna.post("/api/next")
    last = anna.get("/api/readings")["readings"][0]
    now = anna.get(f"/api/readings/{last['reading_id']}")
    anna.act("amend", now, answer={"verdicts": {"Mass": "uncertain"}}, reason="seen again")
    anna.post(f"/api/readings/{last['reading_id']}/reveal")
    _settle_all(cora)
    for browser in (anna, cora):
        browser.quietly("/api/progress", lambda told: bool(told.get("ready") and told.get("fresh")))


def _read_all(browser: Browser, who: str) -> None:
    """Lock every case that comes, and give a second verdict where the study asks for one."""
    for _ in range(30):
        reading = browser.post("/api/next")["reading"]
        if reading is None:
            return
        answer = _answer(reading, who)
        locked = browser.act("lock", reading, answer=answer, spent=SPENT)
        if locked["reading"] and locked["reading"]["phase"] == "second":
            browser.act("second", locked["reading"], answer=answer, spent=SPENT)


def _settle_all(browser: Browser) -> None:
    for _ in range(30):
        case = browser.post("/api/adjudication/next")["case"]
        if case is None:
            return
        browser.get(f"/api/adjudication/{case['case_id']}/films/0")
        verdicts = {one["finding"]: {"verdict": "present", "how": "adjudicator"} for one in case["disputes"]}
        body = {"key": browser.key(), "verdicts": verdicts, "note": "settled"}
        browser.post(f"/api/adjudication/{case['case_id']}", {**body, "pinned": {}, "key": browser.key()})
        browser.post(f"/api/adjudication/{case['case_id']}", {**body, "pinned": case["pinned"]})


def _walk_office(enter: Callable[[str], Browser]) -> None:
    """Make, change and disable an account; end sessions; leave."""
    dora = enter("dora")
    dora.get("/api/accounts")
    made = dora.post("/api/accounts", {"name": "emil", "role": "reader"})
    dora.post(f"/api/accounts/{made['account_id']}", {"role": "adjudicator", "disabled": True})
    dora.post("/api/accounts", {"name": "emil", "role": "reader"})
    dora.get("/api/accounts?sort=role")
    dora.get("/api/sessions")
    dora.post("/api/sessions/end-others")
    dora.post("/password", {"old": "not this one", "new": "another plain sentence of words"})
    dora.post("/logout")
    dora.get("/api/sessions")


def _walk_discussion(enter: Callable[[str], Browser]) -> None:
    """Read as two who differ, take a lock back, and discuss until the rounds end."""
    people = {name: enter(name) for name in ("anna", "ben")}
    anna = people["anna"]
    reading = anna.post("/api/next")["reading"]
    locked = anna.act("lock", reading, answer=_answer(reading, "anna"), spent=SPENT)
    anna.act("undo", locked["reading"])
    for name, browser in people.items():
        _read_all(browser, name)
    for round_ in (1, 2, 3):
        for name, browser in people.items():
            for _ in range(30):
                case = browser.post("/api/rounds/next")["case"]
                if case is None:
                    break
                browser.get(f"/api/rounds/{case['case_id']}/films/0")
                gives_way = round_ > 1 and case["case_id"] % 2
                word = "present" if name == "anna" or gives_way else "absent"
                verdicts = {one["finding"]: word for one in case["disputes"]}
                body = {"round": case["round"], "key": browser.key(), "verdicts": verdicts, "note": f"{name} again"}
                browser.post(f"/api/rounds/{case['case_id']}", body)
    anna.quietly("/api/progress", lambda told: bool(told.get("ready") and told.get("fresh")))


def _export(side: Side, workspace: str, *more: object) -> None:
    """Export in each format that films of any kind can have."""
    for name, file in FORMATS.items():
        words = ("--workspace", workspace, "--format", name, "--out", f"{workspace}-{file}", *more)
        side.keep(f"export-{name}.json", "review", "export", *words)
        shutil.copy(side.folder / f"{workspace}-{file}", side.out / file)


def _import_back(side: Side, workspace: str, formats: Iterable[str]) -> None:
    """Bring each export into a workspace that has read nothing."""
    for name in formats:
        file = f"{workspace}-{FORMATS[name]}"
        side.keep(f"back-{name}.json", "review", "import", file, "--workspace", "elsewhere")


def exports(side: Side) -> None:
    """Import a sheet of single reads, which has no boxes, export it in each format, and bring each export back."""
    _example_tables(side)
    side.bpals("audit", *FILMS, "--workspace", "films")
    shutil.copytree(side.folder / "films", side.folder / "elsewhere")
    side.keep("import.json", "review", "import", "single.csv", "--workspace", "films")
    side.keep("import-again.json", "review", "import", "single.csv", "--workspace", "films")
    _export(side, "films")
    _import_back(side, "films", [name for name in FORMATS if name != "coco"])
    side.bpals("audit", *FILMS, "--workspace", "films")
    side.keep_workspace("films")
    _dicom_reports(side)


def _dicom_reports(side: Side) -> None:
    """Export reads of DICOM films as structured reports."""
    _write_dicoms(side.folder / "dicoms")
    rows = [{"film": f"{n}.dcm", "patient": f"P{n}", "Effusion": n % 2, "Mass": n % 3 == 0} for n in range(6)]
    pl.DataFrame(rows).with_columns(pl.col("Mass").cast(pl.Int64)).write_csv(side.folder / "dicoms.csv")
    mapping = (side.folder / "films.toml").read_text(encoding="utf-8").partition("[columns]")[0]
    mapping += '[columns]\nimage = "film"\npatient = "patient"\n[labels]\nlayout = "columns"\n'
    mapping += 'audited = ["Effusion", "Mass"]\n[values]\npresent = ["1"]\nabsent = ["0"]\n'
    (side.folder / "dicoms.toml").write_text(mapping, encoding="utf-8")
    side.bpals("audit", "--source", "table:dicoms.csv", "--mapping", "dicoms.toml", "--workspace", "dicom")
    sheet = [
        {"image_id": f"{n}.dcm", "finding": finding, "reader": reader, "verdict": VERDICTS[(n + at) % 3],
         "confidence": 50 + n, "at": "2026-11-16T08:00:00.000+00:00", "external_id": f"{n}-{finding}-{reader}"}
        for n in range(6) for finding in ("Effusion", "Mass") for at, reader in enumerate(("Ann", "Ben"))
    ]  # fmt: skip
    with (side.folder / "sheet.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(sheet[0]))
        table.writeheader()
        table.writerows(sheet)
    side.keep("import-dicom.json", "review", "import", "sheet.csv", "--workspace", "dicom")
    words = ("--workspace", "dicom", "--images", "dicoms", "--format", "dicom-sr", "--out", "reports")
    side.keep("export-dicom-sr.json", "review", "export", *words)
    shutil.copytree(side.folder / "reports", side.out / "reports")


def _write_dicoms(folder: Path) -> None:
    """Write six small grey DICOMs."""
    import pydicom
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID

    folder.mkdir()
    for number in range(6):
        film = Dataset()
        film.file_meta = FileMetaDataset()
        film.file_meta.TransferSyntaxUID = UID("1.2.840.10008.1.2.1")
        film.SOPClassUID = film.file_meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.1.1")
        film.SOPInstanceUID = film.file_meta.MediaStorageSOPInstanceUID = UID(f"{OURS}.1.{number}")
        film.StudyInstanceUID = f"{OURS}.2.{number}"
        film.SeriesInstanceUID = f"{OURS}.3.{number}"
        film.PatientID, film.PatientName, film.Modality = f"P{number}", "", "DX"
        film.PatientBirthDate = film.PatientSex = film.StudyDate = film.StudyTime = film.AccessionNumber = ""
        film.StudyID = film.ReferringPhysicianName = ""
        film.Rows, film.Columns, film.SamplesPerPixel, film.PhotometricInterpretation = 48, 64, 1, "MONOCHROME2"
        film.BitsAllocated = film.BitsStored = 8
        film.HighBit, film.PixelRepresentation = 7, 0
        grey = np.random.default_rng(number).integers(0, 256, (48, 64), dtype=np.uint8)
        film.add_new("PixelData", "OB", grey.tobytes())
        pydicom.dcmwrite(
            folder / f"{number}.dcm", film, implicit_vr=False, little_endian=True, enforce_file_format=True
        )


# ---------------------------------------------------------------- what the base wrote, gone on with

WORK = "work"
KILL_AFTER = 150
"""Requests after which the base's judge run is killed: some films are stored by then, most are not."""


def old_workspace(side: Side, *ledger: object) -> None:
    """Leave a workspace in the middle of its work: a judge killed, reads imported, a case locked, another begun."""
    _demo(side, WORK, *ledger)
    side.accounts(WORK, *ledger)
    _write_study(side, "kept", rule="adjudicator", reveal=True)
    with side.room(
        Recorder("old"), "--workspace", WORK, "--images", f"{WORK}/films", "--study", "kept.toml", *ledger
    ) as go:
        anna = go("anna")
        reading = anna.post("/api/next")["reading"]
        answer = _answer(reading, "anna")
        locked = anna.act("lock", reading, answer=answer, spent=SPENT)
        anna.act("second", locked["reading"], answer=answer, spent=SPENT)
        anna.act("draft", anna.post("/api/next")["reading"], answer={"note": "half written"})
    films = pl.read_csv(side.folder / WORK / "labels.csv")["film"].head(20).to_list()
    reads = [{"image_id": film, "finding": "Mass", "reader": "old", "verdict": "present"} for film in films]
    pl.DataFrame(reads).write_csv(side.folder / "old.csv")
    side.bpals("review", "import", "old.csv", "--workspace", WORK, *ledger)
    with chat_server() as server:
        process = side.start("judge", "run", *_interrupted(server.url), *ledger, **_silent())
        server.at_request = (KILL_AFTER, lambda: process.send_signal(signal.SIGKILL))
        if process.wait() != -signal.SIGKILL:
            raise Failed(f"{side.name}: the judge run ended with {process.returncode} before it was killed")


def _silent() -> dict[str, Any]:
    return {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _interrupted(url: str) -> tuple[object, ...]:
    asked = ("--base-url", url, "--name", "vlm", "--limit-images", 12, "--in-flight", 8)
    return (f"openai:{MODEL}", *asked, *_demo_films(WORK))


def go_on(side: Side, *ledger: object) -> None:
    """Go on with a workspace that the base left: the judge, the reads, the room, an audit."""
    side.keep("log.json", "review", "verify-log", "--workspace", WORK, *ledger)
    side.keep("status-before.json", "judge", "status", "--workspace", WORK, *ledger)
    _export(side, WORK, *ledger)
    with chat_server() as server:
        side.keep("judge.json", "judge", "run", *_interrupted(server.url), *ledger)
        (side.out / "requests.json").write_text(json.dumps({"requests": server.requests}), encoding="utf-8")
    side.keep("status.json", "judge", "status", "--workspace", WORK, *ledger)
    side.keep("import.json", "review", "import", "old.csv", "--workspace", WORK, *ledger)
    recorder = Recorder()
    with side.room(recorder, "--workspace", WORK, "--study", "kept.toml", *ledger) as enter:
        for name in ("anna", "ben"):
            _read_all(enter(name), name)
        _settle_all(enter("cora"))
    (side.out / "answers.json").write_text(json.dumps(recorder.answers, indent=1), encoding="utf-8")
    side.keep("progress.json", "review", "progress", "--workspace", WORK, *ledger)
    side.bpals("audit", *_demo_labels(WORK))
    side.keep_workspace(WORK)
    side.keep("log-after.json", "review", "verify-log", "--workspace", WORK, *ledger)


def continued(side: Side) -> None:
    """Go on with a workspace and its SQLite ledger."""
    if side.old is None:
        old_workspace(side)
        shutil.copytree(side.folder / WORK, side.folder / "old")
    else:
        _take_over(side, side.old)
    go_on(side)


def continued_on_postgres(side: Side) -> None:
    """Go on with a workspace whose ledger is on PostgreSQL."""
    with postgres() as server:
        if side.old is None:
            old_workspace(side, "--ledger", server.database("written"))
            shutil.copytree(side.folder / WORK, side.folder / "old")
            (side.folder / "old.sql").write_text(server.dump("written"), encoding="utf-8")
            side_dump = side.folder / "old.sql"
        else:
            _take_over(side, side.old)
            side_dump = side.old / "old.sql"
        go_on(side, "--ledger", server.database("read", side_dump.read_text(encoding="utf-8")))


def _take_over(side: Side, old: Path) -> None:
    shutil.copytree(old / "old", side.folder / WORK)
    for name in ("old.csv", "kept.toml"):
        shutil.copy(old / name, side.folder / name)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that both sides run."""

    run: Callable[[Side], None]
    needs_data: bool = False
    quick: bool = False
    recipe: int = 1
    """Raise it when the part runs something else: what was kept of it is then made anew."""
    goes_on: bool = False
    """The other side begins with what the base left."""


PARTS: dict[str, Part] = {
    "examples": Part(run=examples, quick=True),
    "judges": Part(run=judges, quick=True),
    "exports": Part(run=exports, quick=True),
    "room": Part(run=room, quick=True),
    "continued": Part(run=continued, quick=True, goes_on=True),
    "continued-postgres": Part(run=continued_on_postgres, goes_on=True),
    "audit": Part(run=nih_audit, needs_data=True),
    "calibrated": Part(run=nih_calibrated, needs_data=True),
    "table-judge": Part(run=nih_table_judge, needs_data=True),
    "reviews": Part(run=nih_reviews, needs_data=True),
    "together": Part(run=nih_together, needs_data=True),
}


def chosen(only: Sequence[str], *, quick: bool, data: bool) -> list[str]:
    """Name the parts that run."""
    return [
        name
        for name, part in PARTS.items()
        if (name in only if only else (part.quick or not quick)) and (data or not part.needs_data)
    ]
