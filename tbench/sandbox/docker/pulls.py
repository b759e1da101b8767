"""Pulls published images: each once, a few at a time, with progress and retries."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from tbench.errors import TbenchError
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, PullStream
from tbench.sandbox.docker.login import Login, LoginUnreadable, find_login
from tbench.sandbox.docker.manifest import requested_wait_sec
from tbench.sandbox.image import ImageName
from tbench.text import one_line, size_text

_WAITING = ("Pulling fs layer", "Waiting")
_ARRIVED = ("Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists")


class PullProgress:
    """Progress of one pull, summed over layers. `take` is called from one thread, `status` from any."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._sizes: dict[str, int] = {}
        self._loaded: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._sums = (0, 0, False)
        """Bytes loaded, total bytes of all layers whose size is known, and whether the size of others is unknown."""

    def take(self, message: Mapping[str, Any]) -> None:
        """Count a message of the engine; messages that are not about a layer are ignored."""
        layer, status = message.get("id"), str(message.get("status") or "")
        if not isinstance(layer, str):
            return
        detail = message.get("progressDetail")
        current, total = (_number(detail, key) for key in ("current", "total"))
        if status.startswith(_WAITING):
            self._waiting.add(layer)
        elif status == "Downloading" and total:
            self._waiting.discard(layer)
            size = max(total, self._sizes.get(layer, 0))  # after an interruption the total is only the rest
            self._sizes[layer], self._loaded[layer] = size, min(size - total + current, size)
        elif status.startswith(_ARRIVED):
            self._waiting.discard(layer)
            self._loaded[layer] = self._sizes.get(layer, 0)
        # One tuple, since another thread must not sum a dictionary while it grows.
        self._sums = (sum(self._loaded.values()), sum(self._sizes.values()), bool(self._waiting))

    @property
    def status(self) -> str:
        """Progress so far, such as `120 of 410 MB`; a `+` means that more layers of unknown size follow.

        Empty if the engine reports no bytes, as Podman does.
        """
        loaded, total, is_more = self._sums
        if not total:
            return ""
        whole = size_text(total)
        unit = whole[-3:]
        return f"{size_text(loaded).removesuffix(unit)} of {whole}{'+' if is_more else ''}"

    @property
    def summary(self) -> str:
        """Size and duration, such as `410 MB in 63 s`."""
        loaded, _, _ = self._sums
        what = f"{size_text(loaded)} in " if loaded else ""
        return f"{what}{time.monotonic() - self._started:.0f} s"


def _number(detail: Any, key: str) -> int:
    value = detail.get(key) if isinstance(detail, Mapping) else None
    return int(value) if isinstance(value, int | float) and value > 0 else 0


# The kind of a failure is read from the engine's message. There are no codes: a registry's 429, 401 or 500 all arrive
# as 500, or within an answer that began with 200.

PullFailureKind = Literal[
    "away", "silent", "slow", "passing", "rate-limited", "denied", "missing", "no-space", "unreadable"
]
"""`away`: the registry cannot be reached; `silent`: no answer in time; `slow`: the pull exceeded its time limit;
`passing`: a cut connection or a 5xx; `missing`: no such image; `unreadable`: not a registry's answer, or any other
permanent failure."""

_PATTERNS: tuple[tuple[PullFailureKind, str], ...] = (
    ("no-space", r"no space left on device|disk quota exceeded"),
    ("rate-limited", r"toomanyrequests|too many requests|HTTP 429|status: 429|rate limit"),
    ("missing", r"not found|manifest unknown|name unknown|unknown blob|repository does not exist|HTTP 404|status: 404"),
    (
        "denied",
        r"unauthorized|authentication required|no basic auth|denied|forbidden|HTTP 40[13]|status: 40[13]"
        r"|incorrect username or password",
    ),
    # A status of 5xx, not a number in a name.
    ("passing", r"status:? 5\d\d|HTTP 5\d\d|5\d\d (Internal|Bad Gateway|Service|Gateway)"),
    ("slow", r"^took longer than \d+ s$"),
    ("away", r"no such host|connection refused|no route to host|network is unreachable|server gave HTTP response"),
    ("silent", r"time-?out|timed out|deadline exceeded|did not answer|Temporary failure"),
    (
        "passing",
        r"\bEOF\b|connection reset|broken pipe|transport connection broken|connection closed|stream error"
        r"|INTERNAL_ERROR|server closed|use of closed network|IncompleteRead|download failed after attempts",
    ),
    ("away", r"dial tcp"),
)
_QUOTED_URL = re.compile(r'"https?://[^"]*"')


