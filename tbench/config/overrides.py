"""What a configuration overrides in its tasks: factors of their timeouts, and words for who reads a score."""

from __future__ import annotations

from tbench.config.settings import OverridesConfig, RunConfig

_KINDS = ("agent", "verifier", "build", "healthcheck")


def timeout_factors(overrides: OverridesConfig) -> dict[str, float]:
    """The factor of each kind of timeout: its own where one is given, else that of all."""
    own = {kind: getattr(overrides, f"{kind}_timeout_multiplier") for kind in _KINDS}
    return {kind: overrides.timeout_multiplier if factor is None else factor for kind, factor in own.items()}


def override_words(config: RunConfig) -> tuple[str, ...]:
    """What is done otherwise than tasks say, a few words each; empty for a run that takes tasks as they are."""
    overrides = config.overrides
    factors = timeout_factors(overrides)
    if len(set(factors.values())) == 1:
        factors = {"every": factors["agent"]}
    words = [f"{kind} timeout x{factor:g}" for kind, factor in factors.items() if factor != 1]
    if overrides.cpus is not None:
        words.append(f"{overrides.cpus:g} cpus instead of each task's")
    if overrides.memory_mb is not None:
        words.append(f"{overrides.memory_mb} MB of memory instead of each task's")
    if config.verify.metric is not None:
        words.append(f"{config.verify.metric!r} counts as the reward")
    return tuple(words)
