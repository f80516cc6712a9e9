"""Label Studio: one task per film, one annotation per reading, one choice per finding, one rectangle per box.

What the readers came to is an annotation of its own, marked as ground truth. It is no read, and none is made of it.

What Label Studio has no word for is kept in `meta` of each choice. Where somebody changed a choice or a rectangle
there, the changed one counts, and the read is a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from bpals.errors import TruthError
from bpals.registry import ExportKind
from bpals.reviews import exchange
from bpals.reviews.exchange import KEPT, REASON, TRUTH, Films, Found, Written, as_boxes, boxes_of
from bpals.reviews.verdicts import counted
from bpals.types import SETTLED_COLUMNS

# What the choices of one annotation have in common.
READING = ("reader", "phase", "round", "repeat", "at", "reading_id", "position")
OURS = "bpals"
SETTLED = "bpals_truth"  # under `meta` of a choice that the readers came to together
SEEN = "saw_signal"  # under `data` of a task whose reader sees pre-annotations
NEAR = 1e-6  # per cent of a side by which a rectangle may differ from the box that it was made of

Row = dict[str, Any]


def write(reviews: pl.DataFrame, films: Films) -> Written:
    """Write tasks with annotations, as `Import` takes them."""
    tasks, unsized, truths = [], 0, exchange.truths_of(reviews)
    for number, (film, part) in enumerate(reviews.group_by("image_id", maintain_order=True), start=1):
        size = films.sizes.get(str(film[0]))
        unsized += 0 if size else part["box"].drop_nulls().len()
        annotations = [_reading(rows.rows(named=True), size) for _, rows in part.group_by(READING, maintain_order=True)]
        annotations += [_truth(rows) for rows in truths.get(str(film[0]), [])]
        data = {"image": film[0], "image_id": film[0]}
        tasks.append({"id": number, "data": data, "annotations": annotations, "predictions": []})
    content = json.dumps(tasks, ensure_ascii=False, indent=1).encode()
    return Written(files={"": content}, notices=exchange.not_drawn(unsized))


def _reading(rows: list[Row], size: tuple[int, int] | None) -> Row:
    results = []
    for row in rows:
        drawn = [_rectangle(row, box, size) for box in boxes_of(row["box"])] if size else []
        meta = {OURS: {**{name: row[name] for name in (*KEPT.names(), REASON)}, "drawn": bool(drawn)}}
        results += [_choice(row["external_id"], row["finding"], row["verdict"], meta), *drawn]
    return _annotation(results, truth=False, at=rows[0]["at"], seconds=rows[0]["wall_s"])


def _truth(rows: list[Row]) -> Row:
    """Write what the readers of a film came to in one study."""
    names = ("study", "finding", *TRUTH.names())
    results = []
    for row in rows:
        identity = f"{row['study']} {row['image_id']} {row['finding']}"
        meta = {SETTLED: {name: row[name] for name in names}}
        results.append(_choice(identity, row["finding"], row["truth"], meta))
    return _annotation(results, truth=True, at=max(row["truth_at"] for row in rows), seconds=None)


def _annotation(results: list[Row], *, truth: bool, at: str, seconds: float | None) -> Row:
    written = {"result": results, "was_cancelled": False, "ground_truth": truth}
    return {**written, "created_at": at, "lead_time": seconds}


def _choice(identity: str, finding: str, verdict: str, meta: Row) -> Row:
    return {
        "id": _region(identity),
        "from_name": _tag(finding),
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [verdict]},
        "meta": meta,
    }


def _rectangle(row: Row, box: list[float], size: tuple[int, int]) -> Row:
    return {
        "id": _region(f"{row['external_id']} {box}"),
        "from_name": "boxes",
        "to_name": "image",
        "type": "rectanglelabels",
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": 0,
        "value": {**_percent(box, size), "rotation": 0, "rectanglelabels": [row["finding"]]},
    }


def _percent(box: list[float], size: tuple[int, int]) -> dict[str, float]:
    sides = (*size, *size)
    shares = (100 * each / side for each, side in zip(box, sides, strict=True))
    return dict(zip(("x", "y", "width", "height"), shares, strict=True))


def write_signal(signal: pl.DataFrame) -> Written:
    """Write tasks with one prediction each: what people settled, else what the judges would answer, by finding."""
    tasks = []
    for number, ((image,), part) in enumerate(signal.group_by("image_id", maintain_order=True), start=1):
        rows = part.filter(pl.any_horizontal(pl.col("p_present", "verdict").is_not_null())).rows(named=True)
        # A reader of the task sees what the judges say: the reads that come back are not blind.
        task: Row = {"id": number, "data": {"image": image, "image_id": image, SEEN: 1}, "annotations": []}
        # Tasks are read by their score, the lowest first: what people settled need not be read.
        trusts = [row["trust"] for row in rows if row["trust"] is not None and row["verdict"] is None]
        task["predictions"] = [
            {
                "model_version": f"{OURS} {part['method'][0]}",
                "score": min(trusts, default=None),
                "result": [_suggestion(row) for row in rows],
            }
        ]
        tasks.append(task)
    return Written(files={"": json.dumps(tasks, ensure_ascii=False, indent=1).encode()})


def _suggestion(row: Row) -> Row:
    p = row["p_present"] if row["verdict"] is None else float(row["verdict"] == "present")
    kept = ("says", "trust", "flag", *SETTLED_COLUMNS, "reasons")
    meta = {"bpals_signal": {name: row[name] for name in kept}}
    verdict = "present" if p >= 0.5 else "absent"
    choice = _choice(f"signal {row['image_id']} {row['finding']}", row["finding"], verdict, meta)
    return {**choice, "score": max(p, 1 - p)}


def _region(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _tag(finding: str) -> str:
    return re.sub(r"\W+", "_", finding)


def is_ours(content: Any) -> bool:
    """Say whether this is an export of Label Studio: a list of tasks."""
    return isinstance(content, list) and all(isinstance(each, dict) and "data" in each for each in content)


def read(content: bytes, name: str) -> Found:
    """Read tasks that were exported here or in Label Studio."""
    tasks = exchange.loaded(content, name)
    if not is_ours(tasks):
        raise TruthError(f"{name} is no list of Label Studio's tasks. Export it as JSON, not as JSON-MIN")
    rows: list[Row] = []
    cancelled, settled = 0, 0
    for number, task in enumerate(tasks, start=1):
        where = f"{name}, task {number}"
        try:
            for annotation in task.get("annotations") or task.get("completions") or []:
                cancelled += bool(annotation.get("was_cancelled"))
                if not annotation.get("was_cancelled"):
                    # A consensus that is still as it was written is no read; one that was changed is.
                    every = annotation.get("result", [])
                    own = [result for result in every if not _is_truth(result)]
                    settled += len(every) - len(own)
                    rows += _reads(task, {**annotation, "result": own}, where)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise TruthError(f"{where} is not as Label Studio writes it. Export it again as JSON") from None
    message = f"{name}: {cancelled:,} annotations were skipped by their readers and are no reads"
    notices = (*counted("skipped", cancelled, message), *exchange.no_reads(name, settled))
    return Found(table=exchange.table_of(rows, name), notices=notices)


def _is_truth(result: Any) -> bool:
    written = (result.get("meta") or {}).get(SETTLED) if isinstance(result, dict) else None
    return isinstance(written, dict) and result["value"].get("choices") == [written.get("truth")]


def _reads(task: Mapping[str, Any], annotation: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Give one read per choice; a finding that has only a rectangle is present."""
    results = [each for each in annotation.get("result", []) if isinstance(each, dict)]
    rectangles: dict[str, list[Row]] = {}
    for each in results:
        if each.get("type") == "rectanglelabels":
            for label in each["value"].get("rectanglelabels", []):
                rectangles.setdefault(_tag(label), []).append(each)
    texts = {each.get("from_name"): each["value"]["text"] for each in results if each.get("type") == "textarea"}
    note = texts.get("note")
    choices = [each for each in results if each.get("type") == "choices"]
    chosen = {each.get("from_name"): each["value"].get("choices", []) for each in choices}
    # Quality and devices are about the film itself, where a page asks for them under these names.
    page = {"note": "\n".join(note) if isinstance(note, list) else note}
    page |= {name: chosen[name][0] for name in ("quality", "devices") if chosen.get(name)}
    for each in choices:
        if each.get("from_name") not in page:
            drawn = rectangles.pop(_tag(str(each["from_name"])), [])
            yield _read(task, annotation, each, drawn, page, where)
    for drawn in rectangles.values():
        label = drawn[0]["value"]["rectanglelabels"][0]
        implied = {"id": drawn[0].get("id"), "from_name": label, "value": {"choices": ["present"]}}
        yield _read(task, annotation, implied, drawn, page, where)


