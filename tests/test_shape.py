"""Habits of the code that a reader relies on, and the limits of its shape (`make shape` prints them)."""

import ast
import re
import tomllib

import pytest

import shape
from world.source_tree import GRAPH, TREE

JUNK_DRAWERS = {"base", "common", "helper", "helpers", "lib", "misc", "shared", "stuff", "tools", "util", "utils"}
LATE = {"PIL"}
"""Of the core, and still imported where it is used: `import bpals` does not wait for it."""
LATE_OF_OURS = {
    "bpals": "a public name is loaded when it is used",
    "bpals.cli.review": "the reading room needs packages that the core has not",
    "bpals.report.page": "the report of an audit has no scorecard",
    "bpals.signal.trust": "an audit without experts and image judges needs no fit and no pool",
    "bpals.tasks.chosen_judges": "an audit without image judges has no other answers to read",
    "bpals.tasks.audit": "an audit without experts needs no database and no reader of their files",
    "bpals.sources.nih": "the embedded record needs no mapping and no careful reading",
}
"""Modules that import others of ours inside a function, each with the reason; everywhere else imports stand on top."""
FEW_IMAGES = 1500
"""Rows of the embedded record for the audit of the test; `make shape` audits all of them."""

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
    """Only an optional package may be imported inside a function, because it may be missing; or what LATE names."""
    allowed = optional_packages() | LATE | ({"bpals"} if name in LATE_OF_OURS else set())
    hidden = [f"line {line}: {late}" for line, late in shape.hidden_imports(TREE[name])
              if late.split(".")[0] not in allowed]  # fmt: skip
    assert not hidden


@pytest.mark.parametrize("name", sorted(LATE_OF_OURS))
def test_late_imports_are_still_needed(name):
    """A reason that no import needs any more goes from the list."""
    assert any(late.split(".")[0] == "bpals" for _, late in shape.hidden_imports(TREE[name]))


@pytest.mark.parametrize("name", sorted(TREE))
def test_no_module_of_ours_is_imported_by_its_name_in_a_string(name):
    """`import_module("bpals....")` would hide an import from the reader and from the import rule."""
    named = [node.lineno for node in ast.walk(TREE[name].tree) if isinstance(node, ast.Call)
             and ast.unparse(node.func).endswith("import_module") and "bpals" in ast.unparse(node)]  # fmt: skip
    assert not named


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
    calls = [node for node in ast.walk(TREE[name].tree) if isinstance(node, ast.Call)]
    broad += [call.lineno for call in calls if ast.unparse(call) == "contextlib.suppress(Exception)"]
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


@pytest.mark.parametrize("measure", [*shape.measures(TREE), shape.layer_lists()], ids=lambda each: each.name)
def test_the_shape_is_within_its_limits(measure):
    """The house stays small enough to be read in an afternoon."""
    assert measure.reached, f"{measure.name}: {measure.value:g}, {measure.limit}. {measure.worst}"


@pytest.mark.parametrize("place", [0, 1], ids=["modules", "lines"])
def test_an_audit_loads_few_modules(place, loaded):
    """The default audit is the core that a newcomer reads first."""
    measure = loaded[place]
    assert measure.reached, f"{measure.name}: {measure.value:g}, {measure.limit}. {measure.worst}"


@pytest.fixture(scope="module")
def loaded():
    """What a default audit of a part of the embedded record loads, in a process of its own."""
    return shape.loaded_by_audit(FEW_IMAGES)


def test_a_name_used_twice_would_be_found(tmp_path):
    """The rule about names is not blind, and lets a command's file in cli/ and tasks/ be called alike."""
    for file in ("cli/audit.py", "tasks/audit.py", "cli/table.py", "signal/table.py", "signal/__init__.py"):
        (tmp_path / "house" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / file).write_text("")
    assert shape.repeated_names(shape.modules(tmp_path / "house")) == ["table"]


def test_a_comment_for_a_tool_is_not_counted(tmp_path):
    """`# noqa` alone says nothing to a reader."""
    (tmp_path / "house").mkdir()
    lines = ["import os  # noqa: F401", "x = 1  # fmt: skip", "# why", "y = 2  # noqa: E501  because"]
    (tmp_path / "house" / "room.py").write_text("\n".join(lines) + "\n")
    assert shape.modules(tmp_path / "house")["house.room"].comments == 2
