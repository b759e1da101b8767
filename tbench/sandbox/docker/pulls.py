"""Pulls published images: each once, a few at a time, with progress, and with patience for what passes by itself."""

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
from tbench.sandbox.docker.login import ImageName, Login, LoginUnreadable, find_login
from tbench.sandbox.docker.manifest import asked_to_wait_sec
from tbench.text import one_line, size_shown

# How far a pull has come, added up from what the engine says of each layer.

_WAITS = ("Pulling fs layer", "Waiting")
_ARRIVED = ("Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists")


class PullProgress:
    """Takes the messages of one pull, from one thread; `words` may be asked for from any other."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._sizes: dict[str, int] = {}
        self._loaded: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._sums = (0, 0, False)
        """Bytes that have come, bytes of all layers that have told their size, and whether others have not."""

    def take(self, message: Mapping[str, Any]) -> None:
        """Count one message in; what is no word about a layer is passed over."""
        layer, status = message.get("id"), str(message.get("status") or "")
        if not isinstance(layer, str):
            return
        detail = message.get("progressDetail")
        current, total = (_number(detail, key) for key in ("current", "total"))
        if status.startswith(_WAITS):
            self._waiting.add(layer)
        elif status == "Downloading" and total:
            self._waiting.discard(layer)
            size = max(total, self._sizes.get(layer, 0))  # of one that was cut, the engine tells what is left of it
            self._sizes[layer], self._loaded[layer] = size, min(size - total + current, size)
        elif status.startswith(_ARRIVED):
            self._waiting.discard(layer)
            self._loaded[layer] = self._sizes.get(layer, 0)
        # In one piece, as a dictionary cannot be added up while another thread fills it.
        self._sums = (sum(self._loaded.values()), sum(self._sizes.values()), bool(self._waiting))

    @property
    def words(self) -> str:
        """How much has come by now, such as `120 of 410 MB`; `+` says that not every layer has told its size.

        Empty where the engine tells no bytes, as Podman's does.
        """
        loaded, total, is_more = self._sums
        if not total:
            return ""
        whole = size_shown(total)
        unit = whole[-3:]
        return f"{size_shown(loaded).removesuffix(unit)} of {whole}{'+' if is_more else ''}"

    @property
    def summary(self) -> str:
        """How much came in which time, such as `410 MB in 63 s`."""
        loaded, _, _ = self._sums
        what = f"{size_shown(loaded)} in " if loaded else ""
        return f"{what}{time.monotonic() - self._started:.0f} s"


def _number(detail: Any, key: str) -> int:
    value = detail.get(key) if isinstance(detail, Mapping) else None
    return int(value) if isinstance(value, int | float) and value > 0 else 0


# Why a pull failed, read from the engine's words: what passes by itself, and what somebody has to mend.
#
# An engine has no codes for it: a registry's 429, 401 or 500 all arrive as 500, or within an answer that began with
# 200.

TroubleKind = Literal[
    "away", "silent", "slow", "passing", "rate-limited", "denied", "missing", "no-space", "unreadable"
]
"""`away`: nobody can be reached there; `silent`: no answer in time; `slow`: a pull that took its whole time;
`passing`: a cut connection, a 5xx; `missing`: it is not there; `unreadable`: an answer that no registry gives, and
whatever else no other pull would mend."""

_SIGNS: tuple[tuple[TroubleKind, str], ...] = (
    ("no-space", r"no space left on device|disk quota exceeded"),
    ("rate-limited", r"toomanyrequests|too many requests|HTTP 429|status: 429|rate limit"),
    ("missing", r"not found|manifest unknown|name unknown|unknown blob|repository does not exist|HTTP 404|status: 404"),
    (
        "denied",
        r"unauthorized|authentication required|no basic auth|denied|forbidden|HTTP 40[13]|status: 40[13]"
        r"|incorrect username or password",
    ),
    # An answer of 5xx, and not a number in some name.
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
    """An image was not pulled; the message says which registry did what, and what to do."""

    def __init__(
        self, kind: TroubleKind, message: str, *, said: str = "", retry_after_sec: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.said = said or message
        """The engine's own words."""
        self.retry_after_sec = retry_after_sec
        """How long the registry asks to wait; None where it does not say."""


def kind_of(words: str, name: ImageName) -> TroubleKind:
    """What the engine's words about a pull come to."""
    said = _QUOTED_URL.sub("", words)
    for own in (name.text, name.wanted, name.repository, name.path):
        said = said.replace(own, "")  # an image may be called anything
    return next((kind for kind, sign in _SIGNS if re.search(sign, said, re.IGNORECASE)), "unreadable")


# Pulls published images: each once, a few at a time, and with patience for what passes by itself.
#
# It knows names, not tasks, and decides nothing about what is done where an image cannot be had.

