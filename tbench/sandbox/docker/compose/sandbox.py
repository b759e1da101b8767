"""A sandbox of several containers: that of `main`, in which the agent works, and the services beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from tbench.compose.project import MAIN
from tbench.errors import TrialError
from tbench.sandbox.docker.compose.options import ServiceOptions
from tbench.sandbox.docker.compose.starting import Made
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.create import Recipe, engine_errors
from tbench.sandbox.docker.engine import EngineError

_STOP_SEC = 30.0


class ComposeContainer(Container):
    """The container of `main`, with the services that belong to it: they are kept and removed with it.

    Copies of it share its network, on which the services have their names; a snapshot is of `main` alone.
    """

    def __init__(self, main: Container, made: Made, sidecars: Mapping[str, Recipe]) -> None:
        """`made` is what there is of the services on the engine; `sidecars` are the recipes of the others."""
        recipe = main._recipe
        if recipe.options is None:
            # One that was kept: fresh containers are on its networks by way of it.
            recipe = replace(recipe, options=ServiceOptions(network_mode=f"container:{main.container_id}"))
        super().__init__(main._engine, main.container_id, recipe, main._memory_watch, main._originals)
        self.lease = main.lease
        self._made = made
        self._router = made.router = made.router or main._router
        self._sidecars = sidecars

    @property
    def ran_out_of_memory(self) -> bool:
        return any(self.service(name).ran_out_of_memory for name in self._sidecars) or super().ran_out_of_memory

    def service(self, name: str) -> Container:
        if name == MAIN:
            return self
        if name not in self._sidecars or name not in self._made.containers:
            known = ", ".join(self._made.containers)
            raise TrialError("sandbox_failed", f"there is no service {name!r}; there are {known}")
        return Container(self._engine, self._made.containers[name], self._sidecars[name], self._memory_watch)

    async def stop_main(self) -> None:
        with engine_errors("stopping the agent's container"):
            try:
                await self._engine.call(self._engine.api.kill, self.container_id, deadline_sec=_STOP_SEC)
            except EngineError as error:
                # It has ended already, or is gone.
                if error.status not in (404, 409):
                    raise

    async def logs(self) -> Mapping[str, bytes]:
        own, others = await asyncio.gather(super().logs(), self._made.logs(self._engine))
        return {**own, **{f"services/{name}.log": self._masks.masked(said) for name, said in others.items()}}

    async def keep(self) -> str:
        kept = await super().keep()
        others = [self.service(name) for name in self._sidecars]
        recipes = {MAIN: self._recipe, **self._sidecars}
        others += [Container(self._engine, each, recipes[name]) for name, each in self._made.holders.items()]
        await asyncio.gather(*(other.keep() for other in others))
        return kept

    async def remove(self) -> None:
        await self._made.remove(self._engine)
        self.lease.release()
