"""Which code a judge's function is made of, so that a changed function is another judge.

The hash covers the text of the function and of everything at the top of its file that it names, directly or through
others: functions, classes, constants, imports. It covers plain values that the function closes over. It does not
cover what other files do, or weights: those are named by `model` and `revision`.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
from types import CodeType, FunctionType

Top = tuple[ast.stmt, str]
"""A statement at the top of a file, and its text."""


def code_sha256(function: FunctionType) -> str:
    """Hash the code that a function is made of; where there is no text, as in a plain prompt, its compiled form."""
    texts = _texts(function) or _compiled(function.__code__)
    written = "\0".join([function.__qualname__, *texts])
    return "sha256:" + hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def closed_over(function: FunctionType) -> dict[str, str]:
    """Write down what a function closes over or has as defaults: plain values in full, of others the type."""
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    values: dict[str, object] = {}
    for name, cell in held.items():
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not got there yet
            values[name] = None
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    values |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    return {name: _written(value) for name, value in sorted(values.items())}


def _written(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(_written(part) for part in value)})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{_written(key)}: {_written(part)}' for key, part in value.items())})"
    return code_sha256(value) if isinstance(value, FunctionType) else type(value).__qualname__


def _texts(function: FunctionType) -> list[str]:
    """Give the texts of what the function is made of, in the order of the file."""
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    try:
        tops = _tops("".join(lines))
    except (SyntaxError, ValueError):
        return []
    line = function.__code__.co_firstlineno
    own = [place for place, (node, _) in enumerate(tops) if _first_line(node) <= line <= (node.end_lineno or 0)]
    if not own:
        return []
    reached, queue = set(own), list(own)
    while queue:
        used = {node.id for node in ast.walk(tops[queue.pop()][0]) if isinstance(node, ast.Name)}
        found = {place for place, (node, _) in enumerate(tops) if used & _bound(node)} - reached
        reached |= found
        queue += found
    return [tops[place][1] for place in sorted(reached)]


def _tops(text: str) -> list[Top]:
    """Take a file apart; a decorator is left out of its function's text: the card says what it says."""
    return [(node, ast.get_source_segment(text, node) or "") for node in ast.parse(text).body]


def _first_line(node: ast.stmt) -> int:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
        return node.decorator_list[0].lineno
    return node.lineno


def _bound(node: ast.stmt) -> set[str]:
    """Name what a statement at the top of a file binds, wherever in it; the inside of functions is left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add((inner.asname or inner.name).partition(".")[0])
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(inner.name)
    return names


def _compiled(code: CodeType) -> list[str]:
    """Write out compiled code; it differs between versions of Python, so the version is part of it."""
    inner = [part for const in code.co_consts if isinstance(const, CodeType) for part in _compiled(const)]
    consts = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    version = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return [version, code.co_code.hex(), *consts, *code.co_names, *code.co_varnames, *code.co_freevars, *inner]
