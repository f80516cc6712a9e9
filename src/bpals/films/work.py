"""What is done with the bytes of a film: in this process, or in a worker that is told of it in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeVar

from bpals.types import Refusal


class Made(Protocol):
    """What became of a film."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes: which film this is."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the film was: keys of `prepare.NOTES`."""
        ...


M = TypeVar("M", bound=Made)


class Work(Protocol[M]):
    """A way to treat films; it is made anew in each worker, out of `as_dict`."""

    def as_dict(self) -> dict[str, Any]:
        """Write it out as JSON can: what the class is to be called with."""
        ...

    def begin(self) -> Callable[[bytes], M | Refusal]:
        """Get ready, and give what turns the bytes of one film into what is wanted, or into why not."""
        ...

    def pack(self, made: M) -> tuple[dict[str, Any], bytes]:
        """Take apart what was made: words, and bytes."""
        ...

    def unpack(self, about: Mapping[str, Any], body: bytes) -> M:
        """Put together what `pack` took apart; what no sound worker sends raises ValueError, TypeError or KeyError."""
        ...


def named(maker: type[Any]) -> str:
    """Name a class, as `module:name`."""
    return f"{maker.__module__}:{maker.__qualname__}"


def called(name: str) -> Any:
    """Give what `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
