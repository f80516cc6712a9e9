"""Make the embedded NIH record from the published torchxrayvision wheel.

    python scripts/embed_nih.py [--wheel FILE] [--out DIR]

The wheel carries NIH's own Data_Entry_2017_v2020.csv and BBox_List_2017.csv. Their sha256 are pinned here, those of
the two Parquet files in src/bpals/sources/nih.py. The same polars version gives the same bytes; the version that
wrote the files in the tree stands in each of them (`created_by`).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import polars as pl

from bpals.findings import NIH

PACKAGE = "torchxrayvision==1.5.7"
MEMBERS = {
    "Data_Entry_2017_v2020.csv.gz": "9d4de640ee4f760215d8be98376b20387ca52f9c6b4d1b727cb588fb82f40b80",
    "BBox_List_2017.csv.gz": "cf9dc6029f65daa8b389415b0546af0eeeb91fbac7d63ec49d7f8de2fd8f40cd",
}
HOME = Path(__file__).parents[1] / "src" / "bpals" / "sources" / "embedded"


def download_wheel(folder: Path) -> Path:
    """Get the published wheel with pip, without what it depends on."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, PACKAGE, "-d", str(folder)], check=True)
    return next(folder.glob("torchxrayvision-*.whl"))


def read_member(wheel: Path, name: str) -> bytes:
    """Unpack one CSV of the wheel; it must be the one that is pinned."""
    with zipfile.ZipFile(wheel) as archive:
        stored = archive.read(f"torchxrayvision/data/{name}")
    found = hashlib.sha256(stored).hexdigest()
    if found != MEMBERS[name]:
        sys.exit(f"{wheel}: {name} has sha256 {found}, not {MEMBERS[name]}. Type: pip download --no-deps {PACKAGE}")
    return gzip.decompress(stored)


def pack_entries(content: bytes) -> pl.DataFrame:
    """Give one row a film: the labels as a bit a finding, and the image's name as its patient and number."""
    table = pl.read_csv(content)
    words = pl.col("Finding Labels").str.split("|")
    bits = [
        pl.when(words.list.contains(finding)).then(1 << place).otherwise(0)
        for place, finding in enumerate(NIH.findings)
    ]
    packed = table.select(
        patient=pl.col("Patient ID").cast(pl.Int32),
        number=pl.col("Image Index").str.slice(9, 3).cast(pl.UInt8),
        follow_up=pl.col("Follow-up #").cast(pl.UInt8),
        labels=pl.sum_horizontal(bits).cast(pl.UInt16),
        age=pl.col("Patient Age").cast(pl.UInt8),
        is_male=pl.col("Patient Gender") == "M",
        is_pa=pl.col("View Position") == "PA",
        width_px=pl.col("OriginalImage[Width").cast(pl.UInt16),
        height_px=pl.col("Height]").cast(pl.UInt16),
    )
    written = pl.format(
        "{}_{}.png", packed["patient"].cast(pl.String).str.zfill(8), packed["number"].cast(pl.String).str.zfill(3)
    )
    if not packed.select(written.alias("image"))["image"].equals(table["Image Index"].alias("image")):
        sys.exit("an image's name is not its patient and number: the packing would lose it")
    return packed


def pack_boxes(content: bytes) -> pl.DataFrame:
    """Give one row a box, in pixels of the 1,024 px image that NIH ships."""
    named = ["image_id", "finding", "x", "y", "width", "height"]
    schema = dict.fromkeys(named[:2], pl.String) | dict.fromkeys(named[2:], pl.Float64)
    table = pl.read_csv(content, has_header=False, skip_rows=1, schema=schema)
    return table.with_columns(pl.col("finding").replace("Infiltrate", "Infiltration"))


def write(table: pl.DataFrame, target: Path) -> None:
    """Write Parquet as small as it gets, and print what nih.py pins."""
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd", compression_level=22, statistics=False, row_group_size=table.height)
    target.write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    print(f"{target.name}  {table.height:,} rows  {len(buffer.getvalue()):,} bytes  sha256:{digest}")


def main(arguments: list[str] | None = None) -> None:
    """Read the wheel, write the two tables."""
    parser = argparse.ArgumentParser(description="Make the embedded NIH record from the published wheel.")
    parser.add_argument("--wheel", type=Path, help="a torchxrayvision 1.5.7 wheel; without it, pip downloads one")
    parser.add_argument("--out", type=Path, default=HOME, help="the folder to write to")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or download_wheel(Path(folder))
        entries, boxes = (read_member(wheel, name) for name in MEMBERS)
    options.out.mkdir(parents=True, exist_ok=True)
    write(pack_entries(entries), options.out / "nih_entries.parquet")
    write(pack_boxes(boxes), options.out / "nih_boxes.parquet")


if __name__ == "__main__":
    main()
