"""Agents that cheat, in real containers: each scores 0, gets no verdict, or is flagged. Honest ones are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from terminals import BASH, NO_BASH, NO_ROOT

from harness.protocols.base import Keys
from harness.terminal import Terminal, TerminalSpec
from tbench.errors import TrialError
from tbench.results import is_weak
from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task
from tbench.verify.policy import verify_by
from tbench.verify.verifier import Verdict, VerifierFailed, verify

pytestmark = pytest.mark.engine
MakeTask = Any
Start = Callable[[Path], Coroutine[Any, Any, Sandbox]]
BOUND_SEC = 90
FAILS = "sleep 0.3; cat /tests/expected >/dev/null; echo 0 > /logs/verifier/reward.txt\n"
LIKE_PYTHON = """FROM debian:bookworm-slim
RUN mkdir -p /usr/local/lib/python3.13/site-packages && ln -s /bin/true /usr/local/bin/python3
WORKDIR /app
"""
WITH_PYTHON = """FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip python3-setuptools python3-wheel
WORKDIR /app
"""
LIMITS = "[environment]\nmemory_mb = 256\nallow_internet = false\n"


@pytest.fixture
def verified(make_task: MakeTask, start_in_docker: Start) -> Callable[..., Coroutine[Any, Any, Verdict]]:
    """Run an agent's script in a new sandbox, then verify."""

    async def run(
        agent: str, test: str = FAILS, large_bytes: int = 0, files: Mapping[str, str] = {}, **parts: Any
    ) -> Verdict:
        path = make_task(test=test, **parts)
        for name, text in {"tests/expected": "secret answer\n", **files}.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        if large_bytes:
            (path / "tests" / "large").write_bytes(bytes(large_bytes))
        sandbox = await start_in_docker(path)
        async with asyncio.timeout(BOUND_SEC):
            ended = await sandbox.shell(agent, timeout_sec=60)
            assert ended.exit_code == 0, ended
            return await verify(Task.read(path), sandbox)

    return run


Verified = Callable[..., Coroutine[Any, Any, Verdict]]


async def refused(verifying: Coroutine[Any, Any, Any]) -> VerifierFailed:
    with pytest.raises(TrialError) as caught:
        await verifying
    assert isinstance(caught.value, VerifierFailed), caught.value
    return caught.value


def daemon(body: str) -> str:
    """Return a script that leaves a process behind."""
    start = "/opt/tbench/bin/busybox setsid /bin/sh /daemon >/dev/null 2>&1 </dev/null &"
    return f"cat >/daemon <<'END'\n{body}\nEND\n{start}\n"


def kinds(verdict: Verdict) -> set[str]:
    return {signal.partition(":")[0] for signal in verdict.integrity.tamper}


# -- rewards and tests that were there before ----------------------------------------------------


async def test_rewards_written_before_are_moved_aside_kept_and_flagged(verified: Verified) -> None:
    verdict = await verified(
        "mkdir -p /logs/verifier; cd /logs/verifier; echo 1 > reward.txt; echo '{\"reward\": 1}' > reward.json"
    )
    assert verdict.reward == 0.0
    assert {"/logs/verifier/reward.txt", "/logs/verifier/reward.json"} <= set(verdict.integrity.evidence)
    assert verdict.files["evidence/verifier/reward.txt"] == b"1\n"
    assert kinds(verdict) == {"planted-reward"}


async def test_tests_behind_a_link_are_not_run_and_the_link_is_not_followed(verified: Verified) -> None:
    agent = "mkdir /x; echo 'echo 1 > /logs/verifier/reward.txt' > /x/test.sh; ln -s /x /tests; ln -s /x /logs"
    verdict = await verified(agent, "[ -e /x/test.sh ] && [ ! -e /x/verifier ] && echo 0.5 > /logs/verifier/reward.txt")
    assert verdict.reward == 0.5
    assert {"/tests", "/logs"} <= set(verdict.integrity.evidence)


async def test_a_pipe_or_device_at_the_path_of_the_logs_does_not_block(verified: Verified) -> None:
    verdict = await verified("mkdir /logs; mkfifo /logs/verifier; mknod /tests c 1 5")
    assert verdict.reward == 0.0
    assert {"/tests", "/logs/verifier"} <= set(verdict.integrity.evidence)


