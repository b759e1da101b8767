"""Whole trials beside the bare life of a container, and the command line's start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import Figures
from small_task import SEPARATE, Place, make_task

from harness.agent import Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.config.settings import Verify
from tbench.demo.server import DemoEndpoint
from tbench.sandbox import backend as sandbox
from tbench.sandbox.owner import NETWORK
from tbench.tasks.task import Task

CYCLES, LIVES, AT_ONCE = 12, 48, 8
_AT_MOST = {"oracle": 1.3, "confirmed": 1.9}
"""How many bare cycles a trial is to cost."""


def bare_cycle(place: Place) -> float:
    """Create, start, two execs, forced removal, with the limits and mounts of a trial: seconds."""
    api = place.engine.api
    started = time.perf_counter()
    host = api.create_host_config(
        nano_cpus=10**9,
        mem_limit=512 << 20,
        memswap_limit=512 << 20,
        pids_limit=4096,
        network_mode=NETWORK,
        binds=[f"{place.volume}:{sandbox.TOOLS}:ro"],
        tmpfs={f"{sandbox.TOOLS}/run": "mode=1777,size=16m"},
    )
    identity = api.create_container(place.image, entrypoint=[f"{sandbox.TOOLS}/bin/init"], host_config=host)["Id"]
    try:
        api.start(identity)
        for _ in range(2):
            api.exec_start(api.exec_create(identity, ["true"])["Id"])
    finally:
        api.remove_container(identity, force=True)
    return time.perf_counter() - started


def ten_steps(task: Task, scripts: Path) -> DemoEndpoint:
    """Eight steps of one command each; with the claim and its confirmation that makes ten replies."""
    lines = ["pass_rate = 1.0", "fail = []"]
    for number in range(8):
        command = "touch /app/done" if number == 7 else f"echo {number}"
        lines += ["[[pass]]", f'analysis = "step {number}"', 'plan = "one command"']
        lines.append(f'commands = [{{ keystrokes = "{command}\\n", duration = 0.1 }}]')
    (scripts / f"{task.name}.toml").write_text("\n".join(lines) + "\n")
    return DemoEndpoint({task.name: task.instruction}, scripts=scripts)


async def whole_trials(place: Place, figures: Figures, scratch: Path) -> None:
    """One trial at a time, the second one of a run: a run begins with a helper container of its own.

    Machines are noisy: bare cycles and trials are interleaved, figures are medians.
    """
    with ten_steps(place.task, scratch) as endpoint:
        chat = ChatModel(endpoint.base_url, None, Sampling(), api_key=None)
        await chat.connect()
        protocol = load_protocol("keystrokes-json")
        bare, run, nop, oracle, confirmed, model = [], [], [], [], [], []

        async def trial(make_agent: Callable[[], TrialAgent], name: str, reward: float, verify: Verify) -> float:
            elapsed, outcome = await place.run_trials(make_agent, 2, 1, name, verify=verify)
            assert all(result.reward == reward for result in outcome.results), outcome.results
            run.append(elapsed - sum(result.timings.wall_sec for result in outcome.results))
            return max(outcome.results, key=lambda result: result.started_at).timings.wall_sec

        for _ in range(CYCLES):
            bare.append(bare_cycle(place))
            nop.append(await trial(NopAgent, "nop", 0.0, "shared"))
            oracle.append(await trial(OracleAgent, "oracle", 1.0, "shared"))
            confirmed.append(await trial(OracleAgent, "oracle", 1.0, "both"))
            model.append(await trial(lambda: ModelAgent(chat, protocol, Limits()), "keystrokes-json", 1.0, "shared"))
        await chat.close()
    bare_sec, oracle_sec = statistics.median(bare), statistics.median(oracle)
    for name, took in (("failing", nop), ("oracle", oracle), ("confirmed", confirmed)):
        figures.add(f"{name}_trial_sec", statistics.median(took), "s", bare_sec)
        # The machine is not the same for long: neighbours are compared.
        ratios = [sec / beside for sec, beside in zip(took, bare, strict=True)]
        figures.add(f"{name}_trial_over_bare_cycle", statistics.median(ratios), "ratio", _AT_MOST.get(name))
    figures.add("run_besides_trials_sec", statistics.median(run), "s", bare_sec)
    figures.add("ten_step_trial_sec", statistics.median(model), "s", oracle_sec)
    figures.add("ten_step_minus_oracle_sec", statistics.median(model) - oracle_sec, "s")


async def calls_of_trials(place: Place, figures: Figures, scratch: Path) -> None:
    """Calls to the engine that one more trial takes, when something is known of its image."""
    kinds: list[tuple[str, Callable[[], TrialAgent], Verify]] = [
        ("failing", NopAgent, "shared"), ("oracle", OracleAgent, "shared"), ("confirmed", OracleAgent, "both"),
    ]  # fmt: skip
    for name, agent, verify in kinds:
        took = []
        for seeds in (1, 1, 4):  # the first may have to ask about the image
            before = place.engine.calls.total()
            await place.run_trials(agent, seeds, 1, name, verify=verify)
            took.append(place.engine.calls.total() - before)
        figures.add(f"{name}_trial_engine_calls", (took[2] - took[1]) / 3, "calls", 7)


async def separate_verdicts(place: Place, figures: Figures, scratch: Path) -> None:
    """What a verifier in a container of its own adds to a trial, beside the bare cycle of one container.

    The difference of neighbours is taken, as the machine is not the same for long.
    """
    apart = place.with_task(make_task(scratch / "separate-task", toml=SEPARATE))
    bare, added = [], []
    for _ in range(CYCLES):
        bare.append(bare_cycle(place))
        shared, _ = await place.run_trials(OracleAgent, 1, 1, "oracle")
        separate, outcome = await apart.run_trials(OracleAgent, 1, 1, "oracle")
        assert outcome.results[0].reward == 1.0, outcome.results
        added.append(separate - shared)
    bare_sec, added_sec = statistics.median(bare), statistics.median(added)
    figures.add("separate_verdict_adds_sec", added_sec, "s", bare_sec)
    figures.add("separate_verdict_over_bare_cycle", added_sec / bare_sec, "ratio", 1.3)


def bare_lives(place: Place) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(bare_cycle, place) for _ in range(LIVES)]:
            done.result()
    return LIVES / (time.perf_counter() - started)


async def lives_at_once(place: Place, figures: Figures, scratch: Path) -> None:
    """Containers per second, eight at once: oracle trials, which pass, those of an idle agent, and bare ones."""
    bare, failing, passing, confirmed = [], [], [], []
    for _ in range(3):
        bare.append(bare_lives(place))
        elapsed, outcome = await place.run_trials(NopAgent, LIVES, AT_ONCE, "nop")
        assert all(result.reward == 0.0 for result in outcome.results), outcome.results
        failing.append(LIVES / elapsed)
        elapsed, outcome = await place.run_trials(OracleAgent, LIVES, AT_ONCE, "oracle")
        assert all(result.reward == 1.0 for result in outcome.results), outcome.results
        passing.append(LIVES / elapsed)
        elapsed, outcome = await place.run_trials(OracleAgent, LIVES, AT_ONCE, "oracle", verify="both")
        assert all(result.integrity.rewards.get("isolated") == 1.0 for result in outcome.results), outcome.results
        confirmed.append(LIVES / elapsed)
    bare_rate = statistics.median(bare)
    figures.add("failing_lives_per_sec_n8", statistics.median(failing), "1/s", bare_rate)
    figures.add("lives_per_sec_n8", statistics.median(passing), "1/s", bare_rate)
    figures.add("confirmed_lives_per_sec_n8", statistics.median(confirmed), "1/s", bare_rate)
    for name, rates in (("", passing), ("failing_", failing), ("confirmed_", confirmed)):
        shares = [rate / beside for rate, beside in zip(rates, bare, strict=True)]
        figures.add(f"{name}lives_per_sec_share_n8", statistics.median(shares), "ratio", 1.0)


def wall_sec(command: list[str], rounds: int = 7) -> float:
    """Of a whole process, the median of some rounds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


