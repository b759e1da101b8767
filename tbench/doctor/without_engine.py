"""Checks of containers without an engine: the programs of the distribution, a first container, and its limits."""

from __future__ import annotations

from tbench.config.limits_in_force import describe_limits
from tbench.doctor import Check, CheckStatus, Finding, examine, fail, ok, skip_all, warn
from tbench.errors import UsageError
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.oci.backend import OciBackend
from tbench.sandbox.oci.store import PACKAGES, Store, how_to_install, missing_programs, runtime_name

_LACKING = {
    "buildah": "images cannot be built, only pulled",
    "slirp4netns": "trials with a network are refused",
}
"""Consequences of a missing program that not every run needs."""
_START_SEC = 600.0
"""Time limit of the first container: the tools may have to be built before it."""


async def check_programs(store: Store) -> Finding:
    """Check that the programs are installed."""
    missing = missing_programs(*(each for each in PACKAGES if store.is_rootless or each != "newuidmap"))
    if not missing:
        return ok(", ".join([runtime_name(), *(each for each in PACKAGES if each != "runc")]))
    needed = [each for each in missing if each not in _LACKING]
    lost = "; ".join(_LACKING[each] for each in missing if each in _LACKING)
    what = f"not installed: {', '.join(missing)}{f' ({lost})' if lost else ''}"
    return (fail if needed else warn)(what, how_to_install(missing))


async def findings(store: Store) -> list[Finding]:
    """Run all checks of a store."""

    async def programs() -> Finding:
        return await check_programs(store)

    async def start() -> Finding:
        backend = OciBackend(store, SandboxSettings("doctor"))
        try:
            async with open_backend(backend):
                opened.append(backend)
        except UsageError as error:
            return fail(str(error), "fix what the message names")
        described = backend.describe()
        who = "an ordinary user" if store.is_rootless else "root"
        return ok(f"{described['version']}, {described['storage_driver']}, as {who}, in {store.root}")

    async def limits() -> Finding:
        described = opened[0].describe()
        words, version = describe_limits(described["limits"]), described["cgroup_version"]
        if not words:
            return ok(f"cgroup v{version}: memory, swap, cpus and pids are limited")
        advice = "as root, or with cgroup v2 and controllers that systemd delegates to the user, they are in force"
        return warn(f"cgroup v{version}: {words}", advice)

    opened: list[OciBackend] = []
    found = [await examine(Check("programs", programs))]
    if found[0].status is CheckStatus.FAIL:
        return [*found, *skip_all(("containers", "limits"), "programs are missing")]
    found.append(await examine(Check("containers", start, _START_SEC)))
    if not opened:
        return [*found, *skip_all(("limits",), "no container starts")]
    return [*found, await examine(Check("limits", limits))]
