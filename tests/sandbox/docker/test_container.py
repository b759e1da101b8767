"""Containers on the real engine: limits, isolation, commands, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy

from tbench.errors import TrialError
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BUSYBOX, STOP_OTHERS, TOOLS
from tbench.sandbox.docker.cleaning import remove_leftovers
from tbench.sandbox.docker.commands import EngineCommands
from tbench.sandbox.docker.container import Container, ContainerLimits, Recipe
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import Images
from tbench.sandbox.image import Image
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN, LABEL_TRIAL, NETWORK, OwnerState, owner_state
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
BASE = "debian:bookworm-slim"
PROBE_LIMITS = ContainerLimits(cpus=0.5, memory_mb=192, pids=77)
Start = Callable[..., Coroutine[Any, Any, Container]]


@pytest.fixture
def run() -> str:
    """A run's name that no other test has, so that what is left of it can be counted."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def start(engine: Engine, tools_volume: str, run: str) -> AsyncIterator[Start]:
    """Starts containers; removes them at the end."""
    started: list[Container] = []

    async def make(image: Image | None = None, **options: Any) -> Container:
        known: dict[str, Any] = {"limits": PROBE_LIMITS, "has_internet": False, "environment": {}, "trial": "t.s0.x"}
        image = image or await Images(engine).find(BASE)
        assert image is not None
        through = options.pop("engine", engine)
        watch = options.pop("memory_watch", None)
        recipe = Recipe(image=image, tools_volume=tools_volume, run=run, **(known | options))
        container = await Container.start(through, recipe, watch)
        started.append(container)
        return container

    yield make
    for container in started:
        await container.remove()


@pytest.fixture(scope="module")
def box(engine: Engine, tools_volume: str) -> Iterator[Container]:
    """A container for the tests that only run commands in it."""

    async def started() -> Container:
        image = await Images(engine).find(BASE)
        assert image is not None
        run = f"test-{uuid.uuid4().hex[:12]}"
        return await Container.start(
            engine,
            Recipe(
                image=image,
                limits=PROBE_LIMITS,
                tools_volume=tools_volume,
                run=run,
                trial="t.s0.x",
                has_internet=False,
                environment={},
            ),
        )

    container = asyncio.run(started())
    yield container
    asyncio.run(container.remove())


@pytest.fixture
async def build(engine: Engine, make_task: Any) -> AsyncIterator[Callable[[str], Coroutine[Any, Any, Image]]]:
    """Builds an image from a Dockerfile; removes it at the end."""
    built: list[Image] = []

    async def make(dockerfile: str) -> Image:
        path: Path = make_task(f"image-{uuid.uuid4().hex[:8]}", dockerfile=dockerfile)
        built.append(await Images(engine).get(agent_environment(Task.read(path))))
        return built[-1]

    yield make
    for image in built:
        await engine.call(engine.api.remove_image, image.reference, force=True)


async def inspect(engine: Engine, container: Container) -> Any:
    return await engine.call(engine.api.inspect_container, container.container_id)


async def containers_of(engine: Engine, run: str) -> list[Any]:
    found: list[Any] = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
    return found


async def output(container: Container, script: str, **options: Any) -> str:
    ended = await container.shell(script, timeout_sec=30, **options)
    assert ended.exit_code == 0, ended
    return ended.output.decode().strip()


async def test_the_limits_are_set(engine: Engine, box: Container) -> None:
    host = (await inspect(engine, box))["HostConfig"]
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 77)
    assert (host["Memory"], host["MemorySwap"]) == (192 << 20, 192 << 20)


async def test_the_limit_on_processes_holds(start: Start) -> None:
    container = await start()
    ended = await container.shell("for i in $(seq 200); do sleep 1 & done", timeout_sec=20)
    assert b"fork" in ended.output or ended.exit_code != 0


async def test_more_memory_than_allowed_is_refused_to_the_command_only(start: Start) -> None:
    container = await start(limits=ContainerLimits(1, 64, 100))
    held = "exec 2>/dev/null; head -c {0} /dev/zero | tail -c {0} | wc -c"
    assert await output(container, held.format(10 << 20)) == str(10 << 20)
    assert await output(container, held.format(200 << 20)) == "0"
    assert await output(container, "echo still here") == "still here"


