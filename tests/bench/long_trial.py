"""A trial of 2,000 steps that print 200 MB in all: memory of the runner, its files, and its page in a browser.

The terminal is the tests' fake. The trial runs in a fresh process, whose memory is read at its end.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from browsing import a_tab, executable, running_browser
from endpoint import Endpoint
from fake_tmux import Answer, FakeTmux
from figures import Figures
from memory import resident_mb
from pages import megabytes, seconds
from run_plans import a_plan
from small_task import Place, make_task

from harness.agent import Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from reports.page_paths import trial_page
from reports.site.writer import write_site
from tbench.agents.model_agent import ModelAgent
from tbench.events import Events
from tbench.runs.run import execute_run
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.tasks.sources import TaskSet

STEPS = 2000
OUTPUT = "forty-nine characters of a line that says little.\n" * 2000
"""What each step prints: 0.1 MB."""
REPLY = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "make report\\n", "duration": 5.0}]}'
CONTEXT_TOKENS = 131_072


async def run_trial(directory: Path, steps: int) -> float:
    """Run the trial below `directory`; returns the megabytes that this process has grown by at most."""
    task, protocol = make_task(directory / "long-task", timeout_sec=100_000), load_protocol("keystrokes-json")
    limits = Limits(steps=steps, context_tokens=CONTEXT_TOKENS, on_overflow="drop-oldest-outputs")
    plan = a_plan("long", agent="keystrokes-json")
    with Endpoint(REPLY, 0.0) as base_url:
        async with ChatModel(base_url, None, Sampling(), api_key=None) as chat:
            await chat.connect()
            before_mb = resident_mb()
            outcome = await execute_run(
                plan,
                TaskSet((task,), {}),
                directory / "runs" / "long",
                lambda: ModelAgent(chat, protocol, limits),
                Events(),
                backend=FakeBackend(lambda _: FakeSandbox(connect=FakeTmux(lambda _: Answer(OUTPUT)).connect)),
            )
    (result,) = outcome.results
    assert (result.steps, result.error) == (steps, None), result
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb


async def of_one(place: Place | None, figures: Figures, scratch: Path) -> None:
    """The trial, its files and its page."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, __file__, str(scratch), str(STEPS)]
    started = time.perf_counter()
    done = await asyncio.to_thread(subprocess.run, argv, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    figures.add("long_trial_sec_per_step", (time.perf_counter() - started) / STEPS, "s")
    figures.add("long_trial_memory_mb", float(done.stdout.splitlines()[-1]), "MB")
    trial = scratch / "runs/long/trials/long-task/seed-0"
    for name in ("session.cast", "trajectory.json"):
        figures.add(f"long_trial_{name.partition('.')[0]}_mb", (trial / name).stat().st_size / 1e6, "MB")
    figures.add("long_trial_files_mb", megabytes(trial), "MB")
    site = scratch / "site"
    figures.add("long_trial_write_sec", seconds(lambda: write_site([scratch / "runs"], site)), "s")
    figures.add("long_trial_page_mb", megabytes(site), "MB")
    if (program := executable()) is not None:
        figures.add("long_trial_load_sec", await asyncio.to_thread(load_sec, program, site), "s")


def load_sec(program: str, site: Path) -> float:
    """Seconds until a browser shows the page of the trial."""
    with running_browser(program) as browser, a_tab(browser) as tab:
        started = time.perf_counter()
        tab.goto(f"{site.as_uri()}/{trial_page('long', 'long-task', 0)}")
        tab.wait_for_selector("main .step", timeout=120_000)
        return time.perf_counter() - started


if __name__ == "__main__":
    print(asyncio.run(run_trial(Path(sys.argv[1]), int(sys.argv[2]))))