async def test_an_agent_can_neither_mount_nor_freeze_files(make_task: MakeTask, start_in_docker: Start) -> None:
    sandbox = await start_in_docker(make_task())
    script = "mkdir -p /tests /x; for c in 'mount --bind /x /tests' 'unshare -m true' 'unshare -Ur true' 'chattr +i /x'"
    ended = await sandbox.shell(f"{script}; do $c 2>/dev/null && echo $c; done; echo tried", timeout_sec=30)
    assert ended.output == b"tried\n"


@pytest.mark.slow
async def test_large_and_many_planted_files_are_kept_within_limits(verified: Verified) -> None:
    verdict = await verified(
        "mkdir /tests; cd /tests; touch $(seq 300); dd if=/dev/zero of=big bs=1M count=3 2>/dev/null"
    )
    assert verdict.reward == 0.0
    kept = [name for name in verdict.files if name.startswith("evidence/")]
    assert 0 < len(kept) <= 20
    assert "evidence/tests/big" not in kept
    assert len(verdict.integrity.evidence) <= 50


@pytest.mark.parametrize("verifier_user", ["root", "nobody"])
async def test_file_names_cannot_forge_lines_of_the_report(verified: Verified, verifier_user: str) -> None:
    agent = """mkdir -p /tests/x; cd /tests/x; touch "$(printf 'a\\nforged\\tby a name\\nrepair\\tnothing')"
cd ..; mkdir "$(printf 'b\\nrepair\\tnothing')"; touch honest
"""
    toml = f'[environment]\nmemory_mb = 256\nallow_internet = false\n[verifier]\nuser = "{verifier_user}"\n'
    verdict = await verified(agent, toml=toml)
    assert (verdict.reward, verdict.integrity.repairs) == (0.0, ())
    assert {"/tests/honest", "/tests/x"} <= set(verdict.integrity.evidence)


# -- processes left behind -----------------------------------------------------------------------


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_a_daemon_that_keeps_rewriting_the_reward_does_not_score(verified: Verified, user: str) -> None:
    rewrites = daemon("while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.1; done")
    try:
        verdict = await verified(rewrites, toml=f'{LIMITS}[verifier]\nuser = "{user}"\n')
    except VerifierFailed as failed:
        # The daemon was first, and the tests' user cannot write to its file.
        assert (failed.type, user) == ("verifier_no_reward", "nobody")
    else:
        assert (verdict.reward, kinds(verdict)) in [(0.0, {"contradiction"}), (0.0, set())]


async def test_a_daemon_that_waits_for_the_end_of_the_tests_is_stopped_by_then(verified: Verified) -> None:
    waits = """until pidof bash; do sleep 0.05; done
while pidof bash; do sleep 0.05; done
echo 1 > /logs/verifier/reward.txt"""
    waits = waits.replace("pidof", "/opt/tbench/bin/busybox pidof")
    # Summing up the large file again takes many times as long as the daemon sleeps.
    verdict = await verified(daemon(waits), "sleep 0.5; echo 0 > /logs/verifier/reward.txt", large_bytes=24 << 20)
    assert verdict.reward == 0.0


async def test_a_reward_that_the_output_of_tests_contradicts_is_flagged(verified: Verified) -> None:
    forges = """until grep -q failed /logs/verifier/stdout.txt; do sleep 0.05; done
sleep 0.2; echo 1 > /logs/verifier/reward.txt"""
    test = "echo '=== 1 failed in 0.01s ==='; echo 0 > /logs/verifier/reward.txt; sleep 1"
    verdict = await verified(daemon(forges), test)
    assert (verdict.reward, kinds(verdict)) == (0.0, {"contradiction", "failed-tests"})


async def test_killing_the_tests_is_an_error_and_flagged(verified: Verified) -> None:
    # Killed at once; on a busy machine the daemon's look at all processes takes longer than those tests.
    failed = await refused(verified(daemon(KILLS.format("^bash./tests/test.sh")), f"sleep 5; {FAILS}"))
    assert failed.type == "verifier_no_reward"
    assert any(signal.startswith("verifier-killed:") for signal in failed.integrity.tamper)


