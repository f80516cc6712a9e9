"""Write the generated parts of docs/: schemas, commands, errors, notices, extras, judges; `--check` only names them."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from typer.main import get_command

from bpals import errors, types
from bpals.cli.doctor import EXTRAS
from bpals.cli.main import app
from bpals.findings import NIH
from bpals.judges.cards import default_model
from bpals.registry import JUDGES
from bpals.reviews.verdicts import READ_AS, UNREAD
from bpals.room.desk.study import key_table
from shape import ROOT, SRC, modules

DOCS = ROOT / "docs"
OPENING = "<!-- made by scripts/write_docs.py: {} -->"
CLOSING = "<!-- end of {} -->"
SHARED = 3
"""An option that means the same in so many commands is explained once."""


def tables() -> str:
    """Every schema of types.py: the column, its type, and the comment beside it in the source."""
    schemas = {
        "images": types.IMAGES,
        "claims": types.claims_schema(NIH),
        "judgments": types.judgments_schema(NIH),
        "answers": types.answers_schema(NIH),
        "film_answers": types.FILM_ANSWERS,
        "film_checks": types.FILM_CHECKS,
        "skill": types.SKILL,
        "truth": types.TRUTH,
        "reviews": types.REVIEWS,
        "signal": types.signal_schema(NIH.findings),
    }
    notes = column_notes()
    said = sentences()
    parts = []
    for name, schema in schemas.items():
        parts += [f"## {name}", "", said[name], "", "|column|type|note|", "|---|---|---|"]
        shared = schemas["judgments"] if name == "answers" else {}
        parts += ["|those of `judgments`|||"] if shared else []
        for column, kind in schema.items():
            if column not in shared:
                parts.append(f"|`{column}`|{_type(kind)}|{notes.get((name, column), '')}|")
        parts.append("")
    return "\n".join(parts).rstrip()


def sentences() -> dict[str, str]:
    """What types.py says of each table."""
    body = ast.parse((SRC / "bpals" / "types.py").read_text(encoding="utf-8")).body
    beside = {
        _table(node): after.value.value
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    inside = {_table(node): ast.get_docstring(node) for node in body if isinstance(node, ast.FunctionDef)}
    return {name: str(said) for name, said in (beside | inside).items()}


def column_notes() -> dict[tuple[str, str], str]:
    """The comment beside each column in types.py: (table, column) -> comment."""
    text = (SRC / "bpals" / "types.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    notes = {}
    for node in ast.parse(text).body:
        for keys in (found.keys for found in ast.walk(node) if isinstance(found, ast.Dict)):
            for key in keys:
                if isinstance(key, ast.Constant) and "  # " in (line := lines[key.lineno - 1]):
                    notes[_table(node), str(key.value)] = line.split("  # ", 1)[1]
    return notes


def _table(node: ast.stmt) -> str:
    """`IMAGES = ...` and `def claims_schema(...)` are the tables images and claims."""
    if isinstance(node, ast.FunctionDef):
        return node.name.removesuffix("_schema")
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id.lower()
    return ""


def _type(kind: pl.DataType) -> str:
    if isinstance(kind, pl.Enum):
        words = kind.categories.to_list()
        return "Enum: findings" if tuple(words) == NIH.findings else f"Enum: {', '.join(words)}"
    return str(kind)


def commands() -> str:
    """The help of each command: what it does, its options and an example; what several commands share stands first."""
    found = list(leaves(get_command(app)))
    rows = Counter(_option(option) for _, command in found for option in command.params)
    often = {row for row, count in rows.items() if count >= SHARED and "--" in row}
    head = ["|option|default|what it is|", "|---|---|---|"]
    parts = ["## Options that several commands share", "", *head, *sorted(often), ""]
    for name, command in found:
        parts += [f"## bpals {name}", "", inspect.cleandoc(command.help or ""), ""]
        own = [row for option in command.params if (row := _option(option)) not in often]
        parts += [*head, *own, ""] if own else []
        shared = [_flags(option) for option in command.params if _option(option) in often]
        parts += [f"{'Also' if own else 'Options'}: {', '.join(shared)}.", ""] if shared else []
        parts += ["```console", f"$ {command.epilog.removeprefix('Example: ')}", "```", ""]
    return "\n".join(parts).rstrip()


def leaves(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield above + name, command
            yield from leaves(command, f"{above}{name} ")
        else:
            yield above + name, command


def _flags(option: object) -> str:
    return ", ".join(f"`{flag}`" for flag in getattr(option, "opts", []) if flag.startswith("-"))


def _option(option: object) -> str:
    """One row; an argument shows its name, an option its flags."""
    named = _flags(option)
    called = getattr(option, "metavar", "") or str(getattr(option, "name", ""))
    metavar = (
        "" if not named or getattr(option, "is_flag", False) else f" {getattr(option, 'metavar', '') or ''}".rstrip()
    )
    named = named or f"`{called.upper()}`"
    default = getattr(option, "default", None)
    shown = "" if default is None or default is False or str(default) in {"", "[]", "()"} else f"`{default}`"
    help_text = " ".join(str(getattr(option, "help", "")).split()).replace("|", "\\|")
    return f"|{named}{metavar.replace('|', chr(92) + '|')}|{shown}|{help_text}|"


def error_tree() -> str:
    """The drawing at the top of errors.py, which has a line for each class."""
    drawing = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    missing = [kind.__name__ for kind in kinds if issubclass(kind, errors.BpalsError) and kind.__name__ not in drawing]
    if missing:
        raise SystemExit(f"the drawing at the top of errors.py lacks {', '.join(missing)}")
    return f"```\n{drawing}\n```"


def notices() -> str:
    """Every code of a counted notice, by the room that counts it."""
    codes: dict[str, set[str]] = {}
    for module, code in notice_codes():
        codes.setdefault(module.split(".")[1], set()).add(f"`{code}`")
    rows = [f"|{room}|{', '.join(sorted(found))}|" for room, found in sorted(codes.items())]
    return "\n".join(["|counted by|codes|", "|---|---|", *rows])


def notice_codes() -> Iterator[tuple[str, str]]:
    """Words given as `code` to a Notice, or to a function that passes its own `code` on: (module, code)."""
    tree = modules()
    takers = {"Notice": 0}
    for module in tree.values():
        for function in module.functions:
            names = [argument.arg for argument in function.args.args if argument.arg not in {"self", "cls"}]
            if "code" in names:
                takers[function.name] = names.index("code")
    for name, module in tree.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                if called in takers:
                    given = given or node.args[takers[called] : takers[called] + 1]
                    yield from ((name, code) for code in _words(given))
            elif isinstance(node, ast.For) and _first(node.target) == "code":
                yield from ((name, code) for code in _looped(node.iter))


def _words(nodes: list[ast.expr]) -> list[str]:
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [word for word in words if word.isidentifier()]


def _first(target: ast.expr) -> str:
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    return first.id if isinstance(first, ast.Name) else ""


def _looped(iterable: ast.expr) -> list[str]:
    """The first word of each row that a `for code, ... in` runs over: a dict's keys, or a list of tuples."""
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute):
        iterable = iterable.func.value
    if isinstance(iterable, ast.Dict):
        return _words([key for key in iterable.keys if key])
    rows = iterable.elts if isinstance(iterable, ast.Tuple | ast.List) else []
    return _words([row.elts[0] for row in rows if isinstance(row, ast.Tuple)])


