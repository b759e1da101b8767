"""The cost of a run: tokens, hours and GPU-seconds of all its attempts, in exact arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple, TypeVar

from harness.trajectory import Frozen, Usage
from tbench.results import AGENTS_WITHOUT_MODEL, UNKNOWN_TIME, TrialResult
from tbench.scores.final_results import FinalResult, FinalResults
from tbench.text import counted

_MILLION, _HOUR_USEC = 10**6, 3600 * 10**6
_USEC = timedelta(microseconds=1)
_WAITED_SEC = 0.1
"""Shortest wait that means a failed request; every request waits some microseconds before it begins."""
_LEADS = {(False, False): "", (True, False): "at least ", (False, True): "at most ", (True, True): "about "}
"""Words before an amount, by whether it may be too low, and whether it may be too high."""
Tokens = tuple[int, int, int | None, int]
"""Prompt, completion and cached tokens, and the number of replies without counts, as in `FinalResult`."""
Attempt = tuple[str, int, int]
"""Task, seed and number of an attempt."""
Agent = TypeVar("Agent", int, Attempt)


class Prices(NamedTuple):
    """Prices as in the section [cost] of a configuration; None for one that is not given."""

    prompt_price: float | None = None
    cached_price: float | None = None
    completion_price: float | None = None
    hour_price: float | None = None
    gpus: int | None = None
    currency: str = "USD"

    @property
    def are_for_tokens(self) -> bool:
        return self.prompt_price is not None and self.completion_price is not None

    @property
    def are_for_time(self) -> bool:
        return self.hour_price is not None or self.gpus is not None


class Cost(Frozen):
    """Cost of all attempts of a run, and per solved trial."""

    currency: str
    amount: float | None
    """Cost of tokens and hours; None if the number of GPUs is known, but no price."""
    per_solved: float | None
    """`amount` / solved trials; None without an amount, and if no trial was solved."""
    solved: int
    busy_sec: float | None
    """Seconds in which at least one agent was at work; None if neither price per hour nor number of GPUs is given."""
    gpu_sec: float | None
    """GPUs x `busy_sec`."""
    gpu_sec_per_solved: float | None
    unknown: tuple[str, ...] = ()
    """Parts of the cost that are unknown, and therefore missing in the figures."""
    uncached: int = 0
    """Number of attempts whose cached tokens are unknown; all their prompt tokens have the full price."""

    @property
    def words(self) -> str:
        """The cost in a few words, without the unknown parts."""
        lead = _LEADS[bool(self.unknown), bool(self.uncached)]
        money = () if self.amount is None else (money_text(self.amount, self.currency, lead),)
        gpus = () if self.gpu_sec is None else (f"{_LEADS[bool(self.unknown), False]}{self.gpu_sec:,.0f} GPU-seconds",)
        each = [] if self.per_solved is None else [money_text(self.per_solved, self.currency)]
        each += [] if self.gpu_sec_per_solved is None else [f"{self.gpu_sec_per_solved:,.0f} GPU-seconds"]
        per_solved = f"{' and '.join(each)} per solved trial" if each else "no trial is solved"
        return f"{' and '.join((*money, *gpus))}; {per_solved}"

    @property
    def line(self) -> str:
        """The cost in one line."""
        missing = f"; not counted: {', '.join(self.unknown)}" if self.unknown else ""
        cached = f"; cached tokens of {counted(self.uncached, 'attempt')} are unknown, so they have the full price"
        return f"cost: {self.words}{missing}{cached if self.uncached else ''}"


def money_text(amount: float, currency: str, lead: str = "") -> str:
    """Format an amount of money; below 1, with three significant digits."""
    return f"{lead}{amount:,.2f} {currency}" if amount >= 0.995 or not amount else f"{lead}{amount:.3g} {currency}"


def token_price(usage: Usage, prices: Prices) -> float | None:
    """Return the price of tokens; None without prices. Cached tokens have their own price, if given."""
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.uncounted
    return float(_token_price(tokens, prices)) if prices.are_for_tokens else None


def _token_price(tokens: Tokens, prices: Prices) -> Fraction:
    prompt, completion, cached, _ = tokens
    from_cache = 0 if cached is None or prices.cached_price is None else min(cached, prompt)
    whole = (prompt - from_cache) * _exact(prices.prompt_price) + completion * _exact(prices.completion_price)
    return (whole + from_cache * _exact(prices.cached_price)) / _MILLION


def token_price_text(result: TrialResult, prices: Prices) -> str:
    """Return the price of an attempt's tokens as text, with the unknown parts; empty without prices."""
    if (price := token_price(result.usage, prices)) is None:
        return ""
    attempt = FinalResult.from_result(result, result.reward)
    unknown = list(_unknown_tokens([attempt]))
    lead = _LEADS[bool(unknown), _lacks_cached(attempt, prices)]
    missing = f"; not counted: {', '.join(unknown)}" if unknown else ""
    return f"{money_text(price, prices.currency, lead)}{missing}"


