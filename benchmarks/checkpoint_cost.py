"""What a classifier checkpoint costs a film, on one core, and what that makes for all of NIH.

    python benchmarks/checkpoint_cost.py                     24 drawn films of 1024 px, about two minutes
    python benchmarks/checkpoint_cost.py --images FOLDER     the first 24 PNGs of a folder, such as NIH's originals
    python benchmarks/checkpoint_cost.py --write             put the table into docs/checkpoints.md

The cost is CPU seconds on one thread, so that it matters little who else uses the machine: turning the file's bytes
into the film that a judge is shown, then asking about all findings. Weights are random, and cost what trained ones do.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from bpals.findings import NIH
from bpals.images.phantom import draw_phantom
from bpals.images.prepare import Preparation, Prepared, prepare
from bpals.judges.checkpoint import CheckpointJudge, open_checkpoint
from bpals.judges.local_model import import_torchvision
from bpals.types import Film
from section import Section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md"
EXPORT = Path(__file__).resolve().parent.parent / "examples" / "checkpoint_to_onnx.py"
OPENING = "<!-- printed by benchmarks/checkpoint_cost.py --write -->"
CLOSING = "<!-- end of the measurement -->"
ALL_OF_NIH = 112_120
FILMS = 24
ROUNDS = 5
SIDE_PX = 1024


def contents(folder: Path | None) -> list[bytes]:
    """Give the bytes of some films: drawn ones, or the first PNGs of a folder."""
    if folder is None:
        return [draw_phantom((), seed=seed, side_px=SIDE_PX) for seed in range(FILMS)]
    return [path.read_bytes() for path in sorted(folder.glob("*.png"))[:FILMS]]


def prepared(files: list[bytes]) -> list[Film]:
    """Make of each file what a judge is shown."""
    shown = [prepare(content, Preparation()) for content in files]
    return [each.film for each in shown if isinstance(each, Prepared)]


def judges(folder: Path) -> Iterator[tuple[str, CheckpointJudge]]:
    """Give each network with random weights, run by torch and by onnxruntime."""
    models = import_torchvision().models
    torch.manual_seed(0)
    for name in ("densenet121", "resnet50"):
        weights = folder / f"{name}.pt"
        torch.save(getattr(models, name)(weights=None, num_classes=len(NIH.findings)).state_dict(), weights)
        yield f"`{name}:`, torch", open_checkpoint(name, str(weights), device="cpu")
        written = folder / f"{name}.onnx"
        subprocess.run([sys.executable, EXPORT, name, weights, written], stdout=subprocess.DEVNULL, check=True)
        recipe = written.with_suffix(".toml")
        yield "the same as `onnx:`, onnxruntime", open_checkpoint("onnx", str(written), recipe=recipe)


def rates(judge: CheckpointJudge, films: list[Film]) -> list[float]:
    """Measure films per core-second, a number a round; the first film is not counted."""
    questions = judge.questions(NIH)
    judge.ask(films[0], questions)
    measured = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for film in films:
            judge.ask(film, questions)
        measured.append(len(films) / (time.process_time() - began))
    return measured


def rows(files: list[bytes]) -> Iterator[str]:
    """Give the table, line by line."""
    began = time.process_time()
    films = prepared(files)
    reading_s = (time.process_time() - began) / len(files)
    yield "| judge | films a core-second, asking alone | with reading the file | core-hours for 112,120 films |"
    yield "|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        for name, judge in judges(Path(folder)):
            measured = rates(judge, films)
            middle = statistics.median(measured)
            whole = 1 / (1 / middle + reading_s)
            yield (
                f"| {name} | {middle:.1f} ({min(measured):.1f} to {max(measured):.1f}) | {whole:.1f} "
                f"| {ALL_OF_NIH / whole / 3600:.1f} |"
            )
    yield ""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "onnxruntime"))
    yield (
        f"{len(films)} films of 1024 px, {ROUNDS} rounds: the median and its range; reading a file takes "
        f"{reading_s * 1000:.0f} ms. One thread; {versions}; Python {platform.python_version()}."
    )


def main() -> None:
    """Print the table, and put it into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of PNGs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/checkpoints.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    printed = []
    for line in rows(contents(given.images)):
        print(line, flush=True)
        printed.append(line)
    if given.write:
        Section(PAGE, OPENING, CLOSING).write("\n".join(printed))


if __name__ == "__main__":
    main()
