"""A model as it lies on disk: a folder of configuration and safetensors, pinned by its content or its commit.

Nothing here runs a model. What could run code while it is loaded is refused: pickled weights, and code of the
repository's own unless the caller pins exactly that code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpals.errors import JudgeError, MissingExtra, UsageError
from bpals.telemetry import import_silent

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
ANSWERING = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "**/*.py")
"""What of a folder could change an answer: configuration, weights, templates, tokenizers, code."""
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py", "README.md")
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
LARGEST_CONFIG_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model's folder, looked through: it can be loaded without a network and without running foreign code."""

    model: str
    """Its name on the hub, or that of its folder."""
    path: Path
    revision: str
    """The commit on the hub, or `sha256:...` of what lies in the folder."""
    config: Mapping[str, Any]
    licence: str
    """What its README says, in the hub's words; `unknown` where it says nothing."""
    runs_code: bool
    """True where it has code of its own, and the caller has pinned it."""

    @property
    def architecture(self) -> str:
        """The class that the weights were saved from."""
        named = self.config.get("architectures") or [""]
        return str(named[0])


def find_model(
    model: str, revision: str = "", *, allow_code_revision: str = "", cache: Path | None = None
) -> ModelFolder:
    """Find a model in a folder, or on the hub under a pinned commit; a commit that is in the cache is not asked for."""
    given = Path(model).expanduser()
    local = given.is_dir()
    path = given.resolve() if local else _fetch(model, revision, cache)
    config = _read_json(path / "config.json", model)
    _check_weights(path, model)
    pin = _sha256(path, ("**/*.py",))[:40] if local else revision
    runs_code = _check_code(path, model, pin=pin, given=allow_code_revision)
    found = f"sha256:{_sha256(path, ANSWERING)}" if local else revision
    if revision not in {"", found}:
        raise JudgeError(
            f"hf:{model}: the folder's content is {found}, not {revision}. Leave @{revision} out, "
            f"or name the folder that you mean"
        )
    return ModelFolder(
        model=path.name if local else model,
        path=path,
        revision=found,
        config=config,
        licence=_licence(path / "README.md"),
        runs_code=runs_code,
    )


def _fetch(model: str, revision: str, cache: Path | None) -> Path:
    """Give the folder of a commit of the hub: from the cache if it is whole there, else downloaded."""
    if not HUB_NAME.fullmatch(model):
        raise JudgeError(f"hf:{model}: there is no such folder, and a name on the hub looks like org/model")
    if not COMMIT.fullmatch(revision):
        given = f"{revision!r} is none" if revision else "none is given"
        raise UsageError(
            f"hf:{model}: there is no such folder, and a model of the hub is pinned by its commit, 40 hex digits; "
            f"{given}. Take it from the model's page under Files, and type hf:{model}@COMMIT"
        )
    hub = import_package("huggingface_hub", model)
    asked: dict[str, Any] = {"revision": revision, "cache_dir": cache, "allow_patterns": list(WANTED)}
    try:
        return Path(hub.snapshot_download(model, local_files_only=True, **asked))
    except hub.errors.LocalEntryNotFoundError:
        pass  # not in the cache, or not whole there
    try:
        return Path(hub.snapshot_download(model, **asked))
    except (OSError, ValueError) as error:
        raise JudgeError(
            f"hf:{model}@{revision} is not in the cache and cannot be downloaded ({first_line(error)}). "
            f"Where there is a network, type: hf download {model} --revision {revision}"
        ) from None


def _check_weights(path: Path, model: str) -> None:
    """Refuse a folder without safetensors, and safetensors that are none."""
    safetensors = import_package("safetensors", model)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
        found = f"only {pickled[0]}, which is a pickle and could run code" if pickled else "no weights"
        raise JudgeError(f"hf:{model}: {path} has {found}. Get the model as .safetensors")
    for file in files:
        try:
            with safetensors.safe_open(file, framework="np"):
                pass
        except (safetensors.SafetensorError, OSError) as error:
            raise JudgeError(
                f"hf:{model}: {file} is not a whole safetensors file ({first_line(error)}). Get it again"
            ) from None


def _check_code(path: Path, model: str, *, pin: str, given: str) -> bool:
    """Say whether the model runs code of its own; refuse it unless exactly this code was pinned."""
    asked = list(_named_code(path, model))
    if not asked:
        return False
    if elsewhere := [name for name in asked if "--" in name]:
        raise JudgeError(
            f"hf:{model} runs code of another repository ({elsewhere[0]}), which no revision pins. "
            f"Copy that code into the folder and name it in auto_map without the `--`"
        )
    if given != pin:
        wrong = f"You allowed {given}, which is other code. " if given else ""
        raise JudgeError(
            f"hf:{model} brings code of its own ({asked[0]}), which is not run. {wrong}Read the .py files in {path}; "
            f"if you trust them, type --allow-code-revision {pin} (in Python: allow_code_revision=...)"
        )
    return True


def _named_code(path: Path, model: str) -> Iterator[str]:
    """Name every class that a configuration wants from code beside it."""
    for file in sorted(path.glob("*config*.json")):
        mapped = _read_json(file, model).get("auto_map") or {}
        for value in mapped.values() if isinstance(mapped, dict) else [mapped]:
            yield from (str(name) for name in (value if isinstance(value, list) else [value]) if name)


def _sha256(path: Path, patterns: Iterable[str]) -> str:
    """Hash the files of a folder, each under its name."""
    whole = hashlib.sha256()
    files = {file for pattern in patterns for file in path.glob(pattern) if file.is_file()}
    for file in sorted(files):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{file.relative_to(path).as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()


def _read_json(file: Path, model: str) -> dict[str, Any]:
    if not file.is_file():
        raise JudgeError(f"hf:{model}: {file.parent} is no model: it has no {file.name}. Name the folder that has one")
    if file.stat().st_size > LARGEST_CONFIG_BYTES:
        raise JudgeError(
            f"hf:{model}: {file} has {file.stat().st_size:,} bytes; a configuration has fewer. Get it again"
        )
    try:
        read = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise JudgeError(f"hf:{model}: {file} is not JSON ({first_line(error)}). Get it again") from None
    if not isinstance(read, dict):
        raise JudgeError(f"hf:{model}: {file} is JSON but no object. Get it again")
    return read


def _licence(readme: Path) -> str:
    """Read the licence out of a model card's front matter; an `other` one has a name of its own."""
    if not readme.is_file():
        return "unknown"
    with readme.open(encoding="utf-8", errors="replace") as stream:
        front = re.match(r"---\s*\n(.*?)\n---", stream.read(2**20), re.DOTALL)
    line = r"^(license|license_name):[ \t]*['\"]?([\w .+-]+?)['\"]?[ \t]*$"
    said = dict(re.findall(line, front[1] if front else "", re.MULTILINE))
    name = said.get("license", "unknown")
    return str(said.get("license_name", name) if name == "other" else name)


def import_package(name: str, model: str) -> Any:
    """Import a package of the extra, or say which line installs it."""
    try:
        return import_silent(name)
    except ModuleNotFoundError:
        raise MissingExtra.of(f"hf:{model}", "torch") from None


def first_line(error: Exception) -> str:
    """Cut an error of another package down to what fits into ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