KILLS = """while :; do
    for p in /proc/[0-9]*; do tr '\\0' . <$p/cmdline | grep -qs '{}' && kill -9 ${{p#/proc/}}; done
    sleep 0.05
done"""


@pytest.mark.slow
async def test_killing_the_parents_of_the_tests_is_an_error(verified: Verified) -> None:
    kills = """echo 1 > /reward
until [ -e /logs/verifier/stdout.txt ]; do sleep 0.05; done
cp /reward /logs/verifier/reward.txt
""" + KILLS.format("^/opt/tbench/bin/witness")
    assert (await refused(verified(daemon(kills), "sleep 3"))).type == "verifier_tampered"


@pytest.mark.slow
async def test_tests_that_change_while_they_run_are_flagged(verified: Verified) -> None:
    rewrites = "until [ -e /logs/verifier/stdout.txt ]; do sleep 0.05; done; echo other > /tests/expected"
    verdict = await verified(daemon(rewrites), "sleep 1; echo 0 > /logs/verifier/reward.txt")
    assert kinds(verdict) == {"tests-changed"}
    assert "/tests/expected" in verdict.integrity.tamper[0]


async def test_tests_that_differ_from_the_staged_ones_do_not_score(verified: Verified) -> None:
    # So many lines and no more: a script that grows faster than bash reads it would never end.
    append = "echo 'echo 1 > /logs/verifier/reward.txt' >> /tests/test.sh"
    rewrites = f"n=0; while [ $n -lt 2000 ]; do [ -e /tests/expected ] && {append} && n=$((n+1)); done"
    # It may come before the check, and be caught by that, or after it, and be caught after the run.
    await expect_nothing_gained(verified(daemon(rewrites)))


async def test_servers_are_no_sign_of_cheating_and_still_answer(verified: Verified) -> None:
    verdict = await verified(
        daemon("while :; do sleep 100; done"),
        "grep -qs daemon /proc/[0-9]*/cmdline && echo 1 > /logs/verifier/reward.txt",
    )
    assert (verdict.reward, verdict.integrity.tamper) == (1.0, ())


SENT = {"tests/helper.py": "", "tests/__pycache__/helper.pyc": "stale", "tests/.DS_Store": ""}
COUNTED = {**SENT, ".gitignore": "*.log\n"}
"""With an own .gitignore the compiled file is a part of the task, and goes into the container."""


@pytest.mark.parametrize("files", [SENT, COUNTED])
async def test_files_that_the_tests_create_beside_them_are_no_sign_of_cheating(
    verified: Verified, files: dict[str, str]
) -> None:
    caches = "cd /tests; mkdir -p .pytest_cache __pycache__; touch .pytest_cache/x; echo > __pycache__/helper.pyc"
    verdict = await verified("", f"{caches}; echo 1 > /logs/verifier/reward.txt", files=files)
    assert (verdict.reward, verdict.integrity.tamper) == (1.0, ())


# -- the verifier's channel ----------------------------------------------------------------------

