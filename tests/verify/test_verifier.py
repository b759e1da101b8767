"""Verification and the oracle in real containers: verdicts, awkward scripts, and agents that try to forge them."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.trajectory import Outcome
from tbench.agents.trial_agent import OracleAgent, Workplace
from tbench.errors import TrialError
from tbench.results import is_weak
from tbench.sandbox.backend import Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task
from tbench.verify.verifier import Verdict, VerifierFailed, verify, verify_twice

pytestmark = pytest.mark.engine
MakeTask = Any
Start = Callable[..., Coroutine[Any, Any, Sandbox]]
BOUND_SEC = 60
LIMITS = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
AT = "/logs/verifier/reward.txt"
HONEST = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
WITH_USER = "FROM debian:bookworm-slim\nRUN useradd -m dev\nWORKDIR /app\nRUN chown dev /app\nUSER dev\n"
HEALTHCHECK = LIMITS + "[environment.healthcheck]\ninterval_sec = 0.01\ntimeout_sec = 10\n"


@pytest.fixture
def verified(make_task: MakeTask, start_sandbox: Start) -> Callable[..., Coroutine[Any, Any, Verdict]]:
    """Run an agent's script in a new sandbox, then verify."""

    async def run(
        test: str,
        agent: str = "",
        *,
        user: str | None = None,
        allowed: Sequence[str] = (),
        judge: str | None = None,
        **parts: Any,
    ) -> Verdict:
        path = make_task(test=test, **parts)
        if judge is not None:
            (path / "tests" / "judge.sh").write_text(judge)
        sandbox = await start_sandbox(path)
        async with asyncio.timeout(BOUND_SEC):
            if agent:
                ended = await sandbox.shell(agent, timeout_sec=30, user=user)
                assert ended.exit_code == 0, ended
            task = Task.read(path).with_access(allowed)
            return await verify_twice(lambda again: verify(task, sandbox, again=again))

    return run


Verified = Callable[..., Coroutine[Any, Any, Verdict]]


async def failure(verifying: Coroutine[Any, Any, Any]) -> TrialError:
    with pytest.raises(TrialError) as caught:
        await verifying
    return caught.value


async def test_a_float_is_the_reward(verified: Verified) -> None:
    verdict = await verified("echo some words; echo 0.605 > /logs/verifier/reward.txt; exit 3")
    assert verdict.reward == 0.605
    assert verdict.files["verifier/stdout.txt"] == b"some words\n"


async def test_json_takes_precedence_over_an_equal_text_file(verified: Verified) -> None:
    script = 'cd /logs/verifier; echo 0.75 > reward.txt; echo \'{"reward": 0.75, "speed": 3}\' > reward.json'
    verdict = await verified(script)
    assert (verdict.reward, verdict.integrity.tamper) == (0.75, ())
    assert {"verifier/reward.txt", "verifier/reward.json"} <= set(verdict.files)


@pytest.mark.parametrize(
    "test",
    [
        "case 0 in\n  0) echo 1 >/logs/verifier/reward.txt ;;\nesac\n",
        "for x in 1 2; do\n  echo 1 >/logs/verifier/reward.txt\ndone\n",
        "f() { case $1 in\n y) echo 1 >/logs/verifier/reward.txt ;;\nesac; }\nf y\n",
        "exec 3>&1 >/tmp/o 2>&1\nexec >&3\nif [ 1 = 1 ]; then\n echo 1 >/logs/verifier/reward.txt\nfi\n",
    ],
)
async def test_a_write_of_the_reward_is_traced_in_any_compound_command(verified: Verified, test: str) -> None:
    verdict = await verified(test)
    assert (verdict.reward, verdict.integrity.tamper, verdict.facts.wrote_last) == (1.0, (), True)


