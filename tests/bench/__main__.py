"""`make bench`: what the runner costs, beside the floor of the same machine in the same minutes.

Prints a table and writes bench.json: {"figures": {NAME: {"value", "unit", "floor", "ratio"}}}. Names of groups as
arguments take only those, `--least` in front of them as little of each as shows that it still runs. README.md says
what the figures mean.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the fakes that the tests share

import attaching
import commands
import datasets
import forking
import gateway
import going_on
import history
import lives
import long_trial
import machines
import memory
import oci
import ordering
import pages
import replay
import scoring
import services
import simulated
import steps
from figures import Figures
from small_task import Place, make_task

from tbench.sandbox.docker.engine import Engine

GROUPS: dict[str, Callable[..., Awaitable[None]]] = {
    "step": steps.one_trial,
    "steps16": steps.sixteen_trials,
    "command": commands.delivered,
    "attach": attaching.of_one_trial,
    "fork": forking.to_a_step,
    "going_on": going_on.after_cuts,
    "memory": memory.per_trial,
    "long_trial": long_trial.of_one,
    "simulated": simulated.five_hundred,
    "simulated1000": simulated.a_thousand,
    "gateway": gateway.added,
    "trial": lives.whole_trials,
    "calls": lives.calls_of_trials,
    "separate": lives.separate_verdicts,
    "lives": lives.lives_at_once,
    "oci": oci.beside_docker,
    "services": services.two_services,
    "machines": machines.two_engines,
    "ray": machines.ray_lives,
    "ray2000": machines.ray_simulated,
    "start": lives.start_and_end,
    "help": lives.command_line,
    "datasets": datasets.by_name,
    "history": history.index_and_pages,
    "site": pages.of_sites,
    "order": ordering.of_trials,
    "replay": scoring.replay,
    "summary": scoring.summary,
    "replay_client": replay.client_speed,
}
WITHOUT_ENGINE = {
    "long_trial",
    "simulated",
    "simulated1000",
    "gateway",
    "machines",
    "ray2000",
    "help",
    "datasets",
    "history",
    "site",
    "order",
    "summary",
    "replay",
    "replay_client",
}


LEAST: dict[ModuleType, dict[str, object]] = {
    attaching: {"LOOKS": 2, "KEYS": 2},
    commands: {"COMMANDS": 2, "ROUNDS": 1, "LARGE_ROUNDS": 1},
    datasets: {"TASKS": 2, "ROUNDS": 1},
    forking: {"AT_STEP": 2, "STEPS": 3, "ROUNDS": 2},
    gateway: {"ROUNDS": 1, "REQUESTS": 2, "AGENTS": 2, "STEPS": 2, "LATENCY_SEC": 0.05},
    going_on: {"STEPS": 4, "CUTS": 2, "ROUNDS": 1},
    history: {"SHAPES": {"100_runs": (2, 4, 1)}, "ROUNDS": 1},
    lives: {"CYCLES": 1, "LIVES": 2, "AT_ONCE": 2},
    long_trial: {"STEPS": 5},
    machines: {"ROUNDS": 1},
    oci: {"CYCLES": 1, "LIVES": 2, "AT_ONCE": 2, "ROUNDS": 1},
    pages: {"TASKS": 2, "SEEDS": 1, "STEPS": 2, "NIGHTS": 2},
    replay: {"SEATS": 2, "STEPS": 4, "AT_ONCE": 2},
    scoring: {"STEPS": 2, "ROUNDS": 1, "SUMMARIES": ((4, 2),)},
    services: {"CYCLES": 1},
    simulated: {"STEPS": 2, "LATENCY_SEC": 0.05, "FEW": 4, "MANY": 8},
    steps: {"STEPS": 2, "CPU_STEPS": 2, "STEPS_AT_ONCE": 1, "AT_ONCE": 2, "ROUNDS": 1},
}
"""What `--least` makes of the sizes of groups."""


async def measure(engine: Engine | None, names: list[str], directory: Path) -> Figures:
    figures = Figures()
    place = await Place.prepare(engine, make_task(directory / "bench-task")) if engine is not None else None
    for name in names:
        scratch = directory / name
        scratch.mkdir()
        await GROUPS[name](place, figures, scratch)
    return figures


def main() -> None:
    names = sys.argv[1:]
    if names[:1] == ["--least"]:
        names = names[1:]
        for module, sizes in LEAST.items():
            vars(module).update(sizes)
    names = names or list(GROUPS)
    if unknown := set(names) - GROUPS.keys():
        sys.exit(f"bench: no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    engine = Engine.connect(steps.AT_ONCE) if set(names) - WITHOUT_ENGINE else None
    try:
        with tempfile.TemporaryDirectory() as directory:
            figures = asyncio.run(measure(engine, names, Path(directory)))
    finally:
        if engine is not None:
            engine.close()
    figures.show()
    figures.write(Path("bench.json"))
    print("written: bench.json")


if __name__ == "__main__":
    main()