FORGED = r"""mkdir -p /f/logs/verifier; echo 1 >/f/logs/verifier/reward.txt; m=00000000-0000-0000-0000-000000000000
forge() { echo $m; tar -C /f -cf - logs; echo $m; printf 'code\t0\nlate\t0\nbegan_at\t1.0\nticks\t1\nbegan\t\nended\t\n'
printf 'told\t+/tests/test.sh:2 echo 1\nleft\t0\nwrote_last\t\n'; echo "$m end"; }; forge >/f/message
"""
"""Writes a forged message of the verifier to /f/message."""
IN_A_LOOP = """cat >/f/loop.pl <<'END'
local $/; open M, "/f/message"; $m = <M>;
while (1) { for (</proc/[0-9]*/fd/1>) { next unless -p $_; open(O, "+<", $_) && syswrite(O, $m); } }
END
setsid perl /f/loop.pl >/dev/null 2>&1 </dev/null &
"""
OF_ANCESTORS = """p=$$; while [ ${p:-0} -gt 1 ]; do
    [ ! -p /proc/$p/fd/1 ] || cat /f/message >/proc/$p/fd/1; p=$(sed 's/.*) . //;s/ .*//' /proc/$p/stat)
done
for f in /proc/[0-9]*/fd/*; do [ -p $f ] && cat /f/message >$f; done
"""
KILLS_PARENTS = """echo 1 >/logs/verifier/reward.txt
p=$$; while [ ${p:-0} -gt 1 ]; do
    q=$(sed 's/.*) . //;s/ .*//' /proc/$p/stat)
    [ $p = $$ ] || case $(cat /proc/$p/comm) in WHO) kill -9 $p;; esac; p=$q
done; sleep 1
"""
SPEAKS = """for p in /proc/[0-9]*; do for f in mem fd/0 fd/173; do echo '+/tests/test.sh:2 echo 1' >$p/$f; done; done
perl -e 'open(F, ">&=", 173) || die; $| = 1; syswrite(F, "+/tests/test.sh:2 echo 1\n"); syswrite(F, "ended\n")'
(sleep 0.7; perl -e 'open(F, ">&=", 173) || die; for (1..9) { syswrite(F, "+/tests/test.sh:2 echo 1\n") }') &
(sleep 0.5; while :; do echo 1 >/logs/verifier/reward.txt; sleep 0.1; done) &
"""
LATER_A_1 = "(sleep 0.5; echo 1 >/logs/verifier/reward.txt; touch -d 2001-01-01 /logs/verifier/reward.txt) &"
ATTACKS = {
    "writes to its ancestors": OF_ANCESTORS,
    "waits for the collection": IN_A_LOOP,
    "kills the reader of the trace": KILLS_PARENTS.replace("WHO", "witness|awk|busybox"),
    "kills the time limit": KILLS_PARENTS.replace("WHO", "limit"),
    "forges trace lines": SPEAKS,
    "cuts the trace": f"perl -e 'open(F, \"+<&=\", 173); shutdown(F, 2)'; {LATER_A_1}",
    "rewrites the reward": LATER_A_1,
    "keeps rewriting the reward": "setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; done' &",
}


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_program_that_the_tests_start_cannot_forge_the_verifiers_output(
    verified: Verified, attack: str, user: str
) -> None:
    toml = f'{LIMITS}[verifier]\nuser = "{user}"\n'
    agent = f"{FORGED}cat >/work <<'EOF'\n{ATTACKS[attack]}\nEOF\nchmod -R a+rX /f /work"
    await expect_nothing_gained(verified(agent, "sh /work\necho 0 > /logs/verifier/reward.txt\nsleep 1\n", toml=toml))


async def test_a_process_of_the_agent_cannot_forge_the_verifiers_output(verified: Verified) -> None:
    await expect_nothing_gained(verified(FORGED + IN_A_LOOP))


async def expect_nothing_gained(verifying: Coroutine[Any, Any, Verdict]) -> None:
    try:
        verdict = await verifying
    except VerifierFailed as failed:
        assert failed.type in ("verifier_tampered", "verifier_no_reward"), failed
        return
    assert verdict.reward == 0 or not all(map(is_weak, verdict.integrity.tamper)), verdict


async def test_the_content_of_a_file_that_test_sh_reads_cannot_forge_the_trace(verified: Verified) -> None:
    says = "printf 'x\\n+/tests/test.sh:3 echo 1\\nended\\n' >/answer"
    test = 'answer="$(cat /answer)"\nkill -9 $$\necho 1 > /logs/verifier/reward.txt\n'
    failed = await refused(verified(says, test))
    assert (failed.facts.traced_writes, failed.facts.has_ended) == ((), False)


async def test_processes_of_the_tests_are_ended_and_those_of_the_agent_continue(
    make_task: MakeTask, start_in_docker: Start
) -> None:
    path = make_task(test="setsid sleep 4321 &\necho 1 > /logs/verifier/reward.txt\n")
    sandbox = await start_in_docker(path)
    await sandbox.shell(daemon("sleep 1234; sleep 1235"), timeout_sec=30)
    assert (await verify(Task.read(path), sandbox)).reward == 1.0
    look = "for p in /proc/[0-9]*; do tr '\\0' . <$p/cmdline; sed 's/.*) / /;s/ [0-9].*//' $p/stat; done"
    ended = await sandbox.shell(f"{look} 2>/dev/null", timeout_sec=30)
    assert b"sleep.1234. S" in ended.output and b"4321" not in ended.output


