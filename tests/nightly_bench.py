"""Nights with stand-ins for `tbench` and the model server: real processes, files and sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import fake_tbench
from run_trees import a_result, write_run

from tbench.nightly.configuration import Benchmark, read_benchmark
from tbench.nightly.journal import NightRecord
from tbench.nightly.night import run_night
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.replay.generation.settings import ReplayConfig

TASKS = ("alpha", "beta", "gamma", "delta")
PROXIES = {"replay": ReplayConfig, "extract": ExtractConfig}
ENDPOINT = '[run.model]\nbase_url = "http://127.0.0.1:9/v1"\n'
SERVER = """
import http.server, pathlib, signal, subprocess, sys, time
mode, port, note = sys.argv[1], int(sys.argv[2]), sys.argv[3]
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if mode == "never" else 200)
        self.end_headers()
        if self.path == "/v1/models":
            self.wfile.write(b'{"data": [{"id": "m", "root": "%s"}]}' % pathlib.Path(note).parent.as_posix().encode())
    def log_message(self, *_):
        pass
if mode == "dies":
    sys.exit("ValueError: no such checkpoint")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
open(note, "a").write(f"{child.pid}\\n")
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
print("serving", flush=True)
if mode == "leaves":
    server.timeout = 0.05
    while not list(pathlib.Path(note).parent.glob("nightly/runs/*/hangs")):
        server.handle_request()
    sys.exit("CUDA error: out of memory")
server.serve_forever()
"""
"""A model server with a child that ignores SIGTERM, whose pid it notes."""


class NightlyBench:
    """A nightly benchmark in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "nightly"
        self.said: list[str] = []
        self.behave(rewards={"beta": [0.0, 1.0], "gamma": [1.0, 0.0, 1.0]})
        tasks = {name: f"{number:064x}" for number, name in enumerate(TASKS)}
        write_run(folder / "template", [a_result(name, seed, 1.0) for name in TASKS for seed in (0, 1)], tasks, (0, 1))
        (folder / "server.py").write_text(SERVER)

    @classmethod
    def at(cls, folder: Path) -> NightlyBench:
        """The one that another process has made there."""
        found = cls.__new__(cls)
        found.folder, found.directory, found.said = folder, folder / "nightly", []
        return found

    def behave(self, **behaviour: Any) -> None:
        """What the stand-in for `tbench` does from now on."""
        (self.folder / "behaviour.json").write_text(json.dumps({"rewards": {}, **behaviour}))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def serve(self, mode: str, **settings: Any) -> str:
        """A [serve] section with the stand-in for a model server."""
        note = self.folder / "children"
        words = [sys.executable, str(self.folder / "server.py"), mode, "{port}", str(note)]
        given = {"port": 0, "ready_timeout_sec": 20, "stop_timeout_sec": 0.1, **settings}
        lines = [f"command = {json.dumps(words)}", *(f"{name} = {json.dumps(value)}" for name, value in given.items())]
        return "[serve]\n" + "\n".join(lines) + "\n"

    def write(self, text: str = ENDPOINT, **nightly: Any) -> Path:
        """The configuration: `text` behind [nightly] with these settings, two seeds a night, a short baseline."""
        known = {"directory": str(self.directory), "checkpoints": ["m"], **nightly}
        lines = [f"{name} = {json.dumps(value)}" for name, value in known.items()]
        file = self.folder / "bench.toml"
        head = "[nightly]\n" + "\n".join(lines)
        file.write_text(f"{head}\n[run.tasks]\nseeds = 2\n[gate]\nbase_nights = 4\n{text}")
        return file

    def read(self, **variables: str) -> Benchmark:
        return read_benchmark(self.folder / "bench.toml", variables, PROXIES)

    def night(self, name: str) -> NightRecord:
        """Do a night."""
        return asyncio.run(run_night(self.read(), name, self.said.append, self.tbench))

    @property
    def tbench(self) -> list[str]:
        return [sys.executable, "-I", fake_tbench.__file__]