@pytest.mark.parametrize(
    ("test", "judge"),
    [
        ("printf 0 > /logs/verifier/reward.txt\nbash /tests/judge.sh\n", "echo 1 > /logs/verifier/reward.txt\n"),
        ("printf 0 > /logs/verifier/reward.txt\nbash /tests/judge.sh /logs/verifier\n", 'echo 1 > "$1/reward.txt"\n'),
        ("cd /logs/verifier; echo 0.4 > reward.txt; echo '{\"reward\": 1, \"speed\": 0.4}' > reward.json\n", None),
        ("echo '== 61 failed, 6 passed in 3.1s =='; echo 1 > /logs/verifier/reward.txt\n", None),
        ("echo 1 > /logs/verifier/reward.txt; exec sh -c 'exit 255'\n", None),
    ],
    ids=["a default first", "a default first, and a folder that is given", "json and txt", "failures", "exec"],
)  # fmt: skip
async def test_the_reward_that_the_tests_wrote_counts(verified: Verified, test: str, judge: str | None) -> None:
    assert (await verified(test, judge=judge)).reward == 1.0


async def test_only_the_reward_file_that_counts_has_to_be_a_regular_file(verified: Verified) -> None:
    verdict = await verified("cd /logs/verifier; mkdir reward.txt; echo '{\"reward\": 1}' > reward.json")
    assert (verdict.reward, verdict.integrity.tamper) == (1.0, ())


async def test_of_two_rewards_the_one_in_reward_json_counts(verified: Verified) -> None:
    verdict = await verified("cd /logs/verifier; echo 0 > reward.txt; echo '{\"reward\": 1}' > reward.json")
    assert verdict.reward == 1.0
    assert verdict.integrity.tamper[-1] == "other-reward: reward.json, which counts, says 1, and reward.txt 0"
    assert all(map(is_weak, verdict.integrity.tamper))


@pytest.mark.parametrize(
    ("script", "type_", "words"),
    [
        ("echo so far so good; echo oops >&2; false", "verifier_no_reward", "oops"),
        (": > /logs/verifier/reward.txt", "verifier_no_reward", "empty"),
        ("echo nan > /logs/verifier/reward.txt", "verifier_bad_reward", "nan"),
        ("mkdir /logs/verifier/reward.txt", "verifier_no_reward", "reward.txt is a directory"),
        ("ln -s /etc/hostname /logs/verifier/reward.txt", "verifier_no_reward", "is a symbolic link"),
        ("cd /logs/verifier; echo 1 > a; ln a reward.txt", "verifier_no_reward", "a file with a second name"),
        ("mkfifo /logs/verifier/reward.txt", "verifier_no_reward", "is a fifo"),
        ("cd /logs; echo 1 >verifier/reward.txt; mv verifier v; ln -s v verifier", "verifier_no_reward", "of its own"),
        ("cd /logs; mv verifier v; ln -s verifier verifier", "verifier_no_reward", "no longer a directory of its own"),
        ("truncate -s 10G /logs/verifier/reward.txt", "verifier_bad_reward", "zero bytes"),
        (
            "cd /logs/verifier; mkdir reward.json; echo 1 > reward.txt",
            "verifier_no_reward",
            "reward.json is a directory",
        ),
        (
            "uvx pytest; echo 0 > /logs/verifier/reward.txt",
            "verifier_never_ran",
            "a tool of the verifier is missing",
        ),
        ("sleep 100", "verifier_timeout", "1 s"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 100", "verifier_timeout", "1 s"),
    ],
)
async def test_a_missing_verdict_is_an_error_with_the_reason(
    verified: Verified, script: str, type_: str, words: str
) -> None:
    failed = await failure(verified(script, toml=f"{LIMITS}[verifier]\ntimeout_sec = 1\n"))
    assert failed.type == type_
    assert words in str(failed)


async def test_output_up_to_a_timeout_is_kept(verified: Verified) -> None:
    failed = await failure(verified("echo begun; sleep 100", toml=f"{LIMITS}[verifier]\ntimeout_sec = 1\n"))
    assert isinstance(failed, VerifierFailed)
    assert failed.files["verifier/stdout.txt"].startswith(b"begun\n")


async def test_a_server_that_the_tests_leave_behind_does_not_hold_the_verifier(verified: Verified) -> None:
    async with asyncio.timeout(BOUND_SEC):
        verdict = await verified("sleep 1000 &\nsetsid sleep 1000 &\necho 1 > /logs/verifier/reward.txt")
    assert verdict.reward == 1.0


async def test_a_server_that_the_agent_left_running_is_still_there(verified: Verified) -> None:
    server = "setsid sleep 4321 >/dev/null 2>&1 &"
    verdict = await verified("grep -qz 4321 /proc/[0-9]*/cmdline && echo 1 > /logs/verifier/reward.txt", server)
    assert verdict.reward == 1.0


@pytest.mark.each_engine
@pytest.mark.parametrize(
    "attack",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "mkdir -p /logs /x; echo 1 > /x/reward.txt; ln -s /x /logs/verifier",
        "mkdir -p /logs; echo 1 > /logs/reward.txt; ln -s /logs/reward.txt /logs/verifier",
        "mkdir -p /logs/verifier/reward.txt /logs/verifier/stdout.txt",
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; touch /tests/more",
        "mkdir -p /x; echo 'echo 1 > /logs/verifier/reward.txt' > /x/test.sh; ln -s /x /tests",
        "mkdir -p /x; ln -s /x/nowhere /tests",
        "echo 'echo 1 > /logs/verifier/reward.txt' > /tests",
    ],
    ids=["reward", "linked logs", "logs as file", "directories", "tests", "linked tests", "dangling tests", "file"],
)
async def test_planted_files_of_the_agent_are_ignored(verified: Verified, attack: str) -> None:
    check = '[ "$(ls /tests)" = test.sh ] || echo extra files\necho ran\n'
    verdict = await verified(check + HONEST, attack)
    assert verdict.reward == 0.0
    assert verdict.files["verifier/stdout.txt"] == b"ran\n"