# -- tools ---------------------------------------------------------------------------------------

INSTALLS = """
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq --reinstall bash dash >/dev/null 2>&1
apt-get install -y -qq --no-install-recommends curl python3-minimal >/dev/null 2>&1
mkdir /src && cd /src && echo 'def main(): pass' > pytest.py
echo 'from setuptools import setup' > setup.py
echo 'setup(name="pytest", py_modules=["pytest"], entry_points={"console_scripts": ["pytest=pytest:main"]})' >> setup.py
pip install -q --no-index --no-build-isolation --break-system-packages --root-user-action=ignore . || exit 1
ln -s /usr/bin/python3 /usr/local/bin/py3; ln -s /usr/bin/python3 /usr/local/bin/python4
mkdir -p /root/.local/bin; cat > /root/.local/bin/env <<'END'
#!/bin/sh
# add binaries to PATH if they aren't added yet
case ":${PATH}:" in
    *:"$HOME/.local/bin":*)
        ;;
    *)
        export PATH="$HOME/.local/bin:$PATH"
        ;;
esac
END
which curl pytest >/dev/null
"""


@pytest.mark.slow
async def test_packages_that_the_agent_installed_are_no_sign_of_cheating(
    make_task: MakeTask, start_in_docker: Start
) -> None:
    toml = "[environment]\nmemory_mb = 512\n"
    path = make_task(test="echo 1 > /logs/verifier/reward.txt\n", dockerfile=WITH_PYTHON, toml=toml)
    sandbox = await start_in_docker(path)
    ended = await sandbox.shell(INSTALLS, timeout_sec=120)
    assert ended.exit_code == 0, ended
    verdict = await verify_by("shared", Task.read(path), sandbox)
    assert verdict.reward == 1.0
    assert all(map(is_weak, verdict.integrity.tamper)), verdict.integrity.tamper


# -- what an agent can find ----------------------------------------------------------------------


async def test_tests_and_solution_cannot_be_found_before_the_agent_has_ended(
    make_task: MakeTask, start_in_docker: Start
) -> None:
    path = make_task(test=FAILS + "# needle-in-tests\n", solve="echo needle-in-solution\n")
    (path / "tests" / "expected").write_text("needle-in-expected\n")
    sandbox = await start_in_docker(path)
    searches = """env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo 2>/dev/null
find / -xdev \\( -name test.sh -o -name solve.sh \\) 2>/dev/null
grep -rIls "needle""-in" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null
true"""
    # By standard input: the search must not find itself.
    ended = await sandbox.shell("exec /bin/sh", timeout_sec=60, stdin=searches.encode())
    assert b"HOSTNAME" in ended.output
    for words in (b"needle-in", b"test.sh", b"solve.sh", b"expected"):
        assert words not in ended.output
    assert str(path).encode() not in ended.output


@pytest.mark.parametrize(
    ("dockerfile", "leaves"),
    [(BASH, 0), (NO_BASH, 0), (NO_ROOT, 0), (BASH, 1), (NO_ROOT, 1)],
    ids=["bash", "sh", "user", "daemon", "user's daemon"],
)
async def test_a_terminal_does_not_count_as_a_process_of_the_agent(
    make_task: MakeTask, start_in_docker: Start, dockerfile: str, leaves: int
) -> None:
    path = make_task(dockerfile=dockerfile, toml=f'{LIMITS}[verifier]\nuser = "root"\n')
    sandbox = await start_in_docker(path)
    terminal = Terminal(sandbox.connect, TerminalSpec())
    await terminal.open()
    await terminal.send(Keys("(sleep 100 &)\n" if leaves else "true\n", 1))
    await terminal.close()
    ended = await sandbox.shell("[ -x /bin/bash ] || ln -s /bin/sh /bin/bash", timeout_sec=30, user="root")
    assert ended.exit_code == 0
    assert (await verify(Task.read(path), sandbox)).facts.leftovers == leaves
