"""The code measuring itself: `make shape` prints the table and fails where a limit is exceeded.

    python scripts/shape.py                                 this package, with a real `bpals audit`
    python scripts/shape.py --beside starlette=PATH ...     the same measures of other packages
    python scripts/shape.py --before PATH --write ...       the table of docs/architecture.md

The tests read the tree with it too: tests/test_shape.py, tests/test_layers.py, tests/test_walks.py.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"

PRAGMA = re.compile(r"#\s*|noqa(: [A-Z0-9, ]+)?|fmt: (skip|on|off)|type: ignore(\[[\w, -]*\])?|pragma: .*")
"""What a comment says to a tool; a comment of nothing else says nothing to a reader."""
OPENING, CLOSING = "<!-- made by scripts/shape.py -->", "<!-- end of shape -->"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file of a package, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The second part of the name: `signal` of `bpals.signal.weights`."""
        return self.name.split(".")[1] if "." in self.name else ""

    @cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text(encoding="utf-8")

    @property
    def lines(self) -> int:
        """How long the file is."""
        return len(self.text.splitlines())

    @cached_property
    def functions(self) -> list[FunctionNode]:
        """Every function and method."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FunctionNode)]

    @property
    def comments(self) -> int:
        """How many comments there are that say something to a reader."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT and bool(PRAGMA.sub("", token.string).strip()) for token in tokens)


