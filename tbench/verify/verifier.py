"""Runs a task's verifier in its sandbox: a verdict, or the error that says why there is none.

No reward, or a 0 where pytest was to run and no test did, is an error and never a score.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tbench.errors import TrialError
from tbench.results import NOTHING_SEEN, Integrity
from tbench.sandbox.archive import FileEntry, pack, tree_at
from tbench.sandbox.backend import NOT_STAGED, ExecResult, Sandbox
from tbench.tasks.task import Task
from tbench.verify.proof import prove
from tbench.verify.pytest_calls import calls_pytest
from tbench.verify.report import NO_FACTS, Facts, read_report
from tbench.verify.reward import Logs, read_reward, remarks
from tbench.verify.script import FORGED, VerifierScript
from tbench.verify.witness import reward_lines, writes_alone

_KEPT = ("verifier/", "agent/", "artifacts/", "evidence/")
"""Folders below /logs that are kept. Any other file could pass for one of ours, as they end up side by side."""
_KEPT_BYTES = 32 << 20
_MARGIN_SEC = 60.0


@dataclass(frozen=True)
class Verdict:
    """The reward, and the files below /logs: verifier/{stdout.txt,reward.txt,ctrf.json,…}, agent/…, artifacts/…

    Files that the agent left where tests and reward belong are below evidence/.
    """

    reward: float
    files: Mapping[str, bytes]
    integrity: Integrity = NOTHING_SEEN
    facts: Facts = NO_FACTS
    """What the verifier's script saw."""


class VerifierFailed(TrialError):
    """A verifier ran without a verdict. Carries the files below /logs, and what a verdict would rest on."""

    def __init__(
        self, type_: str, message: str, files: Mapping[str, bytes], integrity: Integrity = NOTHING_SEEN
    ) -> None:
        super().__init__(type_, message, files=files)
        self.integrity = integrity


async def verify(task: Task, sandbox: Sandbox, *, again: bool = False) -> Verdict:
    """Stage tests/, run tests/test.sh under its timeout, read the reward. Raises TrialError.

    Where no test ran, what can be mended is mended, and the verifier runs once more. `again` says that one ran before.
    """
    try:
        return await _verify_once(task, sandbox, again=again)
    except TrialError as failure:
        if failure.type != "verifier_never_ran":
            raise
        first = failure
    before = first.integrity if isinstance(first, VerifierFailed) else NOTHING_SEEN
    kept = {name.replace("verifier/", "verifier-1/", 1): data for name, data in first.files.items()}
    try:
        second = await _verify_once(task, sandbox, again=True)
    except VerifierFailed as failure:
        words = f"{failure}; so it was when it was run a first time" if failure.type == first.type else str(failure)
        files = {**kept, **failure.files}
        raise VerifierFailed(failure.type, words, files, with_earlier(before, failure.integrity)) from None
    return Verdict(second.reward, {**kept, **second.files}, with_earlier(before, second.integrity), second.facts)


def with_earlier(before: Integrity, after: Integrity) -> Integrity:
    """The integrity `after` of a verdict, with what an earlier run of the verifier saw, `before`."""
    return after.model_copy(
        update={
            "tamper": tuple(dict.fromkeys(before.tamper + after.tamper)),
            "evidence": tuple(dict.fromkeys(before.evidence + after.evidence)),
            "repairs": before.repairs + after.repairs,
            "regrades": before.regrades + after.regrades + 1,
        }
    )


async def _verify_once(task: Task, sandbox: Sandbox, *, again: bool) -> Verdict:
    facts, files = await _run(task, sandbox, again)
    logs = {name.removeprefix("verifier/"): data for name, data in files.items() if name.startswith("verifier/")}
    seen = Integrity(evidence=facts.evidence, repairs=facts.repairs)
    wants_pytest = calls_pytest(task.test_script.decode("utf-8", "replace"))
    try:
        reward = _reward(task, facts, logs, wants_pytest)
    except TrialError as failure:
        integrity = seen.model_copy(update={"tamper": prove(facts, logs, None).signs})
        raise VerifierFailed(failure.type, str(failure), files, integrity) from None
    others = (entry.data for name, entry in task.tests.items() if name != "test.sh" and entry.data is not None)
    alone = writes_alone(task.test_script, others)
    proven = prove(facts, logs, reward, calls_pytest=wants_pytest, has_witness=alone)
    assert proven.reward is not None
    update = {"tamper": proven.signs, "remarks": remarks(logs, proven.reward)}
    return Verdict(proven.reward, files, seen.model_copy(update=update), facts)


