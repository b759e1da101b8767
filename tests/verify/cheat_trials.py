"""Agents that cheat, as whole trials: a scripted model types each cheat of `cheats/`, and the outcomes are checked.

    python tests/verify/cheat_trials.py [--mode shared isolated both plain separate] [--only PATTERN] [--json FILE]

Prints a line for each cheat with its outcome per mode, and how many cheats score without a strong sign. The mode
`plain` is not one of tbench: it runs test.sh without any protection. A cheat that does not score there is void.
In the mode `separate`, the task has a separate verifier that gets the directory /app.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

from tbench import RunConfig, Runner, TrialFailed
from tbench.calibration import CalibrationRun
from tbench.demo.server import DemoEndpoint
from tbench.errors import TrialError
from tbench.results import Blame, TrialResult, is_weak
from tbench.sandbox.archive import place_tree
from tbench.sandbox.backend import Sandbox
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task
from tbench.verify.calibration import save_calibration
from tbench.verify.reward import read_reward
from tbench.verify.verifier import Verdict, VerifierFailed

CHEATS = Path(__file__).with_name("cheats")
BUNDLED = Path(__file__).parents[2] / "tasks"
Mode = Literal["shared", "isolated", "both", "plain", "separate"]
MODES: tuple[Mode, ...] = get_args(Mode)
AT_ONCE = 2
SEPARATE = 'artifacts = ["/app"]\n[verifier]\nenvironment_mode = "separate"\ntimeout_sec = 60\n'
UNJUDGED = "fails-with-work"
_ASIDE = ("lies", "honest")
"""Classes that are excluded from the total."""
_LOGS_BYTES = 1 << 20
_LOOK = "sleep 1.2; ls\n"
"""Typed first, because no real agent acts in the very second in which its container starts."""
_LIMITS = """[environment]
docker_image = "{image}"
cpus = 1
memory_mb = {memory_mb}
pids_limit = {pids}
allow_internet = {internet}
[agent]
timeout_sec = 120
[verifier]
timeout_sec = 60
"""


# -- the catalogue -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of task: image, instruction, tests, and keystrokes that solve it."""

    name: str
    image: str
    instruction: str
    tests: Mapping[str, str]
    solve: str
    internet: bool = False


@dataclass(frozen=True)
class Cheat:
    """Keystrokes of an agent that replace the work or, in the class `honest`, accompany it."""

    name: str
    group: str
    """Its class."""
    kind: str
    """Kind of task, or `bundled:NAME` for a task that comes with tbench."""
    about: str
    keys: str
    """Keystrokes."""
    quick: bool = False
    """Whether it is in the small selection that every run of the tests tries."""
    shows: tuple[Mode, ...] = MODES
    """Modes in which it has any effect, or in which an honest agent passes; elsewhere it is an honest failure."""
    open: tuple[Mode, ...] = ()
    """Modes in which it is known to score, and docs/reference/cheats.md says so."""
    memory_mb: int = 512
    pids: int = 512

    @property
    def is_honest(self) -> bool:
        return self.group == "honest"

    @property
    def is_only_recorded(self) -> bool:
        """Whether no runner could distinguish it from work, because it deceives the tests themselves."""
        return self.group == "lies"


@cache
def kinds() -> Mapping[str, Kind]:
    """Kinds of tasks by name."""
    read = _read(CHEATS / "kinds.toml")
    found = {}
    for name, each in read["kind"].items():
        work = read["work"][each.pop("work")]
        tests = {**work.get("tests", {}), "test.sh": each.pop("test")}
        found[name] = Kind(name=name, tests=tests, instruction=work["instruction"], solve=work["solve"], **each)
    return found


@cache
def images() -> Mapping[str, str]:
    """Dockerfiles by name."""
    found: dict[str, str] = _read(CHEATS / "kinds.toml")["images"]
    return found


@cache
def catalogue() -> tuple[Cheat, ...]:
    """All cheats and their honest counterparts, by class in the order of the files."""
    found = []
    for path in sorted(set(CHEATS.glob("*.toml")) - {CHEATS / "kinds.toml"}):
        for each in _read(path)["cheat"]:
            modes: dict[str, Any] = {name: tuple(each.pop(name)) for name in ("shows", "open") if name in each}
            found.append(Cheat(group=re.sub(r"^\d+-", "", path.stem), **modes, **each))
    return tuple(found)


