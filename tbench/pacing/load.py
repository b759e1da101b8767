"""What a vLLM says about its load on its `/metrics`, in Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The name of today's versions, and that of those before 0.10."""
_LONGEST_CHARS = 4_000_000


class NoMetrics(ValueError):
    """An answer that says nothing usable about a server's load."""


@dataclass(frozen=True)
class ServerLoad:
    """The load of one server at one moment."""

    usage: float
    """Share of the KV cache that is in use, 0 to 1."""
    running: int
    waiting: int
    preemptions: int
    """Since the server began."""
    cache_tokens: int | None = None
    """Tokens that the KV cache holds; None where the server does not say."""

    @classmethod
    def read(cls, text: object, model: str | None = None) -> ServerLoad:
        """The load in the body of an answer, of this model where several are told. Raises NoMetrics."""
        if not isinstance(text, str) or len(text) > _LONGEST_CHARS:
            raise NoMetrics("no text in Prometheus' format")
        samples = _Samples(text, model)
        usages = next((found for name in _USAGE if (found := samples.values(name))), [])
        if not usages:
            raise NoMetrics("no vllm:kv_cache_usage_perc in it")
        counts = {name: samples.values(f"vllm:{name}") for name in ("num_requests_running", "num_requests_waiting")}
        preempted = samples.values("vllm:num_preemptions_total") or samples.values("vllm:num_preemptions")
        every = [*usages, *counts["num_requests_running"], *counts["num_requests_waiting"], *preempted]
        if bad := [each for each in every if not math.isfinite(each) or each < 0 or each > 1e15]:
            raise NoMetrics(f"a value of {bad[0]:g} cannot be")
        if (highest := max(usages)) > 1.0:
            raise NoMetrics(f"a KV usage of {highest:g} cannot be: it is a share from 0 to 1")
        return cls(
            usage=sum(usages) / len(usages),
            running=round(sum(counts["num_requests_running"])),
            waiting=round(sum(counts["num_requests_waiting"])),
            preemptions=round(sum(preempted)),
            cache_tokens=samples.cache_tokens(),
        )


def of_all(loads: Sequence[ServerLoad]) -> ServerLoad:
    """The load of several servers among which trials are spread."""
    tokens = [each.cache_tokens for each in loads if each.cache_tokens is not None]
    return ServerLoad(
        usage=sum(each.usage for each in loads) / len(loads),
        running=sum(each.running for each in loads),
        waiting=sum(each.waiting for each in loads),
        preemptions=sum(each.preemptions for each in loads),
        cache_tokens=sum(tokens) if len(tokens) == len(loads) else None,
    )


class _Samples:
    """The samples of a text by name, with their labels."""

    def __init__(self, text: str, model: str | None) -> None:
        self._found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for match in _LINE.finditer(text):
            if match["name"].startswith("vllm:"):
                labels = dict(_LABEL.findall(match["labels"] or ""))
                self._found.setdefault(match["name"], []).append((labels, _number(match["value"])))
        self._model = model

    def values(self, name: str) -> list[float]:
        """The values of a metric: those of the model where it has any, else all."""
        found = self._found.get(name, [])
        own = [value for labels, value in found if labels.get("model_name") == self._model]
        return own or [value for _, value in found]

    def cache_tokens(self) -> int | None:
        return sum(self._blocks()) or None

    def _blocks(self) -> Iterator[int]:
        for labels, _ in self._found.get("vllm:cache_config_info", []):
            # Newer versions tell it outright; blocks hold less where several groups of layers share them.
            names = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
            tokens, blocks, size = (labels.get(name, "") for name in names)
            if tokens.isdecimal():
                yield int(tokens)
            elif blocks.isdecimal() and size.isdecimal():
                yield int(blocks) * int(size)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
