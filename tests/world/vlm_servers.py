"""Two more real servers, each from an environment of its own: `transformers serve`, and vLLM's build for CPUs.

BPALS_SERVERS_PYTHON names the interpreters, separated as in PATH, because the two want different transformers; a
server is started from the first one that has its packages. `make servers` installs both and sets it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from world.waiting import wait_until

STARTS_S = 240
ENDS_S = 20
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

SHIM = """
import importlib.util

if importlib.util.find_spec("torchvision"):
    try:
        import torchvision
    except RuntimeError:
        import torch

        OPERATORS = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
"""
"""A torchvision built for CUDA cannot be imported beside a torch without it, for two operators that nobody here calls.

It stands in sitecustomize.py because vLLM starts more interpreters.
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    """How one kind of server is started."""

    name: str
    needs: tuple[str, ...]
    """Packages without which it does not start."""
    words: tuple[str, ...]
    """What follows the interpreter; the port is added."""

    def python(self) -> str:
        """Find the interpreter that has its packages; nothing where there is none."""
        named = [name for name in os.environ.get("BPALS_SERVERS_PYTHON", "").split(os.pathsep) if name]
        return next((python for name in named if self._starts_from(python := str(Path(name).absolute()))), "")

    def _starts_from(self, python: str) -> bool:
        find = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {self.needs!r})))"
        return subprocess.run([python, "-c", find], env=_environment(), check=False, timeout=60).returncode == 0


def transformers_serve() -> Server:
    """Serve any model whose folder a request names."""
    words = ("-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--device", "cpu")
    return Server(
        name="transformers serve", needs=("transformers", "accelerate", "fastapi", "uvicorn", "openai"), words=words
    )


def vllm(model: Path) -> Server:
    """Serve one model, and count the tokens that were found in the cache."""
    words = ("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--model", str(model),
             "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--enable-prompt-tokens-details",
             "--limit-mm-per-prompt", '{"image": 1}')  # fmt: skip
    return Server(name="vLLM", needs=("vllm",), words=words)


@contextlib.contextmanager
def running(server: Server, python: str, folder: Path) -> Iterator[str]:
    """Serve while a block lasts; its log is in the folder. Gives the base URL."""
    (folder / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
    port = _free_port()
    log = folder / "server.log"
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [python, *server.words, "--port", str(port)],
            env=_environment() | OFFLINE | {"PYTHONPATH": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(process, f"http://127.0.0.1:{port}/health", server.name, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _end(process)


def _environment() -> dict[str, str]:
    """What is set for these tests is not meant for another environment's interpreter."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], url: str, name: str, log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{name} did not start: {log.read_text(encoding='utf-8')[-3000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return True
        return False

    wait_until(answers, STARTS_S, every=0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server with the processes that it has started."""
    for sent in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)
