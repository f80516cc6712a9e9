"""Write a checkpoint as ONNX, with its recipe beside it: on a CPU onnxruntime takes two thirds of torch's time.

python examples/checkpoint_to_onnx.py densenet121 weights.pt net.onnx

Then: bpals judge run onnx:net.onnx --recipe net.toml --images films
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch

from bpals.judges.checkpoint import find_recipe, open_network
from bpals.judges.weights import read_weights

KEPT = (
    "labels",
    "channels",
    "mean",
    "std",
    "framing",
    "resize_px",
    "side_px",
    "output",
    "trained_on_target",
    "evidence",
)


def export(kind, file, out):
    """Read the weights without running anything in them, and write what torch makes of them."""
    weights = read_weights(file)
    recipe = find_recipe(kind, file.name, attributes=weights.attributes)
    shape = {"channels": recipe.channels, "outputs": len(recipe.labels)}
    network = open_network(weights, recipe.architecture, device="cpu", **shape)
    film = torch.zeros(1, recipe.channels, recipe.side_px, recipe.side_px)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is the old exporter: the new one needs more packages
        torch.onnx.export(network.module, (film,), out, opset_version=17, dynamo=False)
    lines = [f"{key} = {json.dumps(getattr(recipe, key))}" for key in KEPT]
    out.with_suffix(".toml").write_text("\n".join(lines) + "\n")
    sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
    print(f"{out}: {out.stat().st_size:,} bytes, sha256 {sha256}; its recipe: {out.with_suffix('.toml')}")
    print(f"Run it: bpals judge run onnx:{out}@{sha256} --recipe {out.with_suffix('.toml')} --images PATH")


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
