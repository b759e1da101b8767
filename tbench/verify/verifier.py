"""Runs a task's verifier in the sandbox and reads its verdict.

The reward file is the only truth: the script's exit code means nothing. No reward, or a 0 without a single
test having run, is an error and never a score.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tbench.errors import TrialError
from tbench.results import NOTHING_SEEN, Integrity
from tbench.sandbox.archive import FileEntry, pack, tree_at
from tbench.sandbox.backend import NOT_STAGED, ExecResult, Sandbox
from tbench.tasks.task import Task, resolve_env
from tbench.verify.script import FORGED, Facts, Judging, parse
from tbench.verify.tamper import signals, watched

_KEPT = ("verifier/", "agent/", "artifacts/", "evidence/")
"""Below /logs. Anything else there could pass for a file of ours: they end side by side."""
_KEPT_BYTES = 32 << 20
_MARGIN_SEC = 60.0
_PYTEST_SUMMARY = re.compile(
    r"\b\d+ (?:passed|failed|error(?:s)?|skipped|xfailed|xpassed)\b.* in [\d.]+\s?s", re.IGNORECASE
)
_OTHER_RUNNERS = re.compile(
    r"^(?:ok|not ok) \d+|^Ran [1-9]\d* tests? in|\bcollected [1-9]\d* items?|^(?:PASS(?:ED)?|FAIL(?:ED)?)\b",
    re.MULTILINE,
)
_TOOL_FAILURES = (
    (re.compile(r"Could not get lock /var/lib/(?:dpkg|apt)"), "another process holds the dpkg lock"),
    (re.compile(r"dpkg was interrupted"), "dpkg was interrupted and is half configured"),
    (re.compile(r"No space left on device"), "the disk is full"),
    (re.compile(r"Temporary failure (?:in name resolution|resolving)|Could not resolve"), "names cannot be resolved"),
    (re.compile(r"(?i)certificate.verify.failed|SSL certificate problem"), "no trusted CA certificate"),
    (re.compile(r"getcwd: cannot access parent directories|cannot access parent"), "the working directory was deleted"),
    (re.compile(r"(?:curl|uvx?|pytest|python3?): (?:command )?not found"), "a tool of the verifier is missing"),
    (re.compile(r"Unable to (?:fetch|locate)|Failed to (?:fetch|download)|error sending request"), "a download failed"),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The reward, and what lies below /logs: verifier/{stdout.txt,reward.txt,ctrf.json,…}, agent/…, artifacts/…

    What the agent left where tests and reward belong is below evidence/.
    """

    reward: float
    files: Mapping[str, bytes]
    integrity: Integrity = NOTHING_SEEN


class VerifierFailed(TrialError):
    """No verdict; carries the files below /logs and what was seen, for whoever looks into it."""

    def __init__(
        self, type_: str, message: str, files: Mapping[str, bytes], integrity: Integrity = NOTHING_SEEN
    ) -> None:
        super().__init__(type_, message, files=files)
        self.integrity = integrity