TBENCH = str(Path(sys.executable).with_name("tbench"))
NOTHING = [sys.executable, "-c", "pass"]


def oracle_run(place: Place, output: Path) -> tuple[float, float, float]:
    """A run of one oracle trial as a process: seconds until its first event, after its last, and in all."""
    command = [TBENCH, "run", str(place.task.path), "--agent", "oracle", "-k", "1", "--json", "--output", str(output)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = {json.loads(line)["kind"]: time.perf_counter() for line in process.stdout}
    ended = time.perf_counter()
    assert process.returncode == 0
    return told["run_started"] - started, ended - told["run_ended"], ended - started


async def start_and_end(place: Place, figures: Figures, scratch: Path) -> None:
    """What a command takes around its trials."""
    first, last, whole = zip(*(oracle_run(place, scratch / str(number)) for number in range(CYCLES)), strict=True)
    figures.add("oracle_run_until_first_event_sec", statistics.median(first), "s", wall_sec(NOTHING))
    figures.add("oracle_run_after_last_event_sec", statistics.median(last), "s")
    figures.add("oracle_run_sec", statistics.median(whole), "s", bare_cycle(place))


async def command_line(place: Place, figures: Figures, scratch: Path) -> None:
    """`tbench --help`, beside a Python that does nothing."""
    figures.add("help_sec", wall_sec([TBENCH, "--help"]), "s", wall_sec(NOTHING))
