"""The causes of failed trials: rules in order of precedence, each with the words that prove it.

Each trial that did not pass gets the first cause whose rule holds. Rules read recorded files only. Without proof of a
cause, the loss is the model's (`model`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from harness.trajectory import Outcome, Step
from tbench.explaining.trials import Side, Trial
from tbench.results import Blame, is_tool_failure
from tbench.storage.read_run import StoredRun
from tbench.text import one_line

Party = Literal["harness", "server", "machine", "task", "model", "person", "unclear"]
"""The party responsible for lost points. `harness` includes the run's settings; `unclear` means several are
possible."""
MODEL = "model"
_SHARE = 1 / 3
"""If at least this share of replies is faulty, they explain a trial that ended at a limit."""
_LAST_STEPS = 3
_NEAR = 0.97
"""Share of a limit from which it counts as reached."""
_QUOTED_CHARS = 160
_SHORT_STEPS = 2
"""Maximum number of steps of a trial that is checked for a submission without any typing."""


@dataclass(frozen=True)
class KnownLimits:
    """The limits in force in a run; None for an unknown limit and for no limit."""

    context_tokens: int | None = None
    max_tokens: int | None = None
    steps: int | None = None
    format_errors: int | None = None
    completion_tokens: int | None = None
    command_sec: float | None = None

    @classmethod
    def of(cls, run: StoredRun) -> KnownLimits:
        if (document := run.document) is None:
            return cls()
        limits, model, served = document.config.limits, document.config.model, document.locked.served
        windows = [limits.context_tokens, served.context_tokens if served is not None else None]
        bash = "bash" in document.locked.agent
        return cls(
            context_tokens=min((each for each in windows if each is not None), default=None),
            max_tokens=model.max_tokens,
            steps=limits.steps,
            format_errors=limits.format_errors,
            completion_tokens=limits.completion_tokens,
            command_sec=limits.command_sec if bash else None,
        )


@dataclass
class Evidence:
    """Evidence about one failed trial that rules read. Steps are read from the disk when a rule first asks for them."""

    trial: Trial
    limits: KnownLimits = field(default_factory=KnownLimits)
    read_steps: Callable[[], Sequence[Step]] = tuple
    read_failed_test: Callable[[], str] = str
    """Reads the first failed test of the verifier."""
    may_read: bool = True
    """Whether rules may read steps to decide; otherwise they decide by the result alone."""

    @cached_property
    def steps(self) -> Sequence[Step]:
        return self.read_steps() if self.may_read else ()

    @property
    def error_type(self) -> str:
        return self.trial.error.type if self.trial.error is not None else ""

    @property
    def blame(self) -> Blame | None:
        return self.trial.error.blame if self.trial.error is not None else None

    @property
    def hit_a_time_limit(self) -> bool:
        return self.trial.outcome is Outcome.AGENT_TIMEOUT or self.error_type == "verifier_timeout"

    def share(self, *signs: str) -> float:
        """Return the share of replies with any of these signs; at most 1."""
        count = sum(self.trial.signs.get(sign, 0) for sign in signs)
        return min(1.0, count / max(1, self.trial.replies))


Proof = Callable[[Evidence], str | None]
"""Returns the words that prove a cause; None if its rule does not hold."""


@dataclass(frozen=True)
class Rule:
    """A cause and the rule that gives it to a trial."""

    key: str
    title: str
    """Name of the cause in tables, such as `context full`."""
    party: Party
    """The responsible party in a single run."""
    when: str
    """The rule in words, for the documentation."""
    proof: Proof
    step: Callable[[Evidence], int | None] = lambda evidence: evidence.trial.steps or None
    """Returns the number of the step at which the cause shows; None without such a step."""
    levers: tuple[str, ...] = ()
    """Facts of the experiment that may cause such failures: if one has moved, its party is responsible. A name that
    ends with a dot is a section of settings."""
    otherwise: Party | None = None
    """The responsible party in a difference if none of the levers has moved; None for `party`."""


def _error(evidence: Evidence) -> str:
    error = evidence.trial.error
    return "" if error is None else f"{error.type}: {one_line(error.message, _QUOTED_CHARS)}"


def _no_result(evidence: Evidence) -> str | None:
    return None if evidence.trial.attempt else "the trial was planned and has no result"


def _error_of(*types: str) -> Proof:
    """Return the proof by an error of these types."""
    return lambda evidence: _error(evidence) if evidence.error_type in types else None


def _blamed_on(*blames: Blame) -> Proof:
    """Return the proof by an error that is blamed on one of these."""
    return lambda evidence: _error(evidence) if evidence.blame in blames else None


def _tampering(evidence: Evidence) -> str | None:
    if evidence.error_type == "verifier_tampered":
        return _error(evidence)
    return evidence.trial.tamper[0] if evidence.trial.tamper else None


def _machine(evidence: Evidence) -> str | None:
    host = evidence.trial.host
    if host is None or not (evidence.trial.is_pressed and evidence.hit_a_time_limit):
        return None
    what = evidence.error_type or str(evidence.trial.outcome)
    signs = [f"load up to {host.load_max:.1f} per cpu"] if (host.load_max or 0) > 0 else []
    signs += [f"waited for memory {100 * host.memory_stall_max:.0f} % of the time"] if host.memory_stall_max else []
    signs += [f"the clock jumped by {host.clock_jump_sec:.0f} s"] if host.clock_jump_sec else []
    return f"{what} while the machine was overloaded: {', '.join(signs)}"


def _endpoint(evidence: Evidence) -> str | None:
    is_refused = evidence.error_type in ("endpoint_refused", "request_too_large")
    return _error(evidence) if evidence.blame is Blame.ENDPOINT or is_refused else None


def _infrastructure(evidence: Evidence) -> str | None:
    if evidence.blame is Blame.INFRA:
        return _error(evidence)
    if evidence.trial.outcome is Outcome.TERMINAL_LOST:
        return "terminal_lost: the terminal was lost and could not be brought back"
    return next((each for each in evidence.trial.remarks if is_tool_failure(each)), None)


def _out_of_memory(evidence: Evidence) -> str | None:
    return (
        "the kernel killed a process because the container's memory ran out" if evidence.trial.out_of_memory else None
    )


def _disk_limit(evidence: Evidence) -> str | None:
    if evidence.trial.outcome is not Outcome.DISK_LIMIT:
        return None
    return "disk_limit: more was written than the container may hold"


def _context_full(evidence: Evidence) -> str | None:
    window = evidence.limits.context_tokens
    of = f" of {window:,} tokens" if window is not None else ""
    if count := evidence.trial.signs.get("prompt_truncated", 0):
        return f"the server silently truncated the prompts of {count} of {evidence.trial.replies} replies"
    if evidence.trial.outcome is not Outcome.CONTEXT_LIMIT:
        return None
    used = ""
    if evidence.steps:
        usage = evidence.steps[-1].reply.usage
        used = f" after a prompt of {usage.prompt_tokens:,} and a reply of {usage.completion_tokens:,} tokens"
    return f"context_limit: the context{of} was full{used}"


_ENDED_EARLY = (Outcome.FORMAT_LIMIT, Outcome.STEP_LIMIT, Outcome.TOKEN_LIMIT, Outcome.AGENT_TIMEOUT)


def _is_cut(step: Step) -> bool:
    return step.reply.cut or step.format_error == "reply_cut"


def _reply_cut(evidence: Evidence) -> str | None:
    """Return the proof if cut replies ended the trial: most of the last unusable ones were cut, or a third of all."""
    trial, cut = evidence.trial, evidence.trial.signs.get("cut", 0)
    if not cut or trial.outcome not in _ENDED_EARLY:
        return None
    if trial.outcome is Outcome.FORMAT_LIMIT:
        most = evidence.limits.format_errors or 5
        last = evidence.steps[-most:]
        holds = 2 * sum(map(_is_cut, last)) > len(last) if last else 2 * cut > most
    else:
        holds = evidence.share("cut") >= _SHARE
    at = f" at {evidence.limits.max_tokens:,} tokens" if evidence.limits.max_tokens is not None else ""
    return f"{trial.outcome}: {cut} of {trial.replies} replies were cut{at}, and not executed" if holds else None


_PARSER_SIGNS = ("raw_tool_call", "channel_tokens", "reasoning_only")


def _parser(evidence: Evidence) -> str | None:
    if evidence.trial.outcome not in _ENDED_EARLY or evidence.share(*_PARSER_SIGNS) < _SHARE:
        return None
    seen = [f"{sign} in {count}" for sign in _PARSER_SIGNS if (count := evidence.trial.signs.get(sign, 0))]
    return f"{evidence.trial.outcome}: the server did not parse replies: {', '.join(seen)} of {evidence.trial.replies}"


def _format_errors(evidence: Evidence) -> str | None:
    if evidence.trial.outcome is not Outcome.FORMAT_LIMIT:
        return None
    kinds = [step.format_error for step in evidence.steps if step.format_error]
    return f"format_limit: too many unusable replies in a row{f', the last one {kinds[-1]}' if kinds else ''}"


def _token_limit(evidence: Evidence) -> str | None:
    if evidence.trial.outcome is not Outcome.TOKEN_LIMIT:
        return None
    return (
        f"token_limit: all {evidence.limits.completion_tokens or evidence.trial.completion_tokens:,} tokens were used"
    )


def _step_limit(evidence: Evidence) -> str | None:
    if evidence.trial.outcome is not Outcome.STEP_LIMIT:
        return None
    return f"step_limit: all {evidence.limits.steps or evidence.trial.steps:,} steps were used"


def _agent_timeout(evidence: Evidence) -> str | None:
    trial = evidence.trial
    if trial.outcome is not Outcome.AGENT_TIMEOUT:
        return None
    spent = f"{trial.model_sec:.0f} s for {trial.steps} replies and {trial.command_sec:.0f} s for commands"
    return f"agent_timeout: {spent} used up the task's time"


def _commands_at_limit(evidence: Evidence) -> list[Step]:
    limit = evidence.limits.command_sec
    if limit is None or evidence.trial.command_sec < _NEAR * limit:
        return []
    last = [step for step in evidence.steps if step.actions][-_LAST_STEPS:]
    return [step for step in last if step.command_sec >= _NEAR * limit and step.exit_code is None]


def _command_limit(evidence: Evidence) -> str | None:
    found = _commands_at_limit(evidence)
    if not found:
        return None
    typed = one_line(found[-1].actions[-1], 60)
    return f"a command was ended after {evidence.limits.command_sec:g} s: {typed}"


def _no_submission(evidence: Evidence) -> str | None:
    if evidence.trial.outcome is not Outcome.SUBMITTED or evidence.trial.steps > _SHORT_STEPS or not evidence.steps:
        return None
    return None if any(step.actions for step in evidence.steps) else "submitted without typing anything"


def _model(evidence: Evidence) -> str | None:
    ended = f"{evidence.trial.outcome}; " if evidence.trial.outcome is not None else ""
    reward = "no reward" if evidence.trial.reward is None else f"reward {evidence.trial.reward:g}"
    failed = evidence.read_failed_test()
    return f"{ended}the verifier gave {reward}{f'; {one_line(failed, _QUOTED_CHARS)}' if failed else ''}"


_TIME_LIMITS = ("overrides.agent_timeout_multiplier", "overrides.timeout_multiplier")
RULES: tuple[Rule, ...] = (
    Rule("no_result", "no result", "unclear", "planned, but without a result", _no_result),
    Rule(
        "not_counted",
        "does not count",
        "person",
        "a person intervened, or the trial was interrupted and continued differently",
        _error_of("human_touched", "went_on", "aborted", "rewound"),
    ),
    Rule("tampering", "tampering", "model", "the verdict was forged or prevented, or a strong sign of it", _tampering),
    Rule(
        "machine",
        "machine overloaded",
        "machine",
        "`agent_timeout` or `verifier_timeout` with load above 2 per cpu, 20 % memory stalls, or a clock jump of 5 s",
        _machine,
        levers=(
            "machine.load",
            "machine.pace",
            "schedule.concurrency",
            "schedule.cpu_overcommit",
            *_TIME_LIMITS,
            "overrides.verifier_timeout_multiplier",
            "server.pace",
        ),
        otherwise="unclear",
    ),
    Rule(
        "request_timeout",
        "request timeout",
        "harness",
        "error `reply_timeout`",
        _error_of("reply_timeout"),
        levers=("model.request_timeout_sec", "server.pace", "model.max_tokens"),
        otherwise="unclear",
    ),
    Rule(
        "endpoint",
        "endpoint failed",
        "server",
        "any other error of the endpoint: refused, away, never answered, request too large",
        _endpoint,
    ),
    Rule(
        "infrastructure",
        "infrastructure",
        "machine",
        "an error with blame `infra`, outcome `terminal_lost`, or reward 0 with a failed tool of the verifier",
        _infrastructure,
        levers=("sandbox.", "verify."),
    ),
    Rule(
        "setup",
        "settings or a bug",
        "harness",
        "an error with blame `user` or `harness`",
        _blamed_on(Blame.USER, Blame.HARNESS),
    ),
    Rule(
        "task",
        "task",
        "task",
        "an error with blame `task`",
        _blamed_on(Blame.TASK),
        levers=("overrides.verifier_timeout_multiplier", "overrides.timeout_multiplier", "sandbox.", "verify."),
    ),
    Rule(
        "out_of_memory",
        "out of memory",
        "task",
        "the kernel killed a process of the container",
        _out_of_memory,
        levers=("overrides.memory_mb", "image"),
        otherwise="model",
    ),
    Rule("disk_limit", "disk limit", "model", "outcome `disk_limit`", _disk_limit),
    Rule(
        "context_full",
        "context full",
        "server",
        "outcome `context_limit`, or the server truncated prompts",
        _context_full,
        levers=("server.max_model_len", "limits.context_tokens", "limits.on_overflow", "model.max_tokens"),
        otherwise="model",
    ),
    Rule(
        "reply_cut",
        "replies cut",
        "harness",
        "the trial ended at a limit, and most of the last unusable replies, or a third of all, were cut",
        _reply_cut,
        lambda evidence: max((step.index for step in evidence.steps if _is_cut(step)), default=None),
        ("model.max_tokens", "server.max_model_len", "limits.context_tokens"),
        otherwise="model",
    ),
    Rule(
        "parser",
        "server's parser",
        "server",
        "the trial ended at a limit, and the server left tool calls or thinking unparsed in a third of the replies",
        _parser,
        lambda evidence: max(
            (step.index for step in evidence.steps if set(step.reply.signs) & set(_PARSER_SIGNS)), default=None
        ),
    ),
    Rule(
        "format_errors",
        "format errors",
        "model",
        "outcome `format_limit`",
        _format_errors,
        lambda evidence: max((step.index for step in evidence.steps if step.format_error), default=None),
        ("limits.format_errors",),
    ),
    Rule(
        "token_limit",
        "token limit",
        "harness",
        "outcome `token_limit`",
        _token_limit,
        levers=("limits.completion_tokens",),
        otherwise="model",
    ),
    Rule(
        "step_limit",
        "step limit",
        "harness",
        "outcome `step_limit`",
        _step_limit,
        levers=("limits.steps",),
        otherwise="model",
    ),
    Rule(
        "agent_timeout",
        "agent timeout",
        "task",
        "outcome `agent_timeout`",
        _agent_timeout,
        levers=(
            *_TIME_LIMITS,
            "server.pace",
            "machine.pace",
            "machine.load",
        ),
        otherwise="model",
    ),
    Rule(
        "command_limit",
        "a command's limit",
        "harness",
        "one of the last three commands was ended at `limits.command_sec` (bash protocols)",
        _command_limit,
        lambda evidence: max((step.index for step in _commands_at_limit(evidence)), default=None),
        ("limits.command_sec", "machine.pace", "machine.load"),
        otherwise="model",
    ),
    Rule("no_submission", "no submission", "model", "submitted without typing anything", _no_submission),
    Rule(MODEL, "verifier's tests", "model", "everything else: the verifier judged the model's work", _model),
)
"""All rules; the first that holds gives the cause."""
BY_KEY = {rule.key: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class FoundCause:
    """The cause of a failed trial."""

    key: str
    words: str
    """The words that prove it."""
    step: int | None


def evidence_of(side: Side, trial: Trial, limits: KnownLimits, *, may_read: bool = True) -> Evidence:
    """Return the evidence about a trial that rules may read."""
    return Evidence(trial, limits, lambda: side.steps_of(trial), lambda: side.failed_test_of(trial), may_read)


def cause_key(evidence: Evidence) -> str:
    """Return the key of the first rule that holds for a trial that did not pass."""
    return next((rule.key for rule in RULES[:-1] if rule.proof(evidence) is not None), MODEL)


def find_cause(evidence: Evidence, key: str | None = None) -> FoundCause:
    """Return the cause of a trial that did not pass, with its proof; `key` names the cause if it is known."""
    rule = BY_KEY[key or cause_key(evidence)]
    return FoundCause(rule.key, rule.proof(evidence) or "", rule.step(evidence))
