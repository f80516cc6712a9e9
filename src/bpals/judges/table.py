"""`table:FILE[@NAME]`: scores computed elsewhere as an image judge, and the card that says who made them.

A file is wide, with one row per image and one column per finding, or long: `image_id, finding, p_present[, outcome,
judge]`. Images are matched by stem. A value that cannot be a score stops with its place; a missing one is counted.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import polars as pl

from bpals.errors import JudgeError, UnknownName
from bpals.findings import Vocabulary, fold
from bpals.judges.cards import commercial_use
from bpals.judges.function import EDGE
from bpals.registry import ASKING, JudgeKind, option
from bpals.store.tables import TableWords, open_table
from bpals.text import several
from bpals.types import OUTCOME, JudgeCard, Notice, Trained, answers_schema

# What a card may say, and what each field means.
FIELDS = {
    "name": "what it is called in the workspace",
    "model": "the model, as its makers call it",
    "revision": "the commit of its weights",
    "licence": "of the weights, as SPDX names it: Apache-2.0",
    "trained_on_target": "yes, no or unknown: was it trained on the labels it judges?",
    "held_out": "yes or no: were the patients it judges kept out of that training?",
    "evidence": "how you know",
}
VERSION = "1"
# What the column that names the images is called ...
KEYS = ("image_id", "Image Index")
# ... or what it may be called: taken if there is one such column, with a notice.
LIKELY_KEYS = ("image", "image name", "file name", "filename", "file", "path", "film")
JUDGES = ("judge", "model")
# The column of the row's place in the file; no header can have this name.
ROW = "\0row"
# Endings that a stem is without; an id with other dots, such as a DICOM UID, keeps them.
SUFFIX = r"(?i)\.(png|jpe?g|dcm|dicom|tiff?|bmp|webp|gif|npy)$"

PAIR = ["image_id", "finding"]

UNPACKED = "{name} is cut off or damaged: gzip cannot unpack it. Get it again"
UNEVEN = (
    "{name} line {line} has {fields} where the header has {width}. "
    "Mend that line, or get the file again: it may be cut off"
)
HALF = "{name} is no whole Parquet file. Get it again"

WORDS = TableWords(
    error=JudgeError,
    where=" after table:",
    folder="{name} cannot be read: Is a directory. Check the path after table:",
    gzip_cut=UNPACKED,
    gzip_damaged=UNPACKED,
    not_utf8="{name} line {line} is no UTF-8 text. Give a CSV or Parquet table",
    empty="{name} is empty. Write the scores again, or name another file",
    no_rows="{name} has columns but no row. Give a table with a row a film",
    cut_row=UNEVEN,
    uneven_row=UNEVEN,
    open_quote="{name} line {line}: unexpected end of data in a quote. Close it, or get the file again",
    doubled="{name}: the column {column!r} stands there twice. Rename or remove one of them",
    parquet_cut=HALF,
    parquet_damaged=HALF,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of one judge for the images of a dataset."""

    table: pl.DataFrame
    """In `answers_schema`: one row per finding for every image that is in both."""
    card: JudgeCard
    notices: tuple[Notice, ...]


class _Read(NamedTuple):
    """The scores of a file, one row per image and finding, and the columns that they come from."""

    scored: pl.DataFrame
    key: str
    scores: Sequence[str]
    notices: list[Notice]