def modules(package: Path = SRC / "bpals") -> dict[str, Module]:
    """Parse every file of a package: dotted name -> module."""
    parsed = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        parsed[name] = Module(name=name, path=path, tree=ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return parsed


def import_nodes(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Every import statement, those inside functions included."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_names(tree: ast.AST) -> set[str]:
    """Dotted names of all that is imported: `from a import b` gives `a` and `a.b`."""
    names = set()
    for node in import_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def import_graph(tree: Mapping[str, Module]) -> dict[str, set[str]]:
    """Which module of the package names which other in an import."""
    graph = {}
    for name, module in tree.items():
        targets = set()
        for node in import_nodes(module.tree):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names if alias.name in tree}
            elif source := _source(node, module):
                full = {f"{source}.{alias.name}" for alias in node.names}
                inner = {target for target in full if target in tree}
                targets |= inner | ({source} if source in tree and len(inner) < len(full) else set())
        graph[name] = targets - {name}
    return graph


def _source(node: ast.ImportFrom, module: Module) -> str:
    """The dotted name that `from ... import` names; other packages write it with leading dots."""
    if not node.level:
        return node.module or ""
    package = module.name.split(".") + ([] if module.path.stem != "__init__" else [""])
    return ".".join([*package[: -node.level], *([node.module] if node.module else [])])


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What one module imports, directly or through others."""
    seen: set[str] = set()
    queue = [start]
    while queue:
        for target in graph[queue.pop()] - seen:
            seen.add(target)
            queue.append(target)
    return seen


def hidden_imports(module: Module) -> Iterator[tuple[int, str]]:
    """Imports inside functions: line and dotted name of the module."""
    for function in module.functions:
        for node in import_nodes(function):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            else:
                yield node.lineno, node.module or ""


def function_lines(function: FunctionNode) -> int:
    """How long a function is, from `def` to its end."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameters(function: FunctionNode) -> int:
    """How many parameters a function takes, `self` and `cls` left out."""
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(argument.arg not in {"self", "cls"} for argument in given)


def mirror(module: Module) -> Path:
    """Where the tests of a module are looked for."""
    inside = module.path.relative_to(SRC / "bpals")
    return ROOT / "tests" / inside.parent / f"test_{inside.name}"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of a package, with its limit."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None
    worst: str = ""
    """Where the figure comes from."""

    @property
    def reached(self) -> bool:
        """Whether the figure is within its limit."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    @property
    def limit(self) -> str:
        """The limit in words."""
        words = [f"at most {self.most:,g}" if self.most is not None else ""]
        words += [f"at least {self.least:,g}" if self.least is not None else ""]
        return " ".join(filter(None, words))


def measures(tree: Mapping[str, Module]) -> list[Measure]:
    """Measure the files of a package."""
    lines = sum(module.lines for module in tree.values())
    functions = [(module, function) for module in tree.values() for function in module.functions]
    long = max(functions, key=lambda row: function_lines(row[1]))
    wide = max(functions, key=lambda row: parameters(row[1]))
    root = min(len(module.path.parts) for module in tree.values())
    graph = import_graph(tree)
    cyclic = [name for name in tree if name in reachable(graph, name)]
    twice = repeated_names(tree)
    comments = sum(module.comments for module in tree.values())
    return [
        # 190, and three for judges trained on the signal: tasks/nested_targets, judges/fine_tuning, tasks/train.
        Measure(name="modules", value=len(tree), most=193),
        Measure(
            name="modules in the root",
            value=sum(len(module.path.parts) == root for module in tree.values()),
            most=12,
        ),
        # As many as 0.5.2 had before it was rebuilt smaller: room for what it lacked, and a brake.
        Measure(name="lines", value=lines, most=50_684),
        Measure(
            name="lines of the longest function",
            value=function_lines(long[1]),
            most=100,
            worst=f"{long[0].name}:{long[1].name}",
        ),
        Measure(
            name="most parameters of a function",
            value=parameters(wide[1]),
            most=13,  # the options of `bpals audit`
            worst=f"{wide[0].name}:{wide[1].name}",
        ),
        Measure(name="module names used twice", value=len(twice), most=0, worst=", ".join(twice)),
        Measure(name="comments per 100 lines", value=round(100 * comments / lines, 2), least=2),
        Measure(name="modules in an import cycle", value=len(cyclic), most=0, worst=", ".join(cyclic[:5])),
    ]


def repeated_names(tree: Mapping[str, Module]) -> list[str]:
    """File names that occur twice; `__init__`, and a command's file in cli/ and tasks/, are meant to."""
    places: dict[str, list[str]] = {}
    for module in tree.values():
        if module.path.stem != "__init__":
            places.setdefault(module.path.stem, []).append(module.path.parent.name)
    return sorted(name for name, rooms in places.items() if len(rooms) > 1 and sorted(rooms) != ["cli", "tasks"])


def layer_lists() -> Measure:
    """Count the lists of layers that import-linter checks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    return Measure(name="lists of layers", value=len(lists), most=1, least=1)


AUDIT = """
import io, json, sys
from pathlib import Path
workspace, images, out = sys.argv[1:]
if int(images):
    import polars
    from bpals.sources import nih
    whole = nih.read_embedded
    def some(name, folder=None):
        part = io.BytesIO()
        polars.read_parquet(io.BytesIO(whole(name))).head(int(images)).write_parquet(part)
        return part.getvalue()
    nih.read_embedded = some
from bpals.cli.main import run
sys.argv = ["bpals", "audit", "--workspace", workspace]
try:
    run()
except SystemExit as end:
    assert not end.code, end.code
ours = {name: each.__file__ for name, each in sys.modules.items() if name.split(".")[0] == "bpals"}
Path(out).write_text(json.dumps(ours))
"""
"""What the console script runs; with a number of images, on that many rows of the embedded record."""


def loaded_by_audit(images: int = 0, src: Path = SRC) -> list[Measure]:
    """Run `bpals audit` with no option in a process of its own, and measure the modules of bpals that it loaded."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "loaded.json"
        command = [sys.executable, "-c", AUDIT, str(Path(folder) / "audit"), str(images), str(out)]
        environment = {**os.environ, "PYTHONPATH": str(src)}
        subprocess.run(command, check=True, env=environment, capture_output=True, cwd=folder)
        files: dict[str, str] = json.loads(out.read_text(encoding="utf-8"))
    lengths = {name: len(Path(file).read_text(encoding="utf-8").splitlines()) for name, file in files.items()}
    largest = ", ".join(f"{name} {length}" for name, length in Counter(lengths).most_common(5))
    return [
        # What a newcomer reads first. An audit of NIH applies an expert calibration, and loads no fit, no certificate
        # and no reader of other judges' answers. The lines were at most 8,000 before the report could show images and
        # what changed since the last audit.
        Measure(name="modules loaded by bpals audit", value=len(lengths), most=45, worst=" ".join(sorted(lengths))),
        Measure(name="lines loaded by bpals audit", value=sum(lengths.values()), most=8_400, worst=largest),
    ]


def table(columns: Mapping[str, Sequence[Measure]], limits: Sequence[Measure]) -> str:
    """Lay measures of several packages side by side, as Markdown."""
    rows = [["measure", *columns, "limit"], ["---", *("---:" for _ in columns), "---"]]
    for limit in limits:
        found = [next((each.value for each in its if each.name == limit.name), None) for its in columns.values()]
        rows.append([limit.name, *("" if value is None else f"{value:,g}" for value in found), limit.limit])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write(text: str) -> None:
    """Put the table into docs/architecture.md."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(OPENING)
    _, _, tail = rest.partition(CLOSING)
    PAGE.write_text(f"{head}{OPENING}\n{text}\n{CLOSING}{tail}", encoding="utf-8")


def main(arguments: Any = None) -> int:
    """Print the table; say which limits are exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=PATH", help="another package's folder")
    parser.add_argument("--before", type=Path, metavar="SRC", help="the src folder of an earlier bpals")
    parser.add_argument("--images", type=int, default=0, help="audit so many images only; 0 for the whole record")
    parser.add_argument("--write", action="store_true", help="write the table into docs/architecture.md")
    given = parser.parse_args(arguments)
    ours = [*measures(modules()), layer_lists(), *loaded_by_audit(given.images)]
    columns: dict[str, list[Measure]] = {}
    if given.before:
        columns["before"] = [*measures(modules(given.before / "bpals")), *loaded_by_audit(given.images, given.before)]
    columns["bpals"] = ours
    for named in given.beside:
        name, _, path = named.partition("=")
        columns[name] = measures(modules(Path(path)))
    text = table(columns, ours)
    print(text)
    if given.write:
        write(text)
    exceeded = [each for each in ours if not each.reached]
    for each in exceeded:
        print(f"\n{each.name}: {each.value:,g}, {each.limit}. {each.worst}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
