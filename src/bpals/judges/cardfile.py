"""The card of scores computed elsewhere: a small TOML, because the scores do not say who made them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bpals.errors import JudgeError, UnknownName

FIELDS = {
    "name": "what it is called in the workspace",
    "model": "the model, as its makers call it",
    "revision": "the commit of its weights",
    "licence": "of the weights, as SPDX names it: Apache-2.0",
    "trained_on_target": "yes, no or unknown: was it trained on the labels it judges?",
    "held_out": "yes or no: were the patients it judges kept out of that training?",
    "evidence": "how you know",
}
"""What a card may say, and what each field means."""


def beside(path: Path) -> Path:
    """Say where the card of a file is looked for."""
    return path.with_name(f"{path.name}.card.toml")


def template(name: str) -> str:
    """Write an empty card to fill in."""
    filled = {"name": name, "trained_on_target": "unknown"}
    return "".join(f'{field} = "{filled.get(field, "")}"  # {what}\n' for field, what in FIELDS.items())


def read(path: Path, name: str) -> dict[str, str]:
    """Read the card; what stands under `[name]` is of that judge alone, the rest of all in the file."""
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JudgeError(f"{path} does not exist. Check the path after --card") from None
    except OSError as error:
        raise JudgeError(f"{path} cannot be read: {error.strerror}. Check the path after --card") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JudgeError(f"{path} is no TOML: {error}. Mend that line") from None
    shared = {key: value for key, value in whole.items() if not isinstance(value, dict)}
    own = whole.get(name, {})
    card = {key: _text(path, key, value) for key, value in {**shared, **(own if isinstance(own, dict) else {})}.items()}
    _check(path, card)
    return card


def _text(path: Path, key: str, value: Any) -> str:
    if key not in FIELDS:
        raise UnknownName.of("field of a card", key, FIELDS, where=str(path))
    if not isinstance(value, str):
        raise JudgeError(f"{path}: {key} = {value!r} is no text. Put it in quotes")
    return value.strip()


def _check(path: Path, card: Mapping[str, str]) -> None:
    trained = card.get("trained_on_target", "unknown")
    if trained not in {"yes", "no", "unknown"}:
        raise UnknownName.of("trained_on_target", trained, ("yes", "no", "unknown"), where=str(path))
    if card.get("held_out", "") not in {"yes", "no", ""}:
        raise UnknownName.of("held_out", card["held_out"], ("yes", "no"), where=str(path))
    if trained != "unknown" and not card.get("evidence"):
        raise JudgeError(
            f'{path}: trained_on_target is {trained}, and nothing says how you know. Add: evidence = "..."'
        )
