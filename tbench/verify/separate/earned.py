"""Whether a pass was earned by what was handed over, or by what of it turns the tests: rules about two verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tbench.results import is_weak
from tbench.reward import canonical
from tbench.tasks.artifacts import Artifact
from tbench.verify.changes.signs import Sign
from tbench.verify.judging import CLEARED
from tbench.verify.verifier import Verdict

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
