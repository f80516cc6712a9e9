"""COCO: the boxes of reads that say present, in pixels; what has no box is not in it."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from bpals.errors import TruthError
from bpals.registry import ExportKind
from bpals.reviews.exchange import Films, Found, Written, as_boxes, boxes_of, loaded, table_of
from bpals.reviews.verdicts import counted
from bpals.text import several

# The columns that this format gives back as they were.
GIVEN_BACK = ("image_id", "finding", "reader", "phase", "round", "verdict", "box", "at", "external_id")
# What the readers came to about the finding: it goes out with each box, and is not read back.
_TRUTH = ("truth", "truth_how", "truth_by", "truth_at", "amended_since")
_ATTRIBUTES = ("reader", "phase", "round", "verdict", "at", "external_id")


def write(reviews: pl.DataFrame, films: Films) -> Written:
    """Write images, categories and one annotation per box."""
    boxed = reviews.filter(pl.col("box").is_not_null())
    names = {film: number for number, film in enumerate(boxed["image_id"].unique(maintain_order=True), start=1)}
    kinds = {finding: number for number, finding in enumerate(boxed["finding"].unique(maintain_order=True), start=1)}
    images = []
    for film, number in names.items():
        width, height = films.sizes.get(film, (None, None))
        images.append({"id": number, "file_name": film, "width": width, "height": height})
    drawn = [(row, box) for row in boxed.iter_rows(named=True) for box in boxes_of(row["box"])]
    annotations = [
        {
            "id": number,
            "image_id": names[row["image_id"]],
            "category_id": kinds[row["finding"]],
            "bbox": box,
            "area": box[2] * box[3],
            "iscrowd": 0,
            "attributes": {name: row[name] for name in (*_ATTRIBUTES, *_TRUTH)},
        }
        for number, (row, box) in enumerate(drawn, start=1)
    ]
    whole = {
        "info": {"description": "boxes that readers drew; written by bpals"},
        "images": images,
        "categories": [{"id": number, "name": finding} for finding, number in kinds.items()],
        "annotations": annotations,
    }
    content = json.dumps(whole, ensure_ascii=False, indent=1).encode()
    without = reviews.height - boxed.height
    reads = several(without, "read")
    message = f"not in it: {reads} without a box, of {reviews.height:,}; csv and parquet have every read"
    return Written(files={"": content}, notices=tuple(counted("unboxed", without, message)))


def is_ours(content: Any) -> bool:
    """Say whether this is a COCO file."""
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def read(content: bytes, name: str) -> Found:
    """Read boxes that were written here or elsewhere; what has a box is present unless it says otherwise."""
    whole = loaded(content, name)
    if not is_ours(whole):
        raise TruthError(f"{name} is no COCO file: it needs images, annotations and categories. Name another")
    try:
        films = {each["id"]: each["file_name"] for each in whole["images"]}
        findings = {each["id"]: each["name"] for each in whole["categories"]}
        rows: dict[str, dict[str, Any]] = {}
        boxes: dict[str, list[list[float]]] = {}
        for each in whole["annotations"]:
            attributes = {name: value for name, value in (each.get("attributes") or {}).items() if name in _ATTRIBUTES}
            film, finding = films[each["image_id"]], findings[each["category_id"]]
            # Boxes without an id of ours are one read where film, finding and reader are the same.
            read_id = str(attributes.get("external_id") or f"coco {film} {finding} {attributes.get('reader', '')}")
            rows.setdefault(read_id, {"verdict": "present", **attributes, "image_id": film, "finding": finding})
            boxes.setdefault(read_id, []).append([*each["bbox"]])
    except (KeyError, TypeError, AttributeError):
        raise TruthError(f"{name}: an annotation names no image, category or bbox. Export it again") from None
    return Found(table=table_of([row | {"box": as_boxes(boxes[read_id])} for read_id, row in rows.items()], name))


EXPORT = ExportKind(
    name="coco",
    summary="boxes in pixels, as COCO has them",
    write=write,
    read=read,
    content="json",
    is_ours=is_ours,
    needs="sizes",
)