async def test_a_demand_above_the_machine_gets_the_machine(engine: Engine, start: Start) -> None:
    container = await start(limits=ContainerLimits(engine.info.cpus + 100, 192, 77))
    assert (await inspect(engine, container))["HostConfig"]["NanoCpus"] == engine.info.cpus * 1_000_000_000


async def test_labels_say_whose_it_is(engine: Engine, start: Start, run: str) -> None:
    labels = (await inspect(engine, await start(trial="task.s1.abc")))["Config"]["Labels"]
    assert (labels[LABEL_RUN], labels[LABEL_TRIAL]) == (run, "task.s1.abc")
    assert owner_state(labels[LABEL_OWNER])[0] is OwnerState.ALIVE


async def test_containers_of_a_living_process_are_no_leftovers(engine: Engine, box: Container) -> None:
    removed = (await remove_leftovers(engine)).lines
    assert not any(box.container_id[:12] in line for line in removed)
    assert await output(box, "echo there") == "there"


async def test_the_machine_has_one_name_for_all_trials_of_a_task(start_sandbox: Any, make_task: Any) -> None:
    one, other = [await start_sandbox(make_task("same")) for _ in range(2)]
    third = await start_sandbox(make_task("another"))
    copy = await filled_copy(one, (), ())
    try:
        names = [
            (await each.shell("hostname", timeout_sec=5)).output.decode().strip() for each in (one, other, third, copy)
        ]
    finally:
        await copy.remove()
    assert names[0] == names[1] == names[3] != names[2]
    assert re.fullmatch("[0-9a-f]{12}", names[0])