def _reward(task: Task, facts: Facts, logs: Logs, wants_pytest: bool) -> float:
    if facts.forged:
        raise TrialError("verifier_tampered", f"{facts.forged[0]}, so no test was run")
    if facts.timed_out:
        limit_sec = task.file.verifier.timeout_sec
        raise TrialError("verifier_timeout", f"tests/test.sh took longer than {limit_sec:.0f} s")
    if not facts.is_complete:
        raise TrialError("verifier_tampered", "the shell that runs the tests was ended from within")
    if facts.odd:
        raise TrialError("verifier_no_reward", f"{facts.odd[0]} is no plain file, so it is no reward")
    return read_reward(logs, calls_pytest=wants_pytest, reward_range=task.file.verifier.reward_range)


async def _run(task: Task, sandbox: Sandbox, again: bool) -> tuple[Facts, dict[str, bytes]]:
    """Run the verifier's script; returns what it saw, and the files that are kept.

    As root the whole script is one exec: tests go in through its stdin and the logs come out of its stdout, because the
    engine's own copying costs more than everything else together.
    """
    settings = task.file.verifier
    user = str(settings.user) if settings.user is not None else None
    as_root = sandbox.runs_as_root if user is None else user in ("root", "0")
    script = _script(task, sandbox, again)
    tests, environment = pack(script.tests), task.resolve_env(settings.env)
    if as_root:
        variables = {**environment, **script.environment("whole")}
        ended = await sandbox.shell(
            script.text, timeout_sec=script.limit_sec, user="root", environment=variables, stdin=tests
        )
        if ended.timed_out:
            # Its output broke off.
            return Facts(timed_out=True), _kept(await sandbox.fetch("/logs", _KEPT_BYTES))
    else:
        ended = await _run_as(user, script, sandbox, environment, tests)
    if ended.exit_code == NOT_STAGED:
        raise TrialError(
            "verifier_failed", "the tests could not be put into the container, or what lies there not moved aside"
        )
    facts, files = read_report(ended.output, _KEPT_BYTES)
    return facts, _kept(files)


def _script(task: Task, sandbox: Sandbox, again: bool) -> VerifierScript:
    stage = f"/.tbench-{uuid.uuid4().hex[:12]}"
    tests = tree_at(f"{stage}/tests", task.tests)
    test_script = task.test_script
    tests[f"{stage}/tests/test.sh"] = FileEntry(test_script, 0o755)
    return VerifierScript(
        stage=stage,
        tests=tests,
        workdir=sandbox.workdir,
        timeout_sec=task.file.verifier.timeout_sec,
        reward_lines=reward_lines(test_script),
        again=again,
        uses_apt=b"apt" in test_script or b"dpkg" in test_script,
        caches=[name for name in ("pip", "uv") if re.search(rf"\b{name}[x3]?\b".encode(), test_script)],
    )


async def _run_as(
    user: str | None, script: VerifierScript, sandbox: Sandbox, environment: Mapping[str, str], tests: bytes
) -> ExecResult:
    """Run the script for another user than root: root stages and collects, with a call each."""
    prepare_sec = script.limit_sec - script.timeout_sec
    staged = await sandbox.shell(
        script.text, timeout_sec=prepare_sec, user="root", environment=script.environment("prepare"), stdin=tests
    )
    if staged.exit_code not in (0, FORGED):
        return ExecResult(NOT_STAGED)
    code, timed_out, ticks, heard = None, False, 0, b""
    if staged.exit_code == 0:
        variables = {**environment, **script.environment("run")}
        ended = await sandbox.shell(
            script.text, timeout_sec=script.timeout_sec + _MARGIN_SEC, user=user, environment=variables
        )
        first, _, heard = ended.output.partition(b"\n")
        numbers = [int(word) for word in first.split() if word.isdigit()]
        code, late, ticks = numbers if len(numbers) == 3 else (ended.exit_code, 0, 0)
        timed_out = ended.timed_out or late == 1
    variables = script.environment("collect", code=code, late=timed_out, ticks=ticks)
    collected = await sandbox.shell(script.text, timeout_sec=_MARGIN_SEC, user="root", environment=variables)
    return dataclasses.replace(collected, output=heard + collected.output)


def _kept(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(_KEPT)}
