"""Removes on several machines what a process has left that did not wait for that.

As a program: `python -m tbench.fleet.leaving OWNER ADDRESS...`, with addresses as `--engine` has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from tbench.errors import TbenchError
from tbench.fleet.address import EngineAddress
from tbench.fleet.engines import connect
from tbench.sandbox.docker.cleaning import leave_removing_to_a_child, remove_containers_of


def leave_removing_on(addresses: Sequence[str]) -> None:
    """Start a process that removes the containers of this one on these machines; this one may end at once."""
    leave_removing_to_a_child("tbench.fleet.leaving", *addresses)


async def _remove_on(whose: str, address: str) -> None:
    with contextlib.suppress(TbenchError):  # a machine that is away: the next run there removes it
        named = await asyncio.to_thread(connect, EngineAddress.parse(address), 1)
        try:
            await remove_containers_of(whose, named.engine)
        finally:
            named.close()


async def _main(whose: str, addresses: Sequence[str]) -> None:
    await asyncio.gather(*(_remove_on(whose, address) for address in addresses))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))
