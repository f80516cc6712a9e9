"""FiftyOne: one sample per film, its verdicts as Classifications, one field per verdict, and boxes as Detections.

What readers came to together is in fields of its own, `consensus_present` and so on, and is not read back.

The JSON is FiftyOne's own form of samples: `fiftyone.Sample.from_dict` takes each of them.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from bpals.errors import TruthError
from bpals.registry import ExportKind
from bpals.reviews.exchange import KEPT, REASON, Films, Found, Written, boxes_of, loaded, not_drawn, table_of, truths_of
from bpals.store.ledger.schema import VERDICTS

GIVEN_BACK = tuple(KEPT.names())  # the columns that this format gives back as they were
SETTLED = "consensus_"  # before the name of a verdict: the field of what the readers of a film came to
_APART = ("image_id", "finding", "verdict", "confidence")

Row = dict[str, Any]


def write(reviews: pl.DataFrame, films: Films) -> Written:
    """Write one sample per film."""
    samples, unsized, truths = [], 0, truths_of(reviews)
    for (film,), part in reviews.group_by("image_id", maintain_order=True):
        rows, agreed = part.rows(named=True), [row for rows in truths.get(str(film), []) for row in rows]
        size = films.sizes.get(str(film))
        sample: Row = {"filepath": film, "tags": [], "_media_type": "image"}
        for verdict in VERDICTS:
            given = [_classification(row) for row in rows if row["verdict"] == verdict]
            settled = [_truth(row) for row in agreed if row["truth"] == verdict]
            for field, values in ((verdict, given), (SETTLED + verdict, settled)):
                if values:
                    sample[field] = {"_cls": "Classifications", "classifications": values}
        boxed = [row for row in rows if row["box"]]
        if boxed and size:
            drawn = [_detection(row, box, size) for row in boxed for box in boxes_of(row["box"])]
            sample["boxes"] = {"_cls": "Detections", "detections": drawn}
        unsized += 0 if size else len(boxed)
        samples.append(sample)
    content = json.dumps({"samples": samples}, ensure_ascii=False, indent=1).encode()
    return Written(files={"": content}, notices=not_drawn(unsized))


def _classification(row: Row) -> Row:
    kept = {name: row[name] for name in (*KEPT.names(), REASON) if name not in _APART}
    share = None if row["confidence"] is None else row["confidence"] / 100
    return {"_cls": "Classification", "tags": [row["phase"]], "label": row["finding"], "confidence": share, **kept}


def _truth(row: Row) -> Row:
    # The order of the keys is the order in the file.
    kept = {"study": row["study"], "note": row["truth_note"], "amended_since": row["amended_since"]}
    kept |= {name: row[f"truth_{name}"] for name in ("how", "round", "by", "at")}
    return {"_cls": "Classification", "tags": [row["truth_how"]], "label": row["finding"], "confidence": None, **kept}


def _detection(row: Row, box: list[float], size: tuple[int, int]) -> Row:
    shares = [each / side for each, side in zip(box, (*size, *size), strict=True)]
    return {
        "_cls": "Detection",
        "tags": [row["phase"]],
        "label": row["finding"],
        "bounding_box": shares,
        "reader": row["reader"],
        "external_id": row["external_id"],
    }


def write_signal(signal: pl.DataFrame) -> Written:
    """Write one sample per image, its labels as Classifications under `signal`; no reads are made of it."""
    samples = []
    for (image,), part in signal.group_by("image_id", maintain_order=True):
        labels = [_signal_label(row) for row in part.drop("image_id").iter_rows(named=True)]
        field = {"_cls": "Classifications", "classifications": labels}
        tags = sorted({row["flag"] for row in labels if row["flag"] is not None})
        samples.append({"filepath": image, "tags": tags, "_media_type": "image", "signal": field})
    return Written(files={"": json.dumps({"samples": samples}, ensure_ascii=False, indent=1).encode()})


def _signal_label(row: Row) -> Row:
    # FiftyOne's confidence is that the label's name applies: here, that the finding is present. People know.
    settled = row["verdict"] is not None
    kept = {name: value for name, value in row.items() if name != "finding" and (settled or name != "p_present")}
    head = {
        "_cls": "Classification",
        "tags": [row["flag"] or ""],
        "label": row["finding"],
        "confidence": float(row["verdict"] == "present") if settled else row["p_present"],
    }
    return {**head, **kept}


def is_ours(content: Any) -> bool:
    """Say whether these are samples of FiftyOne."""
    return isinstance(content, dict) and isinstance(content.get("samples"), list)


def read(content: bytes, name: str) -> Found:
    """Read samples whose fields are called after the verdicts, as they are written here."""
    whole = loaded(content, name)
    if not is_ours(whole):
        raise TruthError(f"{name} holds no samples of FiftyOne. Name another file, or its format: --format csv")
    rows = []
    try:
        for sample in whole["samples"]:
            for verdict in VERDICTS:
                for label in (sample.get(verdict) or {}).get("classifications", []):
                    row = {name: value for name, value in label.items() if name in KEPT.names()}
                    share = label.get("confidence")
                    row["confidence"] = None if share is None else round(100 * share)
                    row |= {"image_id": sample["filepath"], "finding": label["label"], "verdict": verdict}
                    rows.append(row)
    except (KeyError, TypeError, AttributeError):
        raise TruthError(f"{name}: a sample has no filepath, or a classification no label. Export it again") from None
    return Found(table=table_of(rows, name))


EXPORT = ExportKind(
    name="fiftyone",
    summary="samples of FiftyOne, as JSON",
    write=write,
    write_signal=write_signal,
    read=read,
    content="json",
    is_ours=is_ours,
    whole=True,
    needs="sizes",
)
