"""Model cards: what is known of each model, its licence and its training; and which model is the default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bpals.registry import ASKING, option
from bpals.types import Trained

# By name only: a licence that is merely similar to one of these is `unknown`, never `yes`.
ALLOW = ("0bsd", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc-by-4.0", "cc0-1.0", "isc", "mit", "unlicense")
FORBID = ("-nc", "noncommercial", "non-commercial", "research-only", "research only")


def commercial_use(licence: str) -> Trained:
    """Return `yes` for licences that are known to allow it, `no` for those that forbid it by name, else `unknown`."""
    name = licence.strip().lower()
    if any(word in name for word in FORBID):
        return "no"
    return "yes" if name in ALLOW else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model of models.toml."""

    model: str
    licence: str
    source: str
    """Where the rest was read."""
    revision: str = ""
    """The commit of the weights on Hugging Face; empty where none was seen in a source."""
    commercial_use: Trained = "unknown"
    trained_on_target: Trained = "unknown"
    evidence: str = ""
    default: bool = False
    serve: str = ""
    """The command that serves it."""
    why: str = ""
    """Why it is the default."""


def known_models() -> Mapping[str, KnownModel]:
    """Read the models that are known, by name."""
    text = resources.files("bpals.judges").joinpath("models.toml").read_text(encoding="utf-8")
    return {name: KnownModel(model=name, **facts) for name, facts in tomllib.loads(text).items()}


def default_model() -> KnownModel:
    """Name the model that is used if you name none."""
    return next(known for known in known_models().values() if known.default)


def stated(
    model: str, given: tuple[str, Trained | None, str], *, otherwise: str = "unknown", by: str = ""
) -> dict[str, Any]:
    """Give what a card says of licence and training: what the user states wins over what is known of the model.

    The user states licence, training on the target and evidence, or none of them. `otherwise` is the licence of a
    model that is not known; `by` is the evidence where the user states only the fact.
    """
    licence, trained_on_target, evidence = given
    known = known_models().get(model)
    licence = licence or (known.licence if known else otherwise)
    return {
        "licence": licence,
        "commercial_use": known.commercial_use if known and licence == known.licence else commercial_use(licence),
        "trained_on_target": trained_on_target or (known.trained_on_target if known else "unknown"),
        "evidence": evidence or (by if trained_on_target else known.evidence if known else ""),
    }


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """What a user knows about a model that its name does not say."""

    licence: str = option("", "Of the weights, for the card.", panel=ASKING)
    """Its licence, where the model does not say it."""
    trained_on_target: Trained | None = option(
        None, "Was it trained on these labels?", metavar="yes|no|unknown", reads=str, panel=ASKING
    )
    """Whether it was trained on the labels it judges; None leaves it to what is known of the model."""
    evidence: str = ""
    """How you know; default: that whoever ran it says so."""
