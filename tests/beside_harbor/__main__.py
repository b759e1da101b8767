"""`make bench-harbor`: tbench and Harbor in turn, with one task, one endpoint and one engine.

    python tests/beside_harbor [--harbor PATH] [--repetitions N] [CASE ...]

Prints a table of medians. A trial without reward 1 ends it with exit code 1: failures are not timed. ../bench/README.md
says what the figures hold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from beside_harbor.measuring import CASES, Failed, Measuring
from beside_harbor.runners import Harbor, Runner, Tbench
from beside_harbor.table import figures, phases
from beside_harbor.task import prepare_task

from tbench.errors import TbenchError
from tbench.sandbox.docker.engine import Engine

PHASES_OF = "steps"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="beside_harbor", description="Measure tbench and Harbor in turn.")
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--harbor", type=Path, default=root / ".venv-harbor/bin/harbor", metavar="PATH")
    parser.add_argument("--repetitions", type=int, metavar="N", help="by default 5 of short runs, 3 of long ones")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - {case.name for case in CASES}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    return arguments


def about(engine: Engine, runners: list[Runner]) -> str:
    """What is compared, and where."""
    compose = subprocess.check_output(["docker", "compose", "version", "--short"], text=True).strip()
    info = engine.info
    return (
        f"{', '.join(f'{runner.name} {runner.version()}' for runner in runners)}; engine {info.version}, "
        f"compose {compose}; {os.cpu_count()} cpus, {info.memory_mb / 1024:.0f} GB, Linux {platform.release()}"
    )


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    """Print who is compared, each sample, and the tables. Raises Failed, TbenchError."""
    runners: list[Runner] = [Tbench(), Harbor(arguments.harbor.resolve())]
    engine = Engine.connect(1)
    try:
        task = asyncio.run(prepare_task(engine, directory))
        print(about(engine, runners), flush=True)
    finally:
        engine.close()
    chosen = [case for case in CASES if case.name in (arguments.cases or [case.name for case in CASES])]
    samples = Measuring(runners, task, directory).all_of(chosen, arguments.repetitions)
    print(f"\n{figures(samples)}")
    for case, runs in samples.items():
        if case.name == PHASES_OF:
            print(f"\n{case.about}, by phase:\n\n{phases(runs)}")


def main() -> None:
    arguments = read_arguments()
    if missing := Harbor(arguments.harbor).missing():
        sys.exit(f"beside_harbor: {missing}")
    try:
        with tempfile.TemporaryDirectory() as directory:
            compare(arguments, Path(directory))
    except (Failed, TbenchError) as error:
        sys.exit(f"beside_harbor: {error}")


if __name__ == "__main__":
    main()