@pytest.mark.each_engine
async def test_planted_tests_do_not_reach_through_a_link(verified: Verified) -> None:
    verdict = await verified(f"cat /app/kept && {HONEST}", "mkdir -p /app; echo mine > /app/kept; ln -s /app /tests")
    assert verdict.files["verifier/stdout.txt"] == b"mine\n"


async def test_the_tests_are_not_there_before_the_agent_has_ended(make_task: MakeTask, start_sandbox: Start) -> None:
    sandbox = await start_sandbox(make_task())
    ended = await sandbox.shell("ls -d /tests /solution 2>/dev/null; ls -a / | grep tbench", timeout_sec=30)
    assert ended.output == b""


async def test_a_deleted_working_directory_is_created_again(verified: Verified) -> None:
    verdict = await verified("pwd; touch here; echo 1 > /logs/verifier/reward.txt", "cd /; rm -rf /app")
    assert (verdict.reward, verdict.files["verifier/stdout.txt"]) == (1.0, b"/app\n")


async def test_tests_are_binary_nested_and_of_any_mode(make_task: MakeTask, start_sandbox: Start) -> None:
    path = make_task(test="cd /tests; sha256sum -c deep/sums && ./deep/run > /logs/verifier/reward.txt\n")
    data = bytes(range(256)) * 40_000
    (path / "tests" / "deep").mkdir()
    (path / "tests" / "deep" / "data").write_bytes(data)
    (path / "tests" / "deep" / "run").write_text("#!/bin/sh\necho 1\n")
    (path / "tests" / "deep" / "run").chmod(0o755)
    (path / "tests" / "deep" / "sums").write_text(f"{hashlib.sha256(data).hexdigest()}  deep/data\n")
    (path / "tests" / "test.sh").chmod(0o600)
    sandbox = await start_sandbox(path)
    async with asyncio.timeout(BOUND_SEC):
        assert (await verify(Task.read(path), sandbox)).reward == 1.0


async def test_test_files_may_have_any_name(make_task: MakeTask, start_sandbox: Start) -> None:
    odd = ("-rf", "a b", "tab\t", "q'\"$(x)`", "back\\slash", "\u00e9\u6f22", "raw\udcff", "line\nbreak")
    names = [*odd, f"{'d' * 90}/{'e' * 200}"]
    counts = "[ $(find /tests -type f | wc -l) = 11 ]"  # a name is two lines
    path = make_task(test=f"{counts} && echo 1 > /logs/verifier/reward.txt\n")
    for name in names:
        (path / "tests" / name).parent.mkdir(exist_ok=True)
        (path / "tests" / name).touch()
    sandbox = await start_sandbox(path)
    async with asyncio.timeout(BOUND_SEC):
        verdict = await verify(task := Task.read(path), sandbox)
    assert (verdict.reward, verdict.integrity.tamper, len(task.hash)) == (1.0, (), 64)


