"""Verifying in a copy, keeping sandboxes, verifying again: in real containers."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_document, a_plan

from harness.trajectory import Outcome, Trajectory
from tbench.agents.trial_agent import AgentReport, Workplace
from tbench.config.settings import Verify
from tbench.errors import TrialError
from tbench.events import Events
from tbench.results import TrialResult, is_weak
from tbench.runs.plan import as_configured, sandbox_settings
from tbench.runs.regrade import regrade
from tbench.runs.run import Run
from tbench.sandbox.backend import Compares, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import remove_leftovers
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN, LABEL_SNAPSHOT
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, image_identity, save_calibration
from tbench.verify.policy import verify_by
from tbench.verify.verifier import Verdict, VerifierFailed

pytestmark = [pytest.mark.engine, pytest.mark.each_engine]
BOUND_SEC = 90
MakeTask = Any
Start = Any
FORGES = """cat >/daemon <<'END'
until grep -qs verdict /logs/verifier/stdout.txt; do sleep 0.02; done
sleep 0.1; echo 1 > /logs/verifier/reward.txt
END
/opt/tbench/bin/busybox setsid /bin/sh /daemon >/dev/null 2>&1 </dev/null &
"""
SERVES = "mkdir /w; echo hello > /w/index.html; /opt/tbench/bin/busybox httpd -p 8123 -h /w; touch /app/done\n"
ASKS = """[ "$(/opt/tbench/bin/busybox wget -qO- http://127.0.0.1:8123/)" = hello ] && [ -e /app/done ] &&
echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
OWN_IMAGE = "FROM debian:bookworm-slim\nWORKDIR /app\nVOLUME /data\n"


async def left(engine: Engine, run: str) -> tuple[int, int]:
    """Return the numbers of containers and snapshots of a run."""
    labelled = {"label": f"{LABEL_RUN}={run}"}
    containers = await engine.call(engine.api.containers, all=True, filters=labelled)
    images = await engine.call(engine.api.images, filters={"label": [f"{LABEL_RUN}={run}", LABEL_SNAPSHOT]})
    return len(containers), len(images)


async def test_a_copy_has_the_files_and_the_servers_but_not_the_daemons(
    engine: Engine, make_task: MakeTask, start_in_docker: Start, run_name: str
) -> None:
    path = make_task(test=ASKS, dockerfile=OWN_IMAGE)
    sandbox = await start_in_docker(path)
    await sandbox.shell(SERVES, timeout_sec=30)
    async with asyncio.timeout(BOUND_SEC):
        verdict = await verify_by("isolated", Task.read(path), sandbox)
    assert (verdict.reward, verdict.integrity.verify, verdict.integrity.tamper) == (1.0, "isolated", ())
    assert (await left(engine, run_name))[1] == 0


@pytest.mark.slow
async def test_a_reward_that_only_a_daemon_writes_does_not_count(make_task: MakeTask, start_in_docker: Start) -> None:
    path = make_task(test="echo verdict; echo 0 > /logs/verifier/reward.txt; sleep 1\n")
    sandbox = await start_in_docker(path)
    await sandbox.shell(FORGES, timeout_sec=30)
    async with asyncio.timeout(BOUND_SEC):
        verdict = await verify_by("both", Task.read(path), sandbox)
    assert verdict.reward == 0.0
    assert verdict.integrity.tamper == ("contradiction: test.sh wrote 0, but the file says 1",)


async def test_a_copy_that_is_cancelled_leaves_nothing(
    engine: Engine, make_task: MakeTask, start_in_docker: Start, run_name: str
) -> None:
    path = make_task(test="sleep 60\n")
    sandbox = await start_in_docker(path)
    assert isinstance(sandbox, Compares)
    await sandbox.original()
    verifying = asyncio.create_task(verify_by("isolated", Task.read(path), sandbox))
    async with asyncio.timeout(BOUND_SEC):
        # The agent's own, the image's, the copy.
        while (await left(engine, run_name))[0] < 3:  # noqa: ASYNC110 - the engine cannot call
            await asyncio.sleep(0.1)
        verifying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await verifying
    assert (await left(engine, run_name))[0] == 2