async def test_a_copy_has_a_network_of_its_own_if_it_is_apart(start_sandbox: Any, make_task: Any) -> None:
    own = await start_sandbox(make_task("apart", dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\nVOLUME /kept\n"))
    assert own.can_be_apart()
    await own.shell("echo kept >/kept/note", timeout_sec=5)
    beside, apart = await filled_copy(own, (), ()), await filled_copy(own, (), (), is_apart=True)
    try:
        look = "readlink /proc/self/ns/net; hostname; cat /kept/note"
        seen = [(await each.shell(look, timeout_sec=5)).output.split() for each in (own, beside, apart)]
    finally:
        await asyncio.gather(beside.remove(), apart.remove())
    assert seen[0] == seen[1] and seen[0][0] != seen[2][0] and seen[0][1:] == seen[2][1:]


async def test_an_init_is_pid_1_and_buries_orphans(engine: Engine, start: Start) -> None:
    container = await start()
    assert await output(container, "tr -d '\\0' </proc/1/cmdline") == f"{TOOLS}/bin/init"
    await container.shell("kill -9 1; kill -9 -1", timeout_sec=30)
    assert await output(container, "echo alive") == "alive"
    # The orphan's parent is gone before it ends; without an init it stays as a zombie.
    script = """
    pid=$(sh -c 'sleep 0.05 >/dev/null 2>&1 & echo $!')
    while kill -0 $pid 2>/dev/null; do sleep 0.05; done
    """
    await output(container, script)


async def test_without_internet_there_is_no_network(engine: Engine, box: Container) -> None:
    assert await output(box, "ls /sys/class/net") == "lo"
    assert list((await inspect(engine, box))["NetworkSettings"]["Networks"]) == ["none"]


async def test_with_internet_it_is_on_the_shared_bridge_where_trials_cannot_reach_each_other(
    engine: Engine, start: Start
) -> None:
    server, other = await asyncio.gather(start(has_internet=True), start(has_internet=True))
    networks = (await inspect(engine, server))["NetworkSettings"]["Networks"]
    assert list(networks) == [NETWORK]
    address = networks[NETWORK]["IPAddress"]
    await output(server, f"mkdir /www; echo hello >/www/index.html; {BUSYBOX} httpd -h /www -p 8000")
    fetch = f"{BUSYBOX} timeout 2 {BUSYBOX} wget -q -O - http://{address}:8000/"
    assert await output(server, f"until {fetch}; do sleep 0.1; done") == "hello"
    ended = await other.shell(fetch, timeout_sec=30)
    assert ended.exit_code != 0
    assert b"hello" not in ended.output


async def test_the_tools_are_read_only_but_have_room_for_a_socket(box: Container) -> None:
    for attack in ("touch /opt/tbench/x", "rm -f /opt/tbench/bin/tmux", "mount -o remount,rw /opt/tbench"):
        assert (await box.shell(f"{attack} 2>&1", timeout_sec=10)).exit_code != 0
    await output(box, "touch /opt/tbench/run/tmux && [ -x /opt/tbench/bin/tmux ]")


async def test_a_removed_container_leaves_nothing(
    engine: Engine, start: Start, build: Callable[[str], Coroutine[Any, Any, Image]], run: str
) -> None:
    container = await start(await build(f"FROM {BASE}\nVOLUME /data\n"))
    mounts = (await inspect(engine, container))["Mounts"]
    (volume,) = [mount["Name"] for mount in mounts if mount["Destination"] == "/data"]
    await container.remove()
    assert await containers_of(engine, run) == []
    with pytest.raises(EngineError, match="no such volume"):
        await engine.call(engine.api.inspect_volume, volume)


async def test_removing_twice_is_fine(start: Start) -> None:
    container = await start()
    await asyncio.gather(container.remove(), container.remove())
    await container.remove()
    await is_lost(container.shell("true", timeout_sec=10))


@pytest.mark.parametrize("after_sec", [0, 0.005, 0.02, 0.06, 0.15, 0.3])
async def test_a_start_that_is_cancelled_leaves_nothing(
    engine: Engine, start: Start, run: str, after_sec: float
) -> None:
    starting = asyncio.create_task(start())
    await asyncio.sleep(after_sec)
    starting.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(starting, return_exceptions=True)
    if starting.cancelled():
        assert await containers_of(engine, run) == []


class Telling:
    """The engine's API, telling when one of its calls begins."""

    def __init__(self, api: Any, call: str) -> None:
        self._api = api
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._loop.call_soon_threadsafe(self.begun.set)
        return getattr(self._api, name)


@pytest.mark.parametrize("call", ["create_container", "start"])
async def test_a_cancellation_in_the_midst_of_a_call_waits_for_its_answer(
    engine: Engine, start: Start, run: str, call: str
) -> None:
    telling = Telling(engine.api, call)
    with ThreadPoolExecutor(4) as threads:
        starting = asyncio.create_task(start(engine=Engine(telling, threads, engine.info)))
        async with asyncio.timeout(60):
            await telling.begun.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
    assert await containers_of(engine, run) == []


async def test_a_container_that_cannot_start_is_an_error_and_leaves_nothing(
    engine: Engine, start: Start, run: str
) -> None:
    with pytest.raises(TrialError) as caught:
        await start(limits=ContainerLimits(1, 1, 77))
    assert caught.value.type == "sandbox_failed"
    assert await containers_of(engine, run) == []


async def test_megabytes_go_in_and_out_unchanged(box: Container) -> None:
    data = os.urandom(8 << 20)
    async with asyncio.timeout(120):
        echoed = await box.shell("cat", timeout_sec=60, stdin=data)
        kept = await box.shell("cat >/kept; cat /kept", timeout_sec=60, stdin=data)
    assert echoed.output == data
    assert kept.output == data


async def test_input_that_no_one_reads_is_no_error(box: Container) -> None:
    ended = await box.shell("head -c 3; exit 4", timeout_sec=30, stdin=b"abc" + bytes(8 << 20))
    assert (ended.output, ended.exit_code) == (b"abc", 4)


async def test_the_input_ends(box: Container) -> None:
    assert await output(box, "cat; wc -c </dev/stdin; echo done") == "0\ndone"


async def test_output_has_no_errors_mixed_in(box: Container) -> None:
    assert await output(box, "echo out; echo err >&2") == "out"


@pytest.mark.parametrize("code", [0, 1, 3, 124, 255])
async def test_exit_codes_come_through(box: Container, code: int) -> None:
    ended = await box.shell(f"exit {code}", timeout_sec=30)
    assert (ended.exit_code, ended.timed_out) == (code, False)


@pytest.mark.slow
async def test_a_command_whose_own_limit_was_frozen_is_given_up_from_outside(start: Start) -> None:
    """Root inside can stop the process that should end the command."""
    container = await start()
    freeze = "for p in /proc/[0-9]*; do grep -q '^/opt/tbench/bin/limit' $p/cmdline && kill -STOP ${p#/proc/}; done"
    async with asyncio.timeout(90):
        ended = await container.shell(f"{freeze}; echo frozen; sleep 100", timeout_sec=2)
    assert (ended.exit_code, ended.timed_out, ended.output) == (None, True, b"frozen\n")
    assert await output(container, "echo still here") == "still here"


@pytest.mark.parametrize(
    "script",
    [
        "echo part; sleep 100",
        "trap 'exit 3' TERM; echo part; while :; do sleep 0.1; done",
        pytest.param("trap '' TERM; echo part; while :; do sleep 1; done", marks=pytest.mark.slow),
    ],
)
async def test_a_command_that_takes_too_long_is_ended(box: Container, script: str) -> None:
    ended = await box.shell(script, timeout_sec=1)
    assert (ended.timed_out, ended.output) == (True, b"part\n")


async def test_a_limit_counts_from_the_command_s_own_beginning(box: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = EngineCommands.open

    async def late(self: EngineCommands, *args: Any, **options: Any) -> Any:
        stream = await opened(self, *args, **options)
        await asyncio.sleep(0.8)
        return stream

    monkeypatch.setattr(EngineCommands, "open", late)
    assert (await box.shell("sleep 100", timeout_sec=1)).timed_out


async def test_nothing_of_a_command_outlives_it(start: Start) -> None:
    container = await start()
    assert await output(container, "sleep 0.1") == ""
    assert await output(container, "cat /proc/[0-9]*/comm") == "init\nlimit\ncat"


async def test_a_shell_that_dies_while_all_others_stand_still_is_not_waited_for(start: Start) -> None:
    ended = await (await start()).shell("kill -STOP -1; kill -CONT $PPID; kill -9 $$", timeout_sec=60)
    assert (ended.exit_code, ended.timed_out) == (137, False)


async def test_a_command_leads_a_group_which_it_may_end(box: Container) -> None:
    ended = await box.shell("read -r _ _ _ _ group _ </proc/$$/stat; [ $group = $$ ] && kill 0", timeout_sec=30)
    assert (ended.exit_code, ended.timed_out) == (143, False)


@pytest.mark.slow
async def test_a_background_process_does_not_hold_a_command_past_its_limit(box: Container) -> None:
    async with asyncio.timeout(25):
        ended = await box.shell("sleep 100 & echo started", timeout_sec=1)
    assert ended.output == b"started\n"


async def test_environment_and_user_are_as_asked(start: Start) -> None:
    container = await start(environment={"TASK": "t"})
    script = 'echo "$TASK $OWN $(id -un) $PWD"'
    assert await output(container, script, environment={"OWN": "o w"}) == "t o w root /"
    assert await output(container, "id -un", user="nobody") == "nobody"


async def test_files_are_put_with_their_modes_and_fetched_by_relative_path(box: Container) -> None:
    data = os.urandom(3 << 20)
    await box.put({"/in/run": FileEntry(data, 0o755), "/in/sub": FileEntry(None, 0o700)})
    assert await output(box, "stat -c '%a %U' /in/run /in/sub") == "755 root\n700 root"
    assert await box.fetch("/in", 64 << 20) == {"run": data}
    assert await box.fetch("/in", 1000) == {"run": data[:1000]}
    assert await box.fetch("/nowhere", 1000) == {}


async def is_lost(doing: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(TrialError) as caught:
            await doing
    assert caught.value.type == "sandbox_lost"


async def test_a_container_killed_from_outside_is_lost(engine: Engine, start: Start) -> None:
    container = await start()
    await engine.call(engine.api.kill, container.container_id)
    await engine.call(engine.api.wait, container.container_id)
    await is_lost(container.shell("true", timeout_sec=10))
    await is_lost(container.connect(["cat"], {}))


async def test_a_container_killed_under_a_command_is_lost(engine: Engine, start: Start) -> None:
    container = await start()
    running = asyncio.create_task(container.shell("echo 1 >/begun; sleep 100", timeout_sec=50))
    await output(container, "until [ -e /begun ]; do sleep 0.05; done")
    await engine.call(engine.api.kill, container.container_id)
    await is_lost(running)


async def test_a_container_removed_from_outside_is_lost(engine: Engine, start: Start) -> None:
    container = await start()
    await engine.call(engine.api.remove_container, container.container_id, force=True)
    await is_lost(container.shell("true", timeout_sec=10))
    await is_lost(container.put({"/x": FileEntry(b"")}))
    await is_lost(container.fetch("/logs", 10))
    await container.remove()


async def read_all(container: Container, argv: list[str], environment: dict[str, str]) -> str:
    stream = await container.connect(argv, environment)
    pieces = []
    async with asyncio.timeout(60):
        while piece := await stream.read():
            pieces.append(piece)
    await stream.close()
    return b"".join(pieces).decode()


async def test_a_stream_runs_as_the_images_user_in_its_workdir(
    start: Start, build: Callable[[str], Coroutine[Any, Any, Image]]
) -> None:
    image = await build(f"FROM {BASE}\nRUN useradd -m dev\nUSER dev\nWORKDIR /home/dev\n")
    container = await start(image)
    assert not container.runs_as_root
    told = await read_all(
        container, [BUSYBOX, "sh", "-c", 'id -un; pwd; echo "$A $LANG"; touch /logs/agent/x'], {"A": "a"}
    )
    assert told == "dev\n/home/dev\na C.UTF-8\n"
    assert await output(container, "id -un") == "dev"
    assert await output(container, "id -un; stat -c %U /logs/agent/x", user="root") == "root\ndev"


async def test_a_streams_bytes_go_both_ways_until_it_is_closed(box: Container) -> None:
    stream = await box.connect(["cat"], {})
    received = b""
    async with asyncio.timeout(60):
        for portion in (b"one\n", b"\xff\x00\n", b"x" * 100_000):
            await stream.write(portion)
            received = b""
            while len(received) < len(portion):
                received += await stream.read()
            assert received == portion
        waiting = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        await stream.close()
        assert await waiting == b""


async def test_a_stream_that_ends_with_an_error_tells_it(box: Container) -> None:
    stream = await box.connect([BUSYBOX, "sh", "-c", "echo out; echo broken >&2; exit 3"], {})
    async with asyncio.timeout(60):
        assert await stream.read() == b"out\n"
        with pytest.raises(ConnectionError, match="broken"):
            await stream.read()
    await stream.close()


@pytest.mark.parametrize(
    "dockerfile",
    [f"FROM {BASE}\nRUN rm /bin/bash\n", "FROM scratch\nCOPY . /\n", f'FROM {BASE}\nENTRYPOINT ["false"]\nCMD ["x"]\n'],
    ids=["no bash", "nothing at all", "an entrypoint that ends"],
)
async def test_an_image_needs_nothing_of_its_own(
    start: Start, build: Callable[[str], Coroutine[Any, Any, Image]], dockerfile: str
) -> None:
    container = await start(await build(dockerfile))
    assert await output(container, f"{BUSYBOX} echo hello") == "hello"
    assert await read_all(container, [BUSYBOX, "sh", "-c", "echo stream"], {}) == "stream\n"


async def test_a_workdir_that_is_missing_is_made(start: Start) -> None:
    container = await start(workdir="/made/for it")
    assert container.workdir == "/made/for it"
    assert await read_all(container, [BUSYBOX, "pwd"], {}) == "/made/for it\n"


async def test_tmux_runs_without_terminfo_or_locale_of_the_image(box: Container) -> None:
    told = await output(box, "/opt/tbench/bin/tmux -V")
    assert re.fullmatch(r"tmux \S+", told)


async def test_a_command_that_is_just_starting_goes_on_while_the_others_are_stopped(
    start: Start, engine: Engine
) -> None:
    sandbox = await start()
    named = """$0 = "runc:[2:INIT]"; sleep 60"""
    starting = engine.api.exec_create(sandbox.container_id, ["perl", "-e", named])["Id"]
    engine.api.exec_start(starting, detach=True)
    await sandbox.shell(f"perl -e '{named}' & {BUSYBOX} sleep 0.3", timeout_sec=20)
    script = f"{STOP_OTHERS}stop_others; for each in $({BUSYBOX} pidof perl); do {BUSYBOX} cat /proc/$each/status; done"
    ended = await sandbox.shell(script, timeout_sec=20)
    found = re.findall(rb"State:\t(.).*?PPid:\t(\d+)", ended.output, re.DOTALL)
    assert {parent != b"0": state for state, parent in found} == {False: b"S", True: b"T"}
