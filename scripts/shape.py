"""The code measuring itself: `make shape` prints the table; test_layers.py and test_shape.py read the tree with it."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The second part of the name: `signal` of `bpals.signal.weights`."""
        return self.name.split(".")[1] if "." in self.name else ""

    @property
    def lines(self) -> int:
        """How long the file is."""
        return len(self.path.read_text(encoding="utf-8").splitlines())

    @property
    def functions(self) -> list[FunctionNode]:
        """Every function and method."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FunctionNode)]


def modules() -> dict[str, Module]:
    """Parse every file of the package: dotted name -> module."""
    parsed = {}
    for path in sorted((SRC / "bpals").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
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
            elif node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                inner = {target for target in full if target in tree}
                targets |= inner | ({node.module} if node.module in tree and len(inner) < len(full) else set())
        graph[name] = targets - {name}
    return graph


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
    """Imports inside functions: line and dotted name, of a module of ours with the module."""
    for function in module.functions:
        for node in import_nodes(function):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                inner = (ROOT / "src" / (node.module or "").replace(".", "/")).is_dir()
                names = [f"{node.module}.{name}" for name in names] if inner else [node.module or ""]
            yield from ((node.lineno, name) for name in names)


def function_lines(function: FunctionNode) -> int:
    """How long a function is, its docstring left out."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def parameters(function: FunctionNode) -> int:
    """How many parameters a function takes, `self` and `cls` left out."""
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(argument.arg not in {"self", "cls"} for argument in given)


def measures(tree: Mapping[str, Module]) -> list[tuple[str, str, str]]:
    """The table: what is measured, what we have, what to look for."""
    files = [module.lines for module in tree.values()]
    functions = [function for module in tree.values() for function in module.functions]
    lengths = [function_lines(function) for function in functions]
    counts = [parameters(function) for function in functions]
    public = [function for function in functions if not function.name.startswith("_")]
    documented = sum(ast.get_docstring(function) is not None for function in public)
    mirrored = sum(mirror(module).exists() for module in tree.values() if not module.path.name.startswith("__"))
    mirrorable = sum(not module.path.name.startswith("__") for module in tree.values())
    return [
        ("files; lines in all", f"{len(files)}; {sum(files)}", ""),
        ("file: median/max lines", f"{statistics.median(files):.0f}/{max(files)}", "140/400"),
        ("function: median/p95/max", f"{statistics.median(lengths):.0f}/{_p95(lengths)}/{max(lengths)}", "6/35/60"),
        ("functions over 50 lines", f"{sum(n > 50 for n in lengths)} of {len(lengths)}", "1%"),
        ("parameters: p95/max", f"{_p95(counts)}/{max(counts)}", "4/7"),
        ("public functions with a docstring", f"{documented} of {len(public)}", "all"),
        ("modules with a test file of their name", f"{mirrored} of {mirrorable}", "all"),
    ]


def mirror(module: Module) -> Path:
    """Where the tests of a module are looked for."""
    inside = module.path.relative_to(SRC / "bpals")
    return ROOT / "tests" / inside.parent / f"test_{inside.name}"


def _p95(values: Sequence[int]) -> int:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main() -> None:
    """Print the table, the longest files and the longest functions."""
    tree = modules()
    for what, ours, wanted in measures(tree):
        print(f"{what:40} {ours:>16}   {f'look for {wanted}' if wanted else ''}")
    print("\nlongest files")
    for module in sorted(tree.values(), key=lambda module: -module.lines)[:5]:
        print(f"  {module.lines:5}  {module.path.relative_to(ROOT)}")
    print("longest functions")
    found = [(function_lines(f), m.path.relative_to(ROOT), f) for m in tree.values() for f in m.functions]
    for length, path, function in sorted(found, key=lambda row: -row[0])[:5]:
        print(f"  {length:5}  {path}:{function.lineno} {function.name}")


if __name__ == "__main__":
    main()