def read_table(
    path: str | Path,
    name: str,
    vocabulary: Vocabulary,
    image_ids: Sequence[str] | pl.Series,
    *,
    card: str | Path | None = None,
) -> Scores:
    """Read the scores of one judge; `name` picks it where a column `judge` or `model` names several."""
    file = read_scores(Path(path))
    rows = _pick(file, name)
    column = file.column(*JUDGES)
    judge = name or ("" if column is None else str(file.frame[column][0])) or Path(path).name.partition(".")[0]
    read = _long(file, rows, vocabulary) if file.column("finding") else _wide(file, rows, vocabulary)
    _check_numbers(file, read.scored)
    films = pl.Series("image_id", image_ids, dtype=pl.String)
    matched, unknown = _match(file, read.scored, films)
    taken = f"the column {read.key!r} is taken as image_id, and as scores {', '.join(read.scores)}"
    guessed = _notice("guessed_columns", int(file.column(*KEYS) is None), f"{file.path.name}: {taken}")
    fields, no_card = _card(Path(path), judge, card)
    called = fields.get("name") or judge
    whole = _complete(matched, films, vocabulary, judge=called)
    return Scores(
        table=whole,
        card=_judge_card(file, fields, called, picked=name),
        notices=(*guessed, *read.notices, *unknown, *_count_missing(matched, whole, films), *no_card),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFile:
    """One file of scores."""

    path: Path
    frame: pl.DataFrame
    """Its columns as they are, text from CSV and numbers from Parquet."""
    place: Callable[[int], str]
    """Names a row as a person finds it: `my.csv line 17`."""
    sha256: str

    def column(self, *spellings: str) -> str | None:
        """Find the first column that is spelled one of these ways; blanks, case, `_` and `-` do not matter."""
        return next(iter(self.columns(*spellings)), None)

    def columns(self, *spellings: str) -> list[str]:
        """Find every column that is spelled one of these ways, in the order of the spellings."""
        folded = {fold(name): name for name in self.frame.columns}
        return [folded[fold(spelling)] for spelling in spellings if fold(spelling) in folded]


def read_scores(path: Path) -> ScoreFile:
    """Read a file whole; a bad one is refused in one line."""
    file = open_table(path, words=WORDS)
    raw = file.whole(typed=True)
    return ScoreFile(path=path, frame=raw.frame, place=raw.place, sha256=file.sha256)


def _pick(file: ScoreFile, name: str) -> pl.DataFrame:
    """Keep the rows of one judge; it must be named where there are several."""
    rows = file.frame.with_row_index(ROW)
    column = file.column(*JUDGES)
    if column is None:
        if name:
            raise JudgeError(f"{file.path} has no column judge or model, so no @{name}. Type: table:{file.path}")
        return rows
    names = file.frame[column].cast(pl.String)
    if (row := _first(names.fill_null("") == "")) is not None:
        raise JudgeError(f"{file.place(row)}: the column {column} is empty. Name the judge of every row")
    known = names.unique(maintain_order=True).to_list()
    if name and name not in known:
        raise UnknownName.of("judge", name, known, where=str(file.path))
    if not name and len(known) > 1:
        typed = f"table:{file.path}@{known[0]}"
        raise JudgeError(f"{file.path} has {len(known)} judges: {', '.join(known)}. Name one: {typed}")
    return rows.filter(names == (name or known[0]))


def _wide(file: ScoreFile, rows: pl.DataFrame, vocabulary: Vocabulary) -> _Read:
    """Turn one column per finding into one row per finding; a cell without a number is an abstention."""
    spellings = vocabulary.spellings
    key = _key(file, [name for name in file.frame.columns if fold(name) not in spellings])
    found: dict[str, str] = {}
    for column in file.frame.columns:
        finding = spellings.get(fold(column))
        if finding in found:
            raise JudgeError(f"{file.path}: {found[finding]!r} and {column!r} are both {finding}. Remove one of them")
        if finding and column != key:
            found[finding] = column
    if not found:
        raise JudgeError(
            f"{file.path} has no column that is a finding of {vocabulary.name}, only {', '.join(file.frame.columns)}. "
            f"Name the columns as the dataset does: {', '.join(vocabulary.findings)}"
        )
    numbers = [_number(file, rows, column).alias(finding) for finding, column in found.items()]
    names = rows.select(ROW, pl.col(key).cast(pl.String).alias("key"))
    long = names.hstack(numbers).unpivot(index=[ROW, "key"], variable_name="finding", value_name="p")
    outcome = pl.when(pl.col("p").is_null()).then(pl.lit("abstained")).otherwise(pl.lit("answered"))
    left = [name for name in file.frame.columns if name not in {key, file.column(*JUDGES), *found.values()}]
    columns = several(len(left), f"column of {file.path.name} that is", f"columns of {file.path.name} that are")
    message = f"{columns} no finding of the dataset, not read: {', '.join(left)}"
    scored = long.with_columns(outcome=outcome.cast(OUTCOME))
    return _Read(scored, key, list(found.values()), _notice("unknown_columns", len(left), message))


def _long(file: ScoreFile, rows: pl.DataFrame, vocabulary: Vocabulary) -> _Read:
    """Read one row per pair; rows about anything that is not audited are counted and left out."""
    score, about = file.column("p_present", "p", "score", "probability"), file.column("finding")
    if score is None or about is None:
        raise JudgeError(f"{file.path} has a column finding and none called p_present. Rename the scores to p_present")
    kind = file.column("kind")
    if kind is not None and (row := _first(rows[kind].cast(pl.String) != "image")) is not None:
        raise JudgeError(
            f"{file.place(rows[ROW][row])}: a {rows[kind][row]} judge is no image judge. Leave its rows out"
        )
    key = _key(file, [name for name in file.frame.columns if name not in {score, about}])
    folded = {word: vocabulary.spellings.get(fold(word)) for word in rows[about].cast(pl.String).unique() if word}
    finding = rows[about].cast(pl.String).replace_strict(folded, default=None, return_dtype=pl.String)
    if finding.null_count() == finding.len():
        first = rows[about][0]
        raise UnknownName.of("finding", str(first), vocabulary.findings, where=file.place(rows[ROW][0]))
    p = _number(file, rows, score)
    long = rows.select(ROW, pl.col(key).cast(pl.String).alias("key")).with_columns(
        finding=finding, p=p, outcome=_outcome(file, rows, p)
    )
    unknown = ", ".join(sorted(word for word, known in folded.items() if known is None)) or "no finding named"
    lost = finding.null_count()
    message = f"{several(lost, 'row')} of {file.path.name} about what is not audited, left out: {unknown}"
    scored = long.filter(finding.is_not_null())
    return _Read(scored, key, [score], _notice("unknown_findings", lost, message))


def _key(file: ScoreFile, columns: Sequence[str]) -> str:
    """Find the column that names the images: a usual name, else the first column."""
    key = file.column(*KEYS)
    likely = file.columns(*LIKELY_KEYS)
    if key is None and len(likely) > 1:
        raise JudgeError(
            f"{file.path} has {len(likely)} columns that may name the films: {', '.join(likely)}. "
            "Call the one that does image_id"
        )
    if key is None and likely:
        key = likely[0]
    if key is None and columns and columns[0] == file.frame.columns[0] and columns[0] != file.column(*JUDGES):
        key = columns[0]
    if key is None:
        raise JudgeError(f"{file.path} has no column that names the films. Call it image_id")
    if (row := _first(file.frame[key].cast(pl.String).fill_null("") == "")) is not None:
        raise JudgeError(f"{file.place(row)}: {key} is empty. Name the film of every row")
    return key


def _notice(code: str, count: int, message: str) -> list[Notice]:
    return [Notice(code=code, count=count, message=message)] if count else []


def _first(bad: pl.Series) -> int | None:
    """Give the first row that is marked, if there is one."""
    return bad.arg_max() if bad.any() else None


def _number(file: ScoreFile, rows: pl.DataFrame, column: str) -> pl.Series:
    """Read a column as numbers; an empty cell is null, and what is no number stops."""
    values = rows[column]
    if values.dtype == pl.String:
        values = values.replace("", None)
    elif not values.dtype.is_numeric() and values.dtype != pl.Null:
        raise JudgeError(f"{file.path}: the column {column} is {values.dtype}. Give probabilities from 0 to 1")
    numbers = values.cast(pl.Float64, strict=False)
    if (row := _first(values.is_not_null() & numbers.is_null())) is not None:
        raise JudgeError(
            f"{file.place(rows[ROW][row])}, column {column}: {values[row]!r} is no number. "
            "Give a probability, or leave the cell empty where there is none"
        )
    return numbers


def _outcome(file: ScoreFile, rows: pl.DataFrame, p: pl.Series) -> pl.Series:
    """Read the outcomes; a number where it is not `answered`, or none where it is, stops."""
    column = file.column("outcome")
    if column is None:
        return p.is_null().replace_strict({True: "abstained", False: "answered"}, return_dtype=OUTCOME).alias("outcome")
    words = rows[column].cast(pl.String).str.to_lowercase()
    if (row := _first(~words.is_in(OUTCOME.categories).fill_null(value=False))) is not None:
        raise UnknownName.of("outcome", str(words[row]), OUTCOME.categories, where=file.place(rows[ROW][row]))
    if (row := _first((words == "answered") != p.is_not_null())) is not None:
        raise JudgeError(
            f"{file.place(rows[ROW][row])}: the outcome is {words[row]} and p_present is {p[row]}. "
            "A probability stands there exactly if the outcome is answered"
        )
    return words.cast(OUTCOME).alias("outcome")


def _check_numbers(file: ScoreFile, scored: pl.DataFrame) -> None:
    """Refuse a number that is no probability; the first one is named."""
    p = scored["p"]
    row = _first(p.is_nan() | (p < 0) | (p > 1))
    if row is None:
        return
    where = f"{file.place(scored[ROW][row])}, {scored['finding'][row]}"
    if math.isnan(p[row]):
        raise JudgeError(f"{where}: NaN is no score. Leave the cell empty where there is none")
    raise JudgeError(
        f"{where}: {p[row]} is no probability. If these are logits, write 1 / (1 + exp(-x)) in place of each x"
    )


def _match(file: ScoreFile, scored: pl.DataFrame, films: pl.Series) -> tuple[pl.DataFrame, list[Notice]]:
    """Give each row the id of its image: by the whole id, else by its stem where one image alone has it."""
    ids = pl.DataFrame({"image_id": films, "stem": _stem(films)})
    stems = ids.filter(ids["stem"].is_unique())
    keys = scored["key"].unique(maintain_order=True)
    by_id = pl.DataFrame({"key": keys}).join(ids.select("image_id", key="image_id"), on="key", how="left")
    by_stem = by_id.with_columns(stem=_stem(keys)).join(stems, on="stem", how="left", suffix="_by_stem")
    found = by_stem.select("key", image_id=pl.coalesce("image_id", "image_id_by_stem"))
    unknown = found.filter(pl.col("image_id").is_null())["key"]
    if unknown.len() == keys.len():
        raise JudgeError(
            f"{file.path}: of its {several(keys.len(), 'film')} none is in the dataset; the first is {keys[0]!r}, "
            f"the dataset's first {films[0] if films.len() else 'nothing'!r}. Check that both are of one dataset"
        )
    matched = scored.join(found.drop_nulls(), on="key", maintain_order="left")
    again = matched.filter(matched.select(PAIR).is_duplicated())
    if not again.is_empty():
        rows = again.filter(pl.struct(PAIR) == pl.struct(pl.lit(again[name][0]).alias(name) for name in PAIR))
        raise JudgeError(
            f"{file.place(rows[ROW][1])}: ({rows['image_id'][0]}, {rows['finding'][0]}) is scored a second time, "
            f"first in {file.place(rows[ROW][0])}. Keep one score a film and finding"
        )
    first = unknown.head(1).to_list()
    message = f"{several(unknown.len(), 'film')} of {file.path.name} not in the dataset, left out; first {first}"
    return matched, _notice("unknown_films", unknown.len(), message)


def _stem(names: pl.Series) -> pl.Series:
    return names.str.replace_all(r"\\", "/").str.split("/").list.last().str.replace(SUFFIX, "")


def _complete(matched: pl.DataFrame, films: pl.Series, vocabulary: Vocabulary, *, judge: str) -> pl.DataFrame:
    """Lay out every finding of every scored image, in the order of the dataset; a missing score has a reason."""
    scored = films.to_frame().with_row_index("film").filter(pl.col("image_id").is_in(matched["image_id"].implode()))
    findings = pl.DataFrame({"finding": pl.Series(vocabulary.findings, dtype=vocabulary.enum)})
    given = matched.with_columns(pl.col("finding").cast(vocabulary.enum)).select(*PAIR, "p", "outcome")
    whole = scored.join(findings, how="cross").join(given, on=PAIR, how="left").sort("film", "finding")
    inside = pl.col("p").clip(EDGE, 1 - EDGE)
    in_file = pl.col("finding").is_in(given["finding"].unique().implode())
    why = (
        pl.when(~in_file).then(pl.lit("the file has no score for this finding"))
        .when(pl.col("outcome").is_null()).then(pl.lit("the file leaves this pair out"))
        .when(pl.col("p").is_null()).then(pl.lit("the file has no number here"))
    )  # fmt: skip
    return whole.select(
        *PAIR,
        judge=pl.lit(judge),
        kind=pl.lit("image"),
        outcome=pl.col("outcome").fill_null("unsupported"),
        p_present=pl.col("p"),
        p_low=None,
        p_high=None,
        logit_present=inside.log() - (1 - inside).log(),
        logit_absent=None,
        mass=None,
        why=why,
    ).cast(answers_schema(vocabulary))


def _count_missing(matched: pl.DataFrame, whole: pl.DataFrame, films: pl.Series) -> list[Notice]:
    """Count what the file has no score for."""
    unscored = films.len() - whole["image_id"].n_unique()
    unsupported = whole.filter(whole["outcome"] == "unsupported").with_columns(pl.col("finding").cast(pl.String))
    scored = unsupported["finding"].is_in(matched["finding"].unique().implode())
    lost = unsupported.filter(scored)
    first = ", ".join(map(str, lost.select(PAIR).row(0))) if lost.height else ""
    lacking = unsupported.filter(~scored)["finding"].unique(maintain_order=True).to_list()
    empty = whole.filter(whole["outcome"] == "abstained").height
    unscored_films = f"{several(unscored, 'film')} of the dataset that the file does not score"
    unscored_pairs = f"{several(lost.height, 'pair')} that the file leaves out, unsupported; first {first}"
    unscored_findings = f"{several(len(lacking), 'finding')} that the file has no score for, unsupported"
    return [
        *_notice("unscored_films", unscored, f"{unscored_films}: the judge says nothing there"),
        *_notice("unscored_pairs", lost.height, unscored_pairs),
        *_notice("unscored_findings", len(lacking), f"{unscored_findings}: {', '.join(lacking)}"),
        *_notice("abstained_pairs", empty, f"{several(empty, 'pair')} without a number: abstained"),
    ]


def _card(path: Path, judge: str, given: str | Path | None) -> tuple[dict[str, str], list[Notice]]:
    """Read the card: the one given, else the one beside the file; without one a notice says that it is missing."""
    place = beside(path) if given is None else Path(given)
    if given is not None or place.is_file():
        return read_card(place, judge), []
    wanted = " ".join(f"{field} = ..." for field in FIELDS)
    missing = (
        f"nobody says who made these scores, so its card says unknown: write {place.name} beside them, with {wanted}"
    )
    return {}, _notice("no_card", 1, missing)


def _judge_card(file: ScoreFile, fields: dict[str, str], called: str, *, picked: str) -> JudgeCard:
    licence = fields.get("licence") or "unknown"
    trained: dict[str, Trained] = {"yes": "yes", "no": "no"}
    return JudgeCard(
        judge=called,
        kind="image",
        version=VERSION,
        model=fields.get("model", ""),
        revision=fields.get("revision", ""),
        engine="table of scores",
        settings={"file": file.sha256, "picked": picked},
        polarities=("present",),
        trained_on_target=trained.get(fields.get("trained_on_target", ""), "unknown"),
        evidence=fields.get("evidence", ""),
        held_out=fields.get("held_out") == "yes",
        licence=licence,
        commercial_use=commercial_use(licence),
        observed={"file": file.path.name},
    )


def beside(path: Path) -> Path:
    """Give the place where the card of a file is looked for."""
    return path.with_name(f"{path.name}.card.toml")


def read_card(path: Path, name: str) -> dict[str, str]:
    """Read the card; fields under `[name]` are of that judge alone, the rest of all in the file."""
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
    card: dict[str, str] = {}
    for key, value in {**shared, **(own if isinstance(own, dict) else {})}.items():
        if key not in FIELDS:
            raise UnknownName.of("field of a card", key, FIELDS, where=str(path))
        if not isinstance(value, str):
            raise JudgeError(f"{path}: {key} = {value!r} is no text. Put it in quotes")
        card[key] = value.strip()
    trained = card.get("trained_on_target", "unknown")
    if trained not in get_args(Trained):
        raise UnknownName.of("trained_on_target", trained, get_args(Trained), where=str(path))
    if card.get("held_out", "") not in {"yes", "no", ""}:
        raise UnknownName.of("held_out", card["held_out"], ("yes", "no"), where=str(path))
    if trained != "unknown" and not card.get("evidence"):
        raise JudgeError(
            f'{path}: trained_on_target is {trained}, and nothing says how you know. Add: evidence = "..."'
        )
    return card


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of `table:`."""

    card: Path | None = option(None, "The card of a table.", metavar="FILE.toml", panel=ASKING)


JUDGE = JudgeKind(
    name="table",
    form="table:FILE[@NAME]",
    summary="scores computed elsewhere: CSV or Parquet",
    open=read_table,
    runs="read",
    options=TableOptions,
    takes=(),
    names_file=True,
    endings=(".csv", ".gz", ".tsv", ".parquet"),
    page="judges.md#scores-from-a-file",
)
