"""Removes things from the engine: what it refuses is remembered, tried again later, and told at the end of a run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Literal, NamedTuple

from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, RefusedRemoval
from tbench.text import counted, one_line

Kind = Literal["container", "network", "volume", "image"]
_ORDER = ("container", "network", "volume", "image")
"""Containers before what they use."""
REMOVE_SEC = 60.0
GOING_SEC = 10.0
"""How long another removal of the same thing is waited for, or whoever uses it and goes away himself."""
_LAST_SEC = 60.0
"""Time limit of the last attempt at all that is left."""
_SHOWN = 5


class StillThere(NamedTuple):
    """Why the engine has not removed something."""

    words: str
    """The engine's."""
    is_in_use: bool
    """Whether somebody uses it, or removes it himself."""


async def remove(
    engine: Engine, kind: Kind, identity: str, *, going_sec: float = GOING_SEC, **options: Any
) -> StillThere | None:
    """Remove one thing; None where it is gone. Bounded; raises nothing.

    Where another removal is under way, or the thing is in use, it is waited for `going_sec`. `options` are those of the
    SDK's call, and of `Engine.call`.
    """
    ends_at, pause_sec, is_second = time.monotonic() + going_sec, 0.1, False
    while True:
        try:
            removing = getattr(engine.api, f"remove_{kind}")
            await engine.call(removing, identity, deadline_sec=REMOVE_SEC, **options)
            return None
        except EngineError as error:
            if error.status == 404:
                return None
            # Docker says 403 of a network with containers on it.
            is_in_use = error.status == 409 or "active endpoints" in str(error)
            if is_in_use:
                is_over = time.monotonic() + pause_sec > ends_at
            else:
                # An engine under load fails at what it can do a moment later.
                is_over, is_second = is_second or isinstance(error, EngineUnreachable), True
            if is_over:
                return StillThere(one_line(str(error), 200), is_in_use)
        await asyncio.sleep(pause_sec)
        pause_sec = min(2 * pause_sec, 1.0)


async def remove_or_remember(engine: Engine, kind: Kind, identity: str, **options: Any) -> None:
    """Remove one thing, in bounded time; what the engine refuses is tried again by a later removal. Raises nothing."""
    await _attempt(engine, kind, identity, options)
    if (kind, identity) not in engine.refused:
        due = [(key, refused.options) for key, refused in engine.refused.items() if refused.is_due]
        await asyncio.gather(*(_attempt(engine, *key, options, going_sec=0) for key, options in due))


async def remove_unless_in_use(engine: Engine, kind: Kind, identity: str, **options: Any) -> None:
    """Remove one thing where nobody uses it; what the engine refuses for another reason is tried again later."""
    left = await remove(engine, kind, identity, going_sec=0, **options)
    if left is not None and not left.is_in_use:
        engine.refused[kind, identity] = RefusedRemoval(left.words, options)


async def force_remove(engine: Engine, container: str) -> None:
    """Remove a container and its nameless volumes, as `remove_or_remember` does."""
    await remove_or_remember(engine, "container", container, force=True, v=True)


async def _attempt(engine: Engine, kind: Any, identity: str, options: dict[str, Any], **of_now: Any) -> None:
    if (before := engine.refused.get((kind, identity))) is not None:
        # Nobody else tries at the same time.
        engine.refused[kind, identity] = RefusedRemoval(before.words, options)
    if left := await remove(engine, kind, identity, **options, **of_now):
        engine.refused[kind, identity] = RefusedRemoval(left.words, options)
    else:
        engine.refused.pop((kind, identity), None)


async def remove_refused(engine: Engine) -> str:
    """Try once more to remove what was refused; a line about what is left, empty where nothing is. Bounded."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SEC):
            for kind in _ORDER:
                found = [(key, refused.options) for key, refused in engine.refused.items() if key[0] == kind]
                await asyncio.gather(*(_attempt(engine, *key, options, outage_sec=0) for key, options in found))
    if not engine.refused:
        return ""
    left = [f"{kind} {name[:19]}: {each.words}" for (kind, name), each in engine.refused.items()]
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    images = [name for kind, name in engine.refused if kind == "image"]
    commands = ["tbench clean"] if len(images) < len(left) else []
    commands += [f"docker image rm {' '.join(images)}"] if images else []
    return (
        f"{counted(len(left), 'thing')} could not be removed from the engine: {'; '.join(left[:_SHOWN])}{more}; "
        f"remove with: {' and '.join(commands)}"
    )
