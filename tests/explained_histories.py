"""Simulated nights in real run directories, each with planted causes, and how often `tbench.explain` names them.

`PYTHONPATH=tests:. python tests/explained_histories.py 200` prints these tables; docs/explaining.md has them. A history
is eight good nights and one with the planted causes, of 20 tasks with 5 seeds: half of the tasks are solved in 97 of
100 trials, the others with chances from Beta(0.5, 0.7). In every night 6 % of the trials fail for other reasons.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from run_trees import FIRST_NIGHT, a_result, write_run

from harness.model import ServedModel
from harness.trajectory import Reply, Step, Usage
from tbench.explaining.explain import explain
from tbench.explaining.explanation import Explanation
from tbench.results import Blame, ErrorInfo, HostSample, ImageOrigin, Stage

TASKS = tuple(f"task-{number:02}" for number in range(20))
GOOD_NIGHTS, SEEDS, STORED = 8, 5, 1
"""Good nights, seeds a night, and good nights whose steps are still stored."""
SCENARIOS = ("request-timeout", "context", "thinking", "load", "image", "model")
"""Planted causes; without any, nothing is planted."""
KEYS = {
    "request-timeout": "request_timeout",
    "context": "context_full",
    "thinking": "server.thinking",
    "load": "machine",
    "image": "image",
    "model": "model",
}
"""Key of the part that each planted cause belongs to."""
HIT = {"request-timeout": 0.30, "context": 0.35, "load": 0.30}
"""Share of the trials that such a cause ends."""
KEPT = {"thinking": 0.4, "image": 0.1, "model": 0.0}
"""Factor of the chances that are left of a task."""
BASE = {"context_full": 0.02, "machine": 0.01, "agent_timeout": 0.02, "format_errors": 0.01}
"""Share of the trials of every night that end otherwise."""
WINDOW = 32768


@dataclass(frozen=True)
class Night:
    """What is true of a night."""

    chances: Mapping[str, float]
    hits: Mapping[str, float]
    """Share of the trials that each cause ends, by key."""
    planted: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()

    def fails(self, key: str, task: str) -> float:
        """Chance that a trial of a task fails with a cause of evidence; the hits are drawn one after another."""
        left = 1.0
        for name, share in self.hits.items():
            if name == key:
                return left * share
            left *= 1.0 - share
        return 0.0

    def passes(self, task: str) -> float:
        left = 1.0
        for share in self.hits.values():
            left *= 1.0 - share
        return left * self.chances[task]


@dataclass
class Tally:
    """Findings in many draws."""

    draws: int = 0
    right: int = 0
    """The cause named first is a planted one; without any planted one, none is named."""
    all_named: int = 0
    """Every planted cause is named."""
    parts: int = 0
    covered: int = 0
    worst_sum: float = 0.0
    wrong: list[int] = field(default_factory=list)


def true_nights(planted: Sequence[str], rng: random.Random) -> tuple[Night, Night]:
    """Return a good night and one with the planted causes."""
    chances = {task: 0.97 if at % 2 else rng.betavariate(0.5, 0.7) for at, task in enumerate(TASKS)}
    good = Night(chances, dict(BASE))
    solid = [task for task in TASKS if chances[task] == 0.97]
    chosen = rng.sample(solid, 7)
    images = frozenset(chosen[:5]) if "image" in planted else frozenset[str]()
    after = dict(chances)
    for cause, tasks in (("thinking", TASKS), ("image", sorted(images)), ("model", chosen[5:])):
        for task in tasks if cause in planted else ():
            after[task] *= KEPT[cause]
    hits = {KEYS[cause]: share for cause, share in HIT.items() if cause in planted}
    rest = {key: share for key, share in BASE.items() if key not in hits}
    return good, Night(after, hits | rest, frozenset(planted), images)


def expected_parts(good: Night, bad: Night) -> dict[str, float]:
    """Return the expected part of each key: what was planted, in fractions of the score."""
    rests = {task: rest_key(bad, task) for task in TASKS}
    found: dict[str, float] = {}
    for task in TASKS:
        old, new = good.passes(task), bad.passes(task)
        total = new - old
        for key in {*good.hits, *bad.hits}:
            part = good.fails(key, task) * new - bad.fails(key, task) * old
            found[key] = found.get(key, 0.0) + part / len(TASKS)
            total -= part
        found[rests[task]] = found.get(rests[task], 0.0) + total / len(TASKS)
    return found


def rest_key(night: Night, task: str) -> str:
    if task in night.images:
        return "image"
    return "server.thinking" if "thinking" in night.planted else "model"


def write_nights(folder: Path, good: Night, bad: Night, rng: random.Random) -> tuple[list[Path], Path]:
    """Write the runs of all nights; return the good ones and the last one."""
    runs = []
    for number in range(GOOD_NIGHTS + 1):
        night = bad if number == GOOD_NIGHTS else good
        seeds = range(SEEDS * number, SEEDS * (number + 1))
        settings: dict[str, Any] = {"prompt_hash": "p", "agent": "tbench:keystrokes-json"}
        window = WINDOW // 2 if "context" in night.planted else WINDOW
        settings["served"] = ServedModel(id="m", context_tokens=window, root="/weights/m")
        if "request-timeout" in night.planted:
            settings["request_timeout_sec"] = 20.0
        run = write_run(folder / f"night-{number:02}", [], dict.fromkeys(TASKS, "h"), seeds, **settings)
        lines = [a_line(night, task, seed, rng).replace("RUN", run.name) for task in TASKS for seed in seeds]
        (run / "results.jsonl").write_text("".join(lines))
        for task, seed in ((task, seed) for task in TASKS for seed in seeds if number >= GOOD_NIGHTS - STORED):
            write_steps(run, task, seed, is_dropped="thinking" in night.planted)
        runs.append(run)
    return runs[:-1], runs[-1]


def a_line(night: Night, task: str, seed: int, rng: random.Random) -> str:
    """Draw a trial, as a line of results: one of the causes with evidence, else solved or not by the task's chance."""
    load = 0.2 + 0.6 * rng.random() + (2.5 if "load" in night.planted else 0.0)
    tokens, cause = rng.randint(900, 1500), ""
    for key, share in night.hits.items():
        if rng.random() < share:
            cause = key
            break
    solved = not cause and rng.random() < night.chances[task]
    line = _line(cause, "sha256:new" if task in night.images else "sha256:old", solved=solved)
    load = {"machine": 3.4, "agent_timeout": 0.9}.get(cause, load)
    return (
        line.replace("TASK", task)
        .replace("987654", str(seed))
        .replace("123456", str(tokens))
        .replace("77.5", str(load))
    )


