"""The recipe of a classifier checkpoint: how it is shown a film, what its outputs mean, what it was trained on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from bpals.errors import JudgeError, UnknownName, UsageError
from bpals.findings import NIH, Vocabulary, fold
from bpals.types import Trained

FRAMINGS = ("crop, resize", "resize, crop", "stretch")
OUTPUTS = ("sigmoid", "softmax", "probability")
SIDES = range(32, 2049)
"""Pixels that a network may be shown, along a side."""
UNSAID = "Nobody says what it was trained on."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything beside the weights that makes an answer; checkpoints.toml explains each key."""

    name: str
    """Which recipe: `xrv-nih`, `chexnet`."""
    architecture: str
    labels: tuple[str, ...] = ()
    channels: int = 3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    framing: str = "resize, crop"
    resize_px: int = 0
    side_px: int = 224
    output: str = "sigmoid"
    trained_on_target: Trained = "unknown"
    evidence: str = UNSAID
    licence: str = "unknown"

    @property
    def input(self) -> dict[str, object]:
        """Say what is done to a film, for the card."""
        names = ("channels", "mean", "std", "framing", "side_px")
        whole = asdict(self)
        resized = {"resize_px": self.resize_px} if self.framing == "resize, crop" else {}
        return {name: whole[name] for name in names} | resized | {"filter": "bilinear"}

    def outputs(self, vocabulary: Vocabulary) -> dict[str, str]:
        """Say which label is meant by which finding: finding -> label; labels of other findings are left out."""
        meant: dict[str, str] = {}
        for label in filter(None, self.labels):
            words = [label, *(alias for alias, finding in NIH.aliases.items() if fold(finding) == fold(label))]
            known = [vocabulary.spellings[fold(word)] for word in words if fold(word) in vocabulary.spellings]
            for finding in known[:1]:
                if finding in meant:
                    raise UsageError(
                        f"recipe {self.name}: {meant[finding]!r} and {label!r} both mean {finding}. "
                        "Leave one of them empty in labels"
                    )
                meant[finding] = label
        return meant


KEYS = tuple(Recipe.__dataclass_fields__)


def find_recipe(kind: str, file: str, wanted: str | Path = "", said: Mapping[str, Any] | None = None) -> Recipe:
    """Find the recipe of a file: by its kind and its name, or the one that is wanted, a name or a TOML of the user's.

    `said` is what a module that was saved whole says of itself: its own names of its outputs come before ours.
    """
    shipped = _shipped()[kind]
    known = shipped.pop("weights", [])
    names = [each["name"] for each in known]
    if names and not Path(wanted).suffix and str(wanted) not in {"", *names}:
        raise UnknownName.of("recipe", str(wanted), [*names, "FILE.toml"], where=kind)
    own = _own(Path(wanted)) if wanted and str(wanted) not in names else {}
    words = set(re.split(r"[^a-z0-9_]+", Path(file).stem.lower()))
    chosen = str(wanted) if wanted in names else _by_words(known, words)
    facts: dict[str, Any] = next((each for each in known if each["name"] == chosen), {})
    labels = _trained(shipped.get("labels", []), facts.get("untrained", []))
    listed = next((value for name in ("pathologies", "targets") if (value := (said or {}).get(name))), labels)
    base = {
        key: value for key, value in {**shipped, **facts, "labels": listed}.items() if key in KEYS and key != "name"
    }
    recipe = Recipe(name=f"{kind}-{chosen}" if chosen else kind, **_tuples(base))
    if known and not chosen and {"nih", "all"} & words:
        recipe = replace(recipe, trained_on_target="yes", evidence=f"Its name, {file}, says so.")
    return _checked(replace(recipe, **_tuples({"name": Path(file).stem, **own})) if own else recipe, str(wanted))


def _shipped() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("bpals.judges").joinpath("checkpoints.toml").read_text(encoding="utf-8"))


def _by_words(known: Sequence[Mapping[str, Any]], words: set[str]) -> str:
    """Recognise published weights by the words in their file's name: all of a set, and none of another's."""
    every = {word for each in known for some in each["words"] for word in some}
    named = words & every
    return next((str(each["name"]) for each in known if any(named == set(some) for some in each["words"])), "")


def _trained(labels: Sequence[str], untrained: Sequence[str]) -> list[str]:
    return ["" if label in untrained else label for label in labels]


def _tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


def _own(path: Path) -> dict[str, Any]:
    """Read a recipe of the user's own."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--recipe {path} cannot be read: {error.strerror}. Check the path") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--recipe {path} is no TOML: {error}. Mend that line") from None
    for key, value in facts.items():
        if key not in KEYS:
            raise UnknownName.of("key of a recipe", key, KEYS, where=str(path))
        if not isinstance(value, TYPES[key]) or isinstance(value, bool):
            raise UsageError(f"--recipe {path}: {key} = {value!r} cannot be. Compare it with docs/checkpoints.md")
    if facts.get("trained_on_target", "unknown") != "unknown" and not facts.get("evidence"):
        raise JudgeError(f'{path}: trained_on_target is said, and not how you know. Add: evidence = "..."')
    return facts


TYPES: Mapping[str, type] = {
    **dict.fromkeys(KEYS, str),
    **dict.fromkeys(("labels", "mean", "std"), list),
    **dict.fromkeys(("channels", "resize_px", "side_px"), int),
}


def _checked(recipe: Recipe, where: str) -> Recipe:
    """Refuse a recipe by which no network can be asked."""
    place = f"--recipe {where}" if where else recipe.name
    for kind, name, known in (
        ("framing", recipe.framing, FRAMINGS),
        ("output", recipe.output, OUTPUTS),
        ("trained_on_target", recipe.trained_on_target, get_args(Trained)),
    ):
        if name not in known:
            raise UnknownName.of(kind, name, known, where=place)
    if not recipe.labels:
        raise UsageError(f"{place}: what its outputs mean is not said. Type --recipe FILE.toml with labels = [...]")
    if not all(isinstance(label, str) for label in recipe.labels):
        raise UsageError(f"{place}: labels are texts, in the order of the outputs; an untrained one is empty")
    numbers = (*recipe.mean, *recipe.std)
    if not all(isinstance(number, int | float) for number in numbers) or 0 in recipe.std:
        raise UsageError(f"{place}: mean and std are numbers a channel, and no std is 0")
    if recipe.channels not in {1, 3} or {len(recipe.mean), len(recipe.std)} != {recipe.channels}:
        raise UsageError(f"{place}: {recipe.channels} channels need as many mean and std: 1 or 3 of each")
    least = recipe.side_px if recipe.framing == "resize, crop" else 0
    if recipe.side_px not in SIDES or recipe.resize_px < least:
        raise UsageError(f"{place}: side_px is {SIDES[0]} to {SIDES[-1]}, and resize_px is not less")
    return recipe
