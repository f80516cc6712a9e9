"""The mapping: which column of a table means what, and which value says what.

A mapping is a small TOML file; docs/sources.md has the reference of its keys. Every mistake in it is a one-line
SourceError that names the file and the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import polars as pl

from bpals.errors import SourceError, UnknownName
from bpals.findings import Vocabulary, fold
from bpals.store import tables
from bpals.store.files import sha256
from bpals.store.tables import MOST_BYTES, TableFile, TableWords

Scalar = str | int | float | bool

SHIPPED = ("chexpert", "padchest", "vindr", "nih")
ROLES = ("image", "patient", "study", "order", "date", "view", "age", "birth", "sex", "width", "height")
STATES = ("present", "absent", "uncertain", "silent")
UNNAMED = ("absent", "silent")  # what a finding may be that an image does not name
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "columns": ("no_finding", "unaudited"),
    "list": ("column", "delimiter", "brackets", "unlisted", "blank", "no_finding", "silent_if", "others"),
    "long": ("finding", "reader", "value", "readers", "unlisted", "blank", "no_finding", "silent_if", "others"),
}  # the layouts of labels, each with the keys that only some layouts have
WORDS = TableWords(
    error=SourceError, too_large="{name} holds more than {most:,} bytes. Keep only the columns that the mapping names"
)


class Pattern(NamedTuple):
    """A regular expression whose named groups are image columns hidden in one column."""

    column: str
    regex: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How the labels of a table are written."""

    layout: str
    audited: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]  # finding -> other spellings; one spelling may stand for two findings
    values: Mapping[str, str]  # normalised value of a cell -> present, absent, uncertain or silent
    no_finding: tuple[str, ...]
    unaudited: tuple[str, ...] = ()
    column: str = ""
    delimiter: str = ""  # empty for a bracketed list
    finding: str = ""
    reader: str = ""
    value: str = ""
    readers: str = "majority"
    unlisted: str = "silent"
    blank: str = "silent"
    silent_if: tuple[str, ...] = ()
    others: str = "count"

    def spellings_of(self, finding: str) -> tuple[str, ...]:
        """Every spelling of a finding in the file, its own name first."""
        return (finding, *self.aliases.get(finding, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """A mapping that has been read and checked."""

    name: str
    title: str
    attribution: str
    separator: str
    date_format: str | None
    films: Mapping[str, tuple[str, ...]]  # role -> columns; the first of them that is not blank counts
    pattern: Pattern | None
    labels: Labels
    origin: str  # the file it was read from, as the user named it
    sha256: str
    shipped: bool

    @property
    def vocabulary(self) -> Vocabulary:
        """The findings that are audited, with the spellings that mean exactly one of them."""
        owners: dict[str, set[str]] = {}
        for finding in self.labels.audited:
            for spelling in self.labels.spellings_of(finding):
                owners.setdefault(fold(spelling), set()).add(finding)
        own = {fold(finding) for finding in self.labels.audited}
        aliases = {word: min(of) for word, of in owners.items() if len(of) == 1 and word not in own}
        return Vocabulary(name=self.name, findings=self.labels.audited, aliases=aliases)

    @property
    def roles(self) -> tuple[str, ...]:
        """What the table says of an image."""
        hidden = self.pattern.groups if self.pattern else ()
        return tuple(role for role in ROLES if role in self.films or role in hidden)

    @property
    def mend(self) -> str:
        """What to do when a table does not fit."""
        if self.shipped:
            return f"Is it {self.title}? For another table write a mapping and name it with --mapping FILE.toml"
        return f"Mend the table or {self.origin}"


def open_table(path: str | Path, *, separator: str = ",", most_bytes: int = MOST_BYTES) -> TableFile:
    """Read a file and its header; the mapping says how it is separated."""
    return tables.open_table(path, words=WORDS, separator=separator, most_bytes=most_bytes)


def load_mapping(mapping: str | Path) -> ColumnMap:
    """Read a mapping: a TOML file, or the name of one that is shipped."""
    if str(mapping) in SHIPPED:
        file = resources.files("bpals.sources").joinpath("mappings", f"{mapping}.toml")
        return parse_mapping(file.read_bytes(), origin=file.name, shipped=True)
    if not str(mapping).endswith(".toml") and not Path(mapping).exists():
        raise UnknownName.of("mapping", str(mapping), [*SHIPPED, "FILE.toml"])
    return parse_mapping(tables.read_bytes(mapping, words=WORDS), origin=str(mapping))


def parse_mapping(content: bytes, *, origin: str, shipped: bool = False) -> ColumnMap:
    """Read and check the text of a mapping."""
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise SourceError(f"{origin} is not UTF-8, so it is no TOML. Save it as UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{origin} is not TOML: {reason}. Mend that place; docs/sources.md has an example") from None
    known = ("name", "title", "attribution", "separator", "date_format")
    top = Section(origin, "", document, known=(*known, "columns", "pattern", "labels", "values", "aliases"))
    columns = top.section("columns", known=ROLES)
    films = {role: columns.words(role) for role in ROLES if role in columns}
    pattern = _parse_pattern(top, films)
    _check_roles(columns, {*films, *(pattern.groups if pattern else ())})
    name = top.text("name", Path(origin).stem)
    separator = top.text("separator", ",")
    if len(separator.encode()) != 1 or separator in '"\r\n':
        raise top.wrong("separator", f"is {separator!r}; one ASCII character is wanted, such as ',' or '\\t'")
    return ColumnMap(
        name=name,
        title=top.text("title", name),
        attribution=top.text("attribution", f"{origin} names no source."),
        separator=separator,
        date_format=_parse_date_format(top),
        films=films,
        pattern=pattern,
        labels=_parse_labels(top),
        origin=origin,
        sha256=sha256(content),
        shipped=shipped,
    )


def _parse_date_format(top: Section) -> str | None:
    if "date_format" not in top:
        return None
    given = top.text("date_format")
    day = date(2009, 12, 31)
    try:
        read = pl.Series([day.strftime(given)]).str.to_date(given, strict=False)[0]
    except pl.exceptions.PolarsError:
        read = None
    if read != day:
        raise top.wrong("date_format", f"is {given!r}, which reads no date; write it as in '%d.%m.%Y'")
    return given


def _parse_pattern(top: Section, films: Mapping[str, tuple[str, ...]]) -> Pattern | None:
    if "pattern" not in top:
        return None
    section = top.section("pattern", known=("column", "regex"))
    regex = section.text("regex")
    try:
        named = pl.Series([""]).str.extract_groups(regex).struct.fields
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise section.wrong("regex", f"is no regular expression: {reason}") from None
    groups = tuple(group for group in named if not group.isdigit())
    if not groups:
        raise section.wrong("regex", f"has no named group; write one as (?P<patient>...), of {', '.join(ROLES)}")
    for group in groups:
        if group not in ROLES:
            raise section.unknown("regex", "film column", group, ROLES)
        if group in films:
            raise section.wrong("regex", f"has a group {group!r}, which [columns] names too; keep one of them")
    return Pattern(column=section.text("column"), regex=regex, groups=groups)


def _check_roles(section: Section, roles: set[str]) -> None:
    if "image" not in roles:
        raise section.wrong("image", "is missing; name the column with the image's id or file name")
    for one, other in (("order", "date"), ("age", "birth")):
        if {one, other} <= roles:
            raise section.wrong(other, f"stands beside {one!r}; keep one of them")
    if "birth" in roles and "date" not in roles:
        raise section.wrong("birth", "needs 'date' to make an age of it")


def _parse_labels(top: Section) -> Labels:
    everywhere = ("layout", "audited")
    keys = {key for extra in LAYOUTS.values() for key in extra}
    section = top.section("labels", known=(*everywhere, *sorted(keys)))
    layout = section.choice("layout", tuple(LAYOUTS))
    section = top.section("labels", known=(*everywhere, *LAYOUTS[layout]), kind=f"key with layout = {layout!r}")
    audited = _parse_audited(section)
    aliases = top.section("aliases", known=audited, kind="audited finding")
    labels = Labels(
        layout=layout,
        audited=audited,
        aliases={finding: aliases.words(finding) for finding in audited if finding in aliases},
        values=_parse_values(top, needed=layout == "columns" or "value" in section),
        no_finding=section.words("no_finding", ()),
        unaudited=section.words("unaudited", ()),
        column=section.text("column") if layout == "list" else "",
        delimiter=_parse_delimiter(section) if layout == "list" else "",
        finding=section.text("finding") if layout == "long" else "",
        reader=section.text("reader", ""),
        value=section.text("value", ""),
        readers=section.choice("readers", ("majority", "any", "all"), "majority"),
        unlisted=section.choice("unlisted", UNNAMED) if layout != "columns" else "silent",
        blank=section.choice("blank", UNNAMED, "silent"),
        silent_if=section.words("silent_if", ()),
        others=section.choice("others", ("count", "refuse"), "count"),
    )
    _check_words(section, labels)
    return labels


def _parse_audited(section: Section) -> tuple[str, ...]:
    words = section.words("audited")
    parts = [part.strip() for part in re.split("[,;|]", words[0]) if part.strip()] if section.is_text("audited") else []
    if len(parts) > 1:
        listed = ", ".join(f'"{part}"' for part in parts)
        raise section.wrong("audited", f"is one text, {words[0]!r}; write several findings as a list: [{listed}]")
    if not words:
        raise section.wrong("audited", "is empty; name at least one finding")
    folded = [fold(word) for word in words]
    for place, word in enumerate(folded):
        if not word or word in folded[:place]:
            raise section.wrong("audited", f"has {words[place]!r} twice or blank; name each finding once")
    return words


def _parse_delimiter(section: Section) -> str:
    brackets, delimiter = section.flag("brackets"), section.text("delimiter", "")
    if brackets == bool(delimiter):
        raise section.wrong("delimiter", "or brackets = true: exactly one of the two says how the list is written")
    return delimiter


def _parse_values(top: Section, *, needed: bool) -> dict[str, str]:
    if not needed:
        if "values" in top:
            raise top.wrong("values", "has nothing to speak of: in this layout a finding that is named is present")
        return {}
    section = top.section("values", known=STATES)
    states: dict[str, str] = {}
    for state in STATES:
        required = state in ("present", "absent")
        for word in section.scalars(state, None if required else ()):
            # Cells are compared without case and blanks, and `1`, `1.0` and 1 are one value.
            value = re.sub(r"^(-?\d+)\.0+$", r"\1", str(word).strip().lower())
            if value in states:
                raise section.wrong(state, f"has the value {word!r}, which {states[value]!r} has too; keep one of them")
            states[value] = state
    return {"": "silent"} | states


def _check_words(section: Section, labels: Labels) -> None:
    """Refuse a word with two meanings; `no finding` cannot be a finding."""
    taken = {fold(word): "audited" for finding in labels.audited for word in labels.spellings_of(finding)}
    for key in ("no_finding", "silent_if", "unaudited"):
        for word in getattr(labels, key):
            if fold(word) in taken:
                raise section.wrong(key, f"has {word!r}, which {taken[fold(word)]!r} has too; keep one of them")
            taken[fold(word)] = key


class Section:
    """A TOML table with a closed list of keys."""

    def __init__(self, origin: str, name: str, content: object, *, known: Iterable[str], kind: str = "key") -> None:
        """Refuse an unknown key before anything else is read, so that a typing error is named as one."""
        self._origin = origin
        self._name = name
        if not isinstance(content, dict):
            raise SourceError(f"{origin}: [{name}] is not a table of keys. Write it as [{name}] on a line of its own")
        self._content: dict[str, object] = content
        keys = tuple(known)
        for key in content:
            if key not in keys:
                where = f"{origin}: [{name}]" if name else origin
                raise SourceError(str(UnknownName.of(kind, key, keys, where=where)))

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def section(self, name: str, *, known: Iterable[str], kind: str = "key") -> Section:
        """Open a table below this one; a missing one is empty."""
        return Section(self._origin, name, self._content.get(name, {}), known=known, kind=kind)

    def is_text(self, key: str) -> bool:
        """Whether a key holds one text, not a list."""
        return isinstance(self._content.get(key), str)

    def text(self, key: str, default: str | None = None) -> str:
        """Read a text that is not blank; without a default it must be there."""
        if key not in self and default is not None:
            return default
        value = self._get(key)
        if not isinstance(value, str) or value == "":
            raise self.wrong(key, f"is {value!r}; a text is wanted")
        return value

    def words(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Read a text or a list of texts."""
        words = []
        for word in self.scalars(key, default):
            if not isinstance(word, str) or not word.strip():
                raise self.wrong(key, f"has {word!r}; a text or a list of texts is wanted")
            words.append(word.strip())
        return tuple(words)

    def scalars(self, key: str, default: tuple[Scalar, ...] | None = None) -> tuple[Scalar, ...]:
        """Read a value or a list of values."""
        if key not in self and default is not None:
            return default
        value = self._get(key)
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

    def _get(self, key: str) -> object:
        if key not in self:
            raise self.wrong(key, "is missing")
        return self._content[key]

    def _path(self, key: str) -> str:
        return f"[{self._name}] {key}" if self._name else key
