"""`bpals probe`: the backbone of the probe, made once on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from bpals.cli.terminal import AS_JSON, group, takes
from bpals.judges.backbone import build as build_lite0

app = group("probe", "Make the backbone of the probe.", "bpals probe build")


@app.command(epilog="Example: bpals probe build")
def build(
    out: Annotated[Path | None, takes("FILE.onnx", "Where to put it; by default where probe:lite0 looks.")] = None,
    as_json: AS_JSON = False,
) -> None:
    """Make the default backbone, EfficientNet-Lite0, out of two installed packages: once, and about 5 seconds."""
    built = build_lite0(out)
    if as_json:
        record = {"path": str(built.path), "sha256": built.sha256, "width": built.width, "difference": built.difference}
        print(json.dumps(record, indent=1))
        return
    print(f"{built.path}: {built.width:,} numbers per image, sha256 {built.sha256}")
    print(f"onnxruntime and torch differ by at most {built.difference:.1g} on images of noise")
    print(f"Run it: bpals judge run probe:{'lite0' if out is None else built.path} --images PATH")
