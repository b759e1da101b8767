"""What the endpoint for agents inside sandboxes adds to a request, and how 64 of them share one event loop.

An agent is a process that asks over a connection that it keeps, as agents do. Its way is the real one: the program of
the tools (compiled here), its streams, the endpoint, the chat client. The floor is the same agent that asks the model
server itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from endpoint import MODEL, Endpoint
from figures import Figures, p99
from simulated import Lag
from small_task import Place

from harness.concurrency import take_turn
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.stream import LocalProcess
from harness.trajectory import Message, Reply
from tbench.gateway.connections import Connections
from tbench.gateway.messages import MessagesDialect
from tbench.gateway.server import Gateway

ROUNDS, REQUESTS = 5, 40
AGENTS, STEPS, LATENCY_SEC = 64, 10, 1.0
KEY = "secret"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SOURCE = Path(__file__).parents[2] / "images" / "tools" / "gateway.c"


def conversation(turns: int = 20) -> list[dict[str, Any]]:
    """About 40 KB, as after 20 commands."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "Make the tests pass."}]
    for turn in range(turns):
        said.append({"role": "assistant", "content": f"Now comes {turn}."})
        said.append({"role": "user", "content": f"{turn}: " + "a line of some output, as commands print it\n" * 45})
    return said


def body(dialect: str, *, stream: bool) -> bytes:
    said = conversation()
    fields = {"input": said} if dialect == "responses" else {"messages": said}
    return json.dumps({"model": MODEL, "max_tokens": 1000, "stream": stream, **fields}).encode()


AGENT = """
import asyncio, json, sys, time
address, path, key, requests, body = *sys.argv[1:4], int(sys.argv[4]), sys.stdin.buffer.read()
ports = [int(port) for port in address.split(",")]
async def agent(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {key}\\r\\n"
    head += f"Content-Length: {len(body)}\\r\\n\\r\\n"
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
        assert b" 200 " in answer, answer
        if b"chunked" in answer:
            first = await reader.readline()
            first_sec = time.perf_counter() - began
            while int(first, 16):
                await reader.readexactly(int(first, 16) + 2)
                first = await reader.readline()
            await reader.readline()
        else:
            await reader.readexactly(int(answer.partition(b"content-length:")[2].partition(b"\\r\\n")[0]))
            first_sec = time.perf_counter() - began
        times.append((first_sec * 1e3, (time.perf_counter() - began) * 1e3))
    return times
async def main():
    found = await asyncio.gather(*(agent(port) for port in ports))
    print(json.dumps([each for times in found for each in times]))
asyncio.run(main())
"""


async def agents_ms(ports: Sequence[int], path: str, asked: bytes, requests: int) -> list[tuple[float, float]]:
    """Milliseconds to the first byte and to the end of each answer, of an agent at each port."""
    argv = [sys.executable, "-c", AGENT, ",".join(map(str, ports)), path, KEY, str(requests)]
    agent = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = await agent.communicate(asked)
    found: list[tuple[float, float]] = json.loads(output)
    return found


@contextlib.asynccontextmanager
async def gateways(model: ChatModel, program: Path, count: int) -> AsyncIterator[list[int]]:
    """Endpoints of so many trials; gives their ports."""

    async def ask(messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
        reply = await model.query(messages, seed=1, max_tokens=max_tokens, tools=tools)
        await take_turn()  # as the agent's clock does
        return reply

    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for _ in range(count):
            gateway = Gateway(ask, secret=KEY, model=MODEL, max_tokens=16384, context_tokens=1 << 20)
            stack.push_async_callback(gateway.close)
            listening = Connections(LocalProcess.connect, str(program), gateway.serve).listen()
            ports.append((await stack.enter_async_context(listening))[0])
        yield ports


def compiled(scratch: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("bench: the group gateway needs a C compiler; none found (cc, gcc)")
    subprocess.run([compiler, "-O2", "-o", scratch / "gateway", SOURCE], check=True)
    return scratch / "gateway"


async def client_cpu_ms(model: ChatModel, requests: int) -> float:
    """CPU time of this process for a request by the chat client alone."""
    messages = MessagesDialect().read(json.loads(body("messages", stream=False))).messages
    began = time.process_time()
    for _ in range(requests):
        await model.query(messages, seed=1, max_tokens=1000)
    return (time.process_time() - began) * 1e3 / requests


async def added(place: Place | None, figures: Figures, scratch: Path) -> None:
    """Of single requests one after the other, and of 64 agents at once."""
    program = compiled(scratch)
    with Endpoint("I look.", 0.0) as base_url:
        async with ChatModel(base_url, MODEL, Sampling(), api_key=None) as model, gateways(model, program, 1) as ports:
            server = [int(base_url.rpartition(":")[2].partition("/")[0])]
            plain, streamed = list[float](), list[float]()
            direct, cpu, client_cpu = list[float](), list[float](), list[float]()
            for _ in range(ROUNDS):
                asked = body("chat", stream=False)
                direct += [ms for _, ms in await agents_ms(server, PATHS["chat"], asked, REQUESTS)]
                client_cpu.append(await client_cpu_ms(model, REQUESTS))
                for dialect, path in PATHS.items():
                    began = time.process_time()
                    plain += [ms for _, ms in await agents_ms(ports, path, body(dialect, stream=False), REQUESTS)]
                    cpu.append((time.process_time() - began) * 1e3 / REQUESTS)
                    found = await agents_ms(ports, path, body(dialect, stream=True), REQUESTS)
                    streamed += [first for first, _ in found]
    floor = statistics.median(direct)
    figures.add("gateway_request_ms", statistics.median(plain), "ms", floor)
    figures.add("gateway_added_ms", statistics.median(plain) - floor, "ms")
    figures.add("gateway_first_byte_added_ms", statistics.median(streamed) - floor, "ms")
    figures.add("gateway_cpu_ms", statistics.median(cpu), "ms", statistics.median(client_cpu))
    figures.add("gateway_added_cpu_ms", statistics.median(cpu) - statistics.median(client_cpu), "ms")
    await _at_once(figures, program)


async def note_computing(ms: list[float]) -> None:
    """Note the CPU time between two turns of the event loop: the lag that the machine's load is no part of."""
    before = time.thread_time()
    while True:
        await asyncio.sleep(0.01)
        now = time.thread_time()
        ms.append((now - before) * 1e3)
        before = now


async def _at_once(figures: Figures, program: Path) -> None:
    lag, computing = Lag(), list[float]()
    with Endpoint("I look.", LATENCY_SEC) as base_url:
        async with (
            ChatModel(base_url, MODEL, Sampling(), api_key=None) as model,
            gateways(model, program, AGENTS) as ports,
        ):
            began = time.perf_counter()
            watch = asyncio.create_task(note_computing(computing))
            async with lag.watched():
                found = await agents_ms(ports, PATHS["messages"], body("messages", stream=True), STEPS)
            watch.cancel()
            elapsed = time.perf_counter() - began
    assert len(found) == AGENTS * STEPS
    figures.add("gateway_64_sec", elapsed, "s", STEPS * LATENCY_SEC)
    figures.add("gateway_64_lag_ms_p50", statistics.median(lag.ms), "ms")
    figures.add("gateway_64_lag_ms_p99", p99(lag.ms), "ms")
    figures.add("gateway_64_computing_ms_p99", p99(computing), "ms")
