"""The container as the agent sees it, and attempts that must fail there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container, ContainerLimits, Recipe
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
BASE = "debian:bookworm-slim"
DOCKERS_DEFAULT = 0x00000000A80425FB
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
audit_write, setfcap."""
LIMITS = ContainerLimits(cpus=0.5, memory_mb=96, pids=50)
OURS = {"/opt/tbench", "/opt/tbench/run"}

Start = Callable[..., Coroutine[Any, Any, Container]]


async def _start(engine: Engine, tools_volume: str, **more: Any) -> Container:
    image = await Images(engine).find(BASE)
    assert image is not None
    recipe = Recipe(
        image, LIMITS, tools_volume, run="test-hygiene", trial="t.s0.x", has_internet=False, environment={}, **more
    )
    return await Container.start(engine, recipe)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box(engine: Engine, tools_volume: str) -> AsyncIterator[Container]:
    """For tests that leave it as they found it."""
    container = await _start(engine, tools_volume)
    yield container
    await container.remove()


async def said(container: Container, script: str) -> str:
    return (await container.shell(script, timeout_sec=60)).output.decode().strip()


async def fails(container: Container, script: str) -> None:
    ended = await container.shell(f"{script} 2>&1", timeout_sec=30)
    assert ended.exit_code != 0, f"{script}: {ended.output!r}"


