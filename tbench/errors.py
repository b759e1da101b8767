"""All errors of the benchmark side.

TbenchError
├── UsageError        the user has to change something; the command exits with 2
│   ├── TaskInvalid       a task directory that cannot be used
│   └── EngineUnavailable no container engine answers
├── TrialError        ends one trial; `type` is a key of KINDS, which defines stage, blame and retryable
└── (anything else is a bug: recorded on its trial as `internal`, exit code 1)

A failed trial is data: its error is attributed once, at the boundary where it occurred, and never silently scored as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tbench.text import escape_invisible


class TbenchError(Exception):
    """Base of all errors that tbench raises on purpose. Invisible characters in the message are escaped."""

    def __init__(self, message: str = "") -> None:
        super().__init__(escape_invisible(message))


class UsageError(TbenchError):
    """An error that the user can fix. The message is one line: the file, key or host, and the remedy. Exit code 2."""


class TaskInvalid(UsageError):
    """A task directory that cannot be used. The message names the file and the key."""


class EngineUnavailable(UsageError):
    """No container engine answers. The message contains the reason and the remedy."""

    def __init__(self, message: str = "", looked_at: Sequence[str] = ()) -> None:
        """`looked_at` has a line for each place where tbench has searched for an engine."""
        super().__init__(message)
        self.looked_at = tuple(looked_at)


class Stage(StrEnum):
    """Stage of a trial in which an error occurred."""

    PLAN = "plan"
    IMAGE = "image"
    SANDBOX = "sandbox"
    TERMINAL = "terminal"
    AGENT = "agent"
    VERIFIER = "verifier"
    RESULT = "result"


class Blame(StrEnum):
    """The party at fault for an error."""

    USER = "user"
    INFRA = "infra"
    ENDPOINT = "endpoint"
    TASK = "task"
    AGENT = "agent"
    """The agent broke the rules and thereby prevented a verdict."""
    HARNESS = "harness"


@dataclass(frozen=True)
class Kind:
    """Properties of a type of error: stage, party at fault, and whether another attempt may succeed."""

    stage: Stage
    blame: Blame
    retryable: bool
    meaning: str


ABORTED = "aborted"
REWOUND = "rewound"
"""Error type of an attempt that was rewound to an earlier step."""
KINDS: dict[str, Kind] = {
    "task_invalid": Kind(
        Stage.PLAN, Blame.TASK, False, "the task directory is malformed; the message names file and key"
    ),
    "task_unsupported": Kind(Stage.PLAN, Blame.TASK, False, "the task needs a feature that tbench does not have"),
    "task_changed": Kind(Stage.PLAN, Blame.USER, False, "a file of the task changed after its hash was computed"),
    "env_missing": Kind(Stage.PLAN, Blame.USER, False, "the task asks for a variable that is not set or not allowed"),
    "trust_missing": Kind(
        Stage.PLAN, Blame.USER, False, "the task's compose file asks for access to the engine's machine"
    ),
    "oracle_missing": Kind(Stage.PLAN, Blame.TASK, False, "the task has no solution/solve.sh"),
    "image_build_failed": Kind(Stage.IMAGE, Blame.TASK, False, "building environment/Dockerfile failed"),
    "image_build_timeout": Kind(Stage.IMAGE, Blame.TASK, True, "the build took longer than build_timeout_sec"),
    "image_unavailable": Kind(
        Stage.IMAGE,
        Blame.INFRA,
        True,
        "docker_image can neither be pulled nor built, or an image keeps being removed",
    ),
    "image_denied": Kind(
        Stage.IMAGE, Blame.USER, False, "the registry requires a login, or rejects the one in Docker's configuration"
    ),
    "image_rate_limited": Kind(Stage.IMAGE, Blame.INFRA, True, "the registry's rate limit was still exceeded"),
    "image_no_space": Kind(Stage.IMAGE, Blame.INFRA, True, "the engine's disk is full or almost full"),
    "engine_unreachable": Kind(Stage.SANDBOX, Blame.INFRA, True, "the engine stopped answering and did not come back"),
    "sandbox_failed": Kind(Stage.SANDBOX, Blame.INFRA, True, "the engine could not create or start the container"),
    "healthcheck_failed": Kind(Stage.SANDBOX, Blame.TASK, True, "the task's healthcheck never succeeded"),
    "service_failed": Kind(
        Stage.SANDBOX, Blame.TASK, True, "a service of the task's compose file ended before the agent began"
    ),
    "setup_failed": Kind(Stage.SANDBOX, Blame.TASK, True, "the setup.sh of a task step failed"),
    "sandbox_lost": Kind(Stage.AGENT, Blame.INFRA, True, "the container exited or vanished while the agent worked"),
    "terminal_failed": Kind(Stage.TERMINAL, Blame.INFRA, True, "tmux could not be started in the container"),
    "endpoint_unavailable": Kind(
        Stage.AGENT, Blame.ENDPOINT, True, "the endpoint kept failing until the retry budget was spent"
    ),
    "reply_timeout": Kind(
        Stage.AGENT, Blame.USER, False, "a reply exceeded the request timeout although the endpoint was up"
    ),
    "endpoint_refused": Kind(Stage.AGENT, Blame.USER, False, "the endpoint refused the request (4xx)"),
    "request_too_large": Kind(
        Stage.AGENT, Blame.INFRA, False, "something between tbench and the endpoint rejects requests of this size"
    ),
    "never_answered": Kind(Stage.AGENT, Blame.ENDPOINT, False, "the agent ended without a single reply from the model"),
    "agent_crashed": Kind(
        Stage.AGENT,
        Blame.USER,
        False,
        "your own agent raised an exception or returned no outcome, or a packaged agent failed",
    ),
    ABORTED: Kind(Stage.AGENT, Blame.USER, False, "a person ended the trial"),
    REWOUND: Kind(Stage.AGENT, Blame.USER, True, "a person rewound the trial; the next attempt goes on from there"),
    "verifier_failed": Kind(Stage.VERIFIER, Blame.INFRA, True, "the engine could not stage or run the verifier"),
    "verifier_timeout": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier took longer than its timeout_sec"),
    "verifier_no_reward": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier left no reward file, or an empty one"),
    "verifier_bad_reward": Kind(Stage.VERIFIER, Blame.TASK, False, "the reward is not one number in its range"),
    "verifier_never_ran": Kind(Stage.VERIFIER, Blame.INFRA, True, "the reward is 0, but no test ran"),
    "verifier_tampered": Kind(Stage.VERIFIER, Blame.AGENT, False, "the agent prevented the verdict or forged it"),
    "artifacts_too_large": Kind(
        Stage.VERIFIER, Blame.AGENT, False, "the agent's artifacts for the verifier exceed the limit"
    ),
    "disk_full": Kind(Stage.VERIFIER, Blame.AGENT, False, "the agent wrote too much for the verifier to run"),
    "tests_missing": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier's own image has no /tests/test.sh"),
    "result_unwritable": Kind(Stage.RESULT, Blame.INFRA, True, "the trial's files could not be written"),
    "internal": Kind(Stage.AGENT, Blame.HARNESS, False, "a bug in tbench; the traceback is stored with the result"),
}


@dataclass(frozen=True)
class Origin:
    """The sandbox call that caused an error."""

    call: str
    is_fresh: bool
    """Whether neither the agent nor any of its work was ever in the sandbox."""
    status: int | None = None
    """Status with which the engine refused the call; None if it did not refuse it or did not answer."""
    ran: bool = False
    """Whether the engine executed the call, so that the failure is in the process that ran inside."""

    def __str__(self) -> str:
        whose = "a fresh container" if self.is_fresh else "the agent's container"
        return f"{self.call}, {whose}" + (f", status {self.status}" if self.status is not None else "")


class TrialError(TbenchError):
    """An error that prevents a trial's verdict. `files` are stored with its result, as evidence.

    `origin` is set where the error occurs, if a sandbox is involved.
    """

    def __init__(
        self,
        type_: str,
        message: str,
        *,
        stage: Stage | None = None,
        files: Mapping[str, bytes] | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(message)
        self.files = files or {}
        self.type = type_
        self.kind = KINDS[type_]
        self.stage = stage or self.kind.stage
        self.origin = origin

    def __str__(self) -> str:
        return super().__str__() if self.origin is None else f"{super().__str__()} ({self.origin})"

    @property
    def agent_can_cause(self) -> bool:
        """Whether the agent may be the cause: a process failed that ran in the agent's container."""
        return self.origin is not None and self.origin.ran and not self.origin.is_fresh
