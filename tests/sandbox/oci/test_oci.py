"""Real containers without an engine: what they may do, what is left of them, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy

from tbench.config.settings import SandboxConfig
from tbench.errors import TrialError, UsageError
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.leftovers import Scope
from tbench.sandbox.oci.backend import OciBackend
from tbench.sandbox.oci.cleaning import clean, remove_leftovers
from tbench.sandbox.oci.container import OciContainer
from tbench.sandbox.oci.store import Store, held, is_held, missing_programs, read_states, run, start_of
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(missing_programs("runc", "skopeo", "umoci")), reason="its programs are missing"),
]
MODES = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
Start = Callable[..., Awaitable[OciContainer]]


@pytest.fixture
def store() -> Store:
    return Store.at("oci:")


@pytest.fixture
async def backend(store: Store, run_name: str) -> AsyncIterator[OciBackend]:
    async with open_backend(OciBackend(store, SandboxSettings(run_name))) as backend:
        yield backend


@pytest.fixture
async def start(backend: OciBackend, make_task: Any) -> AsyncIterator[Start]:
    started: list[OciContainer] = []

    async def make(**parts: Any) -> OciContainer:
        task = Task.read(make_task(**parts))
        started.append(await backend.sandbox(agent_environment(task), "t.s0.x"))
        return started[-1]

    yield make
    for each in started:
        await each.remove()


async def output(box: OciContainer, script: str, user: str | None = None) -> str:
    ended = await box.shell(script, timeout_sec=60, user=user)
    return ended.output.decode()


async def test_root_inside_has_docker_s_rights_and_no_more(start: Start) -> None:
    box = await start()
    told = await output(
        box,
        "grep -E 'CapEff|CapBnd|Seccomp:|NoNewPrivs' /proc/self/status;"
        "for each in 'unshare -U true' 'unshare -m true' 'mount -t tmpfs x /mnt' 'mknod /dev/x b 8 0; cat /dev/x' "
        "'echo 1 >/proc/sys/kernel/printk' 'cat /proc/kcore' 'echo x >/opt/tbench/bin/busybox'; do "
        'sh -c "$each" >/dev/null 2>&1 && echo "allowed: $each"; done; ls /sys/class/net',
    )
    assert "CapEff:\t00000000a80425fb" in told
    assert "CapBnd:\t00000000a80425fb" in told
    assert "Seccomp:\t2" in told
    assert [line for line in told.splitlines() if line.startswith("allowed") and "mknod" not in line] == []
    assert told.splitlines()[-1] == "lo"


async def test_other_users_have_no_capabilities_at_once(start: Start) -> None:
    box = await start(dockerfile="FROM debian:bookworm-slim\nRUN useradd -m app\nUSER app\nWORKDIR /app\n")
    assert not box.runs_as_root
    told = await output(box, "id -un; echo $HOME; grep CapEff /proc/self/status; touch /logs/agent/x && echo written")
    assert told == "app\n/home/app\nCapEff:\t0000000000000000\nwritten\n"
    assert await output(box, "id -u", user="root") == "0\n"
    with pytest.raises(TrialError, match="no user 'nobody-here'") as failed:
        await box.shell("true", timeout_sec=30, user="nobody-here")
    assert failed.value.type == "task_invalid"


async def test_an_image_whose_user_does_not_exist_is_the_tasks_error(start: Start) -> None:
    with pytest.raises(TrialError, match="no user 'nobody-here'") as failed:
        await start(dockerfile="FROM debian:bookworm-slim\nUSER nobody-here\nWORKDIR /app\n")
    assert failed.value.type == "task_invalid"


async def test_limits_hold_and_memory_that_ran_out_is_noticed(start: Start, backend: OciBackend) -> None:
    if set(backend.describe()["limits"].values()) != {"in force"}:
        pytest.skip("cgroups cannot be written here")
    box = await start(toml=f"{MODES}cpus = 1\n")
    assert not box.ran_out_of_memory
    ended = await box.shell("dd if=/dev/zero of=/dev/null bs=400M count=1", timeout_sec=60)
    assert ended.exit_code == 137
    assert box.ran_out_of_memory
    await box.remove()
    assert box.ran_out_of_memory


async def test_processes_that_fill_the_limit_are_ended_and_the_container_stays(
    start: Start, backend: OciBackend
) -> None:
    if set(backend.describe()["limits"].values()) != {"in force"}:
        pytest.skip("cgroups cannot be written here")
    box = await start(toml=f"{MODES}pids_limit = 64\n")
    await box.shell("for i in $(seq 60); do setsid sleep 600 >/dev/null 2>&1 & done", timeout_sec=60)
    (repair,) = await box.make_room()
    assert repair.startswith("processes: ")
    assert await output(box, "cat /proc/[0-9]*/comm | grep -c sleep") == "0\n"


async def test_an_agent_that_writes_more_than_its_task_allows_is_noticed_and_its_processes_are_killed(
    start: Start, backend: OciBackend
) -> None:
    box = await start(toml=f"{MODES}storage_mb = 20\n")
    noticed = asyncio.ensure_future(box.disk_exceeded())
    await box.shell("(while :; do head -c 5000000 /dev/zero >>/app/more; sleep 0.2; done) >&- 2>&- &", timeout_sec=60)
    async with asyncio.timeout(60):
        await (await noticed).wait()
    assert backend.describe()["limits"]["disk"] == "only watched"
    async with asyncio.timeout(60):
        while await output(box, "a=$(wc -c </app/more); sleep 1; [ $a = $(wc -c </app/more) ] && echo still") == "":
            pass


async def test_files_are_read_although_the_limit_of_processes_is_used_up(start: Start, backend: OciBackend) -> None:
    if set(backend.describe()["limits"].values()) != {"in force"}:
        pytest.skip("cgroups cannot be written here")
    box = await start(toml=f"{MODES}pids_limit = 64\n")
    await box.shell("mkdir -p /logs/agent; echo kept >/logs/agent/note", timeout_sec=60, user="root")
    await box.shell("for i in $(seq 70); do setsid sleep 600 & done", timeout_sec=2)
    assert await box.fetch("/logs", 1 << 20) == {"agent/note": b"kept\n"}


async def test_an_entry_point_runs_and_its_output_is_kept(start: Start) -> None:
    script = 'RUN printf "#!/bin/sh\\necho begun; touch /ready; exec \\"\\$@\\"\\n" >/entry && chmod 755 /entry\n'
    check = "HEALTHCHECK --interval=1s CMD test -e /ready\n"
    box = await start(dockerfile=f'FROM debian:bookworm-slim\nWORKDIR /app\n{script}{check}ENTRYPOINT ["/entry"]\n')
    assert await output(box, "ls /ready") == "/ready\n"
    assert (await box.logs())["entrypoint.log"] == b"begun\n"


async def test_snapshots_have_the_files_and_kept_containers_their_processes(
    start: Start, backend: OciBackend, store: Store, run_name: str, make_task: Any
) -> None:
    box = await start()
    await box.shell(
        "echo work >/app/done; rm /etc/issue; sleep 600 >/dev/null 2>&1 & echo $! >/app/pid", timeout_sec=30
    )
    snapshot, kept = await box.snapshot(), await box.keep()
    environment = agent_environment(Task.read(make_task()))
    again = await backend.from_snapshot(environment, "t.s0.x", snapshot)
    assert await output(again, "cat /app/done; ls /etc/issue 2>/dev/null; grep -l sleep /proc/*/comm") == "work\n"
    assert again.image_id() == box.image_id()
    await again.remove()
    same = await backend.reopen(environment, "t.s0.x", kept)
    assert await output(same, "kill -0 $(cat /app/pid) && cat /app/done") == "work\n"
    assert (await clean(store, Scope(run=run_name, kept=True), dry_run=True)).removed == []  # of this living process
    await same.remove()
    with pytest.raises(TrialError, match="gone"):
        await backend.reopen(environment, "t.s0.x", kept)
    await run(store.remove_tree(store.images / snapshot.removeprefix("sha256:")))


async def test_copies_share_the_network_and_a_public_one_reaches_other_machines(start: Start) -> None:
    if missing_programs("slirp4netns"):
        pytest.skip("slirp4netns is not installed")
    box = await start(toml="[environment]\nmemory_mb = 256\n")
    assert await output(box, "ls /sys/class/net") == "eth0\nlo\n"
    assert await output(box, "grep -c . /etc/resolv.conf; grep CapEff /proc/self/status") == (
        "1\nCapEff:\t00000000a80405fb\n"
    )
    copy = await filled_copy(box, [], [])
    assert await output(copy, "ls /sys/class/net") == "eth0\nlo\n"
    await copy.remove()


async def test_a_killed_run_s_containers_are_removed_by_the_next_and_others_stay(
    store: Store, run_name: str, make_task: Any, start: Start
) -> None:
    mine = await start()
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tbench.sandbox.backend import SandboxSettings, open_backend\n"
        "from tbench.sandbox.oci.backend import OciBackend\n"
        "from tbench.sandbox.oci.store import Store\n"
        "from tbench.tasks.environment import agent_environment\n"
        "from tbench.tasks.task import Task\n"
        "async def main():\n"
        "    async with open_backend(OciBackend(Store.at('oci:'), SandboxSettings(sys.argv[1]))) as backend:\n"
        "        made = await backend.sandbox(agent_environment(Task.read(Path(sys.argv[2]))), 't.s0.x')\n"
        "        print(made.container_id, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    dead_run = f"{run_name}-dead"
    argv = [sys.executable, "-c", program, dead_run, str(make_task())]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = await process.stdout.readline()
    process.kill()
    await process.communicate()
    directory = store.containers / line.decode().strip()
    pid = json.loads((directory / "state.json").read_text())["pid"]
    assert (await clean(store, Scope(run=dead_run), dry_run=True)).removed
    assert directory.exists()
    done = await clean(store, Scope(run=dead_run))
    assert (len(done.removed), done.failed) == (1, [])
    assert not directory.exists()
    assert start_of(pid) == ""
    assert await output(mine, "echo here") == "here\n"


async def test_a_start_that_is_cut_off_ends_before_its_files_go(
    backend: OciBackend, store: Store, make_task: Any, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = store.runtime()[0]
    (slow := tmp_path / runtime).write_text(
        f'#!/bin/sh\ncase "$*" in *" run "*) sleep 2 ;; esac\nexec {shutil.which(runtime)} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    starting = asyncio.ensure_future(backend.sandbox(agent_environment(Task.read(make_task())), "t.s0.x"))

    def made() -> list[Path]:
        return [each for each, state in read_states(store) if state and state.labels[LABEL_RUN] == run_name]

    while not (found := [each for each in made() if is_held(each)]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert made() == []
    (directory,) = found
    assert commands_with(directory.name) == []


def commands_with(word: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(file.read_text(errors="replace"))
    return [each for each in found if word in each]


async def test_what_was_never_finished_is_removed_once_nobody_makes_it(store: Store) -> None:
    image, container = store.images / f".new-{uuid.uuid4().hex}", store.containers / f"tbench-{uuid.uuid4().hex}"
    for each in (image, container):
        each.mkdir()
    young = (await clean(store, Scope(), dry_run=True)).removed
    for each in (image, container):
        os.utime(each, (0, 0))
    with held(image):
        locked = (await clean(store, Scope(), dry_run=True)).removed
    await remove_leftovers(store)
    names = [image.name, container.name[-12:]]
    assert [[name for name in names if name in " ".join(lines)] for lines in (young, locked)] == [[], names[1:]]
    assert not image.exists() and not container.exists()


async def test_a_full_disk_is_not_the_tasks_error(
    backend: OciBackend, make_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (full := tmp_path / "buildah").write_text("#!/bin/sh\necho 'write /a: no space left on device' >&2\nexit 1\n")
    full.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    task = Task.read(make_task(dockerfile=f"FROM debian:bookworm-slim\nLABEL new={uuid.uuid4().hex}\n"))
    with pytest.raises(TrialError, match="no space left") as failed:
        await backend.prepare(agent_environment(task))
    assert failed.value.type == "image_no_space"


async def test_a_container_killed_from_outside_is_lost(start: Start) -> None:
    box = await start()
    waiting = asyncio.create_task(box.shell("sleep 60", timeout_sec=100))
    await asyncio.sleep(1)
    os.kill(json.loads((box._directory / "state.json").read_text())["pid"], signal.SIGKILL)
    with pytest.raises(TrialError) as lost:
        await waiting
    assert lost.value.type == "sandbox_lost"


COMPOSE = "services:\n  main: {}\n  side: {image: 'debian:bookworm-slim', command: sleep 600}\n"
ALLOWLIST = '[environment]\nmemory_mb = 256\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.com"]\n'


@pytest.mark.parametrize(("compose", "toml", "why"), [(COMPOSE, MODES, "compose"), ("", ALLOWLIST, "some hosts")])
async def test_what_it_cannot_do_is_refused_by_name_and_starts_nothing(
    backend: OciBackend, make_task: Any, compose: str, toml: str, why: str
) -> None:
    path: Path = make_task(toml=toml)
    if compose:
        (path / "environment/docker-compose.yaml").write_text(compose)
    environment = agent_environment(Task.read(path))
    assert why in backend.refuse(environment)
    with pytest.raises(TrialError, match=why) as refused:
        await backend.sandbox(environment, "t.s0.x")
    assert refused.value.type == "task_unsupported"


async def test_a_closed_host_is_refused(store: Store) -> None:
    settings = SandboxSettings(uuid.uuid4().hex, SandboxConfig(block_host=True))
    with pytest.raises(UsageError, match="--block-host: oci"):
        await OciBackend(store, settings).open(lambda _: None)


def test_an_address_names_a_directory(tmp_path: Path) -> None:
    assert Store.at(f"oci:{tmp_path}/store").root == tmp_path / "store"
    with pytest.raises(UsageError, match="not an absolute path"):
        Store.at("oci:somewhere")
    with pytest.raises(ValueError, match="cannot be combined"):
        SandboxConfig(engines=("oci:", "unix:///var/run/docker.sock"))
