"""The import rule of the tree, read from the source: imports go down only, and no room knows another."""

import ast
import re
import tomllib

import pytest

import shape
from world.source_tree import GRAPH, TREE

PROJECT = tomllib.loads((shape.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]
LAYERS = [set(re.findall(r"\w+", layer)) for layer in CONTRACTS[0]["layers"]]
"""The one list of layers, the highest first; import-linter checks it, and the rules below read it."""
ROOMS = next(set(re.findall(r"\w+", layer)) for layer in CONTRACTS[0]["layers"] if "|" in layer)
FLOOR = {room: depth for depth, layer in enumerate(LAYERS) for room in layer}

READING_AND_WRITING = {"open", "input", "print"}
FRAME_READERS_AND_WRITERS = ("read_", "write_", "scan_", "sink_")
OUTSIDE_WORLD = {
    "asyncio", "fcntl", "glob", "http", "io", "logging", "os", "pathlib", "shutil", "socket", "sqlite3",
    "subprocess", "sys", "tempfile", "threading", "time", "urllib", "zipfile",
}  # fmt: skip


def edges():
    """Every import between two modules of the package that are not the package itself."""
    for name, targets in GRAPH.items():
        for target in targets:
            if TREE[name].room and TREE[target].room:
                yield name, target


def test_every_module_stands_on_a_floor():
    """A new file at the top of the package is given its place in LAYERS first."""
    homeless = {name for name, module in TREE.items() if module.room and module.room not in FLOOR | {"__main__": 0}}
    assert not homeless


def test_imports_go_down_only():
    """The cli may import the audit; the audit may not import the cli."""
    upward = [
        f"{name} imports {target}"
        for name, target in edges()
        if TREE[name].room != "__main__" and FLOOR[TREE[target].room] < FLOOR[TREE[name].room]
    ]
    assert not upward


def test_no_room_imports_another():
    """What one room needs of another is handed in by the caller: a table, or a function."""
    across = [
        f"{name} imports {target}"
        for name, target in edges()
        if {TREE[name].room, TREE[target].room} <= ROOMS and TREE[name].room != TREE[target].room
    ]
    assert not across


def test_nothing_inside_imports_the_package_itself():
    """`import bpals` inside bpals would load everything to get at one thing."""
    assert not [name for name, targets in GRAPH.items() if "bpals" in targets]


def test_the_nouns_import_nothing_above_them():
    """types, errors and findings can be read first, alone."""
    for name in ("bpals.types", "bpals.errors", "bpals.findings"):
        assert {TREE[target].room for target in shape.reachable(GRAPH, name)} <= LAYERS[-1]


def test_image_judges_cannot_reach_the_claims():
    """Only the record judge and the probe, and the files that they use, may know what the dataset claims."""
    judges = {name for name, module in TREE.items() if module.room == "judges"}
    told = {"bpals.judges.record", "bpals.judges.linear_probe"}
    of_the_record = told | ({use for name in told for use in shape.reachable(GRAPH, name)} & judges)
    image_judges = judges - of_the_record - {"bpals.judges"}
    sighted = {name for name in judges if sees_claims(TREE[name])}
    assert not {name for name in image_judges if name in sighted}
    assert not [
        f"{name} imports {target}" for name in image_judges for target in shape.reachable(GRAPH, name) & sighted
    ]


def test_asking_a_judge_reads_no_claim():
    """These tasks bring judge and dataset together: they take image ids and findings, and no label."""
    tasks = ("judge", "image_access", "image_checks")
    assert not [name for name in tasks if sees_claims(TREE[f"bpals.tasks.{name}"])]


def sees_claims(module):
    """Say whether a module names the claims: their schema, a Dataset, or an attribute `.claims`."""
    named = {name.rsplit(".", 1)[-1] for name in shape.imported_names(module.tree)}
    attributes = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    return bool(named & {"claims_schema", "Dataset"}) or "claims" in attributes


def test_the_rule_about_claims_can_see():
    """The rule above is not blind: it finds each way of getting at a claim."""
    for line in ("from bpals.types import claims_schema", "from bpals.types import Dataset", "x = given.claims"):
        assert sees_claims(shape.Module(name="bpals.judges.nosy", path=shape.SRC, tree=ast.parse(line)))
    assert not sees_claims(shape.Module(name="bpals.judges.fair", path=shape.SRC, tree=ast.parse("import polars")))


def test_only_the_runner_among_the_judges_touches_the_ledger():
    """A judge answers; the runner alone remembers."""
    judges = {name for name, module in TREE.items() if module.room == "judges"} - {
        "bpals.judges.runner.runner",
        "bpals.judges.runner.writer",
    }
    assert not [name for name in judges if "bpals.store.ledger" in GRAPH[name]]


@pytest.mark.parametrize("name", sorted(name for name, module in TREE.items() if module.room == "signal"))
def test_the_signal_reads_and_writes_nothing(name):
    """A statistician can read signal/ alone: tables in, tables out."""
    assert not list(touches(TREE[name].tree))
    assert not [target for target in shape.reachable(GRAPH, name) if target.startswith("bpals.store")]


def touches(tree):
    """Every line of a module that could read or write something outside it."""
    for name in shape.imported_names(tree):
        if name.split(".")[0] in OUTSIDE_WORLD:
            yield f"imports {name}"
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in READING_AND_WRITING:
            yield f"line {call.lineno} calls {call.func.id}"
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith(FRAME_READERS_AND_WRITERS):
            yield f"line {call.lineno} calls {call.func.attr}"


def test_the_rule_about_reading_and_writing_can_see():
    """The rule above is not blind: it finds each way of touching the world."""
    for line in ("open('x')", "import pathlib", "from os import path", "pl.read_csv('x')", "table.write_parquet('x')"):
        assert list(touches(ast.parse(line)))
    assert not list(touches(ast.parse("import polars as pl\ntable = pl.DataFrame()")))
