"""Whether a pass was earned by what was handed over, or by what of it turns the tests: rules about two verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

from tbench.results import is_weak
from tbench.reward import canonical
from tbench.tasks.artifacts import Artifact
from tbench.verify.changes.signs import Sign
from tbench.verify.judging import CLEARED
from tbench.verify.verifier import Verdict
from tbench.verify.witness import witnessed_reward

_OF_THE_NETWORK = frozenset({"hosts"})
"""Kinds of signs about files that no agent hands over: each container has its own."""


def turning_paths(
    signs: Iterable[Sign], artifacts: Iterable[Artifact], asks_for: Callable[[str], bool]
) -> tuple[str, ...]:
    """Paths that strong signs are about. Where a task asks for a file, as an artifact or in its instruction, it may
    lie there."""
    asked_for = {each.path for each in artifacts}
    return tuple(
        dict.fromkeys(
            sign.path
            for sign in signs
            if not is_weak(sign.kind)
            and sign.kind not in _OF_THE_NETWORK
            and not (sign.path in asked_for or asks_for(sign.path))
        )
    )


def joined(first: Verdict, without: Verdict) -> Verdict:
    """What a pass comes to beside what the tests say `without` all that turns them: the lower reward counts."""
    signs = first.integrity.tamper
    beside = {f"without/{name}": data for name, data in without.files.items() if name.startswith("verifier/")}
    both = dataclasses.replace(first, files={**first.files, **beside}, facts=without.facts)
    rewards = {"separate": first.reward, "without": without.reward}
    if canonical(without.reward) >= canonical(first.reward):
        seen = (sign if is_weak(sign) else f"{CLEARED}{sign}" for sign in signs)
        return both.with_integrity(tamper=(*without.integrity.tamper, *seen), rewards=rewards)
    words = f"{without.reward:g} without what turns the tests, {first.reward:g} with it"
    lower = dataclasses.replace(both, reward=without.reward, metrics=without.metrics)
    tamper = (*signs, *without.integrity.tamper, f"disagreement: {words}")
    return lower.with_integrity(tamper=tamper, rewards=rewards)


def turned_within(verdict: Verdict, control: Verdict) -> tuple[str, ...]:
    """Signs, `kind: what was seen` each, that work which the tests run has turned them from within.

    `control` is a verdict about nothing: what is so there, too, is how the task's tests are.
    """
    kinds = {sign.partition(":")[0] for sign in verdict.integrity.tamper}
    return tuple(sign for sign in _turned(verdict, control) if sign.partition(":")[0] in kinds)


def _turned(verdict: Verdict, control: Verdict) -> Iterator[str]:
    if not any(sign.startswith("no-test-ran") for sign in control.integrity.tamper):
        yield "no-test-ran: the tests show that they run where nothing is handed over"
    if witnessed_reward(verdict.facts.told) is None and witnessed_reward(control.facts.told) is not None:
        yield "unwitnessed: test.sh writes the reward itself where nothing is handed over"
    if changed := _beyond(verdict.facts.changed_tests, control.facts.changed_tests):
        yield f"tests-changed: {', '.join(changed)} stays as it is where nothing is handed over"


def _beyond(paths: Collection[str], others: Collection[str]) -> list[str]:
    return [path for path in paths if path not in others][:3]


def zero(verdict: Verdict, *signs: str) -> Verdict:
    """The verdict with a reward of 0 and these signs: nothing is gained by it."""
    told = verdict.integrity
    rewards = {"separate": verdict.reward, **told.rewards}
    nothing = dataclasses.replace(verdict, reward=0.0, metrics={})
    return nothing.with_integrity(tamper=(*told.tamper, *signs), rewards=rewards)
