"""Tasks with several steps in real containers: what passes from step to step, and what does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeBackend, MakeTask
from run_plans import a_plan
from step_tasks import step_task

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from harness.protocols.base import Keys
from harness.terminal import Terminal
from harness.trajectory import Outcome, Trajectory
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, TrialAgent, Workplace
from tbench.events import Events
from tbench.results import TrialResult, is_weak
from tbench.runs.plan import sandbox_settings
from tbench.runs.regrade import regrade
from tbench.runs.run import execute_run
from tbench.runs.task_steps import prepare_step
from tbench.sandbox.backend import ExecResult, Sandbox
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.storage.read_run import read_steps
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task
from tbench.verify.verifier import verify

pytestmark = pytest.mark.engine

HELPERS = 'give() { echo "$1" > /logs/verifier/reward.txt; exit; }\n'
# A ledger that is begun, then balanced with figures that come with the second step, then summed up in words.
LEDGER: dict[str, Any] = {
    "names": ("begin", "balance", "report"),
    "begin": "min_reward = 1.0\n",
    "balance": '[steps.verifier]\nenv = { TOTAL = "42" }\n[steps.healthcheck]\ncommand = "test -s /app/figures"\n',
    "files": {
        "tests/helpers.sh": HELPERS,
        "steps/begin/tests/test.sh": ". /tests/helpers.sh\n[ -x add.sh ] && give 1\ngive 0\n",
        "steps/begin/solution/solve.sh": "printf 'echo $(($1 + $2))\\n' > add.sh; chmod +x add.sh\n",
        "steps/balance/workdir/data/a.txt": "40\n",
        "steps/balance/workdir/data/b.txt": "2\n",
        "steps/balance/workdir/setup.sh": "cat data/*.txt > figures; echo made $PWD/figures\n",
        "steps/balance/tests/wanted": "40 2\n",
        "steps/balance/tests/test.sh": (
            ". /tests/helpers.sh\nset -- $(cat /tests/wanted)\n"
            '[ "$(bash add.sh $1 $2)" = "$TOTAL" ] || give 0\n[ "$(cat total)" = "$TOTAL" ] && give 1\ngive 0.5\n'
        ),
        "steps/balance/solution/solve.sh": "bash add.sh $(cat figures) > total\n",
        "steps/report/tests/test.sh": ". /tests/helpers.sh\ngrep -q 'total of 42' report && give 1\ngive 0\n",
        "steps/report/solution/solve.sh": 'echo "a total of $(cat total)" > report\n',
    },
}
# A process that is started in the first step has to be there in the second, whose reward alone counts.
KEEPER: dict[str, Any] = {
    "names": ("start", "use"),
    "top": 'multi_step_reward_strategy = "final"',
    "files": {
        "steps/start/tests/test.sh": "[ -p /app/door ] && echo 0.5 > /logs/verifier/reward.txt && exit\n"
        "echo 0 > /logs/verifier/reward.txt\n",
        "steps/start/solution/solve.sh": "mkfifo door\n(while read word; do echo heard $word > said; done <door) &\n",
        "steps/use/tests/test.sh": 'grep -q "heard hello" /app/said && echo 1 > /logs/verifier/reward.txt && exit\n'
        "echo 0 > /logs/verifier/reward.txt\n",
        "steps/use/solution/solve.sh": "echo hello > door\nwhile [ ! -s said ]; do sleep 0.1; done\n",
    },
}
# Both steps are judged in containers of the verifier's own, which get what the step hands over; the agent's goes on.
SURVEY: dict[str, Any] = {
    "names": ("count", "sum"),
    "top": 'artifacts = ["/app/counts"]',
    "count": 'min_reward = 1.0\n[steps.verifier]\nenvironment_mode = "separate"\n',
    "sum": 'artifacts = ["/app/total"]\n[steps.verifier]\nenvironment_mode = "separate"\n'
    "[steps.verifier.environment]\nmemory_mb = 128\n",
    "files": {
        "steps/count/tests/test.sh": '[ "$(cat /app/counts)" = "3 4" ] && [ ! -e /app/notes ] && reward=1 || reward=0\n'
        "echo $reward > /logs/verifier/reward.txt\n",
        "steps/count/solution/solve.sh": "echo 3 4 > counts; echo left > notes\n",
        "steps/sum/tests/test.sh": '[ "$(cat /app/total)" = 7 ] && [ ! -e /app/notes ] && reward=1 || reward=0\n'
        "echo $reward > /logs/verifier/reward.txt\n",
        "steps/sum/solution/solve.sh": "[ -e notes ] && set -- $(cat counts) && echo $(($1 + $2)) > total\n",
    },
}
# Who drafts a letter may not sign it: each step is another user's, and the second is judged by one who is not root.
LETTER: dict[str, Any] = {
    "names": ("draft", "sign", "send"),
    "top": "[agent]\nuser = 'ann'\n",
    "sign": "[steps.agent]\nuser = 'bob'\n[steps.verifier]\nuser = 'judge'\n"
    "[steps.healthcheck]\ncommand = '[[ $(id -un) = bob ]]'\nretries = 1\n",
    "dockerfile": """FROM debian:bookworm-slim
