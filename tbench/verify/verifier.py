"""Runs a task's verifier in a sandbox. Returns its verdict, or raises the error that prevented one.

A missing reward is an error, never a score. So is a 0 if pytest should have run, but no test did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shlex
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from posixpath import basename, join, normpath
from types import MappingProxyType
from typing import Literal

from tbench.errors import Origin, TrialError
from tbench.results import NOTHING_SEEN, Integrity
from tbench.sandbox.archive import FileEntry, pack, place_tree
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED, STOP_OTHERS, Sandbox
from tbench.tasks.task import Task
from tbench.verifier_logs import Logs
from tbench.verify.changes.facts import Tests, look_functions, walk_argument
from tbench.verify.proof import calls_pytest, check_reward, is_only_reward_writer, reward_lines, starts_no_subshell
from tbench.verify.report import NO_FACTS, Facts, PartOutput, parse_time, read_report
from tbench.verify.reward import read_metrics, read_reward, reward_remarks
from tbench.verify.tests_shown import TEST_SUMS, test_files_shown

Part = Literal["whole", "prepare", "run", "collect"]
"""Part of verifier.sh. As root, `whole` prepares and runs the tests; for another user, root runs `prepare` and the user
`run`. Afterwards root runs `collect`."""
_MEND_SEC = 200.0
"""Time limit of repairs before the tests."""
_LOG_FOLDERS = ("verifier", "agent", "artifacts")
"""Folders below /logs that are kept. Files elsewhere could be mistaken for tbench's own in the trial's directory."""


@dataclass(frozen=True)
class VerifierScript:
    """One run of verifier.sh. Units: seconds."""

    stage: str
    """Path of a new directory in the container that receives the tests."""
    tests: Mapping[str, FileEntry] | None
    """Entries of the tests by path, all below `stage`/tests; None if the image has the tests."""
    workdir: str
    timeout_sec: float
    reward_lines: Sequence[int] = ()
    """Numbers of the lines of test.sh that write a reward."""
    again: bool = False
    """Whether a verifier ran in the container before: /tests and /logs/verifier are its files."""
    uses_apt: bool = False
    log_folders: Sequence[str] = _LOG_FOLDERS
    """Folders of /logs that are copied out of the container."""
    is_still: bool = False
    """Whether the agent's processes are stopped while tests run as root."""
    inspect_since: float | None = None
    """Start of the container in seconds of its machine's clock, if a pass is to be inspected."""

    @property
    def limit_sec(self) -> float:
        """Time limit of all parts together, repairs included."""
        return self.timeout_sec + 60.0 + (_MEND_SEC if self.again or self.uses_apt else 0.0)

    @property
    def text(self) -> str:
        """Text of the script for busybox's shell, identical for all tasks and parts."""
        return _script_text()

    def environment(self, part: Part, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Return the script's environment variables. `collect` needs the facts `known` from earlier parts."""
        values = {
            "PART": part,
            "STAGE": self.stage,
            "DIGEST": _digest(self.tests, self.stage)
            if self.tests is not None and part in ("whole", "prepare")
            else "",
            "BROUGHT": "1" if self.tests is None else "",
            "KEPT": "\n".join(self.log_folders),
            "LINES": f" {' '.join(map(str, self.reward_lines))} ",
            "WORKDIR": self.workdir,
            "LIMIT_SEC": str(max(1, round(self.timeout_sec))),
            "AGAIN": "1" if self.again else "",
            "USES_APT": "1" if self.uses_apt else "",
            "BEGAN_AT": known.get("began_at", ""),
            "TICKS": known.get("ticks", ""),
            "STILL": "1" if self.is_still else "",
            "LOOK": "",
        }
        if self.inspect_since is not None:
            values["LOOK"] = walk_argument(self.inspect_since, parse_time(known.get("staged_at", "")))
        return {f"TBENCH_VERIFIER_{name}": value for name, value in values.items()}


@cache
def _script_text() -> str:
    return STOP_OTHERS + look_functions() + Path(__file__).with_name("verifier.sh").read_text()


def _digest(tests: Mapping[str, FileEntry], stage: str) -> str:
    """Return the sha256 of the sorted checksum lines that sum_up() in verifier.sh prints for unchanged tests."""
    lines = b"\n".join(
        hashlib.sha256(entry.data).hexdigest().encode() + b"  " + os.fsencode(path.removeprefix(stage))
        for path, entry in tests.items()
        if entry.data is not None
    )
    # busybox's sort sorts lines, so it splits a name that contains line breaks.
    return hashlib.sha256(b"\n".join(sorted(lines.split(b"\n")))).hexdigest()


_EVIDENCE = "evidence"
_KEPT_BYTES = 32 << 20
_MARGIN_SEC = 60.0
_COLLECT_SEC = 120.0
_CONTINUE_SEC = 20.0


@dataclass(frozen=True)
class Verdict:
    """Reward and evidence of one verifier run.

    Files below /logs: verifier/{stdout.txt,reward.txt,ctrf.json,…}, agent/…, artifacts/…; files that the agent left at
    the paths of tests and rewards are below evidence/.
    """

    reward: float
    files: Mapping[str, bytes]
    integrity: Integrity = NOTHING_SEEN
    facts: Facts = NO_FACTS
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers in the reward file by name, if it has more than the reward."""
    inspection: bytes = b""
    """Output of the container's inspection after the tests; empty if there was no inspection."""

    @property
    def stdout(self) -> bytes:
        """Output of test.sh."""
        return self.files.get("verifier/stdout.txt", b"")

    @property
    def logs(self) -> Logs:
        """The files of /logs/verifier."""
        return logs_among(self.files)

    def remarked(self, remarks: Sequence[str]) -> Verdict:
        """Return this verdict with earlier remarks in front of its own."""
        return self.with_integrity(remarks=(*remarks, *self.integrity.remarks))

    def with_signs(self, *signs: str) -> Verdict:
        """Return this verdict with further signs of tampering."""
        return self.with_integrity(tamper=(*self.integrity.tamper, *signs))

    def with_integrity(self, *, tamper: Iterable[str] | None = None, **update: object) -> Verdict:
        """Return this verdict with updated fields of its integrity; duplicate signs in `tamper` are dropped."""
        if tamper is not None:
            update["tamper"] = tuple(dict.fromkeys(tamper))
        return dataclasses.replace(self, integrity=self.integrity.model_copy(update=update))


def logs_among(files: Mapping[str, bytes], prefix: str = "verifier/") -> Logs:
    """Return the files of /logs/verifier among those of a verdict, which are below `prefix`."""
    return {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class ImageTests:
    """Facts about the tests of an image that has them at /tests."""

    script: bytes
    """Content of test.sh."""
    others_mention_reward: bool
    """Whether a test file other than test.sh contains the word reward."""


class VerifierFailed(TrialError):
    """A verifier ran without reaching a verdict. Carries the files below /logs, the integrity and the facts."""

    def __init__(
        self,
        type_: str,
        message: str,
        files: Mapping[str, bytes],
        integrity: Integrity = NOTHING_SEEN,
        facts: Facts = NO_FACTS,
    ) -> None:
        super().__init__(type_, message, files=files)
        self.integrity = integrity
        self.facts = facts

    @property
    def agent_can_cause(self) -> bool:
        # The verifier ran on the agent's work, even in a container in which the agent never was.
        return True


@contextlib.contextmanager
def _blaming_verifier() -> Iterator[None]:
    """Turn errors of the block that the agent may have caused into VerifierFailed: the tests are staged by then."""
    try:
        yield
    except TrialError as error:
        if not error.agent_can_cause:
            raise
        raise VerifierFailed(error.type, str(error), error.files) from error


def unjudged(error: TrialError) -> VerifierFailed:
    """Return the error of a verifier that reaches a verdict only without the agent's work.

    This does not prove tampering, as the work may be too large for the verifier. The error is not retryable.
    """
    integrity = error.integrity if isinstance(error, VerifierFailed) else NOTHING_SEEN
    sign = f"fails-with-work: {error.type}, but without the agent's work the verifier runs"
    integrity = integrity.model_copy(update={"tamper": (*integrity.tamper, sign)})
    type_ = "verifier_no_reward" if error.kind.retryable else error.type
    return VerifierFailed(type_, str(error), error.files, integrity)


async def verify(
    task: Task,
    sandbox: Sandbox,
    *,
    again: bool = False,
    image_tests: ImageTests | None = None,
    log_folders: Sequence[str] = _LOG_FOLDERS,
    inspect_since: float | None = None,
    is_still: bool = False,
) -> Verdict:
    """Stage tests/, run tests/test.sh under its timeout, and read the reward. Raises TrialError.

    `again`: a verifier ran in the sandbox before; damage that prevents tests from running is repaired first.
    `image_tests`: the tests in the image; none are staged then. `log_folders`: folders of /logs to keep.
    After a pass, changes in the container since `inspect_since` (seconds of its machine's clock) are listed.
    `is_still`: the agent's processes are stopped while tests run as root.
    """
    return await _VerifierRun(task, sandbox, image_tests, tuple(log_folders), inspect_since, is_still).verify(
        again=again
    )


async def verify_twice(run: Callable[[bool], Awaitable[Verdict]], *, again: bool = False) -> Verdict:
    """Return the verdict of `run(again)` or, if no test ran, of `run(True)`, with the files of both. Raises TrialError.

    The first run may have executed the agent's work as root, so its leftovers must not decide the second one.
    """
    try:
        return await run(again)
    except VerifierFailed as failure:
        if failure.type != "verifier_never_ran":
            raise
        first = failure
    before = first.integrity
    files_before = {name.replace("verifier/", "verifier-1/", 1): data for name, data in first.files.items()}
    try:
        second = await run(True)
    except VerifierFailed as failure:
        message = f"{failure}; the first run failed in the same way" if failure.type == first.type else str(failure)
        files = {**files_before, **failure.files}
        integrity = with_earlier(before, failure.integrity)
        raise VerifierFailed(failure.type, message, files, integrity, failure.facts) from None
    integrity = with_earlier(before, second.integrity)
    return dataclasses.replace(second, files={**files_before, **second.files}, integrity=integrity)


def with_earlier(before: Integrity, after: Integrity) -> Integrity:
    """Return the integrity `after`, merged with the integrity `before` of an earlier run of the verifier."""
    return after.model_copy(
        update={
            "tamper": tuple(dict.fromkeys(before.tamper + after.tamper)),
            "evidence": tuple(dict.fromkeys(before.evidence + after.evidence)),
            "repairs": before.repairs + after.repairs,
            "regrades": before.regrades + after.regrades + 1,
        }
    )


@dataclass(frozen=True)
class _VerifierRun:
    task: Task
    sandbox: Sandbox
    image_tests: ImageTests | None
    log_folders: tuple[str, ...]
    inspect_since: float | None
    is_still: bool

    @property
    def _test_script(self) -> bytes:
        return self.task.test_script if self.image_tests is None else self.image_tests.script

    async def verify(self, *, again: bool) -> Verdict:
        started = time.monotonic()
        facts, files, inspection = await self._run(again)
        facts = dataclasses.replace(facts, took_sec=time.monotonic() - started)
        if not facts.is_complete:
            facts = dataclasses.replace(facts, out_of_memory=self.sandbox.ran_out_of_memory)
        if facts.others_wrote_trace and not starts_no_subshell(self._test_script, facts.traced_writes):
            facts = dataclasses.replace(facts, wrote_last=False)
        logs = logs_among(files)
        writes = len(facts.traced_writes) if facts.has_watcher else None
        seen = Integrity(evidence=facts.evidence, repairs=facts.repairs, reward_writes=writes)
        wants_pytest = calls_pytest(self._test_script.decode("utf-8", "replace"), self._other_scripts, facts.called)
        try:
            reward = _reward(self.task, facts, logs, wants_pytest)
        except TrialError as failure:
            integrity = seen.model_copy(update={"tamper": check_reward(facts, logs, None).signs})
            raise VerifierFailed(failure.type, str(failure), files, integrity, facts) from None
        metric = self.task.file.verifier.metric
        checked = check_reward(
            facts, logs, reward, calls_pytest=wants_pytest, is_only_writer=self._is_only_writer, metric=metric
        )
        assert checked.reward is not None
        update = {"tamper": checked.signs, "remarks": reward_remarks(logs, checked.reward, metric)}
        files.pop(f"verifier/{TEST_SUMS}", None)
        if checked.reward > 0 and (sums := await self._test_sums(logs)):
            files[f"verifier/{TEST_SUMS}"] = sums
        # If another fact contradicts the reward, the numbers beside it are not trusted either.
        metrics = read_metrics(logs) if checked.reward == reward else {}
        return Verdict(checked.reward, files, seen.model_copy(update=update), facts, metrics, inspection)

    async def _test_sums(self, logs: Logs) -> bytes:
        """Return sha256sum's lines for the test files outside /tests that the output of a pass names."""
        own = {basename(name) for name in self.task.tests} if self.image_tests is None else set()
        shown = [name for name in test_files_shown(logs) if basename(name) not in own]
        if self.image_tests is not None or not shown:
            return b""
        script = self._test_script.decode("utf-8", "replace")
        places = sorted(Tests(script, workdir=self.sandbox.workdir.rstrip("/") or "/").entered)
        paths = dict.fromkeys(normpath(join(place, name)) for place in places for name in shown)
        command = f"{BUSYBOX} sha256sum {shlex.join(paths)} 2>/dev/null"
        return (await self.sandbox.shell(command, timeout_sec=_COLLECT_SEC, user="root")).output

    @property
    def _other_scripts(self) -> dict[str, str]:
        """Shell scripts beside test.sh, by path below tests/; empty if the image has the tests."""
        entries = self.task.tests if self.image_tests is None else {}
        found = {name: entry.data for name, entry in entries.items() if name.endswith(".sh") and name != "test.sh"}
        return {name: data.decode("utf-8", "replace") for name, data in found.items() if data is not None}

    @property
    def _is_only_writer(self) -> bool:
        """Whether only test.sh writes rewards, so that each write is traced."""
        if self.image_tests is not None:
            return not self.image_tests.others_mention_reward and is_only_reward_writer(self._test_script, ())
        entries = self.task.tests.items()
        others = (entry.data for name, entry in entries if name != "test.sh" and entry.data is not None)
        return is_only_reward_writer(self._test_script, others)

    async def _run(self, again: bool) -> tuple[Facts, dict[str, bytes], bytes]:
        """Run verifier.sh; return its facts, the files that are kept, and the inspection's output.

        As root these are two execs: tests go in through stdin of the first, and logs come out through stdout of the
        second, because the engine's own copying costs more than everything else together. Facts from before the
        tests are passed to the second exec from here, where no process in the container can change them.
        """
        script = self._script(again)
        outputs = await self._run_tests(script)
        with _blaming_verifier():
            if outputs is None:
                # The part exceeded its time limit.
                return Facts(timed_out=True), await self._fetch_logs(), b""
            known = {kind: values[0] for output in outputs for kind, values in output.facts.items()}
            sums = outputs[0].payload if "began_at" in known else b""
            collected = await self._run_part("collect", script, _COLLECT_SEC, known=known, stdin=sums)
            if collected is None:
                # The part was ended at its time limit, while all other processes were stopped.
                await self.sandbox.shell("kill -CONT -1", timeout_sec=_CONTINUE_SEC, user="root")
                return Facts(timed_out=True), await self._fetch_logs(), b""
            seen, files = read_report([*outputs, collected], _KEPT_BYTES)
            folders = (*self.log_folders, _EVIDENCE)
            files = {name: data for name, data in files.items() if name.partition("/")[0] in folders}
            return seen, files, collected.inspection

    async def _run_tests(self, script: VerifierScript) -> list[PartOutput] | None:
        """Stage and run the tests; return the output of each part, None if one exceeded its time limit."""
        settings = self.task.file.verifier
        user = str(settings.user) if settings.user is not None else None
        as_root = self.sandbox.runs_as_root if user is None else user in ("root", "0")
        variables = self.task.resolve_env(settings.env)
        tests = b"" if script.tests is None else pack(script.tests)
        if as_root:
            whole = await self._run_part("whole", script, script.limit_sec, variables=variables, stdin=tests)
            return None if whole is None else [whole]
        # Only root can stage the tests.
        prepared = await self._run_part("prepare", script, script.limit_sec - script.timeout_sec, stdin=tests)
        if prepared is None or not prepared.is_whole or "forged" in prepared.facts:
            return None if prepared is None else [prepared]
        with _blaming_verifier():
            ran = await self._run_part("run", script, script.timeout_sec + _MARGIN_SEC, variables=variables, user=user)
        return None if ran is None else [prepared, ran]

    async def _run_part(
        self,
        part: Part,
        script: VerifierScript,
        timeout_sec: float,
        *,
        variables: Mapping[str, str] = MappingProxyType({}),
        user: str | None = "root",
        known: Mapping[str, str] = MappingProxyType({}),
        stdin: bytes = b"",
    ) -> PartOutput | None:
        """Run a part of the script; return its output, None if it exceeded its limit. Raises TrialError."""
        environment = {**variables, **script.environment(part, known)}
        ended = await self.sandbox.shell(
            script.text,
            timeout_sec=timeout_sec,
            user=user,
            environment=environment,
            stdin=stdin,
        )
        if ended.timed_out:
            return None
        if ended.exit_code == NOT_STAGED:
            message = "the tests could not be copied into the container, or files in their place could not be moved"
            raise TrialError("verifier_failed", message, origin=Origin("exec", self.sandbox.is_fresh, ran=True))
        return PartOutput.read(ended.output, inspects=part == "collect" and self.inspect_since is not None)

    async def _fetch_logs(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for folder in self.log_folders:
            files = await self.sandbox.fetch(f"/logs/{folder}", _KEPT_BYTES)
            found |= {f"{folder}/{name}": data for name, data in files.items()}
        return found

    def _script(self, again: bool) -> VerifierScript:
        stage = f"/.tbench-{uuid.uuid4().hex[:12]}"
        test_script = self._test_script
        tests = None
        if self.image_tests is None:
            tests = place_tree(f"{stage}/tests", self.task.tests)
            tests[f"{stage}/tests/test.sh"] = FileEntry(test_script, 0o755)
        return VerifierScript(
            stage=stage,
            tests=tests,
            workdir=self.sandbox.workdir,
            timeout_sec=self.task.file.verifier.timeout_sec,
            reward_lines=reward_lines(test_script),
            again=again,
            uses_apt=b"apt" in test_script or b"dpkg" in test_script,
            log_folders=self.log_folders,
            inspect_since=self.inspect_since,
            is_still=self.is_still,
        )


def _reward(task: Task, facts: Facts, logs: Logs, wants_pytest: bool) -> float:
    if facts.forged:
        raise TrialError("verifier_tampered", f"{facts.forged[0]}, so the tests do not count")
    if facts.timed_out:
        limit_sec = task.file.verifier.timeout_sec
        raise TrialError("verifier_timeout", f"tests/test.sh took longer than {limit_sec:.0f} s")
    if facts.out_of_memory and (facts.was_killed or not facts.is_complete):
        raise TrialError("verifier_no_reward", "tests/test.sh was killed because memory ran out")
    if not facts.is_complete:
        raise TrialError("verifier_tampered", "the shell that runs the tests was killed by a process in the container")
    if facts.odd_reward_files:
        raise TrialError("verifier_no_reward", f"{facts.odd_reward_files[0]}, so there is no reward")
    asked = task.file.verifier
    return read_reward(logs, calls_pytest=wants_pytest, reward_range=asked.reward_range, metric=asked.metric)