def run_cost(finals: FinalResults, prices: Prices, *, solved: int, missing: int) -> Cost | None:
    """Return the cost of a run; None without prices, and for agents without a model.

    `missing` is the number of planned trials without a final result.
    """
    by_token, by_time, agents = prices.are_for_tokens, prices.are_for_time, finals.names["agent"]
    if not (by_token or by_time) or (agents and agents <= AGENTS_WITHOUT_MODEL):
        return None
    attempts = finals.attempts
    amount = sum((_token_price(each.tokens, prices) for each in attempts), Fraction())
    busy = Fraction(_busy_usec(attempts), _MILLION)
    if prices.hour_price is not None:
        amount += busy * _MILLION / _HOUR_USEC * _exact(prices.hour_price)
    gpu_sec = None if prices.gpus is None else busy * prices.gpus
    unknown = [
        *_unknown_attempts(attempts, missing),
        *(_unknown_tokens(attempts) if by_token else ()),
        *(_unknown_times(attempts) if by_time else ()),
    ]
    has_amount = by_token or prices.hour_price is not None
    return Cost(
        currency=prices.currency,
        amount=float(amount) if has_amount else None,
        per_solved=float(amount / solved) if has_amount and solved else None,
        solved=solved,
        busy_sec=float(busy) if by_time else None,
        gpu_sec=None if gpu_sec is None else float(gpu_sec),
        gpu_sec_per_solved=None if gpu_sec is None or not solved else float(gpu_sec / solved),
        unknown=tuple(unknown),
        uncached=sum(_lacks_cached(each, prices) for each in attempts),
    )


def cost_ratio(first: Cost | None, second: Cost | None) -> float | None:
    """Return the second run's cost per solved trial / the first run's, or the ratio of their GPU-seconds.

    None if it is unknown: no prices, different currencies, nothing solved, or unknown parts.
    """
    if first is None or second is None or first.currency != second.currency:
        return None
    if any(each.unknown or each.uncached for each in (first, second)):
        return None
    for one, other in (
        (first.per_solved, second.per_solved),
        (first.gpu_sec_per_solved, second.gpu_sec_per_solved),
    ):
        if one and other is not None:
            return float(Fraction(other) / Fraction(one))
    return None


def _exact(price: float | None) -> Fraction:
    """Return a price as it was written: 0.1 is 1/10. A price that is not given is 0."""
    return Fraction(repr(price or 0.0))


def _lacks_cached(result: FinalResult, prices: Prices) -> bool:
    prompt, _, cached, _ = result.tokens
    return prices.are_for_tokens and prices.cached_price is not None and cached is None and prompt > 0


# Seconds in which agents were at work: trials that run at once share them


def gpu_seconds(results: Iterable[TrialResult], gpus: int) -> dict[Attempt, float]:
    """Return the GPU-seconds of attempts whose times are known: agents at work at the same time share them equally."""
    known = {(each.task, each.seed, each.attempt): span for each in results if (span := _agent_usec(each)) is not None}
    shares: defaultdict[Attempt, float] = defaultdict(float)
    for usec, working in _busy_spans(known):
        for each in working:
            shares[each] += gpus * usec / _MILLION / len(working)
    return dict(shares)


def _busy_usec(attempts: Iterable[FinalResult]) -> int:
    """Return the microseconds in which at least one agent was at work."""
    spans = enumerate(map(_agent_usec, attempts))
    return sum(usec for usec, _ in _busy_spans({number: span for number, span in spans if span is not None}))


def _busy_spans(agents: Mapping[Agent, tuple[int, int]]) -> Iterator[tuple[int, set[Agent]]]:
    """Yield the microseconds between two changes of the agents at work, and these agents, given their start and end."""
    working: set[Agent] = set()
    before = 0
    for now, agent in sorted((time, agent) for agent, span in agents.items() for time in span):
        if working and now > before:
            yield now - before, working
        working ^= {agent}
        before = now


def _agent_usec(result: FinalResult | TrialResult) -> tuple[int, int] | None:
    """Return start and end of an attempt's agent in microseconds; None if unknown.

    It begins when the sandbox is ready. Task steps count as if they followed each other without a pause.
    """
    started, timings = result.started_at, result.timings
    aware = started if started.tzinfo is not None else started.replace(tzinfo=UTC)
    if aware == UNKNOWN_TIME or not timings.agent_sec:
        return None
    begin = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // _USEC + round(timings.sandbox_sec * _MILLION)
    return begin, begin + round(timings.agent_sec * _MILLION)


# Descriptions of unknown parts of the cost


def _unknown_attempts(attempts: Iterable[FinalResult], missing: int) -> Iterator[str]:
    known: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for each in attempts:
        known[each.task, each.seed].add(each.attempt)
    if lost := sum(max(0, max(numbers) - len(numbers)) for numbers in known.values()):
        yield f"{counted(lost, 'attempt')} without a result"
    if missing:
        yield f"{counted(missing, 'trial')} without a result"


def _unknown_tokens(attempts: Iterable[FinalResult]) -> Iterator[str]:
    attempts = list(attempts)
    if uncounted := sum(each.tokens[3] for each in attempts):
        yield f"{counted(uncounted, 'reply')} without token counts"
    if none := sum(_has_worked(each) and not any(count or 0 for count in each.tokens) for each in attempts):
        yield f"tokens of {counted(none, 'attempt')}"
    if waited := sum(each.timings.waited_sec >= _WAITED_SEC for each in attempts):
        yield f"failed requests of {counted(waited, 'attempt')} that waited"


def _unknown_times(attempts: Iterable[FinalResult]) -> Iterator[str]:
    if none := sum(_has_worked(each) and _agent_usec(each) is None for each in attempts):
        yield f"seconds of {counted(none, 'attempt')}"


def _has_worked(result: FinalResult) -> bool:
    """Whether the agent of an attempt has begun."""
    return result.steps > 0 or result.reward is not None