RUN useradd -m ann && useradd -m -u 1234 bob && useradd judge && mkdir -m 777 /app
WORKDIR /app
""",
    "files": {
        "tests/helpers.sh": HELPERS,
        "steps/draft/tests/test.sh": '. /tests/helpers.sh\n[ "$(stat -c %U letter)" = ann ] && give 1\ngive 0\n',
        "steps/draft/solution/solve.sh": "echo dear all > letter\n",
        "steps/sign/workdir/pen": "ink\n",
        "steps/sign/tests/test.sh": "who=$(id -un; stat -c %U pen signature)\n"
        '[ "$(echo $who)" = "judge bob bob" ] && reward=1 || reward=0\necho $reward > /logs/verifier/reward.txt\n',
        "steps/sign/solution/solve.sh": "[ ! -w letter ] && id -un > signature\n",
        "steps/send/tests/test.sh": '. /tests/helpers.sh\n[ "$(cat sent)" = "ann bob" ] && give 1\ngive 0\n',
        "steps/send/solution/solve.sh": 'echo "$(id -un) $(cat signature)" > sent\n',
    },
}
ORIGINALS = {"ledger": LEDGER, "keeper": KEEPER, "survey": SURVEY, "letter": LETTER}
Execute = Callable[..., Any]


@pytest.fixture
def execute(make_backend: MakeBackend, tmp_path: Path) -> Execute:
    """Runs all tasks of a directory; returns their results by name, and the run's directory."""

    async def run(source: Path, make_agent: Callable[[], TrialAgent], **settings: Any) -> dict[str, TrialResult]:
        plan = a_plan(
            "test-steps", agent=make_agent().name, source=str(source), concurrency=2, cpu_overcommit=4, **settings
        )
        backend = make_backend(sandbox_settings(plan))
        async with asyncio.timeout(300):
            done = await execute_run(
                plan, read_tasks(str(source)), tmp_path / "run", make_agent, Events(), backend=backend
            )
        return {result.task: result for result in done.results}

    return run


def trial(tmp_path: Path, task: str = "small-task") -> Path:
    return tmp_path / "run" / "trials" / task / "seed-0"


def originals(make_task: MakeTask) -> Path:
    for name, task in ORIGINALS.items():
        path = step_task(make_task, *task["names"], name=name, **{k: v for k, v in task.items() if k != "names"})
    return path.parent


# -- original tasks ------------------------------------------------------------------------------


async def test_the_oracle_solves_every_step(execute: Execute, make_task: MakeTask, tmp_path: Path) -> None:
    results = await execute(originals(make_task), OracleAgent)
    assert {name: [step.reward for step in result.task_steps] for name, result in results.items()} == {
        "ledger": [1.0, 1.0, 1.0],
        "keeper": [0.5, 1.0],
        "survey": [1.0, 1.0],
        "letter": [1.0, 1.0, 1.0],
    }
    assert {result.reward for result in results.values()} == {1.0}
    assert [sign for result in results.values() for sign in result.integrity.tamper if not is_weak(sign)] == []
    setup = trial(tmp_path, "ledger") / "steps" / "balance" / "agent" / "setup.txt"
    assert setup.read_text() == "made /app/figures\n"


@pytest.mark.slow
async def test_handovers_of_steps_are_verified_again_without_the_agents_container(
    engine: Engine, execute: Execute, make_task: MakeTask, tmp_path: Path
) -> None:
    await execute(originals(make_task) / "survey", OracleAgent)
    (change,) = await regrade(lambda _: lambda _: partial(DockerBackend, engine), tmp_path / "run", (), None, print)
    after = change.after
    assert after is not None, change.why_not
    assert (after.task, after.reward, after.reward_all_steps, after.integrity.regrades) == ("survey", 1.0, 1.0, 1)
    assert [(step.name, step.reward) for step in after.task_steps] == [("count", 1.0), ("sum", 1.0)]
    survey = trial(tmp_path, "survey") / "steps"
    assert all((survey / name / "verifier-1" / "reward.txt").is_file() for name in ("count", "sum"))