def kinds() -> str:
    """The kinds of judge that bpals brings, as they declare themselves."""
    rows = []
    for kind in JUDGES.every():
        if JUDGES.packages(kind.name) == ["bpals"]:
            extra, page = f"`{kind.extra}`" if kind.extra else "", kind.page
            rows.append(f"|`{kind.form}`|{kind.summary}|{extra}|[{page.partition('#')[0]}]({page})|")
    return "\n".join(["|you type|it is|extra|explained in|", "|---|---|---|---|", *rows])


def extras() -> str:
    """The extras and what each gives."""
    rows = [f"|`{extra.name}`|{extra.gives}|{', '.join(extra.packages)}|" for extra in EXTRAS]
    return "\n".join(["|extra|what it gives|packages|", "|---|---|---|", *rows])


def serve() -> str:
    """The command that serves the default model, and why it is the default."""
    model = default_model()
    return f"```text\n{model.serve}\n```\n\nWhy this one: {model.why}"


def verdicts() -> str:
    """The words of a verdict, and what else is read as each."""
    rows = []
    for verdict in dict.fromkeys(READ_AS.values()):
        others = [f"`{word}`" for word, meaning in READ_AS.items() if meaning == verdict and word not in {verdict, ""}]
        written = "blank: nobody read it" if verdict == UNREAD else f"`{verdict}`"
        rows.append(f"|{written}|{', '.join(others)}|")
    return "\n".join(["|written|read as well|", "|---|---|", *rows])


def keys() -> str:
    """The keys of the reading page."""
    rows = [f"|{shown}|{words}|" for shown, words in key_table()]
    return "\n".join(["|key|does|", "|---|---|", *rows])


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "tables": ("tables.md", tables),
    "commands": ("cli.md", commands),
    "errors": ("errors.md", error_tree),
    "notices": ("errors.md", notices),
    "extras": ("install.md", extras),
    "kinds": ("judges.md", kinds),
    "serve": ("byo-vlm.md", serve),
    "keys": ("reading-room.md", keys),
    "verdicts": ("lists.md", verdicts),
}


def replaced(text: str, name: str, body: str) -> str:
    """The page with one generated part put in."""
    opening, closing = OPENING.format(name), CLOSING.format(name)
    before, _, rest = text.partition(opening)
    _, found, after = rest.partition(closing)
    if not found:
        raise SystemExit(f"a page lacks the lines {opening!r} and {closing!r}")
    return f"{before}{opening}\n\n{body}\n\n{closing}{after}"


def stale() -> dict[Path, str]:
    """Pages whose generated parts are not what the code says now: page -> what it should be."""
    pages: dict[Path, str] = {}
    for name, (page, make) in PARTS.items():
        path = DOCS / page
        text = pages.get(path, path.read_text(encoding="utf-8"))
        pages[path] = replaced(text, name, make())
    return {path: text for path, text in pages.items() if text != path.read_text(encoding="utf-8")}


def main() -> None:
    """Write what is stale, or with --check only name it and fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    pages = stale()
    for path, text in pages.items():
        print(f"{path.relative_to(ROOT)} {'is stale: type make docs' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    sys.exit(bool(pages) and check)


if __name__ == "__main__":
    main()
