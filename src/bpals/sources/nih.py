"""NIH ChestX-ray14: the embedded record, or your own copy of NIH's CSV files."""

from __future__ import annotations

import dataclasses
import io
import tomllib
from importlib import resources
from pathlib import Path

import numpy as np
import polars as pl

from bpals.errors import SourceError
from bpals.findings import NIH
from bpals.registry import SourceKind
from bpals.sources import ABSENT, PRESENT, Codes, make_claims
from bpals.store.files import sha256
from bpals.types import IMAGES, Dataset

ENTRIES = "nih_entries.parquet"
BOXES = "nih_boxes.parquet"
# The files that scripts/embed_nih.py makes.
EMBEDDED = {
    ENTRIES: "sha256:5c5512fb2c3f3cf1ff16190ce9998d9da7be0325a562673bd44df2914af39220",
    BOXES: "sha256:c36fe2326b78df0ce5d08e2617a6a50b1a5f1e98931bbc6754ebb196db8d3603",
}


def load(path: str | Path | None = None) -> Dataset:
    """Give every image and every label of NIH ChestX-ray14; a path names your own copy of Data_Entry_2017*.csv."""
    if path is not None:
        # The embedded record needs no mapping and no careful reading, so an audit of it does not load them.
        from bpals.sources import tabular

        return dataclasses.replace(tabular.load(path, "nih"), vocabulary=NIH)
    mapping = resources.files("bpals.sources").joinpath("mappings", "nih.toml").read_text(encoding="utf-8")
    packed = pl.read_parquet(io.BytesIO(read_embedded(ENTRIES)))
    images = _unpack_images(packed)
    return Dataset(
        name="nih",
        title="NIH ChestX-ray14 (Data_Entry_2017_v2020, embedded)",
        vocabulary=NIH,
        images=images,
        claims=make_claims(images["image_id"], _unpack_codes(packed["labels"]), NIH),
        attribution=tomllib.loads(mapping)["attribution"],
        inputs={ENTRIES: EMBEDDED[ENTRIES]},
    )


def load_boxes(path: str | Path | None = None) -> pl.DataFrame:
    """Give NIH's 984 boxes in pixels of its 1,024 px images; a path names your own copy of BBox_List_2017.csv."""
    if path is None:
        boxes = pl.read_parquet(io.BytesIO(read_embedded(BOXES)))
        return boxes.with_columns(pl.col("finding").cast(NIH.enum))
    from bpals.sources import tabular

    return tabular.load_nih_boxes(path)


def read_embedded(name: str, folder: Path | None = None) -> bytes:
    """Read a file of the embedded record; one that is not what was published is refused."""
    place = resources.files("bpals.sources").joinpath("embedded", name) if folder is None else folder / name
    try:
        content = place.read_bytes()
    except OSError:
        content = b""
    if sha256(content) != EMBEDDED[name]:
        again = "Type: git checkout -- src/bpals/sources/embedded (in the folder of bpals)"
        raise SourceError(f"the embedded record is damaged: {place} is not the file that was published. {again}")
    return content


def _unpack_images(packed: pl.DataFrame) -> pl.DataFrame:
    patient = pl.col("patient").cast(pl.String)
    return packed.select(
        image_id=pl.format("{}_{}.png", patient.str.zfill(8), pl.col("number").cast(pl.String).str.zfill(3)),
        patient_id=patient,
        study_id=pl.lit(None, pl.String),
        follow_up=pl.col("follow_up"),
        view=pl.when("is_pa").then(pl.lit("PA")).otherwise(pl.lit("AP")),
        age=pl.col("age"),
        sex=pl.when("is_male").then(pl.lit("M")).otherwise(pl.lit("F")),
        width_px=pl.col("width_px"),
        height_px=pl.col("height_px"),
    ).cast(IMAGES)


def _unpack_codes(labels: pl.Series) -> Codes:
    """Each label is a bit; an image without a bit is `No Finding`: all 14 are absent."""
    bits = (labels.to_numpy()[:, None] >> np.arange(len(NIH.findings), dtype=np.uint16)) & 1
    return np.where(bits == 1, PRESENT, ABSENT).astype(np.uint8)


SOURCE = SourceKind(
    name="nih",
    form="nih[:FILE]",
    summary="NIH ChestX-ray14: the embedded record, or your own copy of Data_Entry_2017*.csv",
    load=lambda target: load(target or None),
    page="sources.md",
)