class PullFailed(TbenchError):
    """A failed pull. The message names the registry, the problem and the remedy."""

    def __init__(
        self, kind: PullFailureKind, message: str, *, engine_message: str = "", retry_after_sec: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.engine_message = engine_message or message
        self.retry_after_sec = retry_after_sec
        """Seconds that the registry asks to wait; None if unknown."""


def failure_kind(engine_message: str, name: ImageName) -> PullFailureKind:
    """Classify a failed pull by the engine's message."""
    message = _QUOTED_URL.sub("", engine_message)
    for own in (name.text, name.reference, name.repository, name.path):
        message = message.replace(own, "")  # a name may look like any of the patterns
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, message, re.IGNORECASE)), "unreadable")


AT_ONCE = 3
PULL_SEC = 1800.0
_SILENCE_SEC = 300.0
"""Longest time without a message. The engine reports a layer's progress about every second."""
_SILENCE, _DEADLINE = re.compile("Read timed out"), re.compile("the engine did not answer")
_REPORT_EVERY_SEC = 5.0
_LOGIN_SEC, _ASKING_SEC = 60.0, 10.0
_SILENT_ATTEMPTS = 2
"""Attempts at a registry that has never answered."""


@dataclass(frozen=True)
class RetryPolicy:
    """Limits for retries of one pull."""

    attempts: int = 6
    total_sec: float = 300.0
    """Maximum of all pauses together, including those that a registry asks for."""
    first_sec: float = 2.0
    """Upper bound of the first random pause; doubles with every attempt."""
    most_sec: float = 60.0