@pytest.mark.slow
async def test_much_output_and_many_files_do_not_prevent_a_verdict(verified: Verified) -> None:
    agent = "mkdir -p /logs/agent; cd /logs/agent; head -c 80000000 /dev/zero > a; touch $(seq 200)"
    verdict = await verified("head -c 9000000 /dev/zero; echo 1 > /logs/verifier/reward.txt", agent)
    assert verdict.reward == 1.0
    assert sum(map(len, verdict.files.values())) <= 33 << 20


async def test_an_image_whose_user_is_not_root_is_verified_as_that_user(verified: Verified) -> None:
    script = "id -un; pwd; echo $HOME; touch /root/x 2>/dev/null || echo 0.5 > /logs/verifier/reward.txt"
    verdict = await verified(script, "touch /logs/agent/mine /app/x", dockerfile=WITH_USER)
    assert verdict.reward == 0.5
    assert verdict.files["verifier/stdout.txt"] == b"dev\n/app\n/home/dev\n"
    assert "agent/mine" in verdict.files


async def test_a_verifier_can_have_its_own_user(verified: Verified) -> None:
    script = "id -un > /logs/verifier/who; echo 1 > /logs/verifier/reward.txt"
    as_root = await verified(script, dockerfile=WITH_USER, toml=f'{LIMITS}[verifier]\nuser = "root"\n')
    assert as_root.files["verifier/who"] == b"root\n"
    as_nobody = await verified(script, toml=f'{LIMITS}[verifier]\nuser = "nobody"\n')
    assert as_nobody.files["verifier/who"] == b"nobody\n"


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_a_reward_of_a_helper_program_is_no_sign_if_no_process_outlives_the_tests(
    verified: Verified, user: str
) -> None:
    toml = f'{LIMITS}[verifier]\nuser = "{user}"\n'
    script = "echo 'echo 1 > /logs/verifier/reward.txt' > /tmp/helper; sh /tmp/helper"
    verdict = await verified(script, "touch /tmp/work", user="nobody", toml=toml)
    assert (verdict.reward, verdict.facts.leftovers, verdict.facts.outlived) == (1.0, 0, 0)
    assert verdict.integrity.tamper == ()


@pytest.mark.parametrize(
    ("script", "wrote_last"),
    [
        (f"ls /\nif true; then\n echo 1 > {AT}\nelse\n echo 0 > {AT}\nfi\nexit 0\n", True),
        (f"echo 0 > {AT}\ncode=$(cat /etc/hostname)\nsh -c 'echo 1 > {AT}'\n", False),
        (f"echo 0 > {AT}\n(cd /logs/verifier; echo 1 > reward.txt)\n", False),
        (f"echo 0 > {AT}\nexec sh -c 'echo 1 > {AT}'\n", False),
        (f"exec 3>&1\necho 1 > {AT}\ntrue\n", True),
        (f"sh -c 'echo 1 > {AT}'\n", False),
    ],
)
async def test_whether_bash_itself_wrote_last_is_a_fact(verified: Verified, script: str, wrote_last: bool) -> None:
    verdict = await verified(script)
    assert verdict.facts.wrote_last is wrote_last