AT_ONCE = 3
PULL_SEC = 1800.0
_SILENCE_SEC = 300.0
"""Longest time without a word of the engine. It says every second or so how a layer comes along."""
_SILENCE, _DEADLINE = re.compile("Read timed out"), re.compile("the engine did not answer")
_BETWEEN_WORDS_SEC = 5.0
_LOGIN_SEC, _ASKING_SEC = 60.0, 10.0
_SILENT_ATTEMPTS = 2
"""Attempts at a registry that has never answered, and does not answer in time."""


@dataclass(frozen=True)
class Patience:
    """How often and how long a pull is tried again."""

    attempts: int = 6
    total_sec: float = 300.0
    """Most seconds of all pauses of one pull together, those that a registry asks for included."""
    first_sec: float = 2.0
    """Bound of the first pause, which is random below it and doubles with every attempt."""
    most_sec: float = 60.0


@dataclass
class _Contact:
    """What is known of a registry by now."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    answers: bool = False
    away: PullFailed | None = None
    """Why it cannot be reached: then nobody else tries."""
    not_before: float = 0.0
    """The time before which it wants no requests."""
    is_limited: bool = False
    """Whether waiting for its rate limit to pass was in vain."""


class Pulls:
    """The pulls of one run."""

    def __init__(
        self,
        engine: Engine,
        *,
        at_once: int = AT_ONCE,
        pull_sec: float = PULL_SEC,
        patience: Patience | None = None,
        say: Callable[[str], None] = lambda _: None,
        between_words_sec: float = _BETWEEN_WORDS_SEC,
    ) -> None:
        """`pull_sec` bounds one attempt; at most `at_once` attempts are under way."""
        self._engine = engine
        self._places = asyncio.Semaphore(at_once)
        self._pull_sec = pull_sec
        self._patience = patience or Patience()
        self._say = say
        self._between_words_sec = between_words_sec
        self._registries: dict[str, _Contact] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._pulled: set[str] = set()

    def forget(self, name: ImageName) -> None:
        """Take it that the image is gone from the engine: the next `pull` pulls it again."""
        self._pulled.discard(name.wanted)

    async def pull(self, name: ImageName, who: str) -> None:
        """Pull an image, unless it was pulled before; `who` is named where something is said.

        Raises PullFailed, and EngineUnreachable where no engine answers.
        """
        async with self._locks.setdefault(name.wanted, asyncio.Lock()):
            if name.wanted in self._pulled:
                return
            registry = self._registries.setdefault(name.registry, _Contact())
            async with self._first_contact(registry) as answered:
                if registry.away is not None:
                    raise PullFailed("away", str(registry.away), said=registry.away.said)
                await self._patiently(registry, name, who, answered)
            self._pulled.add(name.wanted)

    @contextlib.asynccontextmanager
    async def _first_contact(self, registry: _Contact) -> AsyncIterator[Callable[[], None]]:
        """Let the first pull alone find out whether a registry answers; gives what to call when it does."""
        if registry.answers:
            yield lambda: None
            return
        await registry.asking.acquire()
        with contextlib.ExitStack() as others:
            others.callback(registry.asking.release)

            def answered() -> None:
                registry.answers = True
                others.close()  # they go on from the first answer, not from the end of a long pull

            if registry.answers:
                others.close()
            yield answered

    async def _patiently(self, registry: _Contact, name: ImageName, who: str, answered: Callable[[], None]) -> None:
        """Try until it is there or the patience is at its end. Raises PullFailed."""
        attempts = AsyncRetrying(
            retry=retry_if_exception(lambda error: self._may_pass(registry, error)),
            wait=self._pause,
            stop=lambda state: self._is_enough(registry, state),
            before_sleep=lambda state: self._tell_pause(registry, name, who, state),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    await self._attempt(registry, name, who, answered)
        except PullFailed as failed:
            if failed.kind in ("away", "silent"):
                # One that has answered before is tried again, but no longer with patience.
                registry.away, registry.answers = None if registry.answers else failed, False
            registry.is_limited = registry.is_limited or failed.kind == "rate-limited"
            raise
        registry.is_limited = False

    def _may_pass(self, registry: _Contact, error: BaseException) -> bool:
        if not isinstance(error, PullFailed):
            return False
        if error.kind == "away":  # a registry that has answered comes back
            return registry.answers
        return error.kind in ("passing", "rate-limited", "silent")

    def _pause(self, state: RetryCallState) -> float:
        error, patience = _failure(state), self._patience
        own = wait_random_exponential(patience.first_sec, patience.most_sec)(state)
        return max(own, error.retry_after_sec or 0.0)

    def _is_enough(self, registry: _Contact, state: RetryCallState) -> bool:
        error, patience = _failure(state), self._patience
        if error.kind == "silent" and not registry.answers and state.attempt_number >= _SILENT_ATTEMPTS:
            return True
        if error.kind == "rate-limited" and registry.is_limited:
            return True
        return state.attempt_number >= patience.attempts or state.idle_for + state.upcoming_sleep > patience.total_sec

    def _tell_pause(self, registry: _Contact, name: ImageName, who: str, state: RetryCallState) -> None:
        error, pause_sec = _failure(state), state.upcoming_sleep
        if error.kind == "rate-limited":
            registry.not_before = max(registry.not_before, time.monotonic() + pause_sec)
        why = str(error) if error.kind == "rate-limited" else error.said
        self._say(f"{who}: {name.shown}: {one_line(why, 200)}; trying again in {pause_sec:.0f} s")

    async def _attempt(self, registry: _Contact, name: ImageName, who: str, answered: Callable[[], None]) -> None:
        login: Login | None = None
        try:
            login = await self._login(name)
            async with self._place(registry):
                await self._pull_once(name, who, login, answered)
        except LoginUnreadable as error:
            raise PullFailed("denied", str(error)) from None
        except EngineUnreachable as error:
            if not error.sent:
                raise
            raise PullFailed("passing", f"the engine went away: {error}") from error
        except EngineError as error:
            kind = kind_of(str(error), name)
            if kind not in ("away", "silent"):
                answered()
            wait_sec = await self._asked_to_wait(name, login) if kind == "rate-limited" else None
            message = _message(kind, str(error), name, login)
            raise PullFailed(kind, message, said=str(error), retry_after_sec=wait_sec) from error

    @contextlib.asynccontextmanager
    async def _place(self, registry: _Contact) -> AsyncIterator[None]:
        """A place among the pulls under way; none is taken while the registry wants no requests."""
        while True:
            if (pause_sec := registry.not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause_sec)
            async with self._places:
                if registry.not_before <= time.monotonic():
                    yield
                    return

    async def _login(self, name: ImageName) -> Login | None:
        return await self._engine.call(find_login, name.registry, deadline_sec=_LOGIN_SEC)

    async def _asked_to_wait(self, name: ImageName, login: Login | None) -> float | None:
        """Seconds that the registry asks to wait, which the engine does not pass on."""
        with contextlib.suppress(EngineError):
            return await self._engine.call(asked_to_wait_sec, name, login, deadline_sec=_ASKING_SEC)
        return None

    async def _pull_once(self, name: ImageName, who: str, login: Login | None, answered: Callable[[], None]) -> None:
        self._say(f"{who}: pulling {name.shown}")
        progress = PullProgress()
        telling = asyncio.create_task(self._tell(progress, name, who))
        try:
            await pull(self._engine, name, self._pull_sec, login, progress, answered)
        finally:
            telling.cancel()
        answered()
        self._say(f"{who}: pulled {name.shown}: {progress.summary}")

    async def _tell(self, progress: PullProgress, name: ImageName, who: str) -> None:
        """Say now and then how far it is; ends with the pull."""
        last = ""
        while True:
            await asyncio.sleep(self._between_words_sec)
            if (words := progress.words) != last:
                self._say(f"{who}: pulling {name.shown}: {words}")
                last = words


def _failure(state: RetryCallState) -> PullFailed:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, PullFailed)
    return error


def _message(kind: TroubleKind, said: str, name: ImageName, login: Login | None) -> str:
    """What is wrong, with the engine's words, and what to do about it."""
    words = f"({one_line(said, 200)})"
    host = name.registry
    match kind:
        case "denied" if login:
            return f"{host} does not take the login that Docker's configuration has {words}: docker login {host}"
        case "denied":
            return f"{host} wants a login {words}: docker login {host}"
        case "rate-limited":
            more = "" if login else f"; a login may have a higher limit: docker login {host}"
            return f"{host} limits pulls {words}{more}"
        case "missing":
            return f"{host} has no such image {words}; check the name in task.toml"
        case "passing":
            return f"{host} or the way to it fails {words}; try again later"
        case "slow":
            more = "allow more with --pull-timeout, or pull it by hand once"
            return f"{host} or the way to it is too slow {words}; {more}"
        case "away":
            return f"{host} cannot be reached {words}; check its name and the network"
        case "silent":
            more = "or allow more with --pull-timeout"
            return f"{host} cannot be reached {words}; check its name and the network, {more}"
        case "no-space":
            return f"the engine's disk is full {words}; 'tbench clean --all' and 'docker system prune' make room"
        case _:
            return f"{host} did not answer as a registry does {words}; is it one, and is no proxy in between?"


async def pull(
    engine: Engine,
    name: ImageName,
    limit_sec: float,
    login: Login | None = None,
    progress: PullProgress | None = None,
    answered: Callable[[], None] = lambda: None,
) -> None:
    """Pull an image in one attempt; `answered` is called when the registry has told of it.

    Raises EngineError, also for a failure within an answer that began with 200, as Podman's do. The engine stops when
    this is cancelled, or takes too long.
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