@dataclass
class _Registry:
    """State of a registry during a run."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    answers: bool = False
    away: PullFailed | None = None
    """Reason why it cannot be reached; other pulls then fail at once."""
    not_before: float = 0.0
    """Time before which no requests are sent, because of a rate limit."""
    is_limited: bool = False
    """Whether a pull has waited for the rate limit in vain."""


@dataclass(kw_only=True)
class Pulls:
    """The pulls of one run."""

    engine: Engine = field(kw_only=False)
    at_once: int = AT_ONCE
    """Maximum number of concurrent attempts."""
    pull_sec: float = PULL_SEC
    """Time limit of one attempt."""
    retries: RetryPolicy = RetryPolicy()
    say: Callable[[str], None] = lambda _: None
    report_every_sec: float = _REPORT_EVERY_SEC

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)
        self._registries: dict[str, _Registry] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._pulled: set[str] = set()

    def forget(self, name: ImageName) -> None:
        """Mark the image as missing, so that the next `pull` pulls it again."""
        self._pulled.discard(name.reference)

    async def pull(self, name: ImageName, who: str) -> None:
        """Pull an image unless this run has pulled it before; progress lines begin with `who`.

        Raises PullFailed, and EngineUnreachable if no engine answers.
        """
        async with self._locks.setdefault(name.reference, asyncio.Lock()):
            if name.reference in self._pulled:
                return
            registry = self._registries.setdefault(name.registry, _Registry())
            async with self._first_contact(registry) as answered:
                if registry.away is not None:
                    raise PullFailed("away", str(registry.away), engine_message=registry.away.engine_message)
                await self._pull_with_retries(registry, name, who, answered)
            self._pulled.add(name.reference)

    @contextlib.asynccontextmanager
    async def _first_contact(self, registry: _Registry) -> AsyncIterator[Callable[[], None]]:
        """Hold back other pulls until the first one knows that the registry answers, and calls the yielded function."""
        if registry.answers:
            yield lambda: None
            return
        await registry.asking.acquire()
        with contextlib.ExitStack() as others:
            others.callback(registry.asking.release)

            def answered() -> None:
                registry.answers = True
                others.close()  # release them at the first answer, not at the end of a long pull

            if registry.answers:
                others.close()
            yield answered

    async def _pull_with_retries(
        self, registry: _Registry, name: ImageName, who: str, answered: Callable[[], None]
    ) -> None:
        """Pull an image, retrying temporary failures. Raises PullFailed."""
        attempts = AsyncRetrying(
            retry=retry_if_exception(lambda error: self._is_retryable(registry, error)),
            wait=self._pause,
            stop=lambda state: self._is_exhausted(registry, state),
            before_sleep=lambda state: self._report_pause(registry, name, who, state),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    await self._attempt(registry, name, who, answered)
        except PullFailed as failed:
            if failed.kind in ("away", "silent"):
                # A registry that has answered before gets one more chance, but without waiting for it again.
                registry.away, registry.answers = None if registry.answers else failed, False
            registry.is_limited = registry.is_limited or failed.kind == "rate-limited"
            raise
        registry.is_limited = False

    def _is_retryable(self, registry: _Registry, error: BaseException) -> bool:
        if not isinstance(error, PullFailed):
            return False
        if error.kind == "away":  # a registry that has answered before may come back
            return registry.answers
        return error.kind in ("passing", "rate-limited", "silent")

    def _pause(self, state: RetryCallState) -> float:
        error, retries = _failure(state), self.retries
        own = wait_random_exponential(retries.first_sec, retries.most_sec)(state)
        return max(own, error.retry_after_sec or 0.0)

    def _is_exhausted(self, registry: _Registry, state: RetryCallState) -> bool:
        error, retries = _failure(state), self.retries
        if error.kind == "silent" and not registry.answers and state.attempt_number >= _SILENT_ATTEMPTS:
            return True
        if error.kind == "rate-limited" and registry.is_limited:
            return True
        return state.attempt_number >= retries.attempts or state.idle_for + state.upcoming_sleep > retries.total_sec

    def _report_pause(self, registry: _Registry, name: ImageName, who: str, state: RetryCallState) -> None:
        error, pause_sec = _failure(state), state.upcoming_sleep
        if error.kind == "rate-limited":
            registry.not_before = max(registry.not_before, time.monotonic() + pause_sec)
        why = str(error) if error.kind == "rate-limited" else error.engine_message
        self.say(f"{who}: {name.display_name}: {one_line(why, 200)}; trying again in {pause_sec:.0f} s")

    async def _attempt(self, registry: _Registry, name: ImageName, who: str, answered: Callable[[], None]) -> None:
        login: Login | None = None
        try:
            login = await self.engine.call(find_login, name.registry, deadline_sec=_LOGIN_SEC)
            async with self._slot(registry):
                await self._pull_once(name, who, login, answered)
        except LoginUnreadable as error:
            raise PullFailed("denied", str(error)) from None
        except EngineUnreachable as error:
            if not error.sent:
                raise
            raise PullFailed("passing", f"the engine went away: {error}") from error
        except EngineError as error:
            kind = failure_kind(str(error), name)
            if kind not in ("away", "silent"):
                answered()
            wait_sec = await self._asked_to_wait(name, login) if kind == "rate-limited" else None
            message = _message(kind, str(error), name, login)
            raise PullFailed(kind, message, engine_message=str(error), retry_after_sec=wait_sec) from error

    @contextlib.asynccontextmanager
    async def _slot(self, registry: _Registry) -> AsyncIterator[None]:
        """Take one of the slots for concurrent pulls, after the registry's rate limit has passed."""
        while True:
            if (pause_sec := registry.not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause_sec)
            async with self._slots:
                if registry.not_before <= time.monotonic():
                    yield
                    return

    async def _asked_to_wait(self, name: ImageName, login: Login | None) -> float | None:
        """Ask the registry for its waiting time, which the engine does not pass on."""
        with contextlib.suppress(EngineError):
            return await self.engine.call(requested_wait_sec, name, login, deadline_sec=_ASKING_SEC)
        return None

    async def _pull_once(self, name: ImageName, who: str, login: Login | None, answered: Callable[[], None]) -> None:
        self.say(f"{who}: pulling {name.display_name}")
        progress = PullProgress()
        reporting = asyncio.create_task(self._report_progress(progress, name, who))
        try:
            await pull(self.engine, name, self.pull_sec, login, progress, answered)
        finally:
            reporting.cancel()
        answered()
        self.say(f"{who}: pulled {name.display_name}: {progress.summary}")

    async def _report_progress(self, progress: PullProgress, name: ImageName, who: str) -> None:
        """Report progress regularly until cancelled."""
        last = ""
        while True:
            await asyncio.sleep(self.report_every_sec)
            if (status := progress.status) != last:
                self.say(f"{who}: pulling {name.display_name}: {status}")
                last = status