async def verify(task: Task, sandbox: Sandbox, *, again: bool = False) -> Verdict:
    """Stage tests/, run tests/test.sh under its timeout, read the reward. Raises TrialError.

    Where no test ran, what can be mended is mended, and it is run once more. `again`: the sandbox was judged before.
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
        raise VerifierFailed(failure.type, words, files, regraded(before, failure.integrity)) from None
    return Verdict(second.reward, {**kept, **second.files}, regraded(before, second.integrity))


def regraded(before: Integrity, after: Integrity) -> Integrity:
    """What a verdict rests on that came of one more run of the verifier."""
    return after.model_copy(
        update={
            "tamper": tuple(dict.fromkeys(before.tamper + after.tamper)),
            "evidence": tuple(dict.fromkeys(before.evidence + after.evidence)),
            "repairs": before.repairs + after.repairs,
            "regrades": before.regrades + after.regrades + 1,
        }
    )


async def look(task: Task, sandbox: Sandbox) -> Integrity:
    """What speaks against a verdict, before anything is staged; for a sandbox that is judged in a copy."""
    judging = _judging(task, sandbox, again=False)
    ended = await sandbox.shell(judging.examine(), timeout_sec=_MARGIN_SEC, user="root")
    facts, _ = parse(ended.output, _KEPT_BYTES)
    return Integrity(tamper=signals(facts, {}, None))


async def _verify_once(task: Task, sandbox: Sandbox, *, again: bool) -> Verdict:
    facts, files = await _run(task, sandbox, again)
    verifier = {name.removeprefix("verifier/"): data for name, data in files.items() if name.startswith("verifier/")}
    seen = Integrity(evidence=facts.evidence, repairs=facts.repairs)
    try:
        reward = _reward(task, facts, verifier)
    except VerifierFailed as failure:
        tamper = signals(facts, verifier, None)
        raise VerifierFailed(failure.type, str(failure), files, seen.model_copy(update={"tamper": tamper})) from None
    return Verdict(reward, files, seen.model_copy(update={"tamper": signals(facts, verifier, reward)}))


def _reward(task: Task, facts: Facts, verifier: Mapping[str, bytes]) -> float:
    if facts.forged:
        raise VerifierFailed("verifier_tampered", f"{facts.forged[0]}, so no test was run", verifier)
    if facts.timed_out:
        limit_sec = task.file.verifier.timeout_sec
        raise VerifierFailed("verifier_timeout", f"tests/test.sh took longer than {limit_sec:.0f} s", verifier)
    if not facts.is_complete:
        raise VerifierFailed("verifier_tampered", "the shell that runs the tests was ended from within", verifier)
    return read_reward(verifier, uses_pytest=b"pytest" in task.test_script)


async def _run(task: Task, sandbox: Sandbox, again: bool) -> tuple[Facts, dict[str, bytes]]:
    """What was seen, and the files that are kept.

    As root all of it is one exec: tests go in through its stdin and the logs come out of its stdout, because the
    engine's own copying costs more than everything else together.
    """
    settings = task.file.verifier
    user = str(settings.user) if settings.user is not None else None
    as_root = sandbox.runs_as_root if user is None else user in ("root", "0")
    judging = _judging(task, sandbox, again)
    tests, environment = pack(judging.tests), resolve_env(settings.env)
    if as_root:
        ended = await sandbox.shell(
            judging.whole(), timeout_sec=judging.limit_sec, user="root", environment=environment, stdin=tests
        )
        if ended.timed_out:
            # Its output broke off.
            return Facts(timed_out=True), _kept(await sandbox.fetch("/logs", _KEPT_BYTES))
    else:
        ended = await _run_as(user, judging, sandbox, environment, tests)
    if ended.exit_code == NOT_STAGED:
        raise TrialError(
            "verifier_failed", "the tests could not be put into the container, or what lies there not moved aside"
        )
    facts, files = parse(ended.output, _KEPT_BYTES)
    return facts, _kept(files)


def _judging(task: Task, sandbox: Sandbox, again: bool) -> Judging:
    stage = f"/.tbench-{uuid.uuid4().hex[:12]}"
    tests, script = tree_at(f"{stage}/tests", task.tests), task.test_script
    tests[f"{stage}/tests/test.sh"] = FileEntry(script, 0o755)
    return Judging(
        stage=stage,
        tests=tests,
        workdir=sandbox.workdir,
        timeout_sec=task.file.verifier.timeout_sec,
        watched=watched(sandbox.workdir, script),
        again=again,
        uses_apt=b"apt" in script or b"dpkg" in script,
    )


async def _run_as(
    user: str | None, judging: Judging, sandbox: Sandbox, environment: Mapping[str, str], tests: bytes
) -> ExecResult:
    """As another user than root: root stages and collects, with a call each."""
    staged = await sandbox.shell(
        judging.prepare_alone(), timeout_sec=judging.limit_sec - judging.timeout_sec, user="root", stdin=tests
    )
    if staged.exit_code not in (0, FORGED):
        return ExecResult(NOT_STAGED)
    code, timed_out = None, False
    if staged.exit_code == 0:
        ended = await sandbox.shell(
            judging.run_alone(), timeout_sec=judging.timeout_sec + _MARGIN_SEC, user=user, environment=environment
        )
        words = ended.output.split()
        code = int(words[0]) if words and words[0].isdigit() else ended.exit_code
        timed_out = ended.timed_out or words[1:2] == [b"1"]
    return await sandbox.shell(judging.collect_alone(code, timed_out), timeout_sec=_MARGIN_SEC, user="root")


def _kept(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(_KEPT)}


def read_reward(files: Mapping[str, bytes], *, uses_pytest: bool = False) -> float:
    """The reward from reward.json (wins) or reward.txt. Raises VerifierFailed when there is no verdict in them.

    reward.json is a flat object of finite numbers; its `reward` counts, or its only number.
    """
    if "reward.json" in files:
        reward = _json_reward(files)
    elif "reward.txt" in files:
        reward = _text_reward(files)
    else:
        raise VerifierFailed("verifier_no_reward", f"no reward.json or reward.txt; {_last_line(files)}", files)
    if not math.isfinite(reward):
        raise VerifierFailed("verifier_bad_reward", f"the reward is {reward}", files)
    if reward == 0.0 and (why := never_ran(files, uses_pytest=uses_pytest)) is not None:
        raise VerifierFailed("verifier_never_ran", f"the reward is 0 but no test ran: {why}", files)
    return reward


def _text_reward(files: Mapping[str, bytes]) -> float:
    text = files["reward.txt"].decode("utf-8", "replace").strip()
    if not text:
        raise VerifierFailed("verifier_no_reward", f"reward.txt is empty; {_last_line(files)}", files)
    try:
        return float(text)
    except ValueError:
        raise VerifierFailed("verifier_bad_reward", f"reward.txt holds {text[:60]!r}, not one number", files) from None


def _json_reward(files: Mapping[str, bytes]) -> float:
    raw = files["reward.json"]
    if not raw.strip():
        raise VerifierFailed("verifier_no_reward", f"reward.json is empty; {_last_line(files)}", files)
    try:
        rewards = json.loads(raw)
    except (ValueError, RecursionError):
        raise VerifierFailed("verifier_bad_reward", "reward.json is not valid JSON", files) from None
    if not isinstance(rewards, dict) or not all(_is_finite_number(value) for value in rewards.values()):
        raise VerifierFailed("verifier_bad_reward", "reward.json is not a flat object of finite numbers", files)
    if "reward" in rewards:
        return float(rewards["reward"])
    if len(rewards) == 1:
        return float(next(iter(rewards.values())))
    raise VerifierFailed("verifier_bad_reward", "reward.json has several numbers and none is named 'reward'", files)


def _is_finite_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        # An integer beyond every float.
        return False


def never_ran(files: Mapping[str, bytes], *, uses_pytest: bool = False) -> str | None:
    """Why a reward of 0 was written without a test having run; None where tests ran, or nobody can tell.

    Signs that tests ran: a ctrf.json, or a test runner's summary in the output. A script that calls pytest must
    leave one of them; for any other, the output has to show a known failure of the tool chain.
    """
    output = files.get("stdout.txt", b"").decode("utf-8", "replace")
    if _ctrf_has_tests(files.get("ctrf.json")) or _PYTEST_SUMMARY.search(output) or _OTHER_RUNNERS.search(output):
        return None
    known = next((meaning for pattern, meaning in _TOOL_FAILURES if pattern.search(output)), None)
    if known is None and uses_pytest:
        return f"no ctrf.json and no pytest summary; {_last_line(files)}"
    return known


def _ctrf_has_tests(raw: bytes | None) -> bool:
    try:
        summary = json.loads(raw or b"{}")["results"]["summary"]
        return int(summary["tests"]) > 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _last_line(files: Mapping[str, bytes]) -> str:
    lines = files.get("stdout.txt", b"").decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its last words: {last[:200]!r}" if last else "it printed nothing"