@pytest.mark.parametrize(
    ("attack", "reward", "kind"),
    [
        ("shutdown(S, 1);", 0.0, "trace-cut"),
        ("fcntl(S, F_SETFL, O_NONBLOCK | O_RDWR); syswrite(S, 'x');", 0.0, "trace-cut"),
        ("setsockopt(S, SOL_SOCKET, SO_SNDTIMEO, pack('l!l!', 0, 1)); syswrite(S, 'x');", 0.0, "trace-cut"),
        ('syswrite(S, "+/tests/test.sh:2 echo 0\\n") for 1 .. 100000;', 1.0, ""),
    ],
)
async def test_a_program_that_cuts_the_trace_is_detected(
    verified: Verified, attack: str, reward: float, kind: str
) -> None:
    agent = "mkdir -p /app; cat > /app/work <<'END'\n#!/usr/bin/perl\nuse Fcntl; use Socket; open(S, '+<&=', 173);\n"
    verdict = await verified(f"/app/work\necho 1 > {AT}\n", f"{agent}{attack}\nEND\nchmod 755 /app/work")
    assert verdict.reward == reward
    assert [sign.partition(":")[0] for sign in verdict.integrity.tamper][:1] == ([kind] if kind else [])


async def test_a_program_that_stops_the_reader_of_the_trace_is_detected(verified: Verified) -> None:
    agent = r"""mkdir -p /app; cat > /app/work <<'END'
for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline | grep -q ^/opt/tbench/bin/witness && w=${p#/proc/}; done
kill -STOP $w; sleep 0.1; kill -CONT $w
END"""
    verdict = await verified(f"bash /app/work\necho 1 > {AT}\n", agent)
    assert verdict.facts.was_halted
    assert [sign.partition(":")[0] for sign in verdict.integrity.tamper] == ["unwitnessed"]


@pytest.mark.slow
async def test_a_script_with_many_commands_is_not_delayed_by_its_trace(verified: Verified) -> None:
    verdict = await verified("for i in {1..200000}; do : $i; done\necho 1 > /logs/verifier/reward.txt\n")
    assert (verdict.reward, verdict.facts.wrote_last, len(verdict.facts.traced_writes)) == (1.0, True, 1)


async def test_a_timeout_holds_for_another_user_too(verified: Verified) -> None:
    toml = f'{LIMITS}[verifier]\nuser = "nobody"\ntimeout_sec = 1\n'
    assert (await failure(verified("sleep 100", toml=toml))).type == "verifier_timeout"