@pytest.mark.parametrize(("policy", "most"), [("shared", 5), ("both", 14)])
async def test_a_pass_takes_few_calls_to_the_engine(
    engine: Engine, make_task: MakeTask, start_in_docker: Start, policy: Verify, most: int
) -> None:
    """Each exec takes two calls: the verifier needs two execs, an inspection one, and copying the work two."""
    path = make_task()
    first, second = await start_in_docker(path), await start_in_docker(path)
    for sandbox in (first, second):
        await sandbox.shell("touch /app/done", timeout_sec=30)
    await verify_by(policy, Task.read(path), first)  # caches the facts about the image
    before = engine.calls.copy()
    verdict = await verify_by(policy, Task.read(path), second)
    assert (verdict.reward, all(map(is_weak, verdict.integrity.tamper))) == (1.0, True)
    assert (engine.calls - before).total() <= most, engine.calls - before


# -- both ----------------------------------------------------------------------------------------

JUDGES = "[ -e /app/done ] && [ -e {} ] && cmp -s /app/done /app/same && echo 1 > /logs/verifier/reward.txt ||\\\n"
JUDGES += "echo 0 > /logs/verifier/reward.txt\n"
WORKS = "echo x > /app/done; echo x > /app/same; "
CHEATS = "echo > /app/done; echo x > /app/same; cp /bin/true /bin/c; mv /bin/c /bin/cmp"


@pytest.fixture
def judged(make_task: MakeTask, start_sandbox: Start) -> Any:
    """Run an agent's script in a new sandbox; return the verdict by a policy, and the kinds of its signs."""
    return partial(judge, make_task, start_sandbox)


@pytest.fixture
def judged_in_docker(make_task: MakeTask, start_in_docker: Start) -> Any:
    return partial(judge, make_task, start_in_docker)


async def judge(
    make_task: MakeTask, start: Start, policy: Verify, agent: str, test: str, oracle: Calibration | None = None,
    **parts: Any,
) -> tuple[Verdict, list[str]]:  # fmt: skip
    files = parts.pop("tests", {})
    path = make_task(test=test, **parts)
    for name, text in files.items():
        (path / "tests" / name).write_text(text)
    sandbox = await start(path)
    async with asyncio.timeout(BOUND_SEC):
        assert (await sandbox.shell(agent, timeout_sec=30)).exit_code == 0
        verdict = await verify_by(policy, Task.read(path), sandbox, oracle=oracle)
    return verdict, [sign.partition(":")[0] for sign in verdict.integrity.tamper]


@pytest.mark.parametrize(
    ("agent", "reward", "rewards", "kinds"),
    [
        (WORKS, 1.0, {"isolated": 1.0}, []),
        (f"{WORKS} cp /bin/true /bin/c; mv /bin/c /bin/cmp", 1.0, {"isolated": 1.0}, []),
        (CHEATS, 1.0,
         {"isolated": 0.0, "shared": 1.0}, ["needs-system"]),
        ("true", 0.0, {"isolated": 0.0, "shared": 0.0}, []),
    ],
    ids=["work", "work and a cheat", "cheat", "nothing"],
)  # fmt: skip
async def test_both_uses_the_agents_container_only_if_the_fresh_one_fails(
    judged_in_docker: Any, agent: str, reward: float, rewards: dict[str, float], kinds: list[str]
) -> None:
    verdict, found = await judged_in_docker("both", agent, JUDGES.format("/bin"))
    assert (verdict.reward, verdict.integrity.rewards, found) == (reward, rewards, kinds)
    assert ("isolated/verifier/reward.txt" in verdict.files) is ("shared" in rewards)


async def test_a_pass_that_needs_the_system_counts_without_strong_signs(judged: Any) -> None:
    verdict, kinds = await judged("both", f"{WORKS} mkdir -p /usr/lib/thing", JUDGES.format("/usr/lib/thing"))
    assert (verdict.reward, kinds) == (1.0, ["needs-system"]), verdict.integrity.tamper
    assert verdict.integrity.rewards == {"isolated": 0.0, "shared": 1.0}


def measured(
    tests: dict[str, str] | None = None, signs: tuple[str, ...] = (), replaced: Mapping[str, str] = {}, **rewards: float
) -> Calibration:
    passed: dict[str, Any] = {"agent": "oracle", "reward": 1.0, "rewards": rewards, "tests": {"": tests or {}}}
    passed |= {"signs": signs, "replaced": replaced}
    trials = [passed | {"repetition": number} for number in range(2)]
    about = {"task": "t", "task_hash": "h", "image": "i", "architecture": "amd64"}
    return Calibration.model_validate(about | {"measured_at": "2026-01-01T00:00:00Z", "trials": trials})


