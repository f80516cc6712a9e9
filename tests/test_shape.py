"""Habits of the code that a reader relies on; sizes are printed, never failed."""

import ast
import re
import sys
import tomllib

import pytest

import shape
from world.source_tree import GRAPH, TREE

JUNK_DRAWERS = {"base", "common", "helper", "helpers", "lib", "misc", "shared", "stuff", "tools", "util", "utils"}
LATE = {"PIL"}
"""Of the core, and still imported where it is used: `import bpals` does not wait for it."""

CATCHES_ALL = {
    "bpals.cli.main": 1,
    "bpals.judges.runner.asking": 1,
    "bpals.judges.runner.ray_executor": 1,
    "bpals.store.ledger.locks": 1,
}
"""What nobody foresaw is our bug, and the command line shows it whole; a judge is anybody's code; and what fails in
company is done again alone, where it fails as it must."""


def optional_packages():
    """The import names of what the extras bring: these alone may be imported inside a function."""
    project = tomllib.loads((shape.ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for lines in project["optional-dependencies"].values() for line in lines]
    packages = {re.split(r"[\[<>=~! ]", line)[0].replace("-", "_") for line in lines} - {"bpals"}
    return {"sklearn" if package == "scikit_learn" else package for package in packages}


def test_no_module_imports_itself_through_others():
    """There are no import cycles, so any file can be read after the files it names."""
    assert not [name for name in TREE if name in shape.reachable(GRAPH, name)]


def test_a_cycle_would_be_found():
    """The rule above is not blind."""
    assert "a" in shape.reachable({"a": {"b"}, "b": {"a"}}, "a")


@pytest.mark.parametrize("name", sorted(TREE))
def test_imports_stand_at_the_top(name):
    """Only an optional package may be imported inside a function, because it may be missing; or one of LATE."""
    hidden = [f"line {line}: {package}" for line, package in shape.hidden_imports(TREE[name])
              if package not in optional_packages() | LATE]  # fmt: skip
    assert not hidden


@pytest.mark.parametrize("name", sorted(name for name, module in TREE.items() if module.room != "cli"))
def test_the_library_never_prints(name):
    """Only cli/ prints; a library that prints cannot be used inside another program."""
    calls = [node for node in ast.walk(TREE[name].tree) if isinstance(node, ast.Call)]
    prints = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    streams = {"sys.stdout", "sys.stderr", "rich.print", "rich.console.Console", "typer.echo"}
    used = {ast.unparse(node) for node in ast.walk(TREE[name].tree) if isinstance(node, ast.Attribute)}
    assert not prints
    assert not streams & (used | shape.imported_names(TREE[name].tree))


@pytest.mark.parametrize("name", sorted(TREE))
def test_no_broad_except(name):
    """A failure that is caught by accident is a failure that is hidden."""
    handlers = [node for node in ast.walk(TREE[name].tree) if isinstance(node, ast.ExceptHandler)]
    broad = [handler.lineno for handler in handlers if caught(handler) & {"", "Exception", "BaseException"}]
    assert len(broad) == CATCHES_ALL.get(name, 0), f"lines {broad}"


def caught(handler):
    """The names of the exceptions that a handler catches; a bare `except` catches the empty name."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind) if kind else "" for kind in kinds}


def test_a_broad_except_would_be_found():
    """The rule above is not blind to a bare `except` or one hidden in a tuple."""
    for line in ("except:", "except Exception:", "except (ValueError, BaseException) as error:"):
        tree = ast.parse(f"try:\n    x\n{line}\n    pass")
        handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
        assert caught(handler) & {"", "Exception", "BaseException"}


@pytest.mark.parametrize("name", sorted(TREE))
def test_no_module_state(name):
    """No `global`, no default that is shared between calls, no seed set for the whole process."""
    nodes = list(ast.walk(TREE[name].tree))
    assert not [node.lineno for node in nodes if isinstance(node, ast.Global)]
    defaults = [default for function in TREE[name].functions for default in function.args.defaults]
    assert not [default.lineno for default in defaults if isinstance(default, ast.List | ast.Dict | ast.Set)]
    borrowed = {inner for node in nodes if restores_warnings(node) for inner in ast.walk(node)}
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call) and node not in borrowed}
    assert not called & {"np.random.seed", "random.seed", "warnings.filterwarnings", "warnings.simplefilter"}
    assert "logging.basicConfig" not in called


def restores_warnings(node):
    """Say whether this is a `with warnings.catch_warnings()`, which puts the filters back."""
    return isinstance(node, ast.With) and any("catch_warnings" in ast.unparse(item) for item in node.items)


def test_no_module_is_a_junk_drawer():
    """A file is named after its one noun, so that a line of code knows where it lives."""
    assert not [name for name in TREE if name.rsplit(".", 1)[-1].lstrip("_") in JUNK_DRAWERS]


@pytest.mark.parametrize("name", sorted(name for name in TREE if not name.endswith("__main__")))
def test_every_module_says_what_it_is(name):
    """Each file opens with a sentence, and so does each public class and function."""
    module = TREE[name]
    assert ast.get_docstring(module.tree), name
    public = [node for node in module.tree.body if isinstance(node, ast.ClassDef | shape.FunctionNode)]
    assert not [node.name for node in public if not node.name.startswith("_") and not ast.get_docstring(node)]


def test_the_sizes_are_printed(capsys):
    """Sizes point; they do not judge. They are printed so that a change that raises one is seen."""
    rows = shape.measures(TREE)
    with capsys.disabled():
        for what, ours, wanted in rows:
            sys.stdout.write(f"\n  {what:40} {ours:>16}   {f'look for {wanted}' if wanted else ''}")
    assert len(rows) > 5
