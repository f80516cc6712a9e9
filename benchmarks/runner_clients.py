"""One client, asking the stub server as many questions as it is told: what each is measured in, alone in a process.

    python benchmarks/runner_clients.py bpals --url http://127.0.0.1:8000/v1 --films 184

Prints one line of JSON: requests, seconds, CPU seconds of this process. Imports are not charged, nor is the making of
films. All send the same 100 KB film 28 times with another question, 64 at once; only bpals keeps what it is told.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import importlib
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bpals.findings import Vocabulary
from bpals.judges.openai import OpenAIJudge
from bpals.judges.runner.messages import Plan
from bpals.judges.runner.retry import RunPolicy
from bpals.judges.runner.runner import run
from bpals.judges.runner.transport import Endpoint
from bpals.store.ledger import Ledger
from bpals.types import Film, Question

IN_FLIGHT = 64
FILM_BYTES = 100_000
VOCABULARY = Vocabulary(
    name="nih",
    findings=(
        "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
        "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
    ),
)  # fmt: skip


def films(count: int) -> Iterator[tuple[str, Film]]:
    """Make films that no two of are alike: noise, for nobody decodes it on the way."""
    draw = random.Random(0)  # noqa: S311
    noise = draw.randbytes(FILM_BYTES)
    for number in range(count):
        png = number.to_bytes(4, "big") + noise[4:]
        yield f"{number:08}", Film(sha256=hashlib.sha256(png).hexdigest(), png=png, width_px=512, height_px=512)


def ask_bpals(url: str, count: int, *, by_uuid: bool) -> int:
    """Ask with the runner, every answer in a ledger on the disk."""
    judge = OpenAIJudge(model="stub", topics=False, method="top_k", image_by="uuid" if by_uuid else "bytes")
    questions = judge.questions(VOCABULARY)
    with tempfile.TemporaryDirectory(prefix="bpals-bench-") as folder:
        ledger = Ledger.open(Path(folder) / "ledger.sqlite")
        with ledger, ledger.lock("the benchmark"):
            plan = Plan(
                judge_id=ledger.enrol(judge.card, questions, "noise"),
                questions=questions,
                todo=count,
                endpoints=(Endpoint(url=url),),
                pace=RunPolicy(in_flight=IN_FLIGHT),
            )
            tally = run(judge, films(count), ledger, plan)
            if ledger.counts(plan.judge_id)["replies"]["answered"] != tally.attempts:
                sys.exit(f"not all was answered: {tally}")
    return tally.attempts


def questions() -> tuple[Question, ...]:
    """What all of them ask."""
    return OpenAIJudge(model="stub", topics=False).questions(VOCABULARY)


async def sixty_four(count: int, ask: Callable[[str, str], Awaitable[object]]) -> int:
    """Let 64 workers ask every question about every film, given as a data URL made once a film."""
    asked = questions()
    todo = (
        (url, question.text)
        for url in ("data:image/png;base64," + base64.b64encode(film.png).decode() for _, film in films(count))
        for question in asked
    )

    async def work() -> None:
        for url, text in todo:
            await ask(url, text)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return count * len(asked)


def messages(url: str, text: str) -> list[Any]:
    """Write the messages of one request."""
    return [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]}
    ]


def ask_aiohttp(url: str, count: int) -> int:
    """Ask with bare aiohttp: bodies put together from bytes, replies parsed and dropped."""
    import aiohttp  # noqa: PLC0415
    import orjson  # noqa: PLC0415

    head = (
        b'{"model":"stub","temperature":0,"max_tokens":1,"logprobs":true,"top_logprobs":20,"messages":[{"role":"user",'
    )
    head += b'"content":[{"type":"image_url","image_url":{"url":"'

    async def all_of_it() -> int:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

            async def ask(image: str, text: str) -> None:
                tail = b'"}},{"type":"text","text":' + orjson.dumps(text) + b"}]}]}"
                async with session.post(f"{url}/chat/completions", data=head + image.encode() + tail) as response:
                    orjson.loads(await response.read())["choices"][0]["logprobs"]

            return await sixty_four(count, ask)

    return asyncio.run(all_of_it())


def ask_openai(url: str, count: int) -> int:
    """Ask with the openai SDK as it comes, without retries."""
    import openai  # noqa: PLC0415

    async def all_of_it() -> int:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def ask(image: str, text: str) -> None:
                said = messages(image, text)
                await client.chat.completions.create(
                    model="stub", messages=said, temperature=0, max_tokens=1, logprobs=True, top_logprobs=20
                )

            return await sixty_four(count, ask)

    return asyncio.run(all_of_it())


def ask_litellm(url: str, count: int) -> int:
    """Ask with LiteLLM as it comes, without retries."""
    import litellm  # noqa: PLC0415

    options: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    options |= {"base_url": url, "api_key": "none", "num_retries": 0}

    async def all_of_it() -> int:
        async def ask(image: str, text: str) -> None:
            await litellm.acompletion(model="openai/stub", messages=messages(image, text), **options)

        return await sixty_four(count, ask)

    return asyncio.run(all_of_it())


OURS = ("aiohttp", "orjson", "sqlalchemy.dialects.sqlite")
CLIENTS: dict[str, tuple[tuple[str, ...], Callable[[str, int], int]]] = {
    "bpals": (OURS, lambda url, count: ask_bpals(url, count, by_uuid=False)),
    "bpals-uuid": (OURS, lambda url, count: ask_bpals(url, count, by_uuid=True)),
    "aiohttp": (("aiohttp", "orjson"), ask_aiohttp),
    "openai": (("openai",), ask_openai),
    "litellm": (("litellm",), ask_litellm),
}
"""Name -> the packages it imports late, and what it does."""


def main() -> None:
    """Ask, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--films", type=int, default=184)
    given = parser.parse_args()
    packages, ask = CLIENTS[given.client]
    for package in packages:
        importlib.import_module(package)
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF)
    requests = ask(given.url, given.films)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"requests": requests, "seconds": seconds, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