async def test_there_is_no_engine_socket_and_no_mount_of_the_host(box: Container) -> None:
    assert (
        await said(box, "find / -xdev -type s 2>/dev/null; ls /run/docker.sock /var/run/docker.sock 2>/dev/null") == ""
    )
    mounts = [line.split() for line in (await said(box, "cat /proc/self/mounts")).splitlines()]
    of_disks = {mount[1] for mount in mounts if mount[0].startswith("/dev/")}
    # An engine may have its data in memory.
    assert of_disks - {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"} <= {"/opt/tbench"}
    others = {mount[1] for mount in mounts if not mount[1].startswith(("/proc", "/dev", "/sys"))}
    assert others - OURS - {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"} == {"/"}


async def test_the_tools_cannot_be_written_or_remounted(box: Container) -> None:
    (mount,) = [line for line in (await said(box, "cat /proc/self/mounts")).splitlines() if " /opt/tbench " in line]
    assert "ro" in mount.split()[3].split(",")
    await fails(box, "touch /opt/tbench/x")
    await fails(box, "mount -o remount,rw /opt/tbench")
    await fails(box, "umount /opt/tbench")
    await fails(box, f"{BUSYBOX} mount --bind /tmp /opt/tbench")


async def test_root_has_dockers_capabilities_and_no_more(box: Container) -> None:
    sets = dict(line.split(":\t") for line in (await said(box, "grep ^Cap /proc/self/status")).splitlines())
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert int(sets[name], 16) & ~DOCKERS_DEFAULT == 0, name
    assert "Seccomp:\t2" in await said(box, "cat /proc/self/status")


@pytest.mark.parametrize("forbidden", [False, True])
async def test_setuid_programs_have_an_effect_unless_the_run_forbids_it(
    engine: Engine, tools_volume: str, forbidden: bool
) -> None:
    container = await _start(engine, tools_volume, no_new_privileges=forbidden)
    try:
        await said(container, "cp /bin/bash /tmp/bash && chmod 4755 /tmp/bash")
        ended = await container.shell("/tmp/bash -p -c 'id -u'", timeout_sec=30, user="nobody")
        assert ended.output.strip() == (b"65534" if forbidden else b"0")
        assert f"NoNewPrivs:\t{int(forbidden)}" in await said(container, "cat /proc/self/status")
    finally:
        await container.remove()


async def test_no_one_but_root_has_any(box: Container) -> None:
    ended = await box.shell("grep CapEff /proc/self/status", timeout_sec=30, user="nobody")
    assert int(ended.output.split()[1], 16) == 0


@pytest.mark.parametrize(
    "attack",
    [
        "/bin/date -s 2020-01-01",
        "echo x >/proc/sys/kernel/core_pattern",
        "echo b >/proc/sysrq-trigger",
        "echo 1 >/proc/sys/vm/drop_caches",
        "mkdir /sys/fs/cgroup/memory/x /sys/fs/cgroup/x",
        "mount -t tmpfs x /mnt",
        "mount -t cgroup -o memory x /mnt",
        f"{BUSYBOX} unshare -m true",
        "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
        "cat /proc/kcore | head -c 1 | grep .",
        "dmesg -n 8",
        f"{BUSYBOX} swapoff -a; {BUSYBOX} mount -t proc x /mnt",
        f"{BUSYBOX} nsenter -t 1 -m -p -n true",
    ],
)
async def test_the_hosts_kernel_cannot_be_touched(box: Container, attack: str) -> None:
    await fails(box, attack)


async def test_there_are_no_devices_of_the_host(box: Container) -> None:
    names = set((await said(box, "ls /dev")).split())
    assert names <= {
        *("console", "core", "fd", "full", "fuse", "mqueue", "null", "ptmx", "pts", "random", "shm"),
        *("stderr", "stdin", "stdout", "tty", "urandom", "zero"),
    }


async def test_the_limits_stand_in_the_containers_cgroup(box: Container) -> None:
    v1 = (
        "cd /sys/fs/cgroup && cat memory/memory.limit_in_bytes pids/pids.max cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"
    )
    v2 = "cd /sys/fs/cgroup && cat memory.max pids.max; tr ' ' '\\n' <cpu.max"
    memory, pids, quota, period = (
        await said(box, f"if [ -e /sys/fs/cgroup/memory.max ]; then {v2}; else {v1}; fi")
    ).split()
    assert (int(memory), int(pids), int(quota) / int(period)) == (96 << 20, 50, 0.5)


@pytest.mark.slow
async def test_more_processes_than_allowed_are_refused(box: Container) -> None:
    # Counted and ended by the shell itself: nothing else can be started now.
    flood = "(for i in $(seq 80); do sleep 20 & done) 2>/dev/null"
    # All that there is: some are not yet `sleep` on a busy machine.
    count = "n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; echo $n"
    assert 30 < int(await said(box, f"{flood}; {count}; kill -9 -1")) <= LIMITS.pids


@pytest.mark.slow
async def test_more_memory_than_allowed_is_refused(box: Container) -> None:
    script = "head -c {} /dev/zero | tail -c {} | wc -c"
    assert await said(box, script.format("10m", "10000000")) == "10000000"
    assert await said(box, script.format("150m", "150000000")) == "0", "tail is killed before it prints"


@pytest.mark.slow
async def test_more_cpu_than_allowed_is_not_given(box: Container) -> None:
    """Half a cpu: two busy loops get no more of it than one."""
    usage = "cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || grep usage_usec /sys/fs/cgroup/cpu.stat"
    script = f"{usage}; for i in 1 2; do (while :; do :; done) & done; sleep 2; kill -9 $(jobs -p); {usage}"
    began = time.monotonic()
    before, after = (float(line.split()[-1]) for line in (await said(box, script)).splitlines())
    lasted_sec = time.monotonic() - began
    used_sec = (after - before) / (1e6 if "usec" in await said(box, usage) else 1e9)
    assert 0.1 < used_sec < 0.5 * lasted_sec + 0.2


async def test_setuid_programs_work_as_tasks_expect(engine: Engine, tools_volume: str) -> None:
    """Privileges may be gained by setuid programs: with no-new-privileges, sudo in a task would fail."""
    container = await _start(engine, tools_volume)
    try:
        await said(container, "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && chmod 755 /tmp")
        ended = await container.shell("/tmp/id -u", timeout_sec=30, user="nobody")
        assert ended.output == b"0\n"
    finally:
        await asyncio.shield(container.remove())
