"""Whether a reward is the one that the tests gave: what else they left must agree with it.

A sign, `kind: what was seen`, is no proof; those in results.WEAK_SIGNALS are often honest work. Evidence flags: the
number that the verifier left is changed only where it is proven that somebody else wrote it, or that a signal ended
test.sh.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tbench.reward import canonical, is_solved
from tbench.text import plain
from tbench.verifier_logs import Logs, tests_ran
from tbench.verify.report import Facts
from tbench.verify.reward import rewards_of_files
from tbench.verify.witness import witnessed_reward

_SUMMARY = re.compile(r"\b\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+\s?s", re.IGNORECASE)
_FAILURES = re.compile(r"\b([1-9]\d{0,8}) (?:failed|errors?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Proven:
    """A reward, None where there is none, and the signs that speak against it."""

    reward: float | None
    signs: tuple[str, ...]


def prove(
    facts: Facts,
    logs: Logs,
    reward: float | None,
    *,
    calls_pytest: bool = False,
    has_witness: bool = False,
    metric: str | None = None,
) -> Proven:
    """The reward that counts, and what speaks against it. `has_witness`: test.sh itself writes each reward.

    `metric` is the name of the number that counts, where one is chosen.
    """
    signs = list(_planted(facts))
    if reward is None:
        if facts.was_killed and not facts.out_of_memory:
            # Where no process of the agent's was left, it was the tests, or the work that they run.
            signs.append(_killed(facts, is_weak=not facts.leftovers))
        return Proven(None, tuple(dict.fromkeys(signs)))
    lower = list(_proven(facts, logs, reward, has_witness, metric))
    signs += [words for _, words in lower]
    if reward > 0:
        signs += _doubts(facts, logs, reward, calls_pytest, has_witness, metric)
    return Proven(min([reward, *(value for value, _ in lower)]), tuple(dict.fromkeys(signs)))


def _planted(facts: Facts) -> Iterator[str]:
    yield from (f"forgery: {words}" for words in facts.forged)
    planted = [path for path in facts.evidence if path.endswith(("/reward.txt", "/reward.json", "/ctrf.json"))]
    yield from (f"planted-reward: {plain(path)} was there before the tests" for path in planted)
    if "/tests/test.sh" in facts.evidence:
        yield "planted-tests: /tests/test.sh was there before the tests"
    if facts.changed_tests:
        yield f"tests-changed: {_listed(facts.changed_tests)} changed while the tests ran"
    if touched := [path for path in facts.touched_tests if path not in facts.changed_tests]:
        kind = "tests-changed" if "/tests/test.sh" in touched else "tests-touched"
        yield f"{kind}: {_listed(touched)} was written, or got another mode, while the tests ran"
    if facts.new_tests:
        yield f"tests-changed: {_listed(facts.new_tests)} came while the tests ran"


def _proven(
    facts: Facts, logs: Logs, reward: float, has_witness: bool, metric: str | None
) -> Iterator[tuple[float, str]]:
    """The rewards that count in the place of the one that was read, with the words for it."""
    told = witnessed_reward(facts.told, metric)
    if told is not None and canonical(told) != canonical(reward) and _is_last_word(facts, logs, has_witness):
        yield told, f"contradiction: test.sh wrote {told:g}, but the file says {reward:g}"
    if facts.was_killed and facts.has_watcher:
        yield 0.0, _killed(facts)
    if facts.is_cut or (facts.was_halted and has_witness and not facts.told):
        yield 0.0, "trace-cut: a program that the tests started kept bash from being heard"


def _is_last_word(facts: Facts, logs: Logs, has_witness: bool) -> bool:
    """Whether nothing of the tests can have written the file that counts after bash was heard to write a reward.

    Where test.sh is not alone in that, commands that it runs afterwards may have, and a reward.json may be theirs.
    """
    return has_witness or (facts.wrote_last and "reward.json" not in logs)


def _doubts(
    facts: Facts, logs: Logs, reward: float, calls_pytest: bool, has_witness: bool, metric: str | None
) -> Iterator[str]:
    if calls_pytest and not tests_ran(logs):
        yield "no-test-ran: the tests passed, but neither ctrf.json nor the output shows that one ran"
    if facts.was_killed and not facts.has_watcher:
        yield _killed(facts)
    told, files = witnessed_reward(facts.told, metric), rewards_of_files(logs, metric)
    if told is not None and canonical(told) != canonical(reward) and not _is_last_word(facts, logs, has_witness):
        yield f"other-reward: test.sh wrote {told:g}, and commands of the tests may have written {reward:g} later"
    if len(set(map(canonical, files))) > 1:
        yield f"other-reward: reward.json, which counts, says {files[0]:g}, and reward.txt {files[1]:g}"
    if is_solved(reward) and (failed := max(_failed_tests(logs))):
        yield f"failed-tests: reward {reward:g}, and {failed} failed tests are reported"
    if facts.was_halted:
        yield "unwitnessed: who hears bash was stopped for a while, and may have missed what it wrote"
    if has_witness and facts.has_watcher and not facts.told:
        yield "unwitnessed: test.sh writes the reward itself, but was not heard to"
    elif facts.outlived and told is None:
        yield (
            f"unwitnessed: {facts.outlived} processes that began with the tests outlived them, and who wrote the "
            "reward was not seen"
        )


def _killed(facts: Facts, *, is_weak: bool = False) -> str:
    kind = "verifier-killed" if facts.has_watcher and not is_weak else "verifier-ended"
    return f"{kind}: test.sh ended by signal {(facts.exit_code or 128) - 128}"


def _failed_tests(logs: Logs) -> tuple[int, int]:
    """Numbers of failed tests by ctrf.json and by the last summary in the output."""
    return _failed_by_report(logs), sum(int(number) for number in _FAILURES.findall(_summary(logs)))


def _failed_by_report(logs: Logs) -> int:
    try:
        return int(json.loads(logs["ctrf.json"])["results"]["summary"]["failed"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return 0


def _summary(logs: Logs) -> str:
    output = logs.get("stdout.txt", b"").decode("utf-8", "replace")
    return next((line for line in reversed(output.splitlines()) if _SUMMARY.search(line)), "")


def _listed(paths: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(map(plain, paths[:5])) + more