def _failure(state: RetryCallState) -> PullFailed:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, PullFailed)
    return error


def _message(kind: PullFailureKind, engine_message: str, name: ImageName, login: Login | None) -> str:
    """Describe the failure and its remedy, with the engine's message."""
    detail = f"({one_line(engine_message, 200)})"
    host = name.registry
    match kind:
        case "denied" if login:
            return f"{host} rejects the login in Docker's configuration {detail}: docker login {host}"
        case "denied":
            return f"{host} requires a login {detail}: docker login {host}"
        case "rate-limited":
            more = "" if login else f"; a login may have a higher limit: docker login {host}"
            return f"{host} limits pulls {detail}{more}"
        case "missing":
            return f"{host} has no such image {detail}; check the name in task.toml"
        case "passing":
            return f"{host} or the connection to it fails {detail}; try again later"
        case "slow":
            more = "allow more time with --pull-timeout, or pull the image manually once"
            return f"{host} or the connection to it is too slow {detail}; {more}"
        case "away":
            return f"{host} cannot be reached {detail}; check its name and the network"
        case "silent":
            more = "or allow more time with --pull-timeout"
            return f"{host} cannot be reached {detail}; check its name and the network, {more}"
        case "no-space":
            return f"the engine's disk is full {detail}; make room with 'tbench clean --all' and 'docker system prune'"
        case _:
            return f"{host} does not answer like a registry {detail}; check its name, and for a proxy in between"


async def pull(
    engine: Engine,
    name: ImageName,
    limit_sec: float,
    login: Login | None = None,
    progress: PullProgress | None = None,
    answered: Callable[[], None] = lambda: None,
) -> None:
    """Pull an image in one attempt; `answered` is called at the first progress message.

    Raises EngineError, also for an error within an answer with status 200, as Podman sends it. When this is cancelled
    or takes too long, the engine stops pulling.
    """
    loop, ends_at = asyncio.get_running_loop(), time.monotonic() + limit_sec
    header = login.header if login else None
    silence_sec = min(_SILENCE_SEC, limit_sec)

    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            answered()

    def follow(stream: PullStream) -> None:
        for message in stream.messages:
            if error := message.get("error"):
                raise EngineError(str(error))
            loop.call_soon_threadsafe(begin)
            if progress is not None:
                progress.take(message)

    try:
        stream = await engine.call(
            engine.open_pull,
            name.repository,
            name.version,
            header,
            silence_sec,
            deadline_sec=limit_sec,
            dispose=lambda late: late.close(),
        )
        try:
            await engine.call(partial(follow, stream), deadline_sec=max(ends_at - time.monotonic(), 0.1), again=False)
        finally:
            stream.close()
    except EngineError as error:
        is_over = _DEADLINE.search(str(error)) is not None
        if is_over and has_begun:
            raise EngineError(f"took longer than {limit_sec:.0f} s") from error
        if is_over or _SILENCE.search(str(error)):
            raise EngineError(f"timed out: nothing came for {silence_sec:.0f} s") from error
        raise