def groups() -> list[str]:
    """The classes, in order."""
    return list(dict.fromkeys(cheat.group for cheat in catalogue()))


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


# -- tasks and scripts ---------------------------------------------------------------------------


def replies(cheat: Cheat) -> list[str]:
    """Return the keystrokes of each reply."""
    return [_LOOK, cheat.keys, *([kinds()[cheat.kind].solve] if cheat.is_honest else [])]


async def write_tasks(cheats: Iterable[Cheat], directory: Path) -> dict[str, Path]:
    """Write a task and an endpoint's script per cheat, with one image per kind. Returns paths by the cheat's name."""
    engine = Engine.connect(2)
    try:
        tags: dict[str, str] = {}
        written = {}
        for cheat in cheats:
            like = cheat.kind if cheat.kind.startswith("bundled:") else kinds()[cheat.kind].image
            if like not in tags:
                tags[like] = await _image(engine, like, directory)
            written[cheat.name] = _write_task(cheat, tags[like], directory)
    finally:
        engine.close()
    return written


async def _image(engine: Engine, like: str, directory: Path) -> str:
    """Return the tag of the image of a kind or a bundled task; build it if the engine lacks it."""
    name = like.removeprefix("bundled:")
    path = BUNDLED / name
    if name == like:
        path = directory / "images" / f"cheats-{name}"
        (path / "environment").mkdir(parents=True)
        (path / "environment/Dockerfile").write_text(images()[name])
        (path / "tests").mkdir()
        (path / "tests/test.sh").write_text("true\n")
        (path / "instruction.md").write_text("Nothing.\n")
        (path / "task.toml").write_text("")
    task = Task.read(path)
    await Images(engine).get(agent_environment(task))
    return build_tag(agent_environment(task))


