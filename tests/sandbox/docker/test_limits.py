"""Which limits are in force: read inside a container, whatever its cgroups look like; and what a run makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from run_plans import sandboxes_of

from tbench.config.limits_in_force import LimitState
from tbench.errors import UsageError
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.create import limits_host_config, run_helper
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.limits import PROBE_LIMITS, READ_LIMITS, limit_states, read_limits
from tbench.sandbox.owner import LABEL_RUN

ALL = {"memory", "swap", "cpus", "pids"}
MEMORY = str(64 << 20)
OF_2 = {"memory.max": MEMORY, "memory.swap.max": "0", "pids.max": "64", "cpu.max": "100000 100000"}
NONE_OF_2 = {"memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000"}
OF_1 = {
    "memory/{}/memory.limit_in_bytes": MEMORY,
    "memory/{}/memory.memsw.limit_in_bytes": MEMORY,
    "pids/{}/pids.max": "64",
    "cpu/{}/cpu.cfs_quota_us": "100000",
    "cpu/{}/cpu.cfs_period_us": "100000",
}
NONE_OF_1 = {
    "memory/{}/memory.limit_in_bytes": "9223372036854771712",
    "memory/{}/memory.memsw.limit_in_bytes": "9223372036854771712",
    "pids/{}/cgroup.procs": "",  # at the top there is no pids.max
    "cpu/{}/cpu.cfs_quota_us": "-1",
    "cpu/{}/cpu.cfs_period_us": "100000",
}
PATHS_OF_1 = "4:memory:{0}\n8:pids:{0}\n3:cpu,cpuacct:{0}\n1:name=systemd:{0}\n0::/\n"
MOUNTS_OF_1 = {"memory": "rw,memory", "pids": "rw,pids", "cpu": "rw,cpu,cpuacct"}


def below(files: dict[str, str], directory: str) -> dict[str, str]:
    """Files by paths in which the directory of a container stands, or that are all in one."""
    return {(name.format(directory) if "{}" in name else f"{directory}/{name}"): text for name, text in files.items()}


def seen(tmp_path: Path, paths: str, mounts: list[str], files: dict[str, str], swap: str = "8000000") -> dict[str, Any]:
    """Output of the script for these contents of /proc and the mounted cgroups."""
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(paths)
    (proc / "self/mountinfo").write_text(
        f"1 0 0:1 / / rw - overlay overlay rw\n{''.join(each.format(tmp_path / 'cgroup') for each in mounts)}"
    )
    (proc / "self/status").write_text("Name:\tsh\nCpus_allowed_list:\t0-3\n")
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nSwapTotal: {swap} kB\n")
    script = READ_LIMITS.replace("/proc/", f"{proc}/")
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=30).stdout
    return dict(limit_states(read_limits(printed), PROBE_LIMITS))


def mount(root: str, point: str = "", kind: str = "cgroup2 cgroup rw") -> str:
    return f"29 28 0:26 {root} {{}}{point} ro,nosuid master:9 - {kind}\n"


def mounts_of_1(root: str) -> list[str]:
    return [mount(root, f"/{name}", f"cgroup cgroup {options}") for name, options in MOUNTS_OF_1.items()]


@pytest.mark.parametrize(
    ("paths", "mounts", "files", "lacking"),
    [
        ("0::/\n", [mount("/")], OF_2, set()),
        ("0::/\n", [mount("/")], NONE_OF_2, ALL),
        # The controller is not delegated: its files are not there.
        ("0::/\n", [mount("/")], {**OF_2, "memory.max": "", "memory.swap.max": ""}, {"memory", "swap"}),
        ("0::/\n", [mount("/")], {"cgroup.procs": ""}, ALL),
        ("0::/\n", [mount("/")], {**OF_2, "memory.swap.max": "max"}, {"swap"}),
        # In the namespace of the host, all of whose groups are mounted: the limits of others are none of ours.
        ("0::/docker/ab\n", [mount("/")], below(OF_2, "docker/ab"), set()),
        ("0::/docker/ab\n", [mount("/")], below(NONE_OF_2, "docker/ab") | below(OF_2, "docker/cd"), ALL),
        ("0::/docker/ab\n", [mount("/docker/ab")], OF_2, set()),
        # A group within that of the container, and one of which only that above is limited.
        ("0::/pod/ab/init\n", [mount("/pod/ab")], OF_2 | below(NONE_OF_2, "init"), set()),
        (PATHS_OF_1.format("/docker/ab"), mounts_of_1("/docker/ab"), below(OF_1, "."), set()),
        (PATHS_OF_1.format("/docker/ab"), mounts_of_1("/"), below(OF_1, "docker/ab") | below(NONE_OF_1, "."), set()),
        # Rootless: the container is where its engine is.
        (PATHS_OF_1.format("/"), mounts_of_1("/"), below(NONE_OF_1, "."), ALL),
        # Hybrid: version 2 is there, and has no controllers.
        (
            PATHS_OF_1.format("/x"),
            [mount("/x", "/unified"), *mounts_of_1("/x")],
            {**below(OF_1, "."), "unified/cgroup.procs": ""},
            set(),
        ),
    ],
)
def test_limits_are_found_wherever_the_container_s_own_cgroup_is(
    tmp_path: Path, paths: str, mounts: list[str], files: dict[str, str], lacking: set[str]
) -> None:
    states = seen(tmp_path, paths, mounts, files)
    assert {name for name, state in states.items() if state == LimitState.NOT_IN_FORCE} == lacking
    assert LimitState.UNSEEN not in states.values()


@pytest.mark.parametrize(
    ("paths", "mounts"),
    [
        ("0::/\n", []),
        ("", [mount("/")]),
        # Of another namespace, from which the path leads out.
        ("0::/../cd\n", [mount("/")]),
        ("0::/docker/cd\n", [mount("/docker/ab")]),
        (PATHS_OF_1.format("/x"), [mount("/x")]),
    ],
)
def test_a_cgroup_that_is_hidden_is_neither_good_nor_bad(tmp_path: Path, paths: str, mounts: list[str]) -> None:
    assert set(seen(tmp_path, paths, mounts, below(NONE_OF_2, ".")).values()) == {LimitState.UNSEEN}


def test_where_there_is_no_swap_a_limit_of_memory_is_one_of_swap(tmp_path: Path) -> None:
    files = {name: text for name, text in OF_1.items() if "memsw" not in name}
    states = seen(tmp_path, PATHS_OF_1.format("/x"), mounts_of_1("/x"), below(files, "."), swap="0")
    assert set(states.values()) == {LimitState.IN_FORCE}


class Dropping:
    """An engine's API that takes limits, and leaves some of them out without a word."""

    def __init__(self, api: Any, dropped: dict[str, Any]) -> None:
        self._api, self._dropped = api, dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create_container(self, *arguments: Any, host_config: dict[str, Any], **more: Any) -> Any:
        left = {name: value for name, value in host_config.items() if name not in self._dropped}
        kept = {name: value for name, value in self._dropped.items() if value is not None}
        return self._api.create_container(*arguments, host_config={**left, **kept}, **more)


