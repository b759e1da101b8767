"""Everything that can go wrong on the benchmark side, in one place.

TbenchError
├── UsageError        the user has to change something; the command ends with exit code 2
│   ├── TaskInvalid       a task directory that cannot be used as it is
│   └── EngineUnavailable no container engine answers
├── TrialError        costs one trial; `type` is one of KINDS, which says stage, blame and retryable
└── (anything else is a bug: recorded on its trial as `internal`, exit code 1)

The types of TrialError by stage, with whose fault it is, and whether the trial is tried again or its error stands:

TrialError
├── plan
│   ├── task_invalid          task      stands
│   ├── task_unsupported      task      stands
│   ├── task_changed          user      stands
│   ├── env_missing           user      stands
│   ├── trust_missing         user      stands
│   └── oracle_missing        task      stands
├── image
│   ├── image_build_failed    task      stands
│   ├── image_build_timeout   task      again
│   ├── image_unavailable     infra     again
│   ├── image_denied          user      stands
│   ├── image_rate_limited    infra     again
│   └── image_no_space        infra     again
├── sandbox
│   ├── sandbox_failed        infra     again
│   ├── engine_unreachable    infra     again
│   ├── healthcheck_failed    task      again
│   ├── service_failed        task      again
│   └── setup_failed          task      again
├── terminal
│   └── terminal_failed       infra     again
├── agent
│   ├── sandbox_lost          infra     again
│   ├── endpoint_unavailable  endpoint  again
│   ├── reply_timeout         user      stands
│   ├── endpoint_refused      user      stands
│   ├── request_too_large     infra     stands
│   ├── never_answered        endpoint  stands
│   ├── agent_crashed         user      stands
│   ├── aborted               user      stands
│   ├── rewound               user      again
│   └── internal              harness   stands
├── verifier
│   ├── verifier_failed       infra     again
│   ├── verifier_timeout      task      stands
│   ├── verifier_no_reward    task      stands
│   ├── verifier_bad_reward   task      stands
│   ├── verifier_tampered     agent     stands
│   ├── artifacts_too_large   agent     stands
│   ├── tests_missing         task      stands
│   └── verifier_never_ran    infra     again
└── result
    └── result_unwritable     infra     again

A failed trial is data: it is attributed once, at the boundary where it happened, and never scored as 0 silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tbench.results import Blame, ErrorInfo, Stage
from tbench.text import one_line, visible


class TbenchError(Exception):
    """Base of all errors that tbench raises on purpose. What the message quotes is visible text, whoever it is from."""

    def __init__(self, message: str = "") -> None:
        super().__init__(visible(message))


class UsageError(TbenchError):
    """An error that the user can mend: one line that names file, key or host and says what to do. Exit code 2."""


class TaskInvalid(UsageError):
    """A task directory that cannot be used: names the file and the key."""


class EngineUnavailable(UsageError):
    """No container engine answers; the message says why and what to do."""


@dataclass(frozen=True)
class Kind:
    """What a type of error means: stage, blame, and whether another attempt may heal it."""

    stage: Stage
    blame: Blame
    retryable: bool
    meaning: str


REWOUND = "rewound"
"""Type of the error of an attempt that is done again up to a step."""
KINDS: dict[str, Kind] = {
    "task_invalid": Kind(
        Stage.PLAN, Blame.TASK, False, "the task directory is malformed; the message names file and key"
    ),
    "task_unsupported": Kind(Stage.PLAN, Blame.TASK, False, "the task needs a feature that tbench does not have"),
    "task_changed": Kind(
        Stage.PLAN, Blame.USER, False, "a file of the task is no longer the one that its hash was taken of"
    ),
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
        "docker_image can neither be pulled nor built, or an image is removed again and again",
    ),
    "image_denied": Kind(
        Stage.IMAGE, Blame.USER, False, "the registry wants a login, or refuses the one that Docker's configuration has"
    ),
    "image_rate_limited": Kind(Stage.IMAGE, Blame.INFRA, True, "the registry's rate limit was still in the way"),
    "image_no_space": Kind(Stage.IMAGE, Blame.INFRA, True, "the engine's disk is full, or nearly so"),
    "engine_unreachable": Kind(Stage.SANDBOX, Blame.INFRA, True, "the engine stopped answering and did not come back"),
    "sandbox_failed": Kind(Stage.SANDBOX, Blame.INFRA, True, "the engine could not create or start the container"),
    "healthcheck_failed": Kind(Stage.SANDBOX, Blame.TASK, True, "the task's healthcheck never succeeded"),
    "service_failed": Kind(
        Stage.SANDBOX, Blame.TASK, True, "a service of the task's compose file ended before the agent began"
    ),
    "setup_failed": Kind(Stage.SANDBOX, Blame.TASK, True, "the setup.sh of a step of the task failed"),
    "sandbox_lost": Kind(Stage.AGENT, Blame.INFRA, True, "the container ended or vanished under the agent"),
    "terminal_failed": Kind(Stage.TERMINAL, Blame.INFRA, True, "tmux could not be started in the container"),
    "endpoint_unavailable": Kind(
        Stage.AGENT, Blame.ENDPOINT, True, "the endpoint kept failing until the budget was spent"
    ),
    "reply_timeout": Kind(
        Stage.AGENT, Blame.USER, False, "a reply took longer than one request may, while the endpoint was there"
    ),
    "endpoint_refused": Kind(Stage.AGENT, Blame.USER, False, "the endpoint refused the request (4xx)"),
    "request_too_large": Kind(
        Stage.AGENT, Blame.INFRA, False, "something on the way to the endpoint takes no request of this size"
    ),
    "never_answered": Kind(Stage.AGENT, Blame.ENDPOINT, False, "the agent ended without a single reply of the model"),
    "agent_crashed": Kind(Stage.AGENT, Blame.USER, False, "your own agent raised an exception or returned no outcome"),
    "aborted": Kind(Stage.AGENT, Blame.USER, False, "somebody ended the trial by hand"),
    REWOUND: Kind(Stage.AGENT, Blame.USER, True, "somebody rewound the trial; the attempt that follows goes on"),
    "verifier_failed": Kind(Stage.VERIFIER, Blame.INFRA, True, "the engine could not stage or run the verifier"),
    "verifier_timeout": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier took longer than its timeout_sec"),
    "verifier_no_reward": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier left no reward file, or an empty one"),
    "verifier_bad_reward": Kind(Stage.VERIFIER, Blame.TASK, False, "the reward is not one number within its range"),
    "verifier_never_ran": Kind(Stage.VERIFIER, Blame.INFRA, True, "the reward is 0 but no test ever ran"),
    "verifier_tampered": Kind(
        Stage.VERIFIER, Blame.AGENT, False, "the agent kept the verifier from judging, or forged its verdict"
    ),
    "artifacts_too_large": Kind(
        Stage.VERIFIER, Blame.AGENT, False, "the agent left more to hand over to the verifier than is taken"
    ),
    "tests_missing": Kind(Stage.VERIFIER, Blame.TASK, False, "the verifier's own image has no /tests/test.sh"),
    "result_unwritable": Kind(Stage.RESULT, Blame.INFRA, True, "the trial's files could not be written"),
    "internal": Kind(Stage.AGENT, Blame.HARNESS, False, "a bug in tbench; the traceback lies beside the result"),
}


@dataclass(frozen=True)
class Origin:
    """The call about a sandbox that an error comes from."""

    call: str
    is_fresh: bool
    """Whether the agent never was in that sandbox, nor anything that it left."""
    status: int | None = None
    """The status with which the engine refused the call; None where it did not refuse it, or gave no answer."""
    ran: bool = False
    """Whether the engine did what it was asked for, so that the failure is that of what ran inside."""

    def __str__(self) -> str:
        whose = "a fresh container" if self.is_fresh else "the agent's container"
        return f"{self.call}, {whose}" + (f", status {self.status}" if self.status is not None else "")


class TrialError(TbenchError):
    """An error that keeps one trial from getting a verdict. `files` are stored beside its result, as evidence.

    `origin` is set where the error happens, if a sandbox has to do with it.
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
        """Whether what the agent did may be the reason: something ran where the agent was, and it was what failed.

        Of whatever nobody has said that, the agent is not the cause.
        """
        return self.origin is not None and self.origin.ran and not self.origin.is_fresh

    def info(self) -> ErrorInfo:
        return ErrorInfo(
            stage=self.stage,
            type=self.type,
            blame=self.kind.blame,
            retryable=self.kind.retryable,
            message=one_line(str(self)),
        )
