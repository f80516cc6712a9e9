"""A judge out of a Python file or module of your own: `python:FILE.py:NAME`, `python:package.module:NAME`."""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from bpals.errors import UnknownName, UsageError
from bpals.judges.protocol import ChatJudge, ImageJudge
from bpals.telemetry import silence

MISTAKES = (AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError)
"""What a file may raise that somebody has just written."""


def load(target: str, revision: str = "") -> ImageJudge | ChatJudge:
    """Load a judge from `FILE.py:NAME` or `package.module:NAME`; the name may be left out where there is one judge."""
    where = f"python:{target}"
    if revision:
        raise UsageError(f"{where}@{revision}: a function has no revision. Write revision=... in its @bpals.judge")
    place, _, name = target.rpartition(":")
    if not place:
        place, name = target, ""
    silence()  # the file may import what reports to its makers
    module = _file(Path(place), where) if place.endswith(".py") else _module(place, where)
    judges = {key: value for key, value in vars(module).items() if isinstance(value, ImageJudge | ChatJudge)}
    # A class looks like its instances to a runtime protocol; only what was made can be asked.
    judges = {key: value for key, value in judges.items() if not isinstance(value, type)}
    if name in judges:
        return judges[name]
    if hasattr(module, name):
        raise UsageError(f"{where}: {name} is no judge. Write @bpals.judge('{name}') above its def")
    if not judges:
        raise UsageError(f"{where} has no judge. Write @bpals.judge('my-judge') above a def f(image, finding)")
    if name or len(judges) > 1:
        raise UnknownName.of("judge", name, judges, where=where)
    return next(iter(judges.values()))


def _file(path: Path, where: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{where}: {path} does not exist. Check the path")
    # Two files of one name are two modules; dataclasses and pickle look a module up by its name.
    name = f"bpals_judge_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{where}: {path} cannot be loaded as Python. Name a .py file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MISTAKES as error:
        del sys.modules[name]
        raise UsageError(f"{where} cannot be loaded: {error}. Mend the file, or install what it imports") from None
    return module


def _module(name: str, where: str) -> ModuleType:
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return import_module(name)
    except (ImportError, SyntaxError) as error:
        raise UsageError(f"{where} cannot be loaded: {error}. Mend it, or install its package") from None
    raise UsageError(f"{where}: {name!r} is no module. Type python:FILE.py:NAME or python:package.module:NAME")