def _read(
    task: Mapping[str, Any], annotation: Mapping[str, Any], choice: Row, drawn: list[Row], page: Row, where: str
) -> Row:
    words = choice["value"].get("choices") or []
    if len(words) != 1:
        raise TruthError(f"{where}: {choice['from_name']!r} has {len(words)} choices. Let a reader choose one")
    kept = (choice.get("meta") or {}).get(OURS)
    if not isinstance(kept, dict):
        stem = annotation.get("unique_id") or f"{annotation.get('project', '')}-{annotation.get('id')}"
        return {
            "image_id": task["data"].get("image_id") or task["data"].get("image"),
            "finding": choice["from_name"],
            "reader": _who(annotation.get("completed_by")),
            "verdict": words[0],
            "box": as_boxes([_pixels(each, where) for each in drawn]),
            "at": annotation.get("updated_at") or annotation.get("created_at"),
            "wall_s": annotation.get("lead_time"),
            "external_id": f"label-studio-{stem}-{choice['from_name']}",
            SEEN: int(bool(task["data"].get(SEEN))),
            **page,
        }
    row = {name: kept.get(name) for name in KEPT.names()}
    changed = words[0] != row["verdict"] or ((bool(kept.get("drawn")) or bool(drawn)) and _moved(row["box"], drawn))
    if not changed:
        return row
    at = annotation.get("updated_at") or annotation.get("created_at")
    box = as_boxes([_pixels(each, where) for each in drawn]) if drawn or kept.get("drawn") else row["box"]
    who = _who(annotation.get("completed_by")) or row["reader"]
    change = {"verdict": words[0], "box": box, "reader": who, "at": at}
    return row | change | {"external_id": f"{row['external_id']} changed {_region(json.dumps(change))}"}


def _moved(box: str | None, drawn: list[Row]) -> bool:
    """Say whether the rectangles are not those that were written for a box."""
    boxes = boxes_of(box)
    return len(boxes) != len(drawn) or any(
        abs(rectangle["value"][side] - value) > NEAR
        for each, rectangle in zip(boxes, drawn, strict=True)
        for side, value in _percent(each, (rectangle["original_width"], rectangle["original_height"])).items()
    )


def _pixels(rectangle: Row, where: str) -> list[float]:
    try:
        size = (rectangle["original_width"], rectangle["original_height"]) * 2
        sides = [rectangle["value"][side] for side in ("x", "y", "width", "height")]
        return [round(share * side / 100, 3) for share, side in zip(sides, size, strict=True)]
    except (KeyError, TypeError):
        raise TruthError(f"{where}: a rectangle has no place or no original_width. Export it as JSON") from None


def _who(completed_by: Any) -> str | None:
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return None if completed_by is None else str(completed_by)


EXPORT = ExportKind(
    name="label-studio",
    summary="tasks of Label Studio, as JSON",
    write=write,
    write_signal=write_signal,
    read=read,
    content="json",
    is_ours=is_ours,
    whole=True,
    needs="sizes",
)