async def test_the_verifier_gets_its_environment(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFIER_KEY", "it's a key")
    toml = f'{LIMITS}[verifier]\nenv = {{ KEY = "${{VERIFIER_KEY}}", OTHER = "${{NOT_SET_AT_ALL:-o}}" }}\n'
    script = 'echo "$KEY $OTHER"; echo 1 > /logs/verifier/reward.txt'
    verdict = await verified(script, toml=toml, allowed=["VERIFIER_KEY"])
    assert verdict.files["verifier/stdout.txt"] == b"it's a key o\n"


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_variables_of_verifier_sh_are_not_in_the_environment_of_the_tests(verified: Verified, user: str) -> None:
    toml = f'{LIMITS}[verifier]\nuser = "{user}"\nenv = {{ KEY = "k" }}\n'
    dockerfile = "FROM debian:bookworm-slim\nENV FROM_IMAGE=i\nWORKDIR /app\n"
    verdict = await verified("env; echo 1 > /logs/verifier/reward.txt", dockerfile=dockerfile, toml=toml)
    environment = dict(line.split("=", 1) for line in verdict.files["verifier/stdout.txt"].decode().splitlines())
    by_shell_and_engine = {"PATH", "HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"}
    assert environment.keys() - by_shell_and_engine == {"KEY", "FROM_IMAGE"}
    assert (environment["KEY"], environment["FROM_IMAGE"]) == ("k", "i")


@pytest.mark.parametrize("agent", ["true", "cd /; rm -rf /it*"], ids=["there", "gone"])
async def test_a_working_directory_may_have_any_name(verified: Verified, agent: str) -> None:
    toml = (
        LIMITS
        + r"""workdir = "/it's $HOME; \"a dir\" * \\"
"""
    )
    verdict = await verified("pwd; echo 1 > /logs/verifier/reward.txt", agent, toml=toml)
    assert verdict.files["verifier/stdout.txt"].decode() == '/it\'s $HOME; "a dir" * \\\n'


async def test_an_image_without_bash_has_no_verdict(verified: Verified) -> None:
    failed = await failure(verified(HONEST, dockerfile="FROM debian:bookworm-slim\nRUN rm /bin/bash\nWORKDIR /app\n"))
    assert failed.type == "verifier_no_reward"
    assert "bash" in str(failed)


@pytest.mark.each_engine
async def test_no_process_inside_can_end_the_container(verified: Verified) -> None:
    # Process 1 is the init: its end would end the container.
    attacks = (
        "kill -9 1; kill -TERM 1; kill -INT 1; (exec 3<>/proc/1/mem) && echo open; cat /proc/1/environ && echo read"
    )
    verdict = await verified(f"({attacks}) 2>/dev/null; sleep 0.5; echo 1 > /logs/verifier/reward.txt")
    assert verdict.reward == 1.0
    assert verdict.files["verifier/stdout.txt"] == b""


async def test_a_container_that_is_ended_from_outside_is_lost(
    engine: Engine, make_task: MakeTask, start_in_docker: Start
) -> None:
    task = make_task(test="sleep 30\n")
    sandbox = await start_in_docker(task)
    verifying = asyncio.create_task(verify(Task.read(task), sandbox))
    await asyncio.sleep(2)
    assert isinstance(sandbox, Container)
    await engine.call(engine.api.kill, sandbox.container_id)
    assert (await failure(verifying)).type == "sandbox_lost"


# -- healthchecks --------------------------------------------------------------------------------


async def test_a_healthy_sandbox_starts(make_task: MakeTask, start_sandbox: Start) -> None:
    # Succeeds at the third attempt, which it counts in files.
    toml = HEALTHCHECK + "command = 'echo x >> /tries; [ $(wc -l < /tries) -ge 3 ]'\n"
    sandbox = await start_sandbox(make_task(toml=toml))
    assert (await sandbox.shell("cat /tries", timeout_sec=30)).output == b"x\nx\nx\n"


async def test_an_unhealthy_sandbox_is_an_error_and_leaves_nothing(
    engine: Engine, tools_volume: str, make_task: MakeTask
) -> None:
    run = f"test-{uuid.uuid4().hex[:12]}"
    task = Task.read(make_task(toml=HEALTHCHECK + "retries = 2\ncommand = 'echo no port; exit 1'\n"))
    async with asyncio.timeout(BOUND_SEC), open_backend(DockerBackend(engine, SandboxSettings(run))) as backend:
        failed = await failure(backend.sandbox(agent_environment(task), "t"))
    assert failed.type == "healthcheck_failed"
    assert "no port" in str(failed)
    assert await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"}) == []


async def test_the_sandbox_has_the_environment_of_the_task(
    make_task: MakeTask, start_sandbox: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_KEY", "k")
    sandbox = await start_sandbox(make_task(toml=LIMITS + 'env = { KEY = "${TASK_KEY}" }\n'), ["TASK_KEY"])
    assert (await sandbox.shell("echo $KEY", timeout_sec=30)).output == b"k\n"


# -- the oracle ----------------------------------------------------------------------------------


async def oracle(
    path: Path, sandbox: Sandbox, timeout_sec: float | None = None, allowed: Sequence[str] = ()
) -> Outcome:
    place = Workplace(Task.read(path).with_access(allowed), sandbox, 0, path, timeout_sec, lambda _step, _line: None)
    async with asyncio.timeout(BOUND_SEC):
        return (await OracleAgent().work(place)).outcome


@pytest.mark.parametrize("dockerfile", ["FROM debian:bookworm-slim\nWORKDIR /app\n", WITH_USER], ids=["root", "user"])
async def test_the_solution_runs_in_the_workdir_with_its_environment(
    make_task: MakeTask, start_sandbox: Start, monkeypatch: pytest.MonkeyPatch, dockerfile: str
) -> None:
    monkeypatch.setenv("SOLVE_KEY", "k")
    toml = LIMITS + '[solution]\nenv = { KEY = "${SOLVE_KEY}" }\n'
    path = make_task(toml=toml, solve='id -un; pwd; echo "$KEY"; touch done; exit 127\n', dockerfile=dockerfile)
    sandbox = await start_sandbox(path)
    assert await oracle(path, sandbox, allowed=["SOLVE_KEY"]) is Outcome.FINISHED
    verdict = await verify(Task.read(path), sandbox)
    assert verdict.reward == 1.0
    user = "dev" if dockerfile == WITH_USER else "root"
    assert verdict.files["agent/oracle.txt"].decode() == f"{user}\n/app\nk\n"


async def test_a_server_that_the_solution_leaves_running_does_not_hold_the_oracle(
    make_task: MakeTask, start_sandbox: Start
) -> None:
    path = make_task(solve="sleep 1000 &\ntouch done\n")
    sandbox = await start_sandbox(path)
    assert await oracle(path, sandbox) is Outcome.FINISHED


async def test_a_timeout_of_the_solution_is_an_outcome(make_task: MakeTask, start_sandbox: Start) -> None:
    path = make_task(solve="touch done; sleep 1000\n")
    sandbox = await start_sandbox(path)
    assert await oracle(path, sandbox, timeout_sec=1) is Outcome.AGENT_TIMEOUT
    assert (await verify(Task.read(path), sandbox)).reward == 1.0


# -- repairs, and a second run -------------------------------------------------------------------

# By whole paths: the tools volume's shell has a dpkg of its own.
HOLDS_DPKG = """setsid perl -e 'for $name ("lock-frontend", "lock") {
    open($file{$name}, ">", "/var/lib/dpkg/$name") || die;
    fcntl($file{$name}, 6, $lock = pack("s s x4 q q l x4", 1, 0, 0, 0, 0)) || die;
} sleep 1000' >/dev/null 2>&1 </dev/null &
sleep 1.1; ! /usr/bin/dpkg --configure -a
"""
HALF_CONFIGURED = """sleep 1.1
sed -i '/^Package: base-files$/,/^$/s/^Status: .*/Status: install ok half-configured/' /var/lib/dpkg/status
! /usr/bin/dpkg -s base-files | grep 'ok installed'
"""
USES_DPKG = """dpkg -s base-files | grep 'ok installed' && dpkg --unpack /nothing 2>&1 | grep 'cannot access' &&
echo 1 > /logs/verifier/reward.txt"""


LOST_CERTIFICATES = """sleep 1.1; touch /var/lib/dpkg/status
mkdir -p /etc/ssl/certs; : >/etc/ssl/certs/ca-certificates.crt
printf '#!/bin/sh\\necho certificates >/etc/ssl/certs/ca-certificates.crt\\n' >/usr/sbin/update-ca-certificates
chmod +x /usr/sbin/update-ca-certificates
"""


@pytest.mark.slow
async def test_lost_certificates_are_restored_before_the_tests(verified: Verified) -> None:
    verdict = await verified(
        "# apt-get\ngrep -q certificates /etc/ssl/certs/ca-certificates.crt && echo 1 > /logs/verifier/reward.txt",
        LOST_CERTIFICATES,
    )
    assert verdict.reward == 1.0
    assert any(repair.startswith("certificates:") for repair in verdict.integrity.repairs)


@pytest.mark.parametrize(("agent", "repair"), [(HOLDS_DPKG, "dpkg-lock:"), (HALF_CONFIGURED, "dpkg:")])
async def test_damage_that_prevents_installations_is_repaired_before_the_tests(
    verified: Verified, agent: str, repair: str
) -> None:
    verdict = await verified(USES_DPKG, agent)
    assert verdict.reward == 1.0
    assert [words.startswith(repair) for words in verdict.integrity.repairs] == [True]
    assert verdict.integrity.tamper == ()


async def test_dpkg_is_not_repaired_if_the_tests_do_not_use_it(verified: Verified) -> None:
    verdict = await verified(HONEST, HALF_CONFIGURED + "true")
    assert verdict.integrity.repairs == ()


async def test_a_directory_that_was_created_again_is_a_repair(verified: Verified) -> None:
    verdict = await verified("echo 1 > /logs/verifier/reward.txt", "cd /; rm -rf /app")
    assert [words.partition(":")[0] for words in verdict.integrity.repairs] == ["cwd"]


async def test_tests_that_never_ran_are_run_once_more(verified: Verified) -> None:
    heals = """[ -e /second ] && echo 1 > /logs/verifier/reward.txt && exit
touch /second; echo 'Could not resolve host'; pytest /tests; echo 0 > /logs/verifier/reward.txt"""
    verdict = await verified(heals)
    assert (verdict.reward, verdict.integrity.regrades, verdict.integrity.evidence) == (1.0, 1, ())
    assert b"resolve" in verdict.files["verifier-1/stdout.txt"]


async def test_tests_are_repeated_at_most_once(verified: Verified) -> None:
    failed = await failure(verified("echo x >> /app/runs; pytest /tests; echo 0 > /logs/verifier/reward.txt"))
    assert isinstance(failed, VerifierFailed)
    assert (failed.type, failed.integrity.regrades) == ("verifier_never_ran", 1)


async def test_a_zero_counts_whatever_the_agents_program_prints(verified: Verified) -> None:
    test = "echo x >> /app/runs; bash /app/report.sh; cat /app/runs; echo 0 > /logs/verifier/reward.txt"
    verdict = await verified(test, "echo 'curl -s http://localhost/' > /app/report.sh")
    assert (verdict.reward, verdict.integrity.regrades) == (0.0, 0)
    assert verdict.files["verifier/stdout.txt"].endswith(b"curl: command not found\nx\n")
    assert verdict.integrity.remarks == ("tool-failure: a tool of the verifier is missing",)


async def test_endless_files_among_the_tests_are_listed_and_never_opened(verified: Verified) -> None:
    script = (
        "cd /tests; mkfifo pipe.py; ln -s /dev/zero zero.py; truncate -s 5T large.py; rm judge.sh; mkfifo judge.sh\n"
    )
    verdict = await verified(f"{script}echo 1 >{AT}", judge="true\n")
    (changed, new) = verdict.integrity.tamper
    assert changed == "tests-changed: /tests/judge.sh changed while the tests ran"
    assert new == "tests-changed: /tests/large.py, /tests/pipe.py, /tests/zero.py appeared while the tests ran"


async def test_standard_devices_are_restored(verified: Verified) -> None:
    agent = "cd /dev; rm -rf fd null stdin; mkdir fd null; echo forged >fd/63; ln -s /etc/passwd stdin"
    test = f"cat <(echo honest) && [ -c /dev/null ] && echo 1 | cat /dev/stdin >{AT}"
    verdict = await verified(test, agent)
    assert (verdict.reward, verdict.stdout) == (1.0, b"honest\n")
    assert [words.partition(" was ")[0] for words in verdict.integrity.repairs] == [
        "device: /dev/fd", "device: /dev/stdin", "device: /dev/null",
    ]  # fmt: skip


@pytest.mark.slow
async def test_a_timeout_of_the_collection_leaves_no_process_stopped(
    make_task: MakeTask, start_sandbox: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_task(test=f"truncate -s 3G /tests/large; echo 1 >{AT}")
    sandbox = await start_sandbox(path)
    assert (await sandbox.shell("setsid sleep 300 >/dev/null 2>&1 </dev/null &", timeout_sec=30)).exit_code == 0
    monkeypatch.setattr("tbench.verify.verifier._COLLECT_SEC", 1.0)
    assert (await failure(verify(Task.read(path), sandbox))).type == "verifier_timeout"
    stopped = await sandbox.shell("grep -l '^State:.T' /proc/[0-9]*/status; true", timeout_sec=30)
    assert stopped.output == b""


@pytest.mark.parametrize("kind", ["tests-changed", "tests-touched"])
async def test_a_test_file_that_was_changed_and_restored_is_detected(verified: Verified, kind: str) -> None:
    file = "test.sh" if kind == "tests-changed" else "judge.sh"
    writes = f"cp -p /tests/{file} /x; echo >> /tests/{file}; cat /x > /tests/{file}; touch -r /x /tests/{file}\n"
    verdict = await verified(f"{writes}echo 1 > /logs/verifier/reward.txt\n", judge="true\n")
    assert kind in [sign.partition(":")[0] for sign in verdict.integrity.tamper]
