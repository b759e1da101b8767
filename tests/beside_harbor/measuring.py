"""Takes the samples: the runners by turns, each run checked before it counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from beside_harbor.endpoint import REPLIES, Exchange, TimedEndpoint, step_sec
from beside_harbor.process import Cost, run
from beside_harbor.runners import Case, Runner, Trial
from beside_harbor.table import Sample
from beside_harbor.task import fresh

CASES = (
    Case("oracle", "one oracle trial", 5),
    Case("steps", "ten steps of 0.1 s", 5, duration_sec=0.1),
    Case("long-steps", "ten steps of 1.0 s", 3, duration_sec=1.0),
    Case("eight", "eight oracle trials at once", 3, trials=8),
)


class Failed(Exception):
    """A run was not what it should be: its time says nothing."""


class Measuring:
    """Where the samples are taken."""

    def __init__(self, runners: Sequence[Runner], task: Path, directory: Path) -> None:
        self._runners = runners
        self._task = task
        self._directory = directory

    def all_of(self, cases: Sequence[Case], repetitions: int | None = None) -> dict[Case, dict[str, list[Sample]]]:
        """Samples by case and runner. Raises Failed."""
        with TimedEndpoint() as endpoint:
            for runner in self._runners:
                self._sample(runner, CASES[0], endpoint)  # tools, caches and bytecode are there from now on
            return {case: self._of(case, repetitions or case.repetitions, endpoint) for case in cases}

    def _of(self, case: Case, repetitions: int, endpoint: TimedEndpoint) -> dict[str, list[Sample]]:
        samples: dict[str, list[Sample]] = {runner.name: [] for runner in self._runners}
        for number in range(repetitions):
            # Each goes first every other time: a machine that warms up or fills up favours nobody.
            for runner in self._runners[:: 1 if number % 2 == 0 else -1]:
                sample = self._sample(runner, case, endpoint)
                samples[runner.name].append(sample)
                print(f"{case.name} {number + 1}/{repetitions}: {runner.name} {sample.wall_sec:.2f} s", flush=True)
        return samples

    def _sample(self, runner: Runner, case: Case, endpoint: TimedEndpoint) -> Sample:
        scratch = fresh(self._directory / "scratch")
        output, log = scratch / "run", scratch / "log"
        endpoint.begin(case.duration_sec or 0.0)
        command = runner.command(case, self._task, endpoint.base_url, output)
        cost = run(command, runner.environ(), scratch, log)
        trials = runner.trials(output) if cost.exit_code == 0 else []
        exchanges = endpoint.exchanges
        if wrong := problem(case, cost, trials, exchanges):
            last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise Failed(f"{case.name}: {runner.name}: {wrong}; it printed:\n{last}")
        return Sample(
            cost.wall_sec,
            cost.cpu_sec,
            cost.memory_mb,
            step_sec(exchanges) if exchanges else None,
            trials[0].phases if case.trials == 1 else {},
        )


def problem(case: Case, cost: Cost, trials: Sequence[Trial], exchanges: Sequence[Exchange]) -> str | None:
    """Why a run does not count; None where all its trials passed and the endpoint saw just the script's steps."""
    if cost.exit_code:
        return f"it ended with {cost.exit_code}"
    if len(trials) != case.trials:
        return f"{len(trials)} trials instead of {case.trials}"
    if failed := [trial for trial in trials if trial.error is not None or trial.reward != 1]:
        return f"reward {failed[0].reward} instead of 1 ({failed[0].error or 'no error'})"
    steps = [] if case.duration_sec is None else list(range(REPLIES))
    seen = [exchange.step for exchange in exchanges]
    return None if seen == steps else f"the endpoint was asked for steps {seen} instead of {steps}"
