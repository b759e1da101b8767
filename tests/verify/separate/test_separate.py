"""Separate verifiers: whole trials in real containers with agents that may do anything."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_document, a_plan

from harness.trajectory import Outcome, Trajectory
from tbench.agents.trial_agent import AgentReport, Workplace
from tbench.events import Events
from tbench.results import CONTROL, TrialResult, is_weak
from tbench.runs.plan import sandbox_settings
from tbench.runs.regrade import regrade
from tbench.runs.run import Run
from tbench.sandbox.backend import open_backend
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.run_store import RunStore
from tbench.tasks.environment import verifier_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, MeasuredTrial

pytestmark = pytest.mark.engine
BOUND_SEC = 120
MakeTask = Any
Runs = Callable[..., Any]
REPORT = "echo $reward > /logs/verifier/reward.txt\n"
LIMITS = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
DONE = 'artifacts = ["/app/done"]\n'
TESTS_DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN : > /own\nCOPY . /tests/\n"
IN_OWN = """[ -e /own ] && [ -e /app/done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


class Shell:
    """An agent that runs one script, as the user who runs the terminal."""

    name = "shell"

    def __init__(self, script: str) -> None:
        self._script = script

    async def work(self, place: Workplace) -> AgentReport:
        ended = await place.sandbox.shell(self._script, timeout_sec=60, user=place.task.file.agent.user)
        assert ended.exit_code == 0, ended
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


@pytest.fixture
async def run_trial(engine: Engine, tools_volume: str, tmp_path: Path) -> AsyncIterator[Runs]:
    """Run an agent's script and the verifier of one task; return the run's directory and the result."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    number = iter(range(100))

    async def run(path: Path, script: str = "true", **settings: Any) -> tuple[Path, TrialResult]:
        tasks = TaskSet((Task.read(path),), {})
        plan = a_plan(name, agent="shell", source=str(path.parent), concurrency=1, **settings)
        store = RunStore.create(tmp_path / f"run-{next(number)}", a_document(plan, tasks.tasks))
        async with asyncio.timeout(BOUND_SEC), open_backend(DockerBackend(engine, sandbox_settings(plan))) as backend:
            made = Run(plan, tasks, make_agent=lambda: Shell(script), backend=backend, store=store, events=Events())
            results = (await made.execute()).results
        store.close()
        return store.path, results[0]

    yield run
    for container in await left(engine, name):
        await engine.call(engine.api.remove_container, container, force=True)


async def left(engine: Engine, run: str) -> list[str]:
    labelled = {"label": f"{LABEL_RUN}={run}"}
    return [each["Id"] for each in await engine.call(engine.api.containers, all=True, filters=labelled)]


def trial_of(run: Path) -> Path:
    return run / "trials" / "small-task" / "seed-0"


def manifest(run: Path) -> dict[str, str]:
    entries = json.loads((trial_of(run) / "artifacts" / "manifest.json").read_text())
    assert all(set(each) == {"source", "destination", "type", "status", "service", "exclude"} for each in entries)
    return {each["source"]: f"{each['type']} {each['status']}" for each in entries}


# -- artifacts in the verifier's container -------------------------------------------------------

EVERYTHING = """artifacts = ["/app/out", "/app/answer", { source = "/app/big", exclude = ["*.tmp", "cache", "a/b*"] },
  "/nowhere/x.txt", { source = "/app/out/sub", destination = "again" }, "/app/elsewhere", "/app/dir-link", "/tests"]
[[verifier.collect]]
command = "echo $(( 6 * 7 )) > /app/out/hook; [[ -n bash ]]"
[[verifier.collect]]
command = "echo oh no; exit 3"
"""
WORKS = """mkdir -p out/sub big/cache/x big/a/b/c big/a/d elsewhere-real /logs/artifacts /logs/agent /tests
echo hi > out/sub/x; ln -s sub/x out/link; ln -s ../secret out/bad; ln out/sub/x out/hard; chmod 4711 out/sub/x
mkdir out/__pycache__; echo b > out/__pycache__/x.pyc; mknod out/null c 1 3; mkfifo out/pipe
echo s > secret; touch "out/with
line" "out/-f" 'out/it'\\''s $(x)'; echo 42 > answer; ln -s /app/answer elsewhere; ln -s /app/elsewhere-real dir-link
echo r > elsewhere-real/r; touch big/x.tmp big/cache/x/y big/a/b/c/z big/a/d/kept big/kept
echo published > /logs/artifacts/p; echo log > /logs/agent/a.log; echo planted > /tests/helper
(while :; do echo more >> out/growing; done) >/dev/null 2>&1 &
"""
LOOKS = """fail() { echo "$*"; bad=1; }
is() { [ "$(cat "$1")" = "$2" ] || fail "$1 is not $2"; }
is /app/out/sub/x hi; is /app/out/link hi; is /app/out/hard hi; is /app/answer 42; is /app/out/hook 42
is /logs/artifacts/p published; is /app/dir-link/r r
[ "$(stat -c '%a %u' /app/out/sub/x)" = '711 0' ] || fail mode
[ "$(stat -c %a /app/out)" = 777 ] || fail root
[ "$(find /app/out | wc -l)" = 11 ] || fail "$(find /app/out)"
[ "$(cd /app/big && find . -type f | sort | xargs)" = './a/d/kept ./kept' ] || fail "$(find /app/big)"
cd /app/out
for gone in /app/secret __pycache__ /app/elsewhere bad null pipe /tests/helper /logs/agent/a.log /.left; do
    [ ! -e "$gone" ] || fail "$gone is there"
done
ls /proc/*/comm | wc -l; [ -z "$bad" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


async def test_the_verifier_sees_what_was_handed_over_and_nothing_else(make_task: MakeTask, run_trial: Runs) -> None:
    path = make_task(toml=EVERYTHING + SEPARATE + LIMITS, test=LOOKS)
    run, result = await run_trial(path, f"cd /app; touch /.left; {WORKS}")
    trial = trial_of(run)
    assert (result.reward, result.error) == (1.0, None), (trial / "verifier" / "stdout.txt").read_text()
    assert (result.integrity.verify, result.integrity.tamper) == ("separate", ())
    assert manifest(run) == {
        "/logs/artifacts": "directory ok",
        "/app/out": "directory ok",
        "/app/answer": "file ok",
        "/app/big": "directory ok",
        "/nowhere/x.txt": "file failed",
        "/app/out/sub": "directory ok",
        "/app/elsewhere": "directory failed",
        "/app/dir-link": "directory ok",
        "/tests": "directory skipped",
    }
    assert sorted(remark.partition(":")[0] for remark in result.integrity.remarks) == ["artifact"] * 3 + [
        "collect-hook"
    ]
    assert "'echo oh no; exit 3' ended with 3: oh no" in result.integrity.remarks[0]
    # Of two names of one file people get the one that the container's file system lists first.
    shown = [trial / "artifacts" / "app" / "out" / name for name in ("sub/x", "hard")]
    assert [path.read_text() for path in shown if path.exists()] == ["hi\n"]
    assert (trial / "artifacts" / "again" / "x").read_text() == "hi\n"
    assert (trial / "artifacts" / "logs" / "artifacts" / "p").read_text() == "published\n"
    assert (trial / "agent" / "a.log").read_text() == "log\n"


@pytest.mark.slow
async def test_the_verifiers_image_may_be_built_or_named_and_has_the_tests(
    engine: Engine, make_task: MakeTask, run_trial: Runs
) -> None:
    path = make_task(toml=DONE + SEPARATE + LIMITS, test=IN_OWN)
    (path / "tests" / "Dockerfile").write_text(TESTS_DOCKERFILE)
    verifier = verifier_environment(Task.read(path))
    assert verifier is not None
    tag = build_tag(verifier)
    rewards = [(await run_trial(path, script))[1].reward for script in ("touch /app/done", "true")]
    named = make_task(
        "named", toml=f'{DONE}[verifier.environment]\ndocker_image = "{tag}"\nmemory_mb = 128\n{LIMITS}', test=None
    )
    for script in ("touch /app/done", "true"):
        _, result = await run_trial(named, script)
        rewards.append(result.reward)
        assert result.verifier_image_origin is not None and result.verifier_image_origin.reference == tag
        assert result.image_id != result.verifier_image_id
    assert rewards == [1.0, 0.0, 1.0, 0.0]


async def test_an_image_without_tests_is_an_error_without_a_retry(make_task: MakeTask, run_trial: Runs) -> None:
    toml = f'{DONE}[verifier.environment]\ndocker_image = "debian:bookworm-slim"\nmemory_mb = 128\n{LIMITS}'
    _, result = await run_trial(make_task(toml=toml, test=None), "touch /app/done")
    assert result.error is not None and result.reward is None
    assert (result.error.type, result.error.retryable) == ("tests_missing", False)
    assert result.error.message == "the verifier's image (debian:bookworm-slim) has no /tests/test.sh"


async def test_the_verifier_may_run_as_another_user_than_root(make_task: MakeTask, run_trial: Runs) -> None:
    toml = f'artifacts = ["/app/out"]\n{SEPARATE}user = "nobody"\n{LIMITS}'
    test = "[ $(id -un) = nobody ] && cp /app/out/x /app/out/y && cat /app/out/y > /logs/verifier/reward.txt\n"
    _, result = await run_trial(make_task(toml=toml, test=test), "mkdir /app/out; echo 1 > /app/out/x")
    assert (result.reward, result.error) == (1.0, None)


# -- cheats --------------------------------------------------------------------------------------

CHEATS = """mkdir -p /logs/verifier /tests /app/out
echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json
echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /app/out/bash
cp /app/out/bash /usr/local/bin/cat; cp /app/out/bash /usr/local/bin/python3; chmod 755 /usr/local/bin/* /app/out/bash
echo 'BASH_ENV=/app/out/bash' >> /etc/environment; echo 'export PATH=/app/out:$PATH' >> /root/.bashrc
echo /app/out/evil.so > /etc/ld.so.preload
ln -s /logs/verifier /app/out/logs; ln -s /tests /app/out/tests; ln -s ../../tests/test.sh /app/out/test.sh
ln -s / /app/out/root; ln /tests/test.sh /app/out/hard; ln -s /logs/verifier/reward.txt /app/done
rm -rf /logs/artifacts; ln -s /logs/verifier /logs/artifacts
echo 'while :; do echo 1 > /logs/verifier/reward.txt; done' > /daemon
/opt/tbench/bin/busybox setsid /bin/sh /daemon >/dev/null 2>&1 </dev/null &
"""
NEVER = "sleep 0.3; cat /tests/expected > /dev/null; [ ! -e /app/out/logs ] && echo 0 > /logs/verifier/reward.txt\n"


async def test_tampering_with_the_agents_container_has_no_effect_in_the_verifiers(
    make_task: MakeTask, run_trial: Runs
) -> None:
    path = make_task(toml=f'artifacts = ["/app/out", "/app/done"]\n{SEPARATE}{LIMITS}', test=NEVER)
    (path / "tests" / "expected").write_text("x\n")
    _, result = await run_trial(path, CHEATS)
    assert (result.reward, result.error) == (0.0, None)


OWN_JUDGE = """FROM debian:bookworm-slim
RUN mkdir -p /opt/own/bin && printf '#!/bin/sh\\necho told; [ "$(cat /app/done)" = 42 ]\\n' > /opt/own/bin/judge
RUN chmod 755 /opt/own/bin/judge
ENV PATH=/opt/own/bin:$PATH
WORKDIR /app
"""
JUDGED = "judge && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


async def test_artifacts_at_the_paths_of_the_tests_own_programs_do_not_count(
    make_task: MakeTask, run_trial: Runs
) -> None:
    toml = f'artifacts = ["/opt/own", "/app/done"]\n{SEPARATE}{LIMITS}'
    path = make_task(toml=toml, dockerfile=OWN_JUDGE, test=JUDGED)
    run, result = await run_trial(path, "touch /app/done; cp /bin/true /opt/own/bin/judge")
    assert (result.reward, result.integrity.rewards) == (0.0, {"separate": 1.0, "without": 0.0})
    kinds = [sign.partition(":")[0] for sign in result.integrity.tamper]
    assert kinds == ["system-replaced", "disagreement"]
    # The image's own program was restored.
    assert (trial_of(run) / "without" / "verifier" / "stdout.txt").read_text() == "told\n"


@pytest.mark.slow
async def test_work_that_changes_expected_values_has_a_strong_sign(make_task: MakeTask, run_trial: Runs) -> None:
    test = '[ "$(sh /app/done)" = "$(cat /tests/expected)" ] && reward=1 || reward=0\n' + REPORT
    path = make_task(toml=DONE + SEPARATE + LIMITS, test=test)
    (path / "tests" / "expected").write_text("42\n")
    _, result = await run_trial(path, "echo 'echo 41 | tee /tests/expected' > /app/done")
    assert (result.reward, result.error) == (1.0, None)
    assert "tests-changed" in [sign.partition(":")[0] for sign in result.integrity.tamper if not is_weak(sign)]


@pytest.mark.parametrize(
    ("agent", "script", "signs"),
    [
        ("shell", "echo 'grep -o \"[0-9]*$\" /tests/check.sh' > /app/done", ["tests-disarmed"]),
        ("shell", "echo 'echo 42' > /app/done", []),
        ("oracle", "echo 'echo 42' > /app/done", []),
    ],
    ids=["copies what is expected", "honest", "oracle"],
)
async def test_control_tests_tell_work_that_copies_what_is_expected_from_work(
    make_task: MakeTask, run_trial: Runs, monkeypatch: pytest.MonkeyPatch, agent: str, script: str, signs: list[str]
) -> None:
    path = make_task(toml=DONE + SEPARATE + LIMITS, test="reward=1; . /tests/check.sh || reward=0\n" + REPORT)
    (path / "tests" / "check.sh").write_text('test "$(sh /app/done)" == 42\n')
    oracle = MeasuredTrial(agent="oracle", repetition=0, reward=1.0, rewards={f"{CONTROL}-some": 0.0})
    found = Calibration(
        task="t", task_hash="h", image="i", architecture="a", measured_at=datetime.now(UTC), trials=(oracle,)
    )
    monkeypatch.setattr("tbench.runs.trial.load_calibration", lambda *_: found)
    monkeypatch.setattr(Shell, "name", agent)
    _, result = await run_trial(path, script)
    key = f"{CONTROL}-some" if agent == "oracle" else CONTROL
    assert (result.reward, result.integrity.rewards) == (1.0, {key: float(bool(signs))})
    assert [sign.partition(":")[0] for sign in result.integrity.tamper if not is_weak(sign)] == signs


@pytest.mark.parametrize(
    ("hinders", "type_", "kinds"),
    [("sleep 60", "verifier_timeout", []), ("exit", "verifier_no_reward", ["fails-with-work"])],
)
async def test_work_that_makes_the_verifier_fail_is_an_error_and_no_zero(
    make_task: MakeTask, run_trial: Runs, hinders: str, type_: str, kinds: list[str]
) -> None:
    test = f"[ ! -e /app/done ] || {hinders}\necho 0 > /logs/verifier/reward.txt\n"
    path = make_task(toml=f"{DONE}{SEPARATE}timeout_sec = 1\n{LIMITS}", test=test)
    _, result = await run_trial(path, "touch /app/done")
    assert result.error is not None and result.reward is None
    assert (result.error.type, result.error.retryable, result.integrity.verify) == (type_, False, "separate")
    assert [sign.partition(": ")[0] for sign in result.integrity.tamper] == kinds


@pytest.mark.slow
async def test_a_verifier_that_hangs_without_the_work_is_blamed_on_the_task(
    make_task: MakeTask, run_trial: Runs
) -> None:
    path = make_task(toml=f"{DONE}{SEPARATE}timeout_sec = 1\n{LIMITS}", test="sleep 60\n")
    _, result = await run_trial(path, "touch /app/done")
    assert result.error is not None and result.error.type == "verifier_timeout"


@pytest.mark.parametrize("leaves", ["truncate -s 10G /app/done", "head -c 2097152 /dev/zero > /app/done"])
async def test_too_large_artifacts_are_an_error_of_the_agent_and_no_zero(
    make_task: MakeTask, run_trial: Runs, leaves: str
) -> None:
    _, result = await run_trial(make_task(toml=DONE + SEPARATE + LIMITS), leaves, artifacts_mb=1)
    assert result.error is not None and result.reward is None
    assert (result.error.type, result.error.blame, result.error.retryable) == ("artifacts_too_large", "agent", False)
    assert "up to /app/done; the limit is 1 MB (--artifacts-mb)" in result.error.message


@pytest.mark.slow
async def test_a_users_link_does_not_copy_files_that_only_root_may_read(make_task: MakeTask, run_trial: Runs) -> None:
    dockerfile = """FROM debian:bookworm-slim
RUN useradd -m worker && mkdir -m 700 /secret /app && echo 42 > /secret/answer && chown worker /app
RUN ln -s /app /work && mkdir -p /app/own && echo 42 > /app/own/answer
WORKDIR /app
"""
    toml = f'artifacts = ["/app/out", "/work/own"]\n{SEPARATE}{LIMITS}[agent]\nuser = "worker"\n'
    test = "[ -e /work/own/answer ] && [ ! -e /app/out/answer ] && echo 1 > /logs/verifier/reward.txt\n"
    run, result = await run_trial(make_task(toml=toml, dockerfile=dockerfile, test=test), "ln -s /secret /app/out")
    assert (result.reward, manifest(run)["/app/out"]) == (1.0, "directory failed")


# -- verifying again, and kept containers --------------------------------------------------------


async def test_artifacts_can_be_verified_again_without_the_agents_container(
    engine: Engine, make_task: MakeTask, run_trial: Runs
) -> None:
    marker = "[ -e /app/done ] && date +%s%N && echo 1 > /logs/verifier/reward.txt\n"
    run, result = await run_trial(make_task(toml=DONE + SEPARATE + LIMITS, test=marker), "touch /app/done")
    assert result.reward == 1.0
    assert not await left(engine, result.run)
    changes = await regrade(lambda _: lambda _: partial(DockerBackend, engine), run, (), None, print)
    after = changes[0].after
    assert after is not None, changes[0].why_not
    assert (after.reward, after.integrity.verify, after.integrity.regrades) == (1.0, "separate", 1)
    trial = trial_of(run)
    assert (trial / "verifier" / "stdout.txt").read_text() != (trial / "verifier-1" / "stdout.txt").read_text()
    assert not await left(engine, result.run)


@pytest.mark.slow
async def test_a_kept_container_is_stopped_while_the_verifier_runs(
    engine: Engine, make_task: MakeTask, run_trial: Runs
) -> None:
    script = "touch /app/done; (while :; do :; done) >/dev/null 2>&1 &"
    _, result = await run_trial(make_task(toml=DONE + SEPARATE + LIMITS), script, keep="all")
    assert result.reward == 1.0
    (kept,) = await left(engine, result.run)
    processes = await engine.call(engine.api.top, kept, ps_args="-eo pid,stat,comm")
    shells = [row[1] for row in processes["Processes"] if row[2] == "busybox"]
    assert shells and all(state.startswith("T") for state in shells)


SERVES = "mkdir /w; echo hello > /w/index.html; /opt/tbench/bin/busybox httpd -p 8123 -h /w; touch /app/done\n"
ASKS = """[ "$(/opt/tbench/bin/busybox wget -qO- http://127.0.0.1:8123/)" = hello ] && [ -e /app/hooked ] &&
echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.slow
async def test_in_a_shared_container_artifacts_are_stored_and_processes_continue(
    make_task: MakeTask, run_trial: Runs
) -> None:
    toml = f'{DONE}[[verifier.collect]]\ncommand = "touch /app/hooked"\n{LIMITS}'
    run, result = await run_trial(make_task(toml=toml, test=ASKS), SERVES)
    assert (result.reward, result.integrity.verify) == (1.0, "both")
    assert manifest(run) == {"/logs/artifacts": "directory empty", "/app/done": "file ok"}
    assert not (trial_of(run) / "artifacts.tar").exists()
