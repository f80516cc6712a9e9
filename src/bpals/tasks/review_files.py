"""Reviews and signals as files: what `bpals review export`, `review import` and `signal export` do, in one call each.

export_reviews("audit", "reads.csv")                          every review of the workspace, one row per read
export_reviews("audit", "tasks.json", format="label-studio")
export_signal("audit", "signal.csv", flags=["suspect"])       labels with trust, flag and reasons, one row per label
imported = import_reviews("audit", "readers.csv")             brought in twice, a read is one
imported.reviews    what was new, as a table
imported.notices    what was odd about the file, counted
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from bpals.errors import TruthError, UnknownName, UsageError
from bpals.findings import Vocabulary
from bpals.images import prepare
from bpals.images.collection import ImageIndex, open_index
from bpals.numeric import PAIR
from bpals.registry import EXPORTS, ExportKind
from bpals.reviews import exchange, flat, verdicts
from bpals.reviews.exchange import KEPT, Films, Found, add_reviews, all_reviews, identified, loaded, table_of
from bpals.reviews.verdicts import every_read, named
from bpals.store.files import sha256, sync_folder, write_durably
from bpals.store.ledger import Ledger
from bpals.store.ledger.ledger import is_there, ledger_of, open_ledger
from bpals.store.ledger.relay import Work, have_done, is_served
from bpals.store.ledger.schema import now
from bpals.store.tables import TableWords, open_table, read_bytes
from bpals.store.workspace import FinishedAudit, Workspace
from bpals.tasks.image_access import LISTING
from bpals.tasks.score import vocabulary_of
from bpals.text import several
from bpals.types import Notice, Refusal

IMPORT = "import reviews"
MOST_AS_JSON = 200_000
"""Labels that are written as JSON at most: a file of all of NIH would be a gigabyte that no tool opens."""
NONE_YET = "Type: bpals review serve, or: bpals review import FILE"
WORDS = TableWords(error=TruthError, where=" after bpals review import")

Progress = Callable[[str, float], None]  # called with what is being done and the share of it that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    files: int
    reviews: int = 0
    labels: int = 0  # of a signal
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file brought."""

    reviews: pl.DataFrame  # the reads that are new here, with the columns of an export
    read: int  # reads that the file holds
    already: int  # those of them that were here already
    notices: tuple[Notice, ...] = ()


def load_reviews(workspace: str | os.PathLike[str] = "audit", *, ledger: str | None = None) -> pl.DataFrame:
    """Give every review that a workspace keeps, read there or brought in, with the columns of an export."""
    with _ledger(Workspace(workspace), ledger) as book, book.reading() as connection:
        return all_reviews(connection)