NAMES: dict[str, dict[str, Any]] = {
    "memory": {"Memory": None, "MemorySwap": None},
    "swap": {"MemorySwap": -1},
    "cpus": {"NanoCpus": None},
    "pids": {"PidsLimit": None},
}


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
async def test_a_limit_that_the_engine_leaves_out_is_seen_from_inside(
    engine: Engine, tools_volume: str, run_name: str, name: str
) -> None:
    dropping = Engine(Dropping(engine.api, NAMES[name]), engine.executor, engine.info)  # type: ignore[arg-type]
    printed = await run_helper(
        dropping, tools_volume, READ_LIMITS, labels={LABEL_RUN: run_name},
        network_mode="none", **limits_host_config(PROBE_LIMITS, engine),
    )  # fmt: skip
    read = read_limits(printed) | {"swap_total": "8000000"}  # as if this machine had some
    lacking = {each for each, state in limit_states(read, PROBE_LIMITS).items() if state != LimitState.IN_FORCE}
    assert lacking == ({"memory", "swap"} if name == "memory" else {name})


@pytest.mark.engine
async def test_a_run_without_limits_says_so_once_and_is_none_where_they_are_required(
    engine: Engine, tools_volume: str, run_name: str
) -> None:
    dropping = Engine(Dropping(engine.api, NAMES["memory"]), engine.executor, engine.info)  # type: ignore[arg-type]
    said: list[str] = []
    backend = DockerBackend(dropping, SandboxSettings(run_name))
    await backend.open(said.append)
    await backend.recover()
    await backend.close()
    said = [line for line in said if not line.startswith("trials of other runs")]  # of tests beside this one
    assert len(said) == 1 and said[0].startswith("limits: ") and "not in force" in said[0]
    limits = backend.describe()["limits"]
    assert (limits["memory"], limits["pids"]) == ("not in force", "in force")
    with pytest.raises(UsageError, match=r"--require-limits: .*memory.* not in force"):
        await DockerBackend(dropping, sandboxes_of(run_name, require_limits=True)).open(said.append)
    # With limits, the same is a run; cpus of its own are one more.
    async with open_backend(
        DockerBackend(engine, sandboxes_of(run_name, require_limits=True, pin_cpus=True))
    ) as backend:
        assert set(backend.describe()["limits"].items()) == {(each, "in force") for each in (*ALL, "pinned cpus")}
