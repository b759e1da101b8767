"""Cost of a viewer beside a run of many trials: its share of a cpu, and whether the browser stays fluid.

    python tests/view_bench.py --trials 256 --seconds 30 --step 5 [--browser] [--screenshot FILE]

A thousand lines of colour are printed by `--trials` terminals, each with a step every `--step` seconds; `--rate` has a
terminal print without a pause, so many bytes a second, in so many of them.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from live_runs import RunBeingWritten

TICKS = os.sysconf("SC_CLK_TCK")
FRAMES = """() => new Promise((done) => {
  const times = [];
  const begin = performance.now();
  let last = begin;
  const frame = (now) => {
    times.push(now - last);
    last = now;
    if (now - begin < 8000) requestAnimationFrame(frame);
    else {
      times.shift();
      times.sort((a, b) => a - b);
      const at = (share) => Math.round(10 * times[Math.min(times.length - 1, Math.floor(share * times.length))]) / 10;
      done({ frames: times.length, median: at(0.5), p95: at(0.95), p99: at(0.99), longest: at(1) });
    }
  };
  requestAnimationFrame(frame);
})"""


def printed(random_: random.Random, step: int) -> str:
    """Output of a step: some lines, of which some have colours."""
    words = (
        "collected",
        "src/main.c",
        "warning:",
        "unused variable",
        "Building",
        "PASSED",
        "./configure",
        "0x7f3a",
        "ok",
    )
    lines = [f"\x1b[1;34mroot@5f2c9a7b1d3e\x1b[0m:\x1b[36m/app\x1b[0m# make check  # step {step}"]
    for _ in range(random_.randint(4, 30)):
        text = " ".join(random_.choices(words, k=random_.randint(2, 9)))
        colour = random_.choice(("", "", "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[38;5;208m"))
        lines.append(f"{colour}{text}\x1b[0m" if colour else text)
    return "\r\n".join(lines) + "\r\n"


def write(run: RunBeingWritten, trials: list[tuple[str, int]], step_sec: float, stop: threading.Event) -> None:
    """Let all trials go on, their steps spread evenly, until told to stop."""
    random_ = random.Random(1)
    for task, seed in trials:
        run.begin(task, seed)
    run.note("endpoint: http://localhost:8000/v1: HTTP 503; trying again in 1.1 s")
    steps = dict.fromkeys(trials, 0)
    begun, number = time.monotonic(), 0
    while not stop.is_set():
        trial = trials[number % len(trials)]
        steps[trial] += 1
        run.step(*trial, steps[trial], printed(random_, steps[trial]))
        number += 1
        due = begun + number * step_sec / len(trials)
        stop.wait(max(0.0, due - time.monotonic()))


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(pid: int, seconds: float) -> dict[str, float]:
    """The share of one cpu that a process takes over so many seconds, in percent, and its memory."""
    before, begun = cpu_sec(pid), time.monotonic()
    time.sleep(seconds)
    share = 100 * (cpu_sec(pid) - before) / (time.monotonic() - begun)
    return {"cpu_percent_of_one": round(share, 2), "memory_mb": round(memory_mb(pid), 1)}


def listen(url: str, counted: list[int], stop: threading.Event) -> None:
    """A browser without a screen: takes the stream and counts bytes."""
    with urllib.request.urlopen(f"{url}live/events", timeout=30) as stream:
        while not stop.is_set():
            counted.append(len(stream.readline()))


def in_browser(url: str, screenshot: str | None, pid: int, seconds: float) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        problems: list[str] = []
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{url}live")
        page.wait_for_selector(".tile")
        page.wait_for_timeout(3000)
        top = page.evaluate(FRAMES)
        page.evaluate("() => { let y = 0; setInterval(() => window.scrollTo(0, (y += 12) % 8000), 16); }")
        scrolling = page.evaluate(FRAMES)
        viewer = measure(pid, seconds)
        if screenshot:
            page.screenshot(path=screenshot)
        tiles = page.evaluate("document.querySelectorAll('.tile').length")
        browser.close()
    return {"tiles": tiles, "still": top, "scrolling": scrolling, "viewer": viewer, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--step", type=float, default=5.0)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--screenshot")
    chosen = parser.parse_args()
    tasks = tuple(f"task-{number:03d}" for number in range(chosen.trials // 4))
    trials = [(task, seed) for task in tasks for seed in range(4)]
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, RunBeingWritten(Path(folder) / "r", tasks, 4, len(trials)) as run:
        writer = threading.Thread(target=write, args=(run, trials, chosen.step, stop))
        writer.start()
        command = [sys.executable, "-m", "tbench", "view", folder, "--port", "0"]
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert viewer.stdout is not None
            url = viewer.stdout.readline().split()[-1]
            time.sleep(8)
            print("nobody looks:", measure(viewer.pid, chosen.seconds))
            if chosen.browser:
                print("a browser:", in_browser(url, chosen.screenshot, viewer.pid, chosen.seconds))
            else:
                counted: list[int] = []
                threading.Thread(target=listen, args=(url, counted, stop), daemon=True).start()
                time.sleep(5)
                counted.clear()
                print(
                    "one stream:",
                    measure(viewer.pid, chosen.seconds),
                    f"{sum(counted) / chosen.seconds / 1000:.0f} kB/s",
                )
        finally:
            stop.set()
            writer.join()
            viewer.terminate()
            viewer.wait()


if __name__ == "__main__":
    main()
