"""Stands in for `tbench` in the nights of tests: `run` and the proxies write a directory in no time, or do as told.

`FAKE_TBENCH` names a folder: `behaviour.json` says what to do, `calls.jsonl` gets the arguments, `template` is a run.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    folder = Path(os.environ["FAKE_TBENCH"])
    behaviour = json.loads((folder / "behaviour.json").read_text())
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    if code := behaviour.get("codes", {}).get(sys.argv[1], 0):
        print("tbench: as the test has told it")
        if code != 3:
            return int(code)
    options = dict(zip(sys.argv, sys.argv[1:], strict=False))
    directory = Path(options["--output"])
    if behaviour.get("hang"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "hangs").touch()
        time.sleep(60)
    if sys.argv[1] == "run":
        write(directory, folder / "template", int(options["--first-seed"]), behaviour)
    print("done")
    return int(code)


def write(directory: Path, template: Path, first_seed: int, behaviour: dict[str, Any]) -> None:
    """The template with the run's name and seeds, and the behaviour's rewards: a number, or one for each seed."""
    document = json.loads((template / "run.json").read_text())
    seeds = [first_seed + seed for seed in document["seeds"]]
    document |= {"run": directory.name, "seeds": seeds, **behaviour.get("document", {})}
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "journal.jsonl").touch()
    lines = []
    for line in map(json.loads, (template / "results.jsonl").read_text().splitlines()):
        seed = line["seed"] + first_seed
        rewards = behaviour["rewards"].get(line["task"], 1.0)
        reward = rewards[seed % len(rewards)] if isinstance(rewards, list) else rewards
        lines.append({**line, "run": directory.name, "seed": seed, "reward": reward})
        trial = directory / "trials" / line["task"] / f"seed-{seed}"
        trial.mkdir(parents=True)
        for name in ("session.cast", "trajectory.json", "steps.jsonl", "result.json"):
            (trial / name).write_text("x" * 1000)
    (directory / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (directory / "run.json").write_text(json.dumps(document))


if __name__ == "__main__":
    raise SystemExit(main())
