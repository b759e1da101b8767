"""Several services, or one that needs more than a Dockerfile, as a docker-compose.yaml of the current form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tbench.tasks.terminal_bench_1.services import OF_THE_HARNESS, Services, build_of, volumes

MAIN = "main"
"""What the service is called there that the agent works in."""
_SHARED = ("networks", "volumes")
_HEAD = "# Made of the docker-compose.yaml of a Terminal-Bench 1 task.\n"


def compose_text(services: Services) -> str:
    """The file: the main service has its name, and nothing in it is the harness's. Raises TaskInvalid."""
    if services.main != MAIN and MAIN in services.all:
        raise services.wrong("", f"the service that the agent works in is to be called {MAIN}, as another one is")
    described = {
        "services": {
            MAIN if name == services.main else name: _service(services, name) for name in sorted(services.all)
        },
        **{key: _nameless(value) if key in _SHARED else value for key, value in services.rest.items()},
    }
    # Aliases would be made of what YAML's own anchors share.
    return _HEAD + yaml.dump(described, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=120)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _service(services: Services, name: str) -> dict[str, Any]:
    settings = dict(services.all[name])
    container = str(settings.pop("container_name", ""))
    if build_of(services, name) is not None:
        settings.pop("image", None)
    kept = volumes(services, name)
    settings.pop("volumes", None)
    if kept:
        settings["volumes"] = kept
    for key, value in settings.items():
        if OF_THE_HARNESS in str(value):
            raise services.wrong(key, "has a variable of Terminal-Bench's own that means nothing here", name)
    settings = _renamed(settings, services.main)
    # Others find a service by the name of its container, too, and the main one by the name that it had.
    names = {container} if container and OF_THE_HARNESS not in container and "$" not in container else set()
    names |= {name} if name == services.main != MAIN else set()
    return _with_aliases(settings, sorted(names)) if names and "network_mode" not in settings else settings


def _nameless(described: Any) -> Any:
    """Networks or volumes without names for the whole machine, which serve to tell tasks apart."""
    if not isinstance(described, dict):
        return described
    return {
        key: {name: each for name, each in how.items() if name != "name"}
        if isinstance(how, dict) and not how.get("external")
        else how
        for key, how in described.items()
    }


def _renamed(settings: Mapping[str, Any], main: str) -> dict[str, Any]:
    """The settings of a service in which the main one is called as it is here."""
    renamed = dict(settings)
    for key in ("depends_on", "links"):
        value = renamed.get(key)
        if isinstance(value, dict):
            renamed[key] = {MAIN if each == main else each: how for each, how in value.items()}
        elif isinstance(value, list):
            renamed[key] = [MAIN if each == main else each for each in value]
    for key in ("network_mode", "ipc", "pid"):
        if renamed.get(key) == f"service:{main}":
            renamed[key] = f"service:{MAIN}"
    return renamed


def _with_aliases(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The settings with further names of the service in each of its networks."""
    given = settings.get("networks") or ["default"]
    networks = dict.fromkeys(map(str, given)) if isinstance(given, list) else dict(given)
    for each, how in networks.items():
        how = dict(how or {})
        how["aliases"] = sorted({*how.get("aliases", []), *names})
        networks[each] = how
    return {**settings, "networks": networks}