@pytest.mark.parametrize(
    ("isolated", "reward", "rewards", "kinds"), [(1.0, 0.0, {"isolated": 0.0}, []), (0.0, 1.0, {}, ["needs-system"])]
)
async def test_if_the_oracle_shows_which_container_decides_no_other_is_used(
    judged: Any, isolated: float, reward: float, rewards: dict[str, float], kinds: list[str]
) -> None:
    oracle = measured(shared=1.0, isolated=isolated)
    agent, test = f"{WORKS} mkdir -p /usr/lib/thing", JUDGES.format("/usr/lib/thing")
    verdict, found = await judged("both", agent, test, oracle)
    assert (verdict.reward, found, verdict.integrity.rewards) == (reward, kinds, rewards)
    assert all("oracle" in sign for sign in verdict.integrity.tamper)


async def test_logs_and_memory_peak_of_the_agents_container_are_in_the_verdict(
    request: pytest.FixtureRequest, judged: Any
) -> None:
    heavy = "head -c 60000000 /dev/zero >/dev/shm/held"
    agent = f"{WORKS} {heavy}; mkdir -p /logs/agent/a /logs/verifier; echo note > /logs/agent/a/b; cd /logs; "
    agent += "ln -s /etc/passwd agent/link; echo 1 > verifier/reward.txt"
    verdict, kinds = await judged("both", agent, JUDGES.format("/bin"))
    assert (verdict.reward, kinds) == (1.0, [])
    assert verdict.files["agent/a/b"] == b"note\n" and "agent/link" not in verdict.files
    assert verdict.integrity.evidence == ("/logs/verifier/reward.txt",)
    assert verdict.facts.memory_peak_bytes > 60_000_000 or not limits_memory(request)


@pytest.mark.parametrize("policy", ["shared", "isolated"])
async def test_a_pass_must_show_the_tests_of_the_oracles_passes(judged: Any, policy: Verify) -> None:
    test = 'cat /app/shown; echo "=== $(cat /app/counts) in 0.01s ==="; echo 1 > /logs/verifier/reward.txt\n'
    oracle = measured({"test_a::one": "passed", "test_a::two": "passed", "test_a::three": "failed"})
    honest = "printf 'PASSED test_a.py::one\nPASSED test_a.py::two\n' > /app/shown; echo 2 passed > /app/counts"
    alone = ["unconfirmed"] if policy == "shared" else []
    assert (await judged(policy, honest, test, oracle))[1] == alone
    skips = "printf 'PASSED test_a.py::one\n' > /app/shown; echo 1 passed, 1 skipped > /app/counts"
    verdict, kinds = await judged(policy, skips, test, oracle)
    assert (verdict.reward, kinds) == (1.0, [*alone, "unlike-oracle"])
    assert verdict.integrity.tamper[-1:] == (
        "unlike-oracle: of 2 tests that the oracle passes 1 not shown (test_a::two)",
    )


@pytest.mark.parametrize(
    ("agent", "dockerfile", "words"),
    [
        ("true", OWN_IMAGE, "/data is a volume"),
        ("truncate -s 600M /usr/bin/diff", None, "/usr/bin/diff is too large"),
        ("touch /usr/lib/$(printf 'a\\001')", None, "has a name that cannot be asked for"),
    ],
)
async def test_paths_that_could_not_be_inspected_are_a_sign(
    judged_in_docker: Any, agent: str, dockerfile: str | None, words: str
) -> None:
    parts = {} if dockerfile is None else {"dockerfile": dockerfile}
    verdict, _ = await judged_in_docker("shared", agent, "echo 1 > /logs/verifier/reward.txt\n", **parts)
    assert verdict.reward == 1.0
    assert any(sign.startswith("unread:") and words in sign for sign in verdict.integrity.tamper), verdict.integrity


async def test_a_sign_of_the_oracles_passes_is_cleared(judged: Any) -> None:
    agent, test = "echo 1 > /conftest.py", "echo 1 > /logs/verifier/reward.txt; pytest /tests\n"
    sign = "planted-pytest: /conftest.py is read by pytest"
    assert sign in (await judged("shared", agent, test))[0].integrity.tamper
    assert "cleared" in (await judged("shared", agent, test, measured(signs=(sign,))))[1]


async def test_a_pass_only_in_the_agents_container_is_unconfirmed(judged: Any) -> None:
    verdict, kinds = await judged("shared", CHEATS, JUDGES.format("/bin"))
    assert (verdict.reward, kinds, [*verdict.integrity.replaced]) == (1.0, ["unconfirmed"], ["/usr/bin/cmp"])
    assert "/usr/bin/cmp" in verdict.integrity.tamper[0]


