"""Judging of an agent's work in its own container and in fresh ones, and retries if a verifier fails.

Inspections and verifiers return given results; containers are fakes that record what was done to them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from seen_changes import IMAGE, container

from tbench.errors import Origin, TrialError
from tbench.results import UNCONFIRMED, Integrity, is_weak
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BackendFacts, Compares, Copies, ExecResult, MakesRoom
from tbench.sandbox.copies import SpareCopies
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.task import Task
from tbench.verify.changes.facts import NO_ORACLE, ContainerFacts, OracleSystem, Sign
from tbench.verify.changes.inspection import Inspection
from tbench.verify.judging import ADDED_BY_ORACLE, CLEARED, NEEDS_PROCESSES, SYSTEM_ADDED, Judge, undo_clearing
from tbench.verify.report import Facts
from tbench.verify.verifier import Verdict, VerifierFailed

DONE, TOOL = "/app/done.py", "/usr/bin/newtool"
HOOK = Sign("python-startup", "/usr/lib/python3/dist-packages/a.pth", "runs code whenever Python starts")
GIVEN = BackendFacts(began_at=12.5)
FACTS = Facts(staged_at=17.5, memory_peak_bytes=30)
ROOM = ("memory: let go",)
AGENTS, FRESHS = Origin("exec", is_fresh=False, ran=True), Origin("exec", is_fresh=True, ran=True)
INFRA = TrialError("engine_unreachable", "gone", origin=Origin("exec", is_fresh=False))
NOT_STAGED = TrialError("verifier_failed", "no place for the tests", origin=AGENTS)
NO_ROOM = TrialError("sandbox_failed", "126", origin=AGENTS)


def failed(type_: str = "verifier_no_reward", *signs: str) -> VerifierFailed:
    return VerifierFailed(type_, f"it is {type_}", {"verifier/stdout.txt": b""}, Integrity(tamper=signs), FACTS)


def verdict(reward: float, *signs: str, **integrity: Any) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": b"1 passed"}, Integrity(tamper=signs, **integrity), FACTS)


def kinds_of(found: Verdict) -> list[str]:
    return [sign.partition(":")[0] for sign in found.integrity.tamper]


class Container(FakeSandbox):
    """The agent's container or a fresh one; records what was done to all of them, in order."""

    def __init__(self, done: list[str], name: str = "own", repairs: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.done, self.name, self.repairs, self.is_fresh = done, name, repairs, name != "own"
        self.files = {} if self.is_fresh else {DONE: FileEntry(b"")}
        self.fails: TrialError | None = None
        """Error of the next container that is started."""

    async def backend_facts(self) -> BackendFacts:
        return GIVEN

    def _made(self, name: str) -> FakeSandbox:
        if self.fails is not None:
            raise self.fails
        made = Container(self.done, name)
        self.copies.append(made)
        return made

    async def start_copy(self, *, is_apart: bool = False) -> FakeSandbox:
        await asyncio.sleep(0)  # meanwhile, the copy before is removed
        return self._made("copy" if is_apart else "beside")

    async def make_fresh(self) -> FakeSandbox:
        await asyncio.sleep(0)
        return self._made("fresh one")

    async def copy_into(self, starting: asyncio.Future[Any], paths: Collection[str], removed: Collection[str]) -> None:
        await starting
        self.done.append(f"copied {' '.join([*sorted(paths), *(f'-{path}' for path in sorted(removed))])}".strip())

    async def make_room(self) -> tuple[str, ...]:
        await asyncio.sleep(0)
        self.done.append("room made")
        return await super().make_room()

    async def remove(self) -> None:
        self.done.append(f"{self.name} removed")
        await super().remove()


class NotComparable(Container):
    original = None  # type: ignore[assignment]


class NotCopyable(Container):
    make_fresh = None  # type: ignore[assignment]


class Unrepairable(Container):
    make_room = None  # type: ignore[assignment]


@dataclass
class Scene:
    """Work to be judged, with the results of its inspection and of successive verifiers."""

    task: Task
    kind: type[Container] = Container
    repairs: tuple[str, ...] = ()
    seen: ContainerFacts = field(default_factory=lambda: container({DONE: b"x"}))
    signs: tuple[Sign, ...] = ()
    logs: Mapping[str, bytes] = field(default_factory=dict)
    peak: int = 0
    again: bool = False
    oracle: OracleSystem = NO_ORACLE
    inspection_fails: TrialError | None = None
    results: deque[Verdict | TrialError] = field(default_factory=deque)
    done: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the last inspection and the last verifier."""
    limits: list[float] = field(default_factory=list)
    """Time limit of each verifier, in seconds."""

    def __post_init__(self) -> None:
        self.sandbox = self.kind(self.done, repairs=self.repairs)

    async def inspect(
        self, task: Task, sandbox: Any, facts: Any = None, oracle: Any = NO_ORACLE, **options: Any
    ) -> Inspection:
        assert (task, sandbox, oracle) == (self.task, self.sandbox, self.oracle)
        self.done.append("inspected")
        self.options |= {"facts": facts, **options}
        if self.inspection_fails is not None:
            raise self.inspection_fails
        return Inspection(dataclasses.replace(self.seen, oracle=oracle), self.signs, self.logs, self.peak)

    async def verify(self, task: Task, sandbox: Any, *, again: bool = False, **options: Any) -> Verdict:
        assert task.path == self.task.path
        self.done.append(f"{sandbox.name} verified{' again' if again else ''}")
        self.options |= options
        self.limits.append(task.file.verifier.timeout_sec)
        if isinstance(result := self.results.popleft(), TrialError):
            raise result
        return result

    async def judged(self, where: str, *results: Verdict | TrialError) -> Verdict:
        """Return the verdict for given results of successive verifiers; all must be used, and all copies removed."""
        self.results.extend(results)
        try:
            async with SpareCopies(self.sandbox) as copies:
                judge = Judge(self.task, copies, self.again, self.oracle)
                if where == "fresh":
                    return await judge.judge_in_fresh_container()
                if where == "controlled":
                    return await judge.try_control_in_agent_container(self.results.popleft())  # type: ignore[arg-type]
                return await judge.judge_in_agent_container()
        finally:
            assert not self.results, "verifiers that were not run"
            assert all(copy.removed for copy in self.sandbox.copies) and not self.sandbox.removed

    async def raised(self, where: str, *results: Verdict | TrialError) -> TrialError:
        with pytest.raises(TrialError) as caught:
            await self.judged(where, *results)
        return caught.value


SceneOf = Callable[..., Scene]


@pytest.fixture
def scene(make_task: Any, monkeypatch: pytest.MonkeyPatch) -> SceneOf:
    task = Task.read(make_task())

    def make(**parts: Any) -> Scene:
        made = Scene(task, **parts)
        monkeypatch.setattr("tbench.verify.judging.inspect_container", made.inspect)
        monkeypatch.setattr("tbench.verify.judging.verify", made.verify)
        return made

    return make


def test_the_fake_containers_have_the_abilities_of_their_names() -> None:
    protocols = Compares, Copies, MakesRoom
    kinds = Container, NotComparable, NotCopyable, Unrepairable
    assert [[isinstance(kind([]), each) for each in protocols] for kind in kinds] == [
        [True, True, True], [False, True, True], [True, False, True], [True, True, False]
    ]  # fmt: skip


# -- in the agent's own container ----------------------------------------------------------------


@pytest.mark.parametrize("reward", [1.0, 0.1])
async def test_a_pass_in_the_agents_container_is_inspected_with_the_facts_of_its_verifier(
    scene: SceneOf, reward: float
) -> None:
    seen = container({"/usr/bin/jq": b"other"})
    here = scene(seen=seen, signs=(HOOK, Sign("unread", "/data", "is a volume")), oracle=OracleSystem(is_own=False))
    own = Verdict(reward, {"a": b""}, Integrity(tamper=("failed-tests: x",), remarks=("r",)), FACTS, {}, b"printed")
    found = await here.judged("own", own)
    assert here.done == ["own verified", "inspected"]
    options = {"inspect_since": GIVEN.began_at, "is_still": False}
    assert here.options == {**options, "facts": FACTS, "given": GIVEN, "printed": b"printed"}
    assert (found.reward, found.files, found.integrity.remarks) == (reward, own.files, ("r",))
    assert kinds_of(found) == ["failed-tests", "python-startup", "unread"]
    assert list(found.integrity.replaced) == ["/usr/bin/jq"]


@pytest.mark.parametrize("reward", [0.0, -1.0])
async def test_a_failure_in_the_agents_container_is_returned_without_an_inspection(
    scene: SceneOf, reward: float
) -> None:
    here, own = scene(signs=(HOOK,)), verdict(reward, "failed-tests: x")
    assert await here.judged("own", own) is own
    assert here.done == ["own verified"]


LEFT = dataclasses.replace(FACTS, leftovers=1)


@pytest.mark.parametrize(
    ("oracle", "still", "left", "runs", "kinds"),
    [
        (OracleSystem(), None, LEFT, 1, []),
        (OracleSystem(needs_processes=True), None, LEFT, 1, []),
        (OracleSystem(needs_processes=False), 1.0, LEFT, 1, []),
        (OracleSystem(needs_processes=False), 0.0, LEFT, 2, ["needs-processes"]),
        (
            OracleSystem(needs_processes=False),
            failed("verifier_timeout"),
            Facts(timed_out=True),
            2,
            ["needs-processes"],
        ),
        (OracleSystem(needs_processes=False), failed("verifier_no_reward"), LEFT, 2, ["needs-processes"]),
    ],
)
async def test_processes_that_the_agent_left_run_beside_the_tests_only_if_a_pass_needs_them(
    scene: SceneOf, oracle: OracleSystem, still: float | VerifierFailed | None, left: Facts, runs: int, kinds: list[str]
) -> None:
    here = scene(oracle=oracle)
    first = dataclasses.replace(verdict(still), facts=left) if isinstance(still, float) else still
    if isinstance(first, VerifierFailed):
        first = VerifierFailed(first.type, str(first), {}, first.integrity, left)
    moving = [verdict(1.0)] if first is None or runs == 2 else []
    found = await here.judged("own", *([] if first is None else [first]), *moving)
    assert here.done[:runs] == ["own verified", "own verified again"][:runs] and kinds_of(found) == kinds
    assert here.options["is_still"] is not bool(moving) and found.reward == (1.0 if moving else still)


@pytest.mark.parametrize(
    ("left", "still", "kinds"),
    [
        (FACTS, [], []),
        (LEFT, [1.0], []),
        (LEFT, [0.5], ["cleared"]),
        (LEFT, [failed("verifier_timeout")], ["cleared"]),
    ],
)
async def test_the_oracles_pass_is_tried_once_more_with_its_processes_stopped_for_a_limited_time(
    scene: SceneOf, make_task: Any, left: Facts, still: list[float | VerifierFailed], kinds: list[str]
) -> None:
    here = scene(oracle=OracleSystem(is_own=True))
    here.task = Task.read(make_task("slow", toml="[verifier]\ntimeout_sec = 900\n"))
    own = dataclasses.replace(verdict(1.0), facts=dataclasses.replace(left, took_sec=4.0))
    found = await here.judged("own", own, *(verdict(each) if isinstance(each, float) else each for each in still))
    assert (found.reward, kinds_of(found)) == (1.0, kinds)
    assert here.options["is_still"] is bool(still)
    assert here.limits == [900.0, 22.0][: 1 + len(still)]


@pytest.mark.parametrize("again", [False, True])
async def test_a_container_that_cannot_be_compared_is_not_inspected(scene: SceneOf, again: bool) -> None:
    here, own = scene(kind=NotComparable, signs=(HOOK,), again=again), verdict(1.0)
    found = await here.judged("own", own)
    assert (found.reward, kinds_of(found)) == (1.0, ["second-run"] if again else [])
    assert here.done == ["own verified again" if again else "own verified"]
    assert here.options == {"inspect_since": None, "is_still": False}


async def test_an_inspection_that_the_agent_may_have_made_fail_is_an_error(scene: SceneOf) -> None:
    failure = TrialError("verifier_failed", "it cannot be inspected", origin=AGENTS)
    here = scene(kind=NotCopyable, inspection_fails=failure)
    own = verdict(1.0, "failed-tests: x", evidence=("/tests/x",))
    raised = await here.raised("own", own)
    assert isinstance(raised, VerifierFailed)
    assert (raised.type, raised.files, raised.facts) == ("verifier_failed", own.files, FACTS)
    assert "it cannot be inspected" in str(raised) and raised.integrity == own.integrity


@pytest.mark.parametrize(
    "failure",
    [INFRA, TrialError("verifier_failed", "no", origin=FRESHS), TrialError("sandbox_lost", "gone")],
)
async def test_an_inspection_that_failed_for_another_reason_leaves_the_pass_unconfirmed(
    scene: SceneOf, failure: TrialError
) -> None:
    here = scene(inspection_fails=failure, signs=(HOOK,))
    found = await here.judged("own", verdict(1.0, "tests-changed: x"))
    kept, sign = found.integrity.tamper
    assert (found.reward, kept) == (1.0, "tests-changed: x")
    assert sign.startswith(UNCONFIRMED) and failure.type in sign and is_weak(sign)
    assert here.done == ["own verified", "inspected"]


async def test_a_sign_about_a_new_file_of_the_oracles_passes_is_cleared(scene: SceneOf) -> None:
    added = "/usr/lib/python3/dist-packages/b.pth"
    seen = container({HOOK.path: b"import a", added: b"import b", "/usr/bin/jq": b"other"})
    usual = OracleSystem(frozenset({(added, seen.now[added].sha256[:12])}))
    signs = (Sign(HOOK.kind, added, HOOK.why), HOOK)
    found = await scene(seen=seen, signs=signs, oracle=usual).judged("own", verdict(1.0))
    stays, cleared = found.integrity.tamper
    assert HOOK.path in stays and added not in stays and not is_weak(stays)
    assert added in cleared and HOOK.path not in cleared and is_weak(cleared)
    assert cleared.startswith(CLEARED) and cleared.endswith(ADDED_BY_ORACLE)
    assert undo_clearing(cleared, ADDED_BY_ORACLE) == stays.replace(HOOK.path, added)


async def test_signs_about_files_of_the_image_are_never_cleared_not_even_for_the_oracle(scene: SceneOf) -> None:
    changed = Sign("python-startup", "/root/.bashrc", "x")
    seen = container({HOOK.path: b"import a", changed.path: b"other"})
    here = scene(seen=seen, signs=(changed, HOOK), oracle=OracleSystem(is_own=True))
    stays, cleared = (await here.judged("own", verdict(1.0))).integrity.tamper
    assert changed.path in stays and not is_weak(stays)
    assert HOOK.path in cleared and is_weak(cleared)


def test_the_clearing_of_a_sign_is_undone_only_for_the_given_reason() -> None:
    assert undo_clearing("cleared: a: x, as so", ", as so") == "a: x"
    assert undo_clearing("a: x, as so", ", as so") == "a: x"
    assert undo_clearing("cleared: a: x, as so", ", as else") == "cleared: a: x, as so"


@pytest.mark.parametrize("where", ["own", "fresh"])
async def test_at_most_a_hundred_replaced_system_paths_are_listed(scene: SceneOf, where: str) -> None:
    image = {**IMAGE, **{f"/usr/bin/tool{number:03}": b"" for number in range(101)}}
    seen = container({path: b"other" for path in image if "tool" in path}, image=image)
    found = await scene(seen=seen).judged(where, verdict(1.0))
    assert len(found.integrity.replaced) == 100
    assert "/usr/bin/tool000" in found.integrity.replaced


# -- in a fresh container ------------------------------------------------------------------------


async def test_a_container_that_cannot_be_copied_is_an_error(scene: SceneOf) -> None:
    here = scene(kind=NotCopyable)
    raised = await here.raised("fresh")
    assert (raised.type, raised.agent_can_cause, here.done) == ("verifier_failed", False, [])


async def test_the_work_is_copied_into_a_container_that_is_removed_after_the_verdict(scene: SceneOf) -> None:
    seen = container({DONE: b"x", "/app/old": None, HOOK.path: b"import a"}, image={**IMAGE, "/app/old": b""})
    here = scene(seen=seen, signs=(HOOK,), again=True)
    assert (await here.judged("fresh", verdict(0.5))).reward == 0.5
    assert here.done == ["inspected", f"copied {DONE} -/app/old", "copy verified", "copy removed"]
    assert here.options == {"facts": None}


ASKED = "Write `/app/done.py`, which forges.\n"


@pytest.mark.parametrize(
    ("reward", "sign", "instruction", "expected"),
    [
        (1.0, HOOK, "", "cleared"),
        (0.1, HOOK, "", "cleared"),
        (0.0, HOOK, "", ""),
        (-1.0, HOOK, "", ""),
        (1.0, Sign("hosts", "/etc/hosts", "names pypi.org"), "", "cleared"),
        (0.0, Sign("hosts", "/etc/hosts", "names pypi.org"), "", ""),
        (1.0, Sign("unread", DONE, "has 4 GB or more"), ASKED, ""),
        (1.0, Sign("left-out", DONE, "leads nowhere"), "", ""),
        (0.0, Sign("unread", DONE, "has 4 GB or more"), "", "unread"),
        (0.0, Sign("left-out", DONE, "leads nowhere"), "", "left-out"),
        (-1.0, Sign("left-out", DONE, "leads nowhere"), "", "left-out"),
    ],
)
async def test_signs_about_paths_that_were_not_copied_do_not_count_against_a_pass(
    scene: SceneOf, reward: float, sign: Sign, instruction: str, expected: str
) -> None:
    here = scene(seen=container({DONE: b"x"}, instruction=instruction), signs=(sign,))
    found = await here.judged("fresh", verdict(reward, "failed-tests: x"))
    assert kinds_of(found) == ["failed-tests", *expected.split()]
    assert all(sign.path in each for each in found.integrity.tamper[1:])


async def test_signs_about_host_names_count_against_a_pass_only_on_the_agents_network(scene: SceneOf) -> None:
    """Such a fresh container has the same /etc/hosts; another one has what the image's own entry point wrote."""
    hosts = Sign("hosts", "/etc/hosts", "names pypi.org")
    for needs_servers, sign in ((True, "hosts"), (False, "cleared")):
        here = scene(signs=(hosts,), oracle=OracleSystem(needs_servers=needs_servers))
        assert kinds_of(await here.judged("fresh", verdict(1.0))) == [sign]


async def test_a_sign_of_both_verifier_and_inspection_is_listed_once(scene: SceneOf) -> None:
    here = scene(signs=(Sign("hosts", "/etc/hosts", "names pypi.org"),), oracle=OracleSystem(needs_servers=True))
    found = await here.judged("fresh", verdict(1.0, "hosts: /etc/hosts names pypi.org"))
    assert found.integrity.tamper == ("hosts: /etc/hosts names pypi.org",)


@pytest.mark.parametrize("reward", [0.0, 1.0])
async def test_files_that_the_agent_left_at_the_paths_of_tests_and_reward_are_evidence(
    scene: SceneOf, reward: float
) -> None:
    planted = [f"/tests/{number:02}" for number in reversed(range(60))]
    seen = container(dict.fromkeys([*planted, "/logs/verifier/reward.txt", "/logs/agent/x", "/testsuite", DONE], b"x"))
    found = await scene(seen=seen).judged("fresh", verdict(reward, evidence=("/tests/of-the-verifier",)))
    first, *others = found.integrity.evidence
    assert first == "/tests/of-the-verifier"
    assert others == ["/logs/verifier/reward.txt", *sorted(planted)[:49]]
    few = scene(seen=container({"/tests/a": b"", "/logs/agent/x": b"", "/testsuite": b""}))
    assert (await few.judged("fresh", verdict(reward))).integrity.evidence == ("/tests/a",)


async def test_files_of_an_earlier_verifier_are_no_evidence(scene: SceneOf) -> None:
    seen = container(dict.fromkeys(["/tests/test.sh", "/logs/verifier/reward.txt"], b"x"))
    assert (await scene(seen=seen, again=True).judged("fresh", verdict(1.0))).integrity.evidence == ()


@pytest.mark.parametrize(("inspected", "peak"), [(0, 30), (29, 30), (31, 31)])
async def test_the_memory_peak_is_the_larger_one_of_both_containers(scene: SceneOf, inspected: int, peak: int) -> None:
    found = await scene(peak=inspected).judged("fresh", verdict(1.0))
    assert (found.facts.memory_peak_bytes, found.facts.staged_at) == (peak, FACTS.staged_at)


LOGS = {"agent/log": b"a", "verifier/stdout.txt": b"the agent's"}


async def test_the_agents_logs_are_added_to_those_of_a_verdict_and_replace_none(scene: SceneOf) -> None:
    found = await scene(logs=LOGS).judged("fresh", verdict(0.0))
    assert found.files == {"agent/log": b"a", "verifier/stdout.txt": b"1 passed"}


async def test_the_agents_logs_are_added_to_those_of_a_failure_and_replace_none(scene: SceneOf) -> None:
    failure = failed("verifier_timeout", "a: x")
    raised = await scene(logs=LOGS).raised("fresh", failure)
    assert raised is failure
    assert raised.files == {"agent/log": b"a", "verifier/stdout.txt": b""}


# -- additions to the system ---------------------------------------------------------------------

WHOLE, ALONE = f"copied {DONE} {TOOL}", f"copied {DONE}"
ONE, OTHER = "copy verified", "copy removed"


@pytest.fixture
def with_tool(scene: SceneOf) -> Scene:
    return scene(seen=container({DONE: b"x", TOOL: b"x", "/usr/bin/jq": b"other"}))


@pytest.mark.parametrize("rest", [0.5, 1.0])
async def test_a_pass_that_needs_no_changes_to_the_system_gets_the_verdict_about_the_rest(
    with_tool: Scene, rest: float
) -> None:
    found = await with_tool.judged("fresh", verdict(0.5, "other-reward: whole"), verdict(rest, "other-reward: rest"))
    assert (found.reward, found.integrity.tamper) == (rest, ("other-reward: rest",))
    assert list(found.integrity.replaced) == ["/usr/bin/jq"]
    assert with_tool.done == ["inspected", WHOLE, ONE, OTHER, ALONE, ONE, OTHER]


@pytest.mark.parametrize("rest", [verdict(0.0, "a: x"), verdict(0.49), failed()])
async def test_a_pass_that_needs_additions_to_the_system_names_them(
    with_tool: Scene, rest: Verdict | TrialError
) -> None:
    found = await with_tool.judged("fresh", verdict(0.5, "other-reward: whole"), rest)
    first, sign = found.integrity.tamper
    assert (found.reward, first) == (0.5, "other-reward: whole")
    assert sign.startswith(SYSTEM_ADDED) and TOOL in sign and DONE not in sign and is_weak(sign)
    assert list(found.integrity.replaced) == ["/usr/bin/jq"]
    assert with_tool.done == ["inspected", WHOLE, ONE, OTHER, ALONE, ONE, OTHER]


async def test_a_pass_that_needs_removals_from_the_system_names_them(scene: SceneOf) -> None:
    old = "/etc/app/old.conf"
    here = scene(seen=container({DONE: b"x", old: None}, image={**IMAGE, old: b""}))
    found = await here.judged("fresh", verdict(1.0), verdict(0.0))
    (sign,) = found.integrity.tamper
    assert sign.startswith(SYSTEM_ADDED) and old in sign and DONE not in sign


@pytest.mark.parametrize("reward", [0.0, -1.0])
async def test_a_failure_is_not_tried_without_additions_to_the_system(with_tool: Scene, reward: float) -> None:
    found = await with_tool.judged("fresh", verdict(reward))
    assert (found.reward, found.integrity.tamper, found.integrity.replaced) == (reward, (), {})
    assert with_tool.done == ["inspected", WHOLE, ONE, OTHER]


async def test_an_error_of_the_engine_while_judging_the_rest_is_raised(with_tool: Scene) -> None:
    assert await with_tool.raised("fresh", verdict(1.0), INFRA) is INFRA


# -- a verifier that fails -----------------------------------------------------------------------

GONE = ["fresh one verified", "fresh one removed"]


def attempts(where: str, *again: bool) -> list[list[str]]:
    """Return what each attempt with a failing verifier does."""
    fresh = ["inspected", ALONE, ONE, OTHER]
    return [fresh if where == "fresh" else ["own verified again" if each else "own verified"] for each in again]


def passed(where: str, *, again: bool) -> list[str]:
    (done,) = attempts(where, again)
    return done if where == "fresh" else [*done, "inspected"]


WHERE = pytest.mark.parametrize("where", ["own", "fresh"])


@WHERE
@pytest.mark.parametrize("again", [False, True])
async def test_an_immediate_verdict_takes_one_attempt(scene: SceneOf, where: str, again: bool) -> None:
    here = scene(again=again, repairs=ROOM)
    assert (await here.judged(where, verdict(1.0))).integrity.repairs == ()
    assert here.done == passed(where, again=again)


@WHERE
async def test_an_error_that_the_agent_cannot_cause_is_raised_at_once(scene: SceneOf, where: str) -> None:
    here = scene(repairs=ROOM)
    assert await here.raised(where, INFRA) is INFRA
    assert here.done == attempts(where, False)[0]


@WHERE
async def test_a_timeout_is_not_retried(scene: SceneOf, where: str) -> None:
    here, timeout = scene(repairs=ROOM), failed("verifier_timeout")
    assert await here.raised(where, timeout) is timeout
    assert here.done == attempts(where, False)[0]


@WHERE
@pytest.mark.parametrize(
    ("error", "before", "again"),
    [
        (failed(), False, True),
        (failed("sandbox_failed"), False, True),
        (NO_ROOM, False, False),
        (NOT_STAGED, False, False),
        (NO_ROOM, True, True),
        (failed(), True, True),
    ],
)
async def test_after_repairs_a_retry_decides_and_lists_them(
    scene: SceneOf, where: str, error: TrialError, before: bool, again: bool
) -> None:
    here = scene(repairs=ROOM, again=before)
    found = await here.judged(where, error, verdict(1.0, repairs=("apt: mended",)))
    assert (found.reward, found.integrity.repairs) == (1.0, (*ROOM, "apt: mended"))
    assert here.done == [*attempts(where, before)[0], "room made", *passed(where, again=again)]


@WHERE
@pytest.mark.parametrize("kind", [Container, Unrepairable])
async def test_without_repairs_a_container_that_starts_no_command_is_inconclusive(
    scene: SceneOf, where: str, kind: type[Container]
) -> None:
    here = scene(kind=kind)
    assert await here.raised(where, NO_ROOM) is NO_ROOM
    assert GONE[0] not in here.done and len([each for each in here.done if "verified" in each]) == 1


@WHERE
async def test_a_timeout_after_repairs_is_not_retried(scene: SceneOf, where: str) -> None:
    here, timeout = scene(repairs=ROOM), failed("verifier_timeout")
    assert await here.raised(where, NO_ROOM, timeout) is timeout
    first, second = attempts(where, False, False)
    assert here.done == [*first, "room made", *second]


@WHERE
async def test_an_error_after_repairs_that_the_agent_cannot_cause_is_raised(scene: SceneOf, where: str) -> None:
    here = scene(repairs=ROOM)
    assert await here.raised(where, failed(), INFRA) is INFRA
    assert GONE[0] not in here.done


async def test_without_another_container_the_error_is_raised_as_it_was(scene: SceneOf) -> None:
    here, error = scene(kind=NotCopyable, repairs=ROOM), failed()
    assert await here.raised("own", failed(), error) is error
    assert here.done == ["own verified", "room made", "own verified again"]


@WHERE
@pytest.mark.parametrize("repairs", [(), ROOM])
async def test_if_the_verifier_fails_without_the_work_too_the_error_is_raised_as_it_was(
    scene: SceneOf, where: str, repairs: tuple[str, ...]
) -> None:
    here, first, second = scene(repairs=repairs), failed(), failed("verifier_bad_reward")
    results = (first, second) if repairs else (first,)
    assert await here.raised(where, *results, failed("verifier_never_ran")) is results[-1]
    assert here.done[-2:] == GONE
    assert results[-1].integrity.tamper == ()


@WHERE
@pytest.mark.parametrize("error", [INFRA, TrialError("sandbox_failed", "126", origin=FRESHS)])
async def test_an_error_of_the_engine_in_the_container_without_the_work_is_raised(
    scene: SceneOf, where: str, error: TrialError
) -> None:
    here = scene()
    assert await here.raised(where, failed(), error) is error
    assert here.done[-2:] == GONE


async def test_an_error_while_starting_the_container_without_the_work_is_raised(scene: SceneOf) -> None:
    here = scene()
    here.sandbox.fails = INFRA
    assert await here.raised("own", failed()) is INFRA


@WHERE
@pytest.mark.parametrize("without", [0.0, 1.0])
@pytest.mark.parametrize("repairs", [(), ROOM])
async def test_if_the_verifier_works_without_the_work_a_last_attempt_may_reach_a_verdict(
    scene: SceneOf, where: str, without: float, repairs: tuple[str, ...]
) -> None:
    here = scene(repairs=repairs)
    errors = [failed()] * (2 if repairs else 1)
    found = await here.judged(where, *errors, verdict(without), verdict(0.5, repairs=("apt: mended",)))
    assert (found.reward, found.integrity.repairs) == (0.5, (*repairs, "apt: mended"))
    first, second = attempts(where, False, True)
    tried = [*first, "room made", *second] if repairs else [*first, "room made"]
    assert here.done == [*tried, *GONE, *passed(where, again=True)]


@pytest.mark.parametrize(
    ("errors", "before", "repairs", "again"),
    [
        ([NOT_STAGED], False, (), False),
        ([NO_ROOM, NO_ROOM], False, ROOM, False),
        ([NO_ROOM, failed()], False, ROOM, True),
        ([failed(), NO_ROOM], False, ROOM, True),
        ([NOT_STAGED], True, (), True),
    ],
)
async def test_the_last_attempt_counts_as_a_repetition_only_if_a_verifier_started_before(
    scene: SceneOf, errors: list[TrialError], before: bool, repairs: tuple[str, ...], again: bool
) -> None:
    here = scene(repairs=repairs, again=before)
    assert (await here.judged("own", *errors, verdict(0.0), verdict(1.0))).reward == 1.0
    assert here.done[-2] == ("own verified again" if again else "own verified")


@WHERE
@pytest.mark.parametrize(
    ("repairs", "last"), [((), failed("verifier_timeout")), (ROOM, failed("verifier_timeout")), ((), NO_ROOM)]
)
async def test_an_inconclusive_error_of_the_last_attempt_is_raised_as_it_is(
    scene: SceneOf, where: str, repairs: tuple[str, ...], last: TrialError
) -> None:
    errors = [failed()] * (2 if repairs else 1)
    assert await scene(repairs=repairs).raised(where, *errors, verdict(0.0), last) is last


@WHERE
@pytest.mark.parametrize(
    ("repairs", "last", "type_"),
    [
        ((), failed("verifier_no_reward", "a: x"), "verifier_no_reward"),
        ((), failed("verifier_never_ran", "a: x"), "verifier_no_reward"),
        ((), NOT_STAGED, "verifier_no_reward"),
        (ROOM, NO_ROOM, "verifier_no_reward"),
        (ROOM, failed("verifier_bad_reward"), "verifier_bad_reward"),
    ],
)
async def test_a_verifier_that_fails_only_with_the_work_is_not_retried_by_another_attempt(
    scene: SceneOf, where: str, repairs: tuple[str, ...], last: TrialError, type_: str
) -> None:
    errors = [failed()] * (2 if repairs else 1)
    lasts = [last] * (2 if last.type == "verifier_never_ran" else 1)
    raised = await scene(repairs=repairs).raised(where, *errors, verdict(1.0), *lasts)
    assert isinstance(raised, VerifierFailed) and not raised.kind.retryable
    *signs, words = raised.integrity.tamper
    assert (raised.type, {*raised.files} >= {*last.files}) == (type_, True)
    assert words.startswith(f"fails-with-work: {last.type}")
    assert signs == ([*last.integrity.tamper] if isinstance(last, VerifierFailed) else [])


async def test_a_failed_inspection_is_retried_like_a_failed_verifier(scene: SceneOf) -> None:
    here = scene(repairs=ROOM, inspection_fails=TrialError("verifier_failed", "no", origin=AGENTS))
    raised = await here.raised("own", verdict(1.0), verdict(1.0), verdict(0.0), verdict(1.0))
    assert raised.type == "verifier_no_reward"
    tried = ["own verified again", "inspected"]
    assert here.done == ["own verified", "inspected", "room made", *tried, *GONE, *tried]


# -- a verifier without tests that ran -----------------------------------------------------------

NEVER_RAN = failed("verifier_never_ran", "tests-changed: x")


async def test_if_no_test_ran_another_fresh_container_with_the_same_work_decides(scene: SceneOf) -> None:
    here = scene()
    found = await here.judged("fresh", NEVER_RAN, verdict(1.0))
    one = [f"copied {DONE}", "copy verified", "copy removed"]
    assert here.done == ["inspected", *one, *one]
    assert (found.reward, found.integrity.regrades, kinds_of(found)) == (1.0, 1, ["tests-changed"])
    assert {*found.files} == {"verifier-1/stdout.txt", "verifier/stdout.txt"}


async def test_a_pass_of_a_second_run_in_the_agents_container_has_a_strong_sign(scene: SceneOf) -> None:
    here = scene()
    found = await here.judged("own", NEVER_RAN, verdict(1.0))
    assert here.done == ["own verified", "own verified again", "inspected"]
    assert (found.reward, found.integrity.regrades) == (1.0, 1)
    assert [kind for kind in kinds_of(found) if not is_weak(kind)] == ["tests-changed", "second-run"]


@pytest.mark.parametrize(("before", "reward", "expected"), [(True, 1.0, 1), (True, 0.0, 0), (False, 1.0, 0)])
async def test_a_pass_after_an_earlier_run_has_a_strong_sign(
    scene: SceneOf, before: bool, reward: float, expected: int
) -> None:
    found = await scene(again=before).judged("own", verdict(reward))
    assert kinds_of(found).count("second-run") == expected


async def test_a_last_attempt_in_the_agents_container_has_that_sign_too(scene: SceneOf) -> None:
    assert kinds_of(await scene().judged("own", failed(), verdict(0.0), verdict(1.0))) == ["second-run"]
    assert kinds_of(await scene().judged("fresh", failed(), verdict(0.0), verdict(1.0))) == []


@WHERE
async def test_there_is_no_third_run(scene: SceneOf, where: str) -> None:
    raised = await scene().raised(where, NEVER_RAN, NEVER_RAN, failed())
    assert raised.type == "verifier_never_ran" and isinstance(raised, VerifierFailed)
    assert raised.integrity.regrades == 1


# -- control tests -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["done.py", "done.txt"])
async def test_a_pass_is_checked_with_control_tests_whatever_the_work_is_named(
    scene: SceneOf, make_task: Any, name: str
) -> None:
    path = make_task("importing")
    (path / "tests/test_outputs.py").write_text("def test_x():\n    assert f() == 1\n")
    here = scene(seen=container({f"/app/{name}": b"x"}))
    here.task = Task.read(path)
    assert (await here.judged("fresh", verdict(1.0), verdict(0.0))).integrity.tamper == ()
    assert here.done.count("copy verified") == 2


@pytest.mark.parametrize(
    ("oracle", "signs", "own", "control", "kinds", "is_still"),
    [
        (NO_ORACLE, (), 0.5, None, [], None),
        (OracleSystem(control="sealed"), (), 1.0, 0.0, [], False),
        (OracleSystem(control="sealed"), (), 1.0, 1.0, ["tests-disarmed"], False),
        (OracleSystem(control="sealed"), (), 1.0, -1.0, ["unconfirmed"], False),
        (OracleSystem(control="sealed", needs_processes=False), (), 1.0, 1.0, ["tests-disarmed"], True),
        (OracleSystem(control="sealed", needs_processes=True), (), 1.0, 1.0, ["tests-disarmed"], False),
        (
            OracleSystem(control="sealed", needs_processes=False), (NEEDS_PROCESSES,), 1.0, 0.0,
            ["needs-processes"], False,
        ),
        # What the first run left may change the result of a test.
        (OracleSystem(control="sealed", of_control={"test_outputs::test_x": False}), (), 1.0, 0.0, [], False),
    ],
)  # fmt: skip
async def test_a_pass_in_the_agents_container_is_checked_with_control_tests_there(
    scene: SceneOf, make_task: Any, oracle: OracleSystem, signs: tuple[str, ...], own: float,
    control: float | None, kinds: list[str], is_still: bool | None,
) -> None:  # fmt: skip
    path = make_task("system")
    (path / "tests/test_outputs.py").write_text("def test_x():\n    assert f() == 1\n")
    here = scene(oracle=oracle)
    here.task = Task.read(path)
    logs = {"verifier/stdout.txt": b"PASSED tests/test_outputs.py::test_x\n== 1 passed in 0.1s =="}
    passing = dataclasses.replace(verdict(own, *signs), files=logs)
    # Without a verdict, a test that always fails is tried as well.
    tried = {None: [], 0.0: [verdict(0.0)], 1.0: [verdict(1.0)]}.get(control, [failed(), failed()])
    found = await here.judged("controlled", passing, *tried)
    assert (found.reward, kinds_of(found)) == (own, kinds)
    assert here.done == ["own verified again"] * len(tried)
    assert here.options.get("is_still") is is_still


# -- servers of the agent's container ------------------------------------------------------------


@pytest.mark.parametrize(
    ("oracle", "has_servers", "results", "verified", "kinds"),
    [
        (NO_ORACLE, False, [1.0], ["copy"], []),
        (NO_ORACLE, True, [1.0], ["beside"], []),
        (OracleSystem(needs_servers=False), False, [0.0], ["copy"], []),
        (OracleSystem(needs_servers=False), True, [1.0], ["copy"], []),
        (OracleSystem(needs_servers=False), True, [0.0, 1.0], ["copy", "beside"], ["needs-servers"]),
        (OracleSystem(needs_servers=False), True, [0.0, 0.0], ["copy", "beside"], []),
        (OracleSystem(needs_servers=False), True, [0.5, 0.5], ["copy", "beside"], []),
        (OracleSystem(needs_servers=False), True, [None, 1.0], ["copy", "beside"], ["needs-servers"]),
        (OracleSystem(needs_servers=False), True, [0.0, None], ["copy", "beside"], []),
        (OracleSystem(needs_servers=True), True, [1.0], ["beside"], []),
        (OracleSystem(is_own=True), True, [1.0], ["copy"], []),
        (OracleSystem(is_own=True), True, [0.0, 1.0], ["copy", "beside"], ["cleared"]),
    ],
)
async def test_servers_of_the_agents_container_are_reached_only_where_the_tests_need_them(
    scene: SceneOf, oracle: OracleSystem, has_servers: bool, results: list[float | None], verified: list[str],
    kinds: list[str],
) -> None:  # fmt: skip
    here = scene(seen=container({"/app/done.txt": b"x"}, has_servers=has_servers), oracle=oracle)
    given = [failed() if reward is None else verdict(reward) for reward in results]
    found = await here.judged("fresh", *given)
    assert [each.removesuffix(" verified") for each in here.done if each.endswith(" verified")] == verified
    assert found.reward == max(reward or 0.0 for reward in results)
    assert kinds_of(found) == kinds


async def test_without_a_verdict_on_either_network_the_last_error_is_raised(scene: SceneOf) -> None:
    here = scene(seen=container({DONE: b"x"}, has_servers=True), oracle=OracleSystem(needs_servers=False))
    assert (await here.raised("fresh", failed(), failed("verifier_timeout"))).type == "verifier_timeout"


async def test_paths_outside_of_the_working_directory_that_only_the_tests_name_are_left_out_in_the_same_way(
    scene: SceneOf,
) -> None:
    own = {"/app/answer.txt": b"x", "/app/named.txt": b"", "/tmp/tested": b"", "/tmp/tested/x": b"", "/tmp/other": b""}
    script = "grep x /app/named.txt; ls /tmp/tested/ /opt"
    for reward, kinds in ((1.0, []), (0.0, ["tests-added"])):
        here = scene(seen=container(own, script=script))
        assert kinds_of(await here.judged("fresh", verdict(1.0), verdict(reward))) == kinds
        assert "copied /app/answer.txt /app/named.txt /tmp/other" in here.done
    asked = scene(seen=container(own, script=script, instruction="Make /tmp/tested."))
    assert (await asked.judged("fresh", verdict(1.0))).integrity.tamper == ()


async def test_test_files_that_pytest_collects_in_the_work_are_left_out_if_it_passes_without_them(
    scene: SceneOf,
) -> None:
    own = {"/app/answer.txt": b"x", "/app/deep/test_a.py": b"", "/app/a_test.py": b"", "/data/test_b.py": b""}
    for reward, kinds in ((1.0, []), (0.0, ["tests-added"])):
        here = scene(seen=container(own, script="cd /app\npytest -rA\n"))
        found = await here.judged("fresh", verdict(1.0), verdict(reward))
        assert "copied /app/answer.txt /data/test_b.py" in here.done
        assert found.reward == 1.0 and kinds_of(found) == kinds
    for more in ({"instruction": "Make /app/a_test.py and /app/deep/test_a.py."}, {"script": "pytest /tests\n"}):
        assert (await scene(seen=container(own, **more)).judged("fresh", verdict(1.0))).integrity.tamper == ()


class Cramped(FakeSandbox):
    """Fails to start one of its commands until resources are freed."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.repairs = at, ROOM

    async def shell(self, script: str, **options: Any) -> ExecResult:
        ended = await super().shell(script, **options)
        if len(self.calls) == self.at:
            raise NO_ROOM
        return ended


@pytest.mark.parametrize(
    ("user", "at", "again"),
    [("root", 1, ""), ("root", 2, "1"), ("nobody", 1, ""), ("nobody", 2, "1"), ("nobody", 3, "1")],
)
async def test_a_verifier_counts_as_started_once_its_tests_were_staged(
    make_task: Any, user: str, at: int, again: str
) -> None:
    sandbox = Cramped(at)
    task = Task.read(make_task(toml=f'[verifier]\nuser = "{user}"\n'))
    found = await Judge(task, SpareCopies(sandbox), again=False).judge_in_agent_container()
    assert (found.reward, found.integrity.repairs) == (1.0, ROOM)
    given = [call.environment for call in sandbox.calls if call.environment.get("TBENCH_VERIFIER_DIGEST")]
    assert [each["TBENCH_VERIFIER_AGAIN"] for each in given] == ["", again]