def _write_task(cheat: Cheat, image: str, directory: Path) -> Path:
    path = directory / "tasks" / cheat.name
    path.mkdir(parents=True)
    bundled = BUNDLED / cheat.kind.removeprefix("bundled:")
    if cheat.kind in kinds():
        kind = kinds()[cheat.kind]
        instruction, has_internet = kind.instruction, kind.internet
        for name, text in kind.tests.items():
            (path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
            (path / "tests" / name).write_text(text)
    else:
        instruction, has_internet = (bundled / "instruction.md").read_text(), False
        shutil.copytree(bundled / "tests", path / "tests")
    (path / "task.toml").write_text(
        _LIMITS.format(
            image=image, memory_mb=cheat.memory_mb, pids=cheat.pids, internet="true" if has_internet else "false"
        )
    )
    # The endpoint finds its script by the instruction.
    (path / "instruction.md").write_text(f"{instruction}\nThis is number <{cheat.name}>.\n")
    _write_script(cheat, directory / "scripts" / f"{cheat.name}.toml")
    return path


def _write_script(cheat: Cheat, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = ["pass_rate = 1.0", "fail = []"]
    for number, keys in enumerate(replies(cheat)):
        lines += ["[[pass]]", f'analysis = "Reply {number}."', 'plan = "Type this."']
        lines.append(f"commands = [{{ keystrokes = {json.dumps(keys)}, duration = 60 }}]")
    path.write_text("\n".join(lines) + "\n")


# -- trials --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheatOutcome:
    """Outcome of a cheat in a mode."""

    name: str
    group: str
    mode: Mode
    reward: float | None
    error: str
    blame: str
    strong: tuple[str, ...]
    weak: tuple[str, ...]
    seconds: float
    said: str = ""
    """The error's message, named as in the files of `--json`."""

    @property
    def scores(self) -> bool:
        return self.reward is not None and self.reward > 0

    @property
    def scores_unflagged(self) -> bool:
        """Whether it scores without a strong sign and without being unconfirmed."""
        return self.scores and not self.strong and "unconfirmed" not in self.weak

    @property
    def words(self) -> str:
        shown = f"{self.error}/{self.blame}" if self.reward is None else f"{self.reward:g}"
        return " ".join([shown, *sorted(self.strong), *(f"({kind})" for kind in sorted(self.weak))])


def problem(cheat: Cheat, seen: CheatOutcome) -> str:
    """Describe an unexpected outcome; empty for an expected one. Without protection a cheat should score."""
    if seen.mode == "plain" and not cheat.is_honest:
        return "" if seen.scores or cheat.group == "sabotage" else "does not score without protection"
    if cheat.is_only_recorded:
        return ""
    if cheat.is_honest:
        if seen.mode not in cheat.shows and (seen.reward == 0 or seen.blame in (Blame.AGENT, Blame.TASK)):
            return ""
        is_clean = seen.reward == 1 and (not seen.strong or seen.mode in cheat.open)
        return "" if is_clean else "an honest agent is flagged or fails"
    if seen.mode == "separate" and seen.scores:
        return "" if seen.mode in cheat.open else "scores in a container that it never was in"
    if seen.scores_unflagged:
        return "" if seen.mode in cheat.open else "scores without a strong flag"
    # Work that makes the verifier fail gains nothing: it is not retried.
    if seen.reward is None and seen.blame != Blame.AGENT and not seen.strong and UNJUDGED not in seen.weak:
        return f"has no verdict, and {seen.blame} is blamed"
    return ""


def _seen(cheat: Cheat, mode: Mode, result: TrialResult) -> CheatOutcome:
    signals = result.integrity.tamper
    return CheatOutcome(
        name=cheat.name,
        group=cheat.group,
        mode=mode,
        reward=result.reward,
        error=result.error.type if result.error else "",
        blame=result.error.blame if result.error else "",
        strong=_kinds(signal for signal in signals if not is_weak(signal)),
        weak=_kinds(signal for signal in signals if is_weak(signal)),
        seconds=result.timings.wall_sec,
        said=result.error.message if result.error else "",
    )


def _kinds(signals: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(signal.partition(":")[0] for signal in signals))


async def run_cheats(
    cheats: Sequence[Cheat], modes: Sequence[Mode], directory: Path, *, at_once: int = AT_ONCE
) -> AsyncIterator[CheatOutcome]:
    """Yield the outcomes of all cheats, one mode after the other. Files are written to the new `directory`."""
    paths = await write_tasks(cheats, directory)
    apart = {name: _with_separate_verifier(path, directory / "apart") for name, path in paths.items()}
    instructions = {name: Task.read(path).instruction for name, path in paths.items()}
    known = {"TBENCH_CACHE": str(directory / "cache")}
    with DemoEndpoint(instructions, scripts=directory / "scripts") as endpoint, patch.dict(os.environ, known):
        await _calibrate(cheats, [paths, apart], directory / "oracles")
        for mode in modes:
            config = RunConfig.model_validate(
                {
                    "model": {"base_url": endpoint.base_url},
                    "limits": {"steps": 20},
                    "verify": {"mode": "shared" if mode in ("plain", "separate") else mode},
                    # No second attempt: a trainer sees the first one.
                    "schedule": {"concurrency": at_once, "cpu_overcommit": 4.0, "retries": 0},
                }
            )
            with _without_protection() if mode == "plain" else contextlib.nullcontext():
                async with Runner(config, directory=directory / mode) as runner:
                    at = apart if mode == "separate" else paths
                    trials = [asyncio.create_task(_trial(runner, cheat, mode, at[cheat.name])) for cheat in cheats]
                    for ended in asyncio.as_completed(trials):
                        yield await ended


async def _calibrate(cheats: Sequence[Cheat], written: Sequence[Mapping[str, Path]], directory: Path) -> None:
    """Calibrate one task per kind and store the result for all, which differ only in a number of the instruction."""
    likes = {cheat.kind: cheat for cheat in cheats}
    tasks = [
        _with_oracle(cheat, written[0][cheat.name], directory / f"kind-{n}") for n, cheat in enumerate(likes.values())
    ]
    found = await CalibrationRun.from_config(RunConfig(), 1).tasks(tasks)
    for kind, each in zip(likes, found, strict=True):
        assert each.calibration is not None, (kind, each.error)
        for path in (paths[cheat.name] for paths in written for cheat in cheats if cheat.kind == kind):
            save_calibration(each.calibration.model_copy(update={"task": path.name, "task_hash": Task.read(path).hash}))


def _with_oracle(cheat: Cheat, path: Path, twin: Path) -> Task:
    shutil.copytree(path, twin)
    if cheat.kind in kinds():
        (twin / "solution").mkdir()
        (twin / "solution/solve.sh").write_text(kinds()[cheat.kind].solve)
    else:
        shutil.copytree(BUNDLED / cheat.kind.removeprefix("bundled:") / "solution", twin / "solution")
    return Task.read(twin)


def _with_separate_verifier(path: Path, beside: Path) -> Path:
    """Copy a task and give it a separate verifier."""
    twin = beside / path.name
    shutil.copytree(path, twin)
    written = (path / "task.toml").read_text().partition("[verifier]")[0]
    (twin / "task.toml").write_text(SEPARATE + written)
    return twin


async def _trial(runner: Runner, cheat: Cheat, mode: Mode, path: Path) -> CheatOutcome:
    try:
        result = (await runner.trial(path)).result
    except TrialFailed as failed:
        result = failed.result
    return _seen(cheat, mode, result)


@contextlib.contextmanager
def _without_protection() -> Iterator[None]:
    with patch("tbench.runs.trial.verify_by", _verify_plainly):
        yield


async def _verify_plainly(_: str, task: Task, sandbox: Sandbox, **__: object) -> Verdict:
    """Verify like a runner without protection: copy the tests, run them, read the reward."""
    await sandbox.put(place_tree("/tests", task.tests))
    run = "bash /tests/test.sh >/logs/verifier/stdout.txt 2>&1 </dev/null"
    await sandbox.shell(f"mkdir -p /logs/verifier; cd {sandbox.workdir}; {run}", timeout_sec=60, user="root")
    files = await sandbox.fetch("/logs", _LOGS_BYTES)
    logs = {name.removeprefix("verifier/"): data for name, data in files.items() if name.startswith("verifier/")}
    try:
        return Verdict(read_reward(logs), files)
    except TrialError as error:
        raise VerifierFailed(error.type, str(error), files) from None


# -- the command line ----------------------------------------------------------------------------


def table(cheats: Sequence[Cheat], seen: Iterable[CheatOutcome], modes: Sequence[Mode]) -> Iterator[str]:
    """Yield a line per cheat with its outcome in each mode, then the numbers of unflagged scores per class."""
    by = {(each.name, each.mode): each for each in seen}
    score, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    size = Counter(cheat.group for cheat in cheats)
    for cheat in cheats:
        for mode in modes:
            each = by[cheat.name, mode]
            what = problem(cheat, each)
            score[cheat.group, mode] += each.scores_unflagged
            wrong[cheat.group, mode] += bool(what)
            yield f"{cheat.group:10} {cheat.name:40} {mode:8} {each.words}{f'  <- {what}' if what else ''}"
    heads = " ".join(f"{mode:>8}" for mode in modes)
    yield ""
    yield f"{'':17} {'1 without a strong flag':{len(heads)}}   not as it should be"
    yield f"{'class':10} {'trials':>6} {heads}   {heads}"
    members = {group: [group] for group in size} | {"cheats": [group for group in size if group not in _ASIDE]}
    for name, of in members.items():
        parts = [f"{name:10} {sum(size[group] for group in of):6}"]
        for counted in (score, wrong):
            parts.append(" ".join(f"{sum(counted[group, mode] for group in of):8}" for mode in modes))
        yield f"{parts[0]} {parts[1]}   {parts[2]}"


async def _main(arguments: argparse.Namespace, directory: Path) -> None:
    patterns = arguments.only or ["*"]
    cheats = [
        cheat
        for cheat in catalogue()
        if any(fnmatch.fnmatch(word, pattern) for pattern in patterns for word in (cheat.name, cheat.group))
    ]
    if not cheats:
        sys.exit(f"no cheat and no class is named {' or '.join(patterns)}")
    seen: list[CheatOutcome] = []
    async for each in run_cheats(cheats, arguments.mode, directory, at_once=arguments.at_once):
        seen.append(each)
        print(f"{each.mode:8} {each.name:40} {each.seconds:5.1f} s  {each.words}", file=sys.stderr, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in seen], indent=1) + "\n")
    print("\n".join(table(cheats, seen, arguments.mode)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES[:3]), metavar="MODE")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="names of cheats or of classes, with * and ?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was seen, for programs")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="new directory for the trials' files")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_main(arguments, arguments.keep or Path(directory)))


if __name__ == "__main__":
    main()