@pytest.mark.parametrize("policy", ["both", "isolated"])
async def test_a_pass_that_needs_additions_to_the_system_names_them(judged: Any, policy: Verify) -> None:
    verdict, kinds = await judged(
        policy, f"{WORKS} cp /bin/true /usr/local/bin/thing", JUDGES.format("/usr/local/bin/t*g")
    )
    assert (verdict.reward, kinds) == (1.0, ["system-added"])
    assert "/usr/local/bin/thing" in verdict.integrity.tamper[0]


LINKS = "touch /app/done; ln -s /tests/expected /app/answer; ln -s /app/answer /app/other"
COPIES = """touch /app/done; echo no > /app/answer; cat >/daemon <<'END'
until cat /tests/expected >/app/answer; do sleep 0.02; done
END
/opt/tbench/bin/busybox setsid /bin/sh /daemon >/dev/null 2>&1 </dev/null &
"""
IS_EXPECTED = """sleep 0.5
cmp -s /tests/expected /app/answer && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize("agent", [LINKS, COPIES], ids=["links", "copies"])
async def test_an_answer_that_comes_from_the_tests_is_not_copied(judged: Any, agent: str) -> None:
    oracle = measured(shared=1.0, isolated=1.0)
    verdict, kinds = await judged("both", agent, IS_EXPECTED, oracle, tests={"expected": "42\n"})
    assert (verdict.reward, kinds) in [(0.0, ["left-out"]), (0.0, [])]


@pytest.mark.parametrize(("is_same", "kinds"), [(False, ["needs-system", "system-replaced"]), (True, ["needs-system"])])
async def test_system_files_that_the_oracle_replaces_alike_are_no_sign(
    judged: Any, is_same: bool, kinds: list[str]
) -> None:
    replaced = (await judged("shared", CHEATS, JUDGES.format("/bin")))[0].integrity.replaced if is_same else {}
    other = {"/usr/bin/cmp": "0123456789ab"}
    oracle = measured(shared=1.0, isolated=0.0, replaced=replaced or other)
    assert (await judged("both", CHEATS, JUDGES.format("/bin"), oracle))[1] == kinds


async def test_if_the_oracle_passes_in_a_fresh_container_a_failed_verifier_there_is_an_error(judged: Any) -> None:
    test = "[ ! -e /usr/lib/thing ] || echo 1 > /logs/verifier/reward.txt\n"
    with pytest.raises(VerifierFailed) as failure:
        await judged("both", "mkdir /usr/lib/thing", test, measured(shared=1.0, isolated=1.0))
    assert not failure.value.kind.retryable


async def test_a_file_that_is_too_large_to_be_copied_is_left_out(judged: Any) -> None:
    verdict, kinds = await judged("both", f"{WORKS} truncate -s 5G /app/disk.img", JUDGES.format("/bin"))
    assert (verdict.reward, kinds) == (1.0, [])
    verdict, kinds = await judged("both", "truncate -s 5G /app/disk.img", JUDGES.format("/bin"), measured(isolated=1.0))
    assert (verdict.reward, kinds) == (0.0, ["unread"])


async def test_a_pass_without_a_verdict_from_the_fresh_container_is_unconfirmed(judged: Any) -> None:
    test = "[ ! -e /usr/lib/thing ] || echo 1 > /logs/verifier/reward.txt\n"
    verdict, kinds = await judged("both", "mkdir /usr/lib/thing", test)
    assert (verdict.reward, kinds) == (1.0, ["unconfirmed"])


# -- a verifier that fails -----------------------------------------------------------------------


async def test_a_verifier_that_the_agent_broke_is_an_error_without_a_retry(judged: Any) -> None:
    with pytest.raises(VerifierFailed) as failure:
        await judged("shared", "chmod 000 /bin/bash", "echo 0 > /logs/verifier/reward.txt\n")
    assert not failure.value.kind.retryable
    assert failure.value.integrity.tamper[-1].startswith("fails-with-work")


async def test_an_agent_that_breaks_its_container_keeps_the_verdict_of_the_fresh_one(judged: Any) -> None:
    test = "! grep -qs '432[1]' /proc/[0-9]*/cmdline || exit 1; echo 0 > /logs/verifier/reward.txt\n"
    verdict, kinds = await judged("both", "(exec /opt/tbench/bin/busybox sleep 4321 >/dev/null 2>&1 &)", test)
    assert (verdict.reward, kinds, verdict.integrity.rewards) == (0.0, [], {"isolated": 0.0})
    assert "verifier_no_reward" in verdict.integrity.remarks[0]


async def test_isolated_does_not_depend_on_what_the_agent_broke(judged: Any) -> None:
    test = "[ -e /app/done ] && echo 1 > /logs/verifier/reward.txt\n"
    verdict, kinds = await judged("isolated", "touch /app/done; chmod 000 /bin/bash; rm /etc/passwd", test)
    assert (verdict.reward, kinds) == (1.0, [])


async def test_a_verifier_that_fails_everywhere_is_an_error(judged: Any) -> None:
    with pytest.raises(TrialError) as failure:
        await judged("shared", "true", "exit 3\n")
    assert failure.value.type == "verifier_no_reward"


def limits_memory(request: pytest.FixtureRequest) -> bool:
    """Whether the test's engine can limit memory: without root, cgroup v1 limits nothing."""
    is_user = "rootless" in request.node.name or ("oci" in request.node.name and os.geteuid() != 0)
    return not is_user or Path("/sys/fs/cgroup/cgroup.controllers").exists()


