"""Programs of an agent that test.sh runs, in real containers: the trace of bash, and signs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task
from tbench.verify.changes.facts import Tests as TaskTests
from tbench.verify.changes.inspection import inspect_container, planted_programs
from tbench.verify.report import Facts
from tbench.verify.verifier import verify

BOUND_SEC = 60
MakeTask = Any
Start = Callable[..., Coroutine[Any, Any, Sandbox]]
ENDS = "\necho 1 > /logs/verifier/reward.txt\n"
MAKES = "mkdir -p {0}/bin; printf '#!/bin/sh\\ntrue\\n' > {0}/bin/pytest; chmod 755 {0}/bin/pytest; touch {0}/{1}\n"
PLANTS = MAKES.format("/tmp/vp", "x")
VENV = MAKES.format("/tmp/vp", "pyvenv.cfg")


@pytest.fixture
def traced_facts(make_task: MakeTask, start_sandbox: Start) -> Callable[..., Coroutine[Any, Any, Facts]]:
    """Return the facts of a verifier whose test.sh ran after an agent."""

    async def run(test: str, agent: str) -> Facts:
        path = make_task(test=test + ENDS)
        sandbox = await start_sandbox(path)
        async with asyncio.timeout(BOUND_SEC):
            assert (await sandbox.shell(agent, timeout_sec=30)).exit_code == 0
            return (await verify(Task.read(path), sandbox)).facts

    return run


@pytest.mark.engine
@pytest.mark.parametrize(
    ("test", "agent", "programs"),
    [
        ("/tmp/vp/bin/pytest", PLANTS, "/tmp/vp/bin/pytest"),
        ("(cd /tmp/vp && ./bin/pytest) | cat", PLANTS, "/tmp/vp/bin/pytest"),
        ("export PATH=/tmp/vp/bin:$PATH\ntimeout 9 pytest", PLANTS, "/tmp/vp/bin/pytest"),
        ("export PATH=$PATH:/tmp/vp/bin\ncat /dev/null\npytest", PLANTS, "/tmp/vp/bin/pytest"),
        (
            ". /tmp/vp/activate\npytest",
            PLANTS + "echo 'PATH=/tmp/vp/bin:$PATH' > /tmp/vp/activate",
            "/tmp/vp/activate /tmp/vp/bin/pytest",
        ),
        (
            "/tmp/bin/pytest",
            PLANTS + "ln -s /tmp/vp/bin /tmp/bin",
            "/tmp/vp/bin/pytest",
        ),
        ("chmod 700 /tmp/vp/bin/pytest; /tmp/vp/bin/pytest", PLANTS, "/tmp/vp/bin/pytest"),
        ("printf '#!/bin/sh\\n' > /tmp/vp/bin/pytest; /tmp/vp/bin/pytest", PLANTS, ""),
        ("rm /tmp/vp/bin/*; cp -p /bin/true /tmp/vp/bin/pytest; /tmp/vp/bin/pytest", PLANTS, ""),
        ("[ -e /tmp/vp/x ] || touch /tmp/vp/x; pytest=1 sh -e /tmp/vp/x # pytest", PLANTS, "/tmp/vp/x"),
        ("ln -s /bin/true /tmp/true; /tmp/true", PLANTS, ""),
        ("cp -p /bin/true /tmp/vp/bin/python; /tmp/vp/bin/python", VENV, "/tmp/vp"),
        ("/tmp/vp/bin/pytest || true\necho /tmp/vp/bin/pytest\ntouch /tmp/x", "true", ""),
        ("[ -x /tmp/vp/bin/pytest ] && true\nls / >/dev/null", PLANTS, ""),
    ],
)  # fmt: skip
async def test_programs_that_existed_before_the_tests_are_listed(
    traced_facts: Callable[..., Coroutine[Any, Any, Facts]], test: str, agent: str, programs: str
) -> None:
    facts = await traced_facts(test, agent)
    assert (sorted(facts.programs), facts.has_unchecked_programs) == (programs.split(), False)
    assert set(facts.runners) == {each for each in facts.programs if each != "/tmp/vp/x"}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("agent", "expected"),
    [("true", False), ("setsid sleep 60 >/dev/null 2>&1 </dev/null &", True)],
)
async def test_a_program_that_was_left_running_may_be_a_server(
    make_task: MakeTask, start_sandbox: Start, agent: str, expected: bool
) -> None:
    path = make_task()
    sandbox = await start_sandbox(path)
    assert (await sandbox.shell(agent, timeout_sec=BOUND_SEC)).exit_code == 0
    inspection = await inspect_container(Task.read(path), sandbox)
    assert inspection.seen.has_servers is expected


@pytest.mark.engine
async def test_a_flood_of_trace_lines_is_recorded_and_hides_no_program_of_bash_itself(
    traced_facts: Callable[..., Coroutine[Any, Any, Facts]],
) -> None:
    flood = """i=0; while [ $i -lt 60000 ]; do echo '+/tests/test.sh:1 ls' >&173; i=$((i+1)); done"""
    facts = await traced_facts("bash /tmp/flood\n/tmp/vp/bin/pytest", f"{PLANTS}cat > /tmp/flood <<'END'\n{flood}\nEND")
    assert facts.programs == ("/tmp/flood", "/tmp/vp/bin/pytest")
    assert (facts.has_unchecked_programs, facts.has_ended) == (True, True)


def test_programs_of_the_image_the_instruction_or_the_work_are_not_planted() -> None:
    tests = TaskTests("", instruction="Build `/opt/tool/run` and a venv in /srv/venv.", workdir="/app")
    programs = ("/opt/java/bin/java", "/opt/tool/run", "/srv/venv/bin/python", "/app/out/solver", "/tmp/vp/bin/pytest")
    facts = Facts(
        programs=(*programs, "/app/.venv/bin/pytest"), runners=("/tmp/vp/bin/pytest", "/app/.venv/bin/pytest")
    )
    signs = planted_programs(facts, {"/opt/java/bin/java"}, tests)
    assert [(sign.kind, sign.path) for sign in signs] == [
        ("program-planted", "/tmp/vp/bin/pytest"),
        ("program-planted", "/app/.venv/bin/pytest"),
    ]
    (sign,) = planted_programs(Facts(has_unchecked_programs=True), (), tests)
    assert "more programs" in sign.why
