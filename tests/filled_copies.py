"""A copy of a sandbox with some of its files, which its user removes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tbench.sandbox.backend import Copies, Sandbox


async def filled_copy(
    sandbox: Copies, paths: Collection[str], removed: Collection[str], *, is_apart: bool = False
) -> Sandbox:
    starting = asyncio.ensure_future(sandbox.start_copy(is_apart=is_apart))
    try:
        await sandbox.copy_into(starting, paths, removed)
    except BaseException:
        await (await starting).remove()
        raise
    return await starting