HEAVY = "exec /opt/tbench/bin/busybox sh -c 'held=x; while :; do held=$held$held; done'"


@pytest.mark.parametrize("policy", ["shared", "isolated"])
@pytest.mark.parametrize(
    ("runs_the_work", "type_", "kinds"),
    [
        ("sleep 60", "verifier_timeout", []),
        ("trap 'echo 0 > /logs/verifier/reward.txt; exit' TERM; sleep 60 & wait", "verifier_timeout", []),
        ("exit 1", "verifier_no_reward", ["fails-with-work"]),
        pytest.param("kill -9 $$", "verifier_no_reward", ["verifier-ended", "fails-with-work"], marks=pytest.mark.slow),
        pytest.param(HEAVY, "verifier_no_reward", ["fails-with-work"], marks=pytest.mark.slow),
    ],
    ids=["is slow", "hears of its limit", "gives no reward", "is killed", "is out of memory"],
)
async def test_work_that_makes_the_verifier_fail_is_an_error_and_no_zero(
    request: pytest.FixtureRequest, judged: Any, policy: str, runs_the_work: str, type_: str, kinds: list[str]
) -> None:
    if runs_the_work == HEAVY and not limits_memory(request):
        pytest.skip("without root, cgroup v1 limits no memory")
    limits = "[environment]\nmemory_mb = 96\nallow_internet = false\n[verifier]\ntimeout_sec = 2\n"
    limits = limits.replace("= 2", "= 20") if runs_the_work == HEAVY else limits
    test = (
        f"echo 0 > /logs/verifier/reward.txt; [ ! -e /app/done ] || {{ rm /logs/verifier/*.txt; {runs_the_work}; }}\n"
    )
    with pytest.raises(VerifierFailed) as failure:
        await judged(policy, "touch /app/done", test, toml=limits)
    assert (failure.value.type, failure.value.kind.retryable) == (type_, False)
    assert [sign.partition(":")[0] for sign in failure.value.integrity.tamper] == kinds


async def test_a_temporary_problem_is_not_blamed_on_the_agent(judged: Any) -> None:
    # Only the first run in the agent's container finds the file.
    test = "[ -e /trouble ] && rm /trouble && exit\necho 1 > /logs/verifier/reward.txt\n"
    verdict, kinds = await judged("shared", "touch /trouble", test)
    assert (verdict.reward, kinds) == (1.0, ["second-run", "unconfirmed"])


# -- kept sandboxes ------------------------------------------------------------------------------


class Shell:
    """An agent that runs one script."""

    name = "shell"

    def __init__(self, script: str) -> None:
        self._script = script

    async def work(self, place: Workplace) -> AgentReport:
        await place.sandbox.shell(self._script, timeout_sec=30)
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


Runs = Callable[..., Any]


@pytest.fixture
async def run_trial(engine: Engine, tools_volume: str, tmp_path: Path) -> AsyncIterator[Runs]:
    """Execute a run of one task; remove what it kept at the end."""
    name = f"test-{uuid.uuid4().hex[:12]}"

    async def run(path: Path, script: str = "true", **settings: Any) -> tuple[Path, TrialResult, str]:
        plan = a_plan(name, agent="shell", source=str(path.parent), concurrency=1, **settings)
        tasks = TaskSet((as_configured(Task.read(path), plan.config),), {})
        store = RunStore.create(tmp_path / "run", a_document(plan, tasks.tasks))
        async with asyncio.timeout(BOUND_SEC), open_backend(DockerBackend(engine, sandbox_settings(plan))) as backend:
            made = Run(plan, tasks, make_agent=lambda: Shell(script), backend=backend, store=store, events=Events())
            results = (await made.execute()).results
        store.close()
        return store.path, results[0], name

    yield run
    labelled = {"label": f"{LABEL_RUN}={name}"}
    for container in await engine.call(engine.api.containers, all=True, filters=labelled):
        await engine.call(engine.api.remove_container, container["Id"], force=True)
    for image in await engine.call(engine.api.images, filters=labelled):
        await engine.call(engine.api.remove_image, image["Id"], noprune=True)


