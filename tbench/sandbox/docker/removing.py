"""Removes containers, networks, volumes and images; refused removals are retried later and reported after the run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, NamedTuple

from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, RefusedRemoval
from tbench.sandbox.leftovers import Kind
from tbench.text import counted, one_line

ORDER: tuple[Kind, ...] = ("container", "network", "volume", "image")
"""Order of removal: containers before the things that they use."""
_IN_USE = ("active endpoints", "dependent containers")
"""Messages about objects in use that have another status than 409: Docker's networks, Podman's shared networks."""
REMOVE_SEC = 60.0
IN_USE_SEC = 10.0
"""Seconds to wait for another removal of the same object, or for the end of its use."""
_LAST_SEC = 60.0
"""Time limit of the last attempt at all refused removals."""
_SHOWN = 5


class RemovalFailure(NamedTuple):
    """Why the engine has not removed an object."""

    engine_message: str
    is_in_use: bool
    """Whether it is in use, or being removed already."""


async def remove(
    engine: Engine, kind: Kind, identity: str, *, in_use_sec: float = IN_USE_SEC, **options: Any
) -> RemovalFailure | None:
    """Remove an object; returns None if it is gone. Bounded; never raises.

    Waits up to `in_use_sec` if the object is in use or being removed already. `options` are passed to the SDK's call
    and `Engine.call`.
    """
    ends_at, pause_sec, is_second = time.monotonic() + in_use_sec, 0.1, False
    while True:
        try:
            removing = getattr(engine.api, f"remove_{kind}")
            await engine.call(removing, identity, deadline_sec=REMOVE_SEC, **options)
            return None
        except EngineError as error:
            if error.status == 404:
                return None
            is_in_use = error.status == 409 or any(text in str(error) for text in _IN_USE)
            if is_in_use:
                is_over = time.monotonic() + pause_sec > ends_at
            else:
                # An engine under load may succeed a moment later.
                is_over, is_second = is_second or isinstance(error, EngineUnreachable), True
            if is_over:
                return RemovalFailure(one_line(str(error), 200), is_in_use)
        await asyncio.sleep(pause_sec)
        pause_sec = min(2 * pause_sec, 1.0)


async def remove_or_remember(engine: Engine, kind: Kind, identity: str, **options: Any) -> None:
    """Remove an object in bounded time; if the engine refuses, a later removal tries again. Never raises."""
    await _attempt(engine, kind, identity, options)
    if (kind, identity) not in engine.refused:
        due = [(key, refused.options) for key, refused in engine.refused.items() if refused.is_due]
        await asyncio.gather(*(_attempt(engine, *key, options, in_use_sec=0) for key, options in due))


async def remove_unless_in_use(engine: Engine, kind: Kind, identity: str, **options: Any) -> None:
    """Remove an object unless it is in use; if the engine refuses for another reason, try again later."""
    left = await remove(engine, kind, identity, in_use_sec=0, **options)
    if left is not None and not left.is_in_use:
        engine.refused[kind, identity] = RefusedRemoval(left.engine_message, options)


async def force_remove(engine: Engine, container: str) -> None:
    """Remove a container and its anonymous volumes, as `remove_or_remember` does."""
    await remove_or_remember(engine, "container", container, force=True, v=True)


async def _attempt(engine: Engine, kind: Any, identity: str, options: dict[str, Any], **once: Any) -> None:
    """Remove an object and record a refusal; `once` are options for this attempt only."""
    if (before := engine.refused.get((kind, identity))) is not None:
        # No longer due, so that no other removal retries it concurrently.
        engine.refused[kind, identity] = RefusedRemoval(before.engine_message, options)
    if left := await remove(engine, kind, identity, **options, **once):
        engine.refused[kind, identity] = RefusedRemoval(left.engine_message, options)
    else:
        engine.refused.pop((kind, identity), None)


async def remove_refused(engine: Engine) -> str:
    """Retry all refused removals once, in bounded time; returns a line about the failures, or an empty text."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SEC):
            for kind in ORDER:
                found = [(key, refused.options) for key, refused in engine.refused.items() if key[0] == kind]
                await asyncio.gather(*(_attempt(engine, *key, options, outage_sec=0) for key, options in found))
    if not engine.refused:
        return ""
    left = [f"{kind} {name[:19]}: {each.engine_message}" for (kind, name), each in engine.refused.items()]
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    images = [name for kind, name in engine.refused if kind == "image"]
    commands = ["tbench clean"] if len(images) < len(left) else []
    commands += [f"docker image rm {' '.join(images)}"] if images else []
    return (
        f"{counted(len(left), 'object')} could not be removed from the engine: {'; '.join(left[:_SHOWN])}{more}; "
        f"remove with: {' and '.join(commands)}"
    )
