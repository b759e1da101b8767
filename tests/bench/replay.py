"""Replay's client against an endpoint that takes 200 requests per second: does it keep it busy, and what does it cost?

The endpoint answers after a fixed latency, in a process of its own; histories have the size of the published set's
median step (about 6,500 tokens).
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

from endpoint import Endpoint
from figures import Figures

from harness.endpoint.chat import ChatModel
from harness.endpoint.replicas import Replicas
from harness.model import Sampling
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.directory import ReplayDirectory, ReplayManifest
from tbench.proxies.replay.generation.client import PromptedStep, ask
from tbench.proxies.replay.generation.prompts import PromptBuilder, PromptOptions

SEATS, LATENCY_SEC = 32, 0.16
"""Their quotient is the endpoint's 200 per second."""
STEPS, AT_ONCE = 38 * SEATS, 64
"""More at once than there are seats: a client that is busy with one reply must not leave a seat empty. Whole rounds of
all seats, so that 200 per second can be reached."""
MESSAGES, CHARACTERS = 9, 2900
REPLY = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "make report\\n", "duration": 5.0}]}' * 12


def steps(count: int) -> list[PromptedStep]:
    builder = PromptBuilder(PromptOptions(), "fixed-reply")
    text = ("drwxr-xr-x 2 root root 4096 a line of some output, as commands print them\n" * 40)[:CHARACTERS]
    messages = tuple({"role": "assistant" if n % 2 else "user", "content": text} for n in range(MESSAGES))
    records = (Record(task_id=f"task-{n}", step_idx=0, ref_raw="{}", messages=messages) for n in range(count))
    return [PromptedStep(record, builder.build(record)) for record in records]


async def bare_per_sec(base_url: str, wanted: list[PromptedStep]) -> float:
    """Replies per second of sockets that send the same requests, each made beforehand, and only wait for the answer."""
    url = urlsplit(base_url)
    requests = []
    for step in wanted:
        body = json.dumps(step.prompt.fields).encode()
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        requests.append(head.encode() + body)
    rest = iter(requests)

    async def work() -> None:
        for request in rest:
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(request)
            await reader.read()
            writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return len(wanted) / (time.perf_counter() - began)


async def client_speed(place: object, figures: Figures, scratch: Path) -> None:
    """Whole replies per second, and CPU time of this process, with every reply written to its file."""
    sampling = Sampling(temperature=0, top_p=1, max_tokens=1024, extra_body={"repetition_penalty": 1.0})
    manifest = ReplayManifest(
        model="m", model_short="m", base_urls=(), dataset="", dataset_sha256="", records=STEPS
    )  # fmt: skip
    directory = ReplayDirectory.open(scratch / "run", manifest)
    with Endpoint(REPLY, LATENCY_SEC, SEATS) as base_url:
        endpoints = Replicas([ChatModel(base_url, None, sampling, api_key=None)])
        await endpoints.connect(5.0)
        wanted = steps(STEPS)
        await ask(wanted[:AT_ONCE], endpoints, directory.append, max_tokens=1024, concurrency=AT_ONCE)
        began, began_cpu = time.perf_counter(), time.process_time()
        done = await ask(wanted, endpoints, directory.append, max_tokens=1024, concurrency=AT_ONCE)
        seconds, cpu_sec = time.perf_counter() - began, time.process_time() - began_cpu
        await endpoints.close()
        bare = await bare_per_sec(base_url, wanted)
    directory.close()
    assert done.answered == STEPS, done
    figures.add("replay_client_per_sec", STEPS / seconds, "1/s", bare)
    figures.add("replay_client_cpu_share", cpu_sec / seconds, "cores", 1.0)
    figures.add("replay_client_cpu_ms", cpu_sec * 1e3 / STEPS, "ms")
