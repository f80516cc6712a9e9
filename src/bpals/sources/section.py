"""One table of a TOML file, read key by key; every mistake names the file and the key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from bpals.errors import SourceError, UnknownName

Scalar = str | int | float | bool
T = TypeVar("T")


def normalise(value: Scalar) -> str:
    """Write a value as cells are compared: case and blanks do not matter, `1`, `1.0` and 1 are one value."""
    text = str(value).strip().lower()
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


class Section:
    """A TOML table with a closed list of keys."""

    def __init__(
        self, origin: str, name: str, content: object, *, known: Iterable[str], kind: str = "key", when: str = ""
    ) -> None:
        """Refuse a key that nobody knows before anything else is read, so that a typing error is named as one."""
        self._origin = origin
        self._name = name
        if not isinstance(content, dict):
            raise SourceError(f"{origin}: [{name}] is not a table of keys. Write it as [{name}] on a line of its own")
        self._content: dict[str, object] = content
        keys = tuple(known)
        for key in content:
            if key not in keys:
                raise self._unknown(f"{kind} with {when}" if when else kind, key, keys)

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def section(self, name: str, *, known: Iterable[str], kind: str = "key", when: str = "") -> Section:
        """Open a table below this one; a missing one is empty."""
        return Section(self._origin, name, self._content.get(name, {}), known=known, kind=kind, when=when)

    def text(self, key: str, default: str | None = None) -> str:
        """Read a text that is not blank; without a default it must be there."""
        if key not in self._content:
            return self._default(key, default)
        value = self._content[key]
        if not isinstance(value, str) or value == "":
            raise self.wrong(key, f"is {value!r}; a text is wanted")
        return value

    def words(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Read a text or a list of texts."""
        words = self.scalars(key, default)
        for word in words:
            if not isinstance(word, str) or not word.strip():
                raise self.wrong(key, f"has {word!r}; a text or a list of texts is wanted")
        return tuple(str(word).strip() for word in words)

    def scalars(self, key: str, default: tuple[Scalar, ...] | None = None) -> tuple[Scalar, ...]:
        """Read a value or a list of values."""
        if key not in self._content:
            return self._default(key, default)
        value = self._content[key]
        values = value if isinstance(value, list) else [value]
        for item in values:
            if not isinstance(item, str | int | float):
                raise self.wrong(key, f"has {item!r}; texts, numbers, true or false are wanted")
        return tuple(values)

    def choice(self, key: str, options: tuple[str, ...], default: str | None = None) -> str:
        """Read a word that must be one of these."""
        word = self.text(key, default)
        if word not in options:
            raise self.unknown(key, "choice", word, options)
        return word

    def flag(self, key: str) -> bool:
        """Read true or false; false where it is not there."""
        value = self._content.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {value!r}; true or false is wanted")
        return value

    def wrong(self, key: str, what: str) -> SourceError:
        """Say what is wrong with a key."""
        return SourceError(f"{self._origin}: {self._path(key)} {what}. docs/sources.md has every key")

    def unknown(self, key: str, kind: str, word: str, known: Iterable[str]) -> SourceError:
        """Say that a key has a word nobody knows, and what was meant."""
        return SourceError(str(UnknownName.of(kind, word, known, where=f"{self._origin}: {self._path(key)}")))

    def _unknown(self, kind: str, key: str, known: tuple[str, ...]) -> SourceError:
        where = f"{self._origin}: [{self._name}]" if self._name else self._origin
        return SourceError(str(UnknownName.of(kind, key, known, where=where)))

    def _default(self, key: str, default: T | None) -> T:
        if default is None:
            raise self.wrong(key, "is missing")
        return default

    def _path(self, key: str) -> str:
        return f"[{self._name}] {key}" if self._name else key