ASKING = """[environment]
memory_mb = 256
allow_internet = false
[verifier.env]
REWARD = "${FOR_TESTS:-0}"
"""
COUNTS = """echo x >> /count
[ $(wc -l < /count) = {} ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


async def test_a_failed_trial_is_kept_survives_the_reaper_and_is_verified_again(
    engine: Engine, make_task: MakeTask, run_trial: Runs
) -> None:
    directory, result, name = await run_trial(make_task(test=COUNTS.format(2)), keep="failed")
    assert (result.reward, await left(engine, name)) == (0.0, (1, 0))
    await remove_leftovers(engine)
    changes = await regrade(lambda _: lambda _: partial(DockerBackend, engine), directory, (), None, print)
    assert [(change.before.reward, change.after and change.after.reward) for change in changes] == [(0.0, 1.0)]
    lines = [TrialResult.model_validate_json(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    assert [(line.reward, line.final, line.integrity.regrades) for line in lines] == [(0.0, False, 0), (1.0, True, 1)]
    trial = directory / "trials" / "small-task" / "seed-0"
    assert (trial / "verifier-1" / "reward.txt").read_text() == "0\n"
    assert (trial / "verifier" / "reward.txt").read_text() == "1\n"


async def test_a_pass_of_a_trial_that_is_verified_again_is_compared_with_the_oracles(
    engine: Engine, make_task: MakeTask, run_trial: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    directory, result, _ = await run_trial(path := make_task(test=COUNTS.format(2)), keep="failed")
    trial = {"agent": "oracle", "repetition": 0, "reward": 1.0, "tests": {"": {"t::test_a": "passed"}}}
    known = {
        "task": "small-task",
        "task_hash": Task.read(path).hash,
        "image": image_identity(result.image_origin, result.image_id),
        "architecture": "",  # not recorded in this run.json
        "measured_at": "2026-01-01T00:00Z",
        "trials": [trial],
    }
    save_calibration(Calibration.model_validate(known))
    (change,) = await regrade(lambda _: lambda _: partial(DockerBackend, engine), directory, (), None, print)
    assert change.after is not None and change.after.reward == 1.0
    words = "unlike-oracle: of 1 tests that the oracle passes 1 not shown (t::test_a)"
    assert change.after.integrity.tamper[-1] == words


async def test_a_trial_is_verified_again_with_the_variables_that_it_was_allowed(
    engine: Engine, make_task: MakeTask, run_trial: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOR_TESTS", "1")
    path = make_task(test="echo $REWARD > /logs/verifier/reward.txt\n", toml=ASKING)
    directory, result, _ = await run_trial(path, keep="all", allow_env=("FOR_TESTS",))
    changes = await regrade(lambda _: lambda _: partial(DockerBackend, engine), directory, (), None, print)
    assert [result.reward, *(change.after and change.after.reward for change in changes)] == [1.0, 1.0]


async def test_a_passed_trial_is_not_kept(engine: Engine, make_task: MakeTask, run_trial: Runs) -> None:
    _, result, name = await run_trial(make_task(test=COUNTS.format(1)), keep="failed")
    assert (result.reward, await left(engine, name)) == (1.0, (0, 0))


@pytest.mark.slow
async def test_a_snapshot_is_verified_again_as_it_was_before_the_verifier(
    engine: Engine, make_task: MakeTask, run_trial: Runs
) -> None:
    directory, result, name = await run_trial(make_task(test=COUNTS.format(1)), snapshot=True)
    assert (result.reward, await left(engine, name)) == (1.0, (0, 1))
    changes = await regrade(lambda _: lambda _: partial(DockerBackend, engine), directory, ("small-*",), 0, print)
    after = changes[0].after
    assert after is not None and after.reward == 1.0
    assert after.image_origin is not None and after.image_origin.how == "snapshot"
    assert after.image_id == after.image_origin.reference != result.image_id
    assert await left(engine, name) == (0, 1)
