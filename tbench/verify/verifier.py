"""Runs a task's verifier in its sandbox: a verdict, or the error that says why there is none.

No reward, or a 0 where pytest was to run and no test did, is an error and never a score.
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
from tbench.sandbox.archive import FileEntry, pack, tree_at
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED, Sandbox
from tbench.tasks.task import Task
from tbench.verifier_logs import Logs
from tbench.verify.changes.facts import Tests, look_functions, walk_argument
from tbench.verify.proof import calls_pytest, prove, reward_lines, starts_no_subshell, writes_alone
from tbench.verify.report import NO_FACTS, Facts, PartOutput, moment, read_report
from tbench.verify.reward import read_metrics, read_reward, remarks
from tbench.verify.tests_shown import TEST_SUMS, test_files_shown

# The script around a task's verifier, verifier.sh, and the variables that tell it what to do.

Part = Literal["whole", "prepare", "run", "collect"]
"""Part of the script: `whole` prepares and runs the tests, for root. For another user root runs `prepare`, and the user
`run`. When they have ended, root runs `collect`."""
_MEND_SEC = 200.0
"""Time limit of mending."""


@dataclass(frozen=True)
class VerifierScript:
    """One run of verifier.sh. Units: seconds."""

    stage: str
    """Path of a new directory in the container, where the tests arrive."""
    tests: Mapping[str, FileEntry] | None
    """Entries of the tests by path, all below the directory `tests` of `stage`; None where the image has them."""
    workdir: str
    timeout_sec: float
    reward_lines: Sequence[int] = ()
    """Numbers of the lines of test.sh that write a reward."""
    again: bool = False
    """Whether a verifier ran there before, so that the files at /tests and /logs/verifier are our own."""
    uses_apt: bool = False
    kept: Sequence[str] = ("verifier", "agent", "artifacts")
    """Folders of /logs that come out of the container."""
    look_since: float | None = None
    """Where a pass is looked at: when the container began, in seconds of its machine's clock."""

    @property
    def limit_sec(self) -> float:
        """Time limit of all parts together, mending included."""
        return self.timeout_sec + 60.0 + (_MEND_SEC if self.again or self.uses_apt else 0.0)

    @property
    def text(self) -> str:
        """Text of the script for busybox's shell: the same for every task and every part."""
        return _script_text()

    def environment(self, part: Part, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Variables that the script reads. `collect` needs the facts that are `known` of the parts before."""
        values = {
            "PART": part,
            "STAGE": self.stage,
            "DIGEST": _digest(self.tests, self.stage)
            if self.tests is not None and part in ("whole", "prepare")
            else "",
            "BROUGHT": "1" if self.tests is None else "",
            "KEPT": "\n".join(self.kept),
            "LINES": f" {' '.join(map(str, self.reward_lines))} ",
            "WORKDIR": self.workdir,
            "LIMIT_SEC": str(max(1, round(self.timeout_sec))),
            "AGAIN": "1" if self.again else "",
            "USES_APT": "1" if self.uses_apt else "",
            "BEGAN_AT": known.get("began_at", ""),
            "TICKS": known.get("ticks", ""),
            "LOOK": "",
        }
        if self.look_since is not None:
            values["LOOK"] = walk_argument(self.look_since, moment(known.get("staged_at", "")))
        return {f"TBENCH_VERIFIER_{name}": value for name, value in values.items()}


@cache
def _script_text() -> str:
    return look_functions() + Path(__file__).with_name("verifier.sh").read_text()


def _digest(tests: Mapping[str, FileEntry], stage: str) -> str:
    """sha256 of the sorted sums that the files below /tests have when they are those that were sent."""
    lines = b"\n".join(
        hashlib.sha256(entry.data).hexdigest().encode() + b"  " + os.fsencode(path.removeprefix(stage))
        for path, entry in tests.items()
        if entry.data is not None
    )
    # A name may have line breaks in it, and is then sorted in pieces there.
    return hashlib.sha256(b"\n".join(sorted(lines.split(b"\n")))).hexdigest()


_KEPT = ("verifier", "agent", "artifacts")
"""Folders below /logs that are kept. Any other file could pass for one of ours, as they end up side by side."""
_EVIDENCE = "evidence"
_KEPT_BYTES = 32 << 20
_MARGIN_SEC = 60.0
_COLLECT_SEC = 120.0
_CONTINUE_SEC = 20.0


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
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All numbers that it wrote, by name, where they are more than the reward."""
    looked: bytes = b""
    """What a look printed that was made when the tests had ended; empty where there was none."""

    @property
    def stdout(self) -> bytes:
        """What its script printed."""
        return self.files.get("verifier/stdout.txt", b"")

    @property
    def logs(self) -> Logs:
        """The files of /logs/verifier."""
        return _verifier_logs(self.files)

    def remarked(self, remarks: Sequence[str]) -> Verdict:
        """This verdict with what was seen before the verifier began."""
        return self.with_integrity(remarks=(*remarks, *self.integrity.remarks))

    def with_integrity(self, *, tamper: Iterable[str] | None = None, **update: object) -> Verdict:
        """This verdict with other fields of its integrity, and with each sign of `tamper` once."""
        if tamper is not None:
            update["tamper"] = tuple(dict.fromkeys(tamper))
        return dataclasses.replace(self, integrity=self.integrity.model_copy(update=update))


def _verifier_logs(files: Mapping[str, bytes]) -> Logs:
    return {name.removeprefix("verifier/"): data for name, data in files.items() if name.startswith("verifier/")}


@dataclass(frozen=True)
class BroughtTests:
    """The tests of an image that has them at /tests, as far as a verdict rests on them."""

    script: bytes
    """Content of test.sh."""
    speak_elsewhere: bool
    """Whether other files of them speak of a reward, too."""


class VerifierFailed(TrialError):
    """A verifier ran without a verdict. Carries the files below /logs, and what a verdict would rest on."""

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
        # Wherever it ran, it ran about the agent's work.
        return True


@contextlib.contextmanager
def _once_staged() -> Iterator[None]:
    """Once the tests lie in its container, an error that the agent may be the cause of is that of a verifier."""
    try:
        yield
    except TrialError as error:
        if not error.agent_can_cause:
            raise
        raise VerifierFailed(error.type, str(error), error.files) from error


def unjudged(error: TrialError) -> VerifierFailed:
    """The error of a verifier that comes to no verdict beside what the agent left, though it does without that.

    The difference proves nothing: the work may be too heavy for it. No other attempt can change it, either.
    """
    integrity = error.integrity if isinstance(error, VerifierFailed) else NOTHING_SEEN
    words = f"fails-with-work: {error.type}, but without the agent's work the verifier runs"
    integrity = integrity.model_copy(update={"tamper": (*integrity.tamper, words)})
    type_ = "verifier_no_reward" if error.kind.retryable else error.type
    return VerifierFailed(type_, str(error), error.files, integrity)


async def verify(
    task: Task,
    sandbox: Sandbox,
    *,
    again: bool = False,
    brought: BroughtTests | None = None,
    kept: Sequence[str] = _KEPT,
    look_since: float | None = None,
) -> Verdict:
    """Stage tests/, run tests/test.sh under its timeout, read the reward. Raises TrialError.

    `again`: a verifier has run in the sandbox before; whatever keeps tests from running is then repaired first.
    Nothing is staged if the image has `brought` the tests. `kept` are the folders of /logs that are kept.
    After a pass, the changes in the container since `look_since` (seconds of its machine's clock) are listed.
    """
    return await _Attempt(task, sandbox, brought, tuple(kept), look_since).verify(again=again)


async def verify_twice(run: Callable[[bool], Awaitable[Verdict]], *, again: bool = False) -> Verdict:
    """Return the verdict of `run(again)` or, if no test ran, of `run(True)`, with the files of both. Raises TrialError.

    The first run may have executed the agent's work as root, so what it left must not decide the second one.
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
        words = f"{failure}; so it was when it was run a first time" if failure.type == first.type else str(failure)
        files = {**files_before, **failure.files}
        integrity = with_earlier(before, failure.integrity)
        raise VerifierFailed(failure.type, words, files, integrity, failure.facts) from None
    integrity = with_earlier(before, second.integrity)
    return dataclasses.replace(second, files={**files_before, **second.files}, integrity=integrity)


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


@dataclass(frozen=True)
class _Attempt:
    """One run of a verifier."""

    task: Task
    sandbox: Sandbox
    brought: BroughtTests | None
    kept: tuple[str, ...]
    look_since: float | None

    @property
    def _test_script(self) -> bytes:
        return self.task.test_script if self.brought is None else self.brought.script

    async def verify(self, *, again: bool) -> Verdict:
        started = time.monotonic()
        facts, files, looked = await self._run(again)
        facts = dataclasses.replace(facts, took_sec=time.monotonic() - started)
        if not facts.is_complete:
            facts = dataclasses.replace(facts, out_of_memory=self.sandbox.ran_out_of_memory)
        if facts.others_spoke and not starts_no_subshell(self._test_script, facts.told):
            facts = dataclasses.replace(facts, wrote_last=False)
        logs = _verifier_logs(files)
        writes = len(facts.told) if facts.has_watcher else None
        seen = Integrity(evidence=facts.evidence, repairs=facts.repairs, reward_writes=writes)
        wants_pytest = calls_pytest(self._test_script.decode("utf-8", "replace"), self._other_scripts, facts.called)
        try:
            reward = _reward(self.task, facts, logs, wants_pytest)
        except TrialError as failure:
            integrity = seen.model_copy(update={"tamper": prove(facts, logs, None).signs})
            raise VerifierFailed(failure.type, str(failure), files, integrity, facts) from None
        metric = self.task.file.verifier.metric
        proven = prove(facts, logs, reward, calls_pytest=wants_pytest, has_witness=self._has_witness, metric=metric)
        assert proven.reward is not None
        update = {"tamper": proven.signs, "remarks": remarks(logs, proven.reward, metric)}
        files.pop(f"verifier/{TEST_SUMS}", None)
        if proven.reward > 0 and (sums := await self._test_sums(logs)):
            files[f"verifier/{TEST_SUMS}"] = sums
        # Where something else contradicts the reward, the numbers beside it are worth no more.
        metrics = read_metrics(logs) if proven.reward == reward else {}
        return Verdict(proven.reward, files, seen.model_copy(update=update), facts, metrics, looked)

    async def _test_sums(self, logs: Logs) -> bytes:
        """Lines of sha256sum about the test files in the work that a pass shows: those in /tests are known."""
        own = {basename(name) for name in self.task.tests} if self.brought is None else set()
        shown = [name for name in test_files_shown(logs) if basename(name) not in own]
        if self.brought is not None or not shown:
            return b""
        script = self._test_script.decode("utf-8", "replace")
        places = sorted(Tests(script, workdir=self.sandbox.workdir.rstrip("/") or "/").entered)
        paths = dict.fromkeys(normpath(join(place, name)) for place in places for name in shown)
        command = f"{BUSYBOX} sha256sum {shlex.join(paths)} 2>/dev/null"
        return (await self.sandbox.shell(command, timeout_sec=_COLLECT_SEC, user="root")).output

    @property
    def _other_scripts(self) -> dict[str, str]:
        """Shell scripts beside test.sh, by path below tests/; none of an image that brings its tests."""
        entries = self.task.tests if self.brought is None else {}
        found = {name: entry.data for name, entry in entries.items() if name.endswith(".sh") and name != "test.sh"}
        return {name: data.decode("utf-8", "replace") for name, data in found.items() if data is not None}

    @property
    def _has_witness(self) -> bool:
        """Whether test.sh itself writes each reward."""
        if self.brought is not None:
            return not self.brought.speak_elsewhere and writes_alone(self._test_script, ())
        entries = self.task.tests.items()
        others = (entry.data for name, entry in entries if name != "test.sh" and entry.data is not None)
        return writes_alone(self._test_script, others)

    async def _run(self, again: bool) -> tuple[Facts, dict[str, bytes], bytes]:
        """Run the verifier's script; returns what it saw, the files that are kept, and what a look printed.

        As root it is two execs: tests go in through the first one's stdin and the logs come out of the second one's
        stdout, because the engine's own copying costs more than everything else together. What the first saw before
        the tests is handed to the second from here, where nobody in the container can change it.
        """
        script = self._script(again)
        messages = await self._tested(script)
        with _once_staged():
            if messages is None:
                # Its output broke off.
                return Facts(timed_out=True), await self._fetched(), b""
            known = {kind: values[0] for message in messages for kind, values in message.facts.items()}
            sums = messages[0].handed if "began_at" in known else b""
            collected = await self._part("collect", script, _COLLECT_SEC, known=known, stdin=sums)
            if collected is None:
                # It was ended while all others in the container stood still.
                await self.sandbox.shell("kill -CONT -1", timeout_sec=_CONTINUE_SEC, user="root")
                return Facts(timed_out=True), await self._fetched(), b""
            seen, files = read_report([*messages, collected], _KEPT_BYTES)
            folders = (*self.kept, _EVIDENCE)
            files = {name: data for name, data in files.items() if name.partition("/")[0] in folders}
            return seen, files, collected.looked

    async def _tested(self, script: VerifierScript) -> list[PartOutput] | None:
        """Stage the tests and run them; what was printed until then, None where that took too long."""
        settings = self.task.file.verifier
        user = str(settings.user) if settings.user is not None else None
        as_root = self.sandbox.runs_as_root if user is None else user in ("root", "0")
        variables = self.task.resolve_env(settings.env)
        tests = b"" if script.tests is None else pack(script.tests)
        if as_root:
            whole = await self._part("whole", script, script.limit_sec, variables=variables, stdin=tests)
            return None if whole is None else [whole]
        # For another user than root: root stages, with a call of its own.
        prepared = await self._part("prepare", script, script.limit_sec - script.timeout_sec, stdin=tests)
        if prepared is None or not prepared.is_whole or "forged" in prepared.facts:
            return None if prepared is None else [prepared]
        with _once_staged():
            ran = await self._part("run", script, script.timeout_sec + _MARGIN_SEC, variables=variables, user=user)
        return None if ran is None else [prepared, ran]

    async def _part(
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
        """Run a part of the script; what it printed, None where it took too long. Raises TrialError."""
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
            words = "the tests could not be put into the container, or what lies there not moved aside"
            raise TrialError("verifier_failed", words, origin=Origin("exec", self.sandbox.is_fresh, ran=True))
        return PartOutput.read(ended.output, looks=part == "collect" and self.look_since is not None)

    async def _fetched(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for folder in self.kept:
            files = await self.sandbox.fetch(f"/logs/{folder}", _KEPT_BYTES)
            found |= {f"{folder}/{name}": data for name, data in files.items()}
        return found

    def _script(self, again: bool) -> VerifierScript:
        stage = f"/.tbench-{uuid.uuid4().hex[:12]}"
        test_script = self._test_script
        tests = None
        if self.brought is None:
            tests = tree_at(f"{stage}/tests", self.task.tests)
            tests[f"{stage}/tests/test.sh"] = FileEntry(test_script, 0o755)
        return VerifierScript(
            stage=stage,
            tests=tests,
            workdir=self.sandbox.workdir,
            timeout_sec=self.task.file.verifier.timeout_sec,
            reward_lines=reward_lines(test_script),
            again=again,
            uses_apt=b"apt" in test_script or b"dpkg" in test_script,
            kept=self.kept,
            look_since=self.look_since,
        )


def _reward(task: Task, facts: Facts, logs: Logs, wants_pytest: bool) -> float:
    if facts.forged:
        raise TrialError("verifier_tampered", f"{facts.forged[0]}, so no test counts")
    if facts.timed_out:
        limit_sec = task.file.verifier.timeout_sec
        raise TrialError("verifier_timeout", f"tests/test.sh took longer than {limit_sec:.0f} s")
    if facts.out_of_memory and (facts.was_killed or not facts.is_complete):
        raise TrialError("verifier_no_reward", "tests/test.sh was ended before its end, as memory was used up")
    if not facts.is_complete:
        raise TrialError("verifier_tampered", "the shell that runs the tests was ended from within")
    if facts.odd:
        raise TrialError("verifier_no_reward", f"{facts.odd[0]}, so there is no reward")
    asked = task.file.verifier
    return read_reward(logs, calls_pytest=wants_pytest, reward_range=asked.reward_range, metric=asked.metric)