async def test_doing_nothing_scores_nothing(execute: Execute, make_task: MakeTask) -> None:
    results = await execute(originals(make_task), NopAgent, verify="shared")
    assert {name: (result.reward, result.reward_all_steps) for name, result in results.items()} == {
        "ledger": (0.0, 0.0),
        "keeper": (0.0, 0.0),
        "survey": (0.0, 0.0),
        "letter": (0.0, 0.0),
    }
    assert [step.begun for step in results["ledger"].task_steps] == [True, False, False]
    assert results["ledger"].task_steps[0].stopped == "reward 0 is below min_reward 1"


@pytest.mark.slow
async def test_a_pass_of_a_step_is_looked_at_in_a_fresh_container_too(execute: Execute, make_task: MakeTask) -> None:
    (result,) = (await execute(step_task(make_task, "one", "two"), OracleAgent, verify="both")).values()
    assert (result.reward, result.integrity.rewards) == (
        1.0,
        {"one/isolated": 1.0, "two/isolated": 1.0},
    )


# -- a model at the terminal ---------------------------------------------------------------------


def keys(*lines: str) -> str:
    commands = [{"keystrokes": f"{line}\n", "duration": 10.0} for line in lines]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands})


CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'


def block(*lines: str) -> str:
    text = "\n".join(lines)
    return f"THOUGHT: t\n\n```bash\n{text}\n```"