@cache
def _line(cause: str, digest: str, *, solved: bool) -> str:
    """Return the line of a trial with a cause, with marks for what differs from trial to trial."""
    outcomes = {"context_full": "context_limit", "format_errors": "format_limit", "": "submitted"}
    error = None
    if cause == "request_timeout":
        message = "http://host: no whole reply within 20 s"
        error = ErrorInfo(stage=Stage.AGENT, type="reply_timeout", blame=Blame.USER, retryable=False, message=message)
    found = a_result(
        "TASK",
        987654,
        None if error is not None else float(solved),
        FIRST_NIGHT,
        run="RUN",
        model="m",
        outcome=None if error is not None else outcomes.get(cause, "agent_timeout"),
        error=error,
        steps=3,
        usage=Usage(prompt_tokens=4000, completion_tokens=123456),
        host=HostSample(load_max=77.5),
        image_id=digest,
        image_origin=ImageOrigin(how="present", reference="TASK", digest=digest),
    )
    return f"{found.model_dump_json()}\n"


def write_steps(run: Path, task: str, seed: int, *, is_dropped: bool) -> None:
    """Write three steps whose prompts hold the earlier thinking, or lack it."""
    folder = run / "trials" / task / f"seed-{seed}"
    folder.mkdir(parents=True)
    folder.joinpath("steps.jsonl").write_text(_STEPS[is_dropped])


def _steps(*, is_dropped: bool) -> str:
    prompt, lines = 1000, list[str]()
    for index in range(1, 4):
        reply = Reply(
            content="{}",
            reasoning="thinking " * 100,
            finish_reason="stop",
            usage=Usage(prompt_tokens=prompt, completion_tokens=400),
        )
        step = Step(index=index, reply=reply, actions=("ls\n",), observation="$ ", exit_code=0)
        lines.append(step.model_dump_json())
        prompt += 200 + (150 if is_dropped else 400)
    return "".join(f"{line}\n" for line in lines)


_STEPS = {False: _steps(is_dropped=False), True: _steps(is_dropped=True)}


def draw(folder: Path, planted: Sequence[str], number: int) -> tuple[Explanation, dict[str, float]]:
    """Write and explain one history; return the explanation and the planted parts."""
    rng = random.Random(f"{'+'.join(planted)}/{number}")
    good, bad = true_nights(planted, rng)
    before, last = write_nights(folder, good, bad, rng)
    return explain(last, before), expected_parts(good, bad)


def count(tally: Tally, planted: Sequence[str], number: int, found: Explanation, expected: Mapping[str, float]) -> None:
    """Add one draw to the tally."""
    assert found.difference is not None
    wanted = {KEYS[cause] for cause in planted}
    named = [part.cause for part in found.named]
    is_right = named[0] in wanted if wanted and named else not wanted and not named
    tally.draws += 1
    tally.right += is_right
    # Losses of the model cannot be told from those of thinking that is dropped at the same time.
    tally.all_named += wanted - ({"model"} if "thinking" in planted else set()) <= set(named)
    if not is_right:
        tally.wrong.append(number)
    parts = {part.cause: part for part in found.difference.parts}
    tally.worst_sum = max(
        tally.worst_sum, abs(sum(part.difference for part in parts.values()) - found.difference.difference)
    )
    for key, points in expected.items():
        if key in parts:
            tally.parts += 1
            tally.covered += parts[key].low <= points <= parts[key].high


def mixtures() -> Iterator[tuple[str, ...]]:
    """Yield nothing planted, each cause alone, and all mixtures of two."""
    yield ()
    yield from ((cause,) for cause in SCENARIOS)
    yield from combinations(SCENARIOS, 2)


def tally_of(planted: Sequence[str], draws: int, first: int = 0) -> Tally:
    """Return the findings of many draws of one scenario."""
    tally = Tally()
    for number in range(first, first + draws):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            found, expected = draw(Path(folder), planted, number)
        count(tally, planted, number, found, expected)
    return tally


def main(draws: int, only: Sequence[str]) -> None:
    print("| planted | first named right | all named | intervals that cover |")
    print("|---|---|---|---|")
    for planted in mixtures():
        if only and " + ".join(planted or ("nothing",)) not in only:
            continue
        found = tally_of(planted, draws)
        cover = f"{found.covered} of {found.parts}"
        name = " + ".join(planted or ("nothing",))
        print(f"| {name} | {found.right} of {found.draws} | {found.all_named} | {cover} |", flush=True)
        print(json.dumps({"wrong": found.wrong[:10], "worst_sum": found.worst_sum}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