def export_reviews(
    workspace: str | os.PathLike[str] = "audit",
    out: str | os.PathLike[str] = "reviews.csv",
    *,
    format: str | None = None,  # noqa: A002  as the option is called
    images: str | os.PathLike[str] | None = None,
    ledger: str | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Exported:
    """Write every review of a workspace to a new file, or for `dicom-sr` to a new folder; nothing is overwritten.

    Without a `format` the ending tells, such as .csv or .parquet. `images` is where the images are, if the workspace
    does not know: formats with boxes in per cent need their size, and DICOM SR needs the images themselves.
    """
    target = Path(out)
    chosen = _format_of(target, format)
    _refuse_present(target)
    home = Workspace(workspace)
    progress("reading the reviews", 0.0)
    with _ledger(home, ledger) as book, book.reading() as connection:
        table = all_reviews(connection)
    if table.is_empty():
        raise _none_yet(home)
    progress("looking at the films", 0.3)
    films = _films(home, table, chosen, images)
    progress(f"writing {target.name}", 0.7)
    reviews, replaced = (table, []) if chosen.whole else exchange.standing(table)
    written = chosen.write(reviews, films)
    _write(target, written.files)
    notices = (*replaced, *written.notices)
    return Exported(path=target, reviews=reviews.height, files=len(written.files), notices=notices)


def export_signal(
    workspace: str | os.PathLike[str] = "audit",
    out: str | os.PathLike[str] = "signal.csv",
    *,
    format: str | None = None,  # noqa: A002  as the option is called
    findings: Sequence[str] | None = None,
    flags: Sequence[str] | None = None,
    n: int | None = None,
    pairs: pl.DataFrame | None = None,
) -> Exported:
    """Write the signal of a finished audit to a new file, for other tools; nothing is overwritten.

    `findings` and `flags` choose labels, `n` the first images by `review_rank`, `pairs` the labels of a reading list in
    its order. Without a `format` the ending tells: .csv or .parquet.
    """
    target = Path(out)
    able = [kind.name for kind in EXPORTS.every() if kind.write_signal is not None]
    chosen = _format_of(target, format, able)
    if chosen.write_signal is None:
        raise UsageError(f"{chosen.name} is a format of reviews alone. Type: --format {' or --format '.join(able)}")
    _refuse_present(target)
    signal = _chosen_labels(Workspace(workspace).open().table("signal.parquet"), findings, flags, n)
    if pairs is not None:
        signal = pairs.select(PAIR).join(
            signal.with_columns(pl.col("finding").cast(pl.String)), on=PAIR, maintain_order="left"
        )
    if signal.is_empty():
        raise UsageError("no label is left to write. Choose other flags or findings, or leave them out")
    if chosen.content == "json" and signal.height > MOST_AS_JSON:
        raise UsageError(
            f"{signal.height:,} labels are too many for {chosen.name}, which takes {MOST_AS_JSON:,}. "
            "Choose with --n, --flags or --findings, or write a .csv"
        )
    written = chosen.write_signal(signal)
    _write(target, written.files)
    return Exported(path=target, labels=signal.height, files=len(written.files), notices=written.notices)


def _chosen_labels(
    signal: pl.DataFrame, findings: Sequence[str] | None, flags: Sequence[str] | None, n: int | None
) -> pl.DataFrame:
    if findings is not None:
        named = vocabulary_of(signal).resolve(findings, where="--findings")
        signal = signal.filter(pl.col("finding").cast(pl.String).is_in(list(named)))
    if flags is not None:
        known = signal.schema["flag"].categories.to_list()  # type: ignore[attr-defined]  # an Enum
        for flag in flags:
            if flag not in known:
                raise UnknownName.of("flag", flag, known, where="--flags")
        signal = signal.filter(pl.col("flag").cast(pl.String).is_in(list(flags)))
    if n is None:
        return signal
    if n < 1:
        raise UsageError(f"--n {n}: it is a number of images. Type: --n 50")
    first = (
        signal.group_by("image_id").agg(pl.col("review_rank").min()).sort("review_rank", "image_id", nulls_last=True)
    )
    return first.head(n).select("image_id").join(signal, on="image_id", maintain_order="left_right")


def import_reviews(
    workspace: str | os.PathLike[str],
    file: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  as the option is called
    reader: str | None = None,
    ledger: str | None = None,
    progress: Progress = lambda _what, _share: None,
) -> Imported:
    """Bring the reads of a file into a workspace, all or none; those that are there already stay as they are.

    The file is an export, or any sheet with one row per read. Without a `format` its content tells. `reader` is who
    read where the file names nobody.
    """
    path, home = Path(file), Workspace(workspace)
    chosen = None if format is None else _kind(format)
    if chosen is not None and chosen.read is None:
        raise UsageError(f"--format {format} is only written. Name one that is read: {', '.join(_read_formats())}")
    progress(f"reading {path.name}", 0.0)
    audit = FinishedAudit(path=home.path, run=home.run)
    vocabulary = vocabulary_of(audit.table("claims.parquet", "finding"))
    known = audit.table("images.parquet", "image_id")["image_id"]
    found, digest = _found(path, chosen, vocabulary)
    spelled = verdicts.spellings(vocabulary, verdicts.GROUPS)
    words = found.table["finding"].drop_nulls().unique(maintain_order=True)
    names = {word: named(word, spelled, str(path)) for word in words}
    checked = exchange.checked(found.table.with_columns(pl.col("finding").replace(names)), str(path), reader)
    whole, strange = _of_known_films(checked, known, path)
    kept, replaced = exchange.standing(whole)
    notices = [*found.notices, *strange, *replaced, *_unaudited(kept, vocabulary), *exchange.repeated(kept)]
    # A read without a time gets the one at which it came; its id is made before, so that a second import finds it.
    reads = identified(kept).with_columns(pl.col("at").fill_null(now()))
    progress("keeping them", 0.5)
    new = _kept(home, ledger, reads, f"{path.name} {digest}")
    return Imported(reviews=new, read=whole.height, already=kept.height - new.height, notices=tuple(notices))


def _kept(home: Workspace, given: str | None, reads: pl.DataFrame, source: str) -> pl.DataFrame:
    """Keep reads in one transaction, here or through the room that is open, and give those that are new."""
    address = ledger_of(home, given)
    if is_served(address):
        reply = have_done(address, IMPORT, {"reads": reads.rows(named=True), "source": source})
        return reads.unique("external_id", keep="first", maintain_order=True).filter(
            pl.col("external_id").is_in(reply["new"])
        )
    with open_ledger(home, given) as book, book.lock("bpals review import"):
        return book.change(lambda connection: add_reviews(connection, reads, source))


def _import(ledger: Ledger, given: Mapping[str, Any]) -> dict[str, Any]:
    reads = table_of(given["reads"], "what was sent to the room")
    new = ledger.change(lambda connection: add_reviews(connection, reads, given["source"]))
    return {"new": new["external_id"].to_list()}


# What the process that serves the reading room does for an import beside it.
ACTS: Mapping[str, Work] = {IMPORT: _import}


def _ledger(home: Workspace, given: str | None) -> Ledger:
    """Open the ledger of a workspace to read it; one that is not there is not made."""
    if not is_there(ledger_of(home, given)):
        raise _none_yet(home)
    return open_ledger(home, given, readonly=True)


def _none_yet(home: Workspace) -> UsageError:
    return UsageError(f"{home.path} holds no review yet. {home.or_the_demo(NONE_YET)}")


def _format_of(target: Path, given: str | None, able: Sequence[str] = ()) -> ExportKind:
    """Find the format by its name, or by the ending of the file; `able` are those to advise, by default all."""
    if given is not None:
        return _kind(given)
    ending = target.suffix.lower()
    meant = next((kind for kind in EXPORTS.every() if ending and ending in kind.endings), None)
    if meant is None:
        raise UsageError(
            f"--out {target}: which format? Type: --format {' or --format '.join(able or EXPORTS.names())}"
        )
    return meant


def _kind(name: str) -> ExportKind:
    if name not in (known := EXPORTS.names()):
        raise UnknownName.of("format", name, known, where="--format")
    return EXPORTS.load(name)


def _read_formats() -> list[str]:
    return [kind.name for kind in EXPORTS.every() if kind.read is not None]


def _refuse_present(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} is there already and is not overwritten. Name another with --out FILE")


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the file, or the folder of files, so that it is there whole or not at all."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        if "" in files:
            write_durably(part, files[""])
            # A link refuses a name that is taken; a rename would overwrite what came there meanwhile.
            os.link(part, target)
        else:
            part.mkdir()
            for name, content in files.items():
                write_durably(part / name, content)
            sync_folder(part)
            part.rename(target)
        sync_folder(target.absolute().parent)
    except FileExistsError:
        _refuse_present(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}. Name another with --out FILE") from None
    finally:
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def _films(home: Workspace, table: pl.DataFrame, chosen: ExportKind, images: str | os.PathLike[str] | None) -> Films:
    """Look at the images that a format must know of: the size of those with boxes, or the files of all."""
    about = table if chosen.needs == "files" else table.filter(pl.col("box").is_not_null())
    wanted = about["image_id"].unique(maintain_order=True).to_list()
    where = images or home.remembered("images")
    if not chosen.needs or not wanted or where is None:
        return Films()
    index = open_index(Path(where), wanted, listing=home.path / LISTING)
    if chosen.needs == "files":
        return Films(dicom=lambda image_id: _dicom(index, image_id))
    sizes = {}
    for image_id, content in index.read(wanted):
        size = None if isinstance(content, Refusal) else prepare.size_of(content)
        if size is not None:
            sizes[image_id] = size
    return Films(sizes=sizes)


def _dicom(index: ImageIndex, image_id: str) -> bytes | None:
    contents = (content for _, content in index.read([image_id]) if not isinstance(content, Refusal))
    return next((content for content in contents if prepare.is_dicom(content)), None)


def _found(path: Path, given: ExportKind | None, vocabulary: Vocabulary) -> tuple[Found, str]:
    """Read a file, or a folder of files, in the format that it is told or seen to have; give its hash too."""
    found: Found
    if path.is_dir():
        files = {each.name: read_bytes(each, words=WORDS) for each in sorted(path.iterdir()) if each.is_file()}
        whole = "".join(sha256(content) for content in files.values())
        # A folder is of the one format that is a folder, whatever --format says of files.
        readers = [kind.read_folder for kind in (given, *EXPORTS.every()) if kind is not None and kind.read_folder]
        found = readers[0](files, str(path))
        return found, sha256(whole.encode())
    content = read_bytes(path, words=WORDS)
    digest = sha256(content)
    chosen = given or _seen(content, path)
    if chosen is not None and chosen.content != "table" and chosen.read is not None:
        found = chosen.read(content, str(path))
        return found, digest
    if flat.is_ours(open_table(path, words=WORDS).header):
        return flat.read(content, str(path)), digest
    reads = every_read(path, vocabulary=vocabulary, groups=verdicts.GROUPS)
    missing = [pl.lit(None, kind).alias(name) for name, kind in KEPT.items() if name not in reads.columns]
    return Found(table=reads.with_columns(missing).select(KEPT.names())), digest


def _seen(content: bytes, path: Path) -> ExportKind | None:
    """Tell a format by its content; None is a table."""
    if prepare.is_dicom(content):
        return next(kind for kind in EXPORTS.every() if kind.content == "dicom")
    if content.lstrip()[:1] not in {b"{", b"["}:
        return None
    whole = loaded(content, str(path))
    written = [kind for kind in EXPORTS.every() if kind.content == "json"]
    for kind in written:
        if kind.is_ours(whole):
            return kind
    names = ", ".join(kind.name for kind in written)
    raise TruthError(f"{path} is JSON, but of none of the formats {names}. Name another file")


def _of_known_films(table: pl.DataFrame, known: pl.Series, path: Path) -> tuple[pl.DataFrame, list[Notice]]:
    """Find the films by their ids, or by the names of their files; reads of films that are not here are counted."""
    ids = set(known)
    given = table["image_id"].unique(maintain_order=True).to_list()
    called = {name: name if name in ids else _film(name, ids) for name in given}
    here = table.with_columns(pl.col("image_id").replace_strict(called, return_dtype=pl.String))
    kept = here.filter(pl.col("image_id").is_not_null())
    strange = [name for name, film in called.items() if film is None]
    if kept.is_empty():
        raise TruthError(
            f"{path}: no read is about a film of this dataset (first: {strange[0] if strange else 'none'}). "
            "Name another file, or the workspace that it belongs to: --workspace DIR"
        )
    reads = several(table.height - kept.height, "read is", "reads are")
    films = several(len(strange), "film that is", "films that are")
    message = (
        f"{path.name}: {reads} about {films} not in this dataset (first: {strange[0] if strange else ''}): left out"
    )
    return kept, [Notice(code="unknown_images", count=table.height - kept.height, message=message)] if strange else []


def _film(name: str, ids: Collection[str]) -> str | None:
    """Find a film by the last part of an address, as other tools write it; they put eight signs before a name."""
    last = PurePosixPath(name.partition("?")[0]).name
    return next((each for each in (last, last[9:]) if each in ids), None)


def _unaudited(table: pl.DataFrame, vocabulary: Vocabulary) -> list[Notice]:
    """Count reads of findings that are not audited: they are kept."""
    audited = [*vocabulary.findings, *(group.name for group in verdicts.GROUPS)]
    others = table.filter(~pl.col("finding").is_in(audited))
    notices = []
    for (finding,), reads in others.group_by("finding", maintain_order=True):
        yes = reads.filter(pl.col("verdict") == "present").height
        kept = several(reads.height, "read of it is", "reads of it are")
        message = f"{finding} is not audited and teaches nothing: {kept} kept ({yes:,} present)"
        notices.append(Notice(code="unaudited", count=reads.height, message=message))
    return notices


def as_json(imported: Imported) -> dict[str, Any]:
    """Write for a program what a file brought."""
    return {
        "read": imported.read,
        "new": imported.reviews.height,
        "already": imported.already,
        "readers": sorted(imported.reviews["reader"].unique()),
        "films": imported.reviews["image_id"].n_unique(),
        "findings": dict(imported.reviews.group_by("finding", maintain_order=True).len().iter_rows()),
        "notices": [{"code": each.code, "count": each.count, "message": each.message} for each in imported.notices],
    }