SUBMIT = block("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
PROTOCOLS = [
    ("keystrokes-json", keys, [CLAIM, CLAIM]),
    pytest.param("bash-block", block, [SUBMIT], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("protocol", "say", "end"), PROTOCOLS)
async def test_the_next_agent_has_a_new_shell_and_finds_what_runs_and_no_tests(
    execute: Execute, make_task: MakeTask, tmp_path: Path, protocol: str, say: Callable[..., str], end: list[str]
) -> None:
    scripts = iter(
        [
            [say("cd /tmp; export LEFT=over; sleep 1000 & touch /app/one", "echo $LEFT-word"), *end],
            [say("echo at $PWD with [$LEFT]; find / -xdev -name 'test.sh*'; touch two", "ls -A /tests /logs/*"), *end],
            [say("grep -l sleep /proc/[0-9]*/comm | wc -l; touch three"), *end],
        ]
    )

    def make() -> ModelAgent:
        replies: Iterable[str] = next(scripts, [])
        return ModelAgent(ScriptedModel(replies, context_tokens=1 << 20), load_protocol(protocol), Limits(steps=9))

    made = [make() for _ in range(3)]
    agents = iter([made[0], *made])  # the first is asked for its name alone
    path = step_task(make_task, "one", "two", "three")
    (result,) = (await execute(path, lambda: next(agents))).values()
    assert (result.reward, result.outcome, result.error) == (1.0, Outcome.SUBMITTED, None)
    assert result.integrity.tamper == ()
    seen = [read_steps(trial(tmp_path) / "steps" / name)[0].observation for name in ("one", "two", "three")]
    assert "over-word" in seen[0]
    assert "at /app with []" in seen[1] and "over-word" not in seen[1]
    assert "test.sh" not in seen[1].replace("'test.sh*'", "") and "reward.txt" not in seen[1]
    assert "1" in seen[2].split(), "what the first one started runs on"


@pytest.mark.parametrize(("protocol", "say", "end"), PROTOCOLS)
async def test_a_step_of_another_user_has_a_terminal_of_that_users(
    execute: Execute, make_task: MakeTask, tmp_path: Path, protocol: str, say: Callable[..., str], end: list[str]
) -> None:
    """A later step of the first user has that user's terminal, without the content of the first step's."""
    scripts = iter(
        [
            [say("export LEFT=over; cd /tmp; sleep 1000 & touch /app/one", "echo $(id -un) $HOME"), *end],
            [say("touch two; pkill sleep; kill %1; echo at $PWD", "echo $(id -un) $HOME [$LEFT]; stty size"), *end],
            [say("grep -l sleep /proc/[0-9]*/comm | wc -l; touch three", "echo $(id -un) $PWD [$LEFT]"), *end],
        ]
    )

    def make() -> ModelAgent:
        return ModelAgent(
            ScriptedModel(next(scripts), context_tokens=1 << 20), load_protocol(protocol), Limits(steps=9)
        )

    made = [make() for _ in range(3)]
    agents = iter([made[0], *made])  # the first is asked for its name alone
    letter = {key: LETTER[key] for key in ("top", "dockerfile")}
    path = step_task(make_task, "one", "two", "three", two="[steps.agent]\nuser = 1234\n", **letter)
    (result,) = (await execute(path, lambda: next(agents))).values()
    assert (result.reward, result.outcome, result.error) == (1.0, Outcome.SUBMITTED, None)
    assert result.integrity.tamper == ()
    seen = [read_steps(trial(tmp_path) / "steps" / name)[0].observation for name in ("one", "two", "three")]
    assert "ann /home/ann" in seen[0]
    assert "at /app" in seen[1] and "bob /home/bob []" in seen[1]
    assert "1" in seen[2].split() and "ann /app []" in seen[2]


async def until_nothing_starts(sandbox: Sandbox) -> None:
    """Wait until the same shells are seen twice: a stopped one that continues may have a successor."""
    seen: list[bytes] = []
    while len(seen) < 2 or seen[-1] != seen[-2]:
        assert len(seen) < 20
        listed = await sandbox.shell("sleep 0.3; grep -l bash /proc/[0-9]*/comm", timeout_sec=30)
        seen.append(listed.output)


async def test_terminals_of_earlier_steps_do_not_count_as_leftovers(
    make_task: MakeTask, start_sandbox: Callable[[Path], Any]
) -> None:
    path = step_task(make_task, "one", "two")
    sandbox = await start_sandbox(path)
    for number, step in enumerate(Task.read(path).steps):
        await prepare_step(step, sandbox, number)
        terminal = Terminal(sandbox.connect)
        await terminal.open()
        await terminal.send(Keys(f"touch {step.step.name if step.step else ''}\n", 5))
        await terminal.close()
    await until_nothing_starts(sandbox)
    assert (await verify(step, sandbox)).facts.leftovers == 0


# -- what an agent leaves in the way -------------------------------------------------------------


class Shell:
    """An agent that runs the next of several scripts as its user, and records their output."""

    name = "shell"

    def __init__(self, scripts: list[str], said: list[ExecResult]) -> None:
        self._scripts = scripts
        self._said = said

    async def work(self, place: Workplace) -> AgentReport:
        script = self._scripts.pop(0)
        user = place.task.file.agent.user
        self._said.append(await place.sandbox.shell(script, timeout_sec=30, user=None if user is None else str(user)))
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


async def test_links_in_the_way_of_what_is_removed_lead_nowhere(execute: Execute, make_task: MakeTask) -> None:
    said: list[ExecResult] = []
    plant = "touch /app/one; mkdir /precious; touch /precious/file; rm -r /logs/agent; ln -s /precious /logs/agent\n"
    scripts = [plant, "ls /precious; stat -c %F:%a /logs/agent /logs/verifier; touch /app/two"]
    path = step_task(make_task, "one", "two", one="min_reward = 1\n")
    (result,) = (await execute(path, lambda: Shell(scripts, said))).values()
    assert (result.reward, said[1].output.decode()) == (1.0, "file\ndirectory:777\ndirectory:777\n")


async def test_files_and_setup_of_a_step_are_the_agents(execute: Execute, make_task: MakeTask) -> None:
    said: list[ExecResult] = []
    files = {
        "steps/two/workdir/run.sh": "#!/bin/sh\necho ran\n",
        "steps/two/workdir/kept/b": "new",
        "steps/two/workdir/setup.sh": "id -un > who; ./run.sh >> who\n",
    }
    path = step_task(
        make_task,
        "one",
        "two",
        top="[agent]\nuser = 'dev'\n",
        files=files,
        dockerfile="FROM debian:bookworm-slim\nRUN useradd -u 1234 dev && mkdir /app && chown dev /app\nWORKDIR /app\n",
    )
    (path / "steps" / "two" / "workdir" / "run.sh").chmod(0o755)
    scripts = [
        "mkdir /app/kept; echo old > /app/kept/a; ln -s /etc/passwd /app/run.sh; touch /app/one",
        "cd /app; cat who kept/*; stat -c '%U %a %n' run.sh kept/b; wc -l < /etc/passwd | tr -d 0-9; touch two",
    ]
    (result,) = (await execute(path, lambda: Shell(scripts, said))).values()
    assert (result.error, result.reward) == (None, 1.0)
    assert said[1].output.decode().split("\n")[:5] == ["dev", "ran", "old", "newdev 755 run.sh", "dev 644 kept/b"]


@pytest.mark.slow
async def test_a_setup_that_fails_and_leaves_a_server_is_an_error_at_once(
    execute: Execute, make_task: MakeTask, tmp_path: Path
) -> None:
    files = {"steps/one/workdir/setup.sh": "sleep 1000 &\necho no such mirror >&2; exit 7\n"}
    (result,) = (await execute(step_task(make_task, "one", files=files), NopAgent)).values()
    assert result.error is not None
    assert (result.error.type, result.error.message) == (
        "setup_failed",
        "setup.sh of step one ended with 7: no such mirror",
    )
    assert (trial(tmp_path) / "steps" / "one" / "agent" / "setup.txt").read_text() == "no such mirror\n"
