"""What the tests share: a real engine, small tasks made on the spot, shared sample data where it is present."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from fault_server import RECORDED, FaultServer
from hypothesis import settings
from own_podman import load_from_docker, own_podman
from packaged_trials import Pull, pull
from xdist.scheduler import LoadScopeScheduling

from tbench.sandbox.backend import Backend, Sandbox, SandboxSettings, open_backend
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.networks import ensure_network
from tbench.sandbox.docker.tools import ensure_base_images, ensure_tools
from tbench.sandbox.oci.backend import OciBackend
from tbench.sandbox.oci.store import Store, missing_programs
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

# The machine may be busy with containers: an example's duration says nothing. `make test` gives the same examples
# every time, half as many as usual; `make test-all` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")

ROOT = Path(__file__).parents[1]
os.environ.setdefault("TBENCH_SCHEDULE_CALIBRATE", "off")  # it would take room of the engine that other tests wait for
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
# What tests write is written through to the disk, and soon removed: both are slow there, and nothing in memory.
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
collect_ignore = ["data"]
"""Tasks of a stored run bring their own tests."""
MakeTask = Callable[..., Path]
MakeBackend = Callable[[SandboxSettings], Backend]
StartSandbox = Callable[..., "asyncio.Future[Sandbox]"]


MAX_CASES = 2
"""Cases of one test with containers that `make test` tries: the first and the last. `make test-all` tries all."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try what is marked `each_engine` on all kinds of engines, and not only on the usual one."""
    if metafunc.definition.get_closest_marker("each_engine") and "make_backend" in metafunc.fixturenames:
        missing = pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
        podman = (pytest.param(each, marks=[pytest.mark.slow, missing]) for each in ("podman", "rootless_podman"))
        other = pytest.param("oci", marks=pytest.mark.slow)
        metafunc.parametrize("make_backend", ["usual", other, *podman], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        tried = {round(at * (len(found) - 1) / (MAX_CASES - 1)) for at in range(MAX_CASES)}
        for number, item in enumerate(found):
            if number not in tried:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have no collection of garbage go through ten thousand tests, which stay: some tests collect many times.

    They stay frozen although runs within a test thaw, at their end, whatever is frozen.
    """
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None


OF_ONE = re.compile(r"^from (?:internet|own_\w+) import|^def host_addresses", re.MULTILINE)
"""In files that one worker has to itself: addresses of the host, or a registry whose images all have one label."""


SHARES = re.compile(r"""\bscope=["'](?:module|class|package)""")
"""In files whose tests share what takes long to make: they stay together."""


class EngineFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Of four workers two begin with what starts and judges containers, which mostly waits, one with what types into a
    few of them, and one with the rest; each goes on with what the others have not begun.

    A worker is given a test function at a time, or a file whose tests share what takes long to make: no file is long
    enough to keep one worker busy while the others have ended.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if OF_ONE.search(text_of(file)):
            return "host"
        return file if kind(file) != "containers" or SHARES.search(text_of(file)) else nodeid.partition("[")[0]

    def _assign_work_unit(self, node: Any) -> None:
        begins_with = ("containers", "terminals", "rest", "containers")[int(node.gateway.id.removeprefix("gw")) % 4]
        if first := next((scope for scope in self.workqueue if kind(scope) == begins_with), None):
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text()


@cache
def kind(scope: str) -> str:
    file = scope.partition("::")[0]
    if file == "host":
        return "containers"
    if not re.search(r"\bmark\.(engine|podman)\b", text_of(file)):
        return "rest"
    return "terminals" if file.startswith("tests/harness/") else "containers"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> EngineFirst:
    return EngineFirst(config, log)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's own cache is neither believed nor filled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def endpoint() -> Iterator[FaultServer]:
    """An endpoint that misbehaves as told."""
    server = FaultServer()
    yield server
    server.close()


@pytest.fixture
def recorded(endpoint: FaultServer) -> FaultServer:
    """The same, in a checkout that has the recordings of a real vLLM beside it."""
    if not RECORDED.is_dir():
        pytest.skip(f"no recordings at {RECORDED}")
    return endpoint


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The real engine; a test that needs it fails where there is none, as `make test` sets one up."""
    engine = Engine.connect(8)
    yield engine
    engine.close()


@pytest.fixture
def left_by_the_sdk() -> Iterator[None]:
    """Its sockets of connections that were refused, which it leaves to the collector, go while they are expected."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def tools_volume(engine: Engine) -> str:
    return asyncio.run(prepare(engine))


async def prepare(engine: Engine) -> str:
    """Make base images, network and tools volume; returns the volume's name."""
    await ensure_base_images(engine, print)
    await ensure_network(engine)
    return await ensure_tools(engine, print)


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes a task directory; parts are replaced by keyword, a part that is None is left out."""

    def make(
        name: str = "small-task",
        *,
        toml: str | None = "[environment]\nmemory_mb = 256\nallow_internet = false\n",
        instruction: str | None = "Create the file /app/done.\n",
        dockerfile: str | None = "FROM debian:bookworm-slim\nWORKDIR /app\n",
        solve: str | None = "touch /app/done\n",
        test: str | None = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    ) -> Path:
        directory = tmp_path / "tasks" / name
        parts = {
            "task.toml": toml,
            "instruction.md": instruction,
            "environment/Dockerfile": dockerfile,
            "solution/solve.sh": solve,
            "tests/test.sh": test,
        }
        for part, text in parts.items():
            if text is not None:
                (directory / part).parent.mkdir(parents=True, exist_ok=True)
                (directory / part).write_text(text)
        return directory

    return make


@pytest.fixture
def run_name() -> str:
    """The run that a test's containers are of; other workers count those of their own."""
    return f"tests-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def make_backend(request: pytest.FixtureRequest) -> Iterator[MakeBackend]:
    """Makes the backend of tests that need containers, and no particular engine.

    In `make test` that is the one without an engine, where its programs are there: a container costs half as much. In
    `make test-all`, and where slow tests are not left out, it is Docker.
    """
    kind = getattr(request, "param", "usual")
    missing = missing_programs("runc", "skopeo", "umoci", "buildah", "slirp4netns")
    if kind == "oci" or (kind == "usual" and "not slow" in request.config.option.markexpr and not missing):
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")
        yield lambda settings: OciBackend(Store.at("oci:"), settings)
    elif kind == "usual":
        engine, _ = request.getfixturevalue("engine"), request.getfixturevalue("tools_volume")
        yield lambda settings: DockerBackend(engine, settings)
    else:
        with own_podman(is_rootless=kind == "rootless_podman") as podman:
            load_from_docker(podman)
            asyncio.run(prepare(podman))
            yield lambda settings: DockerBackend(podman, settings)


@pytest.fixture
async def start_sandbox(make_backend: MakeBackend, run_name: str) -> AsyncIterator[Callable[[Path], object]]:
    """Starts real containers for task directories; removes them at the end."""
    async with _starting(make_backend(SandboxSettings(run_name))) as start:
        yield start


@pytest.fixture
async def start_in_docker(engine: Engine, tools_volume: str, run_name: str) -> AsyncIterator[Callable[[Path], object]]:
    """Does the same in Docker, for tests that look at the engine."""
    async with _starting(DockerBackend(engine, SandboxSettings(run_name))) as start:
        yield start


@contextlib.asynccontextmanager
async def _starting(backend: Backend) -> AsyncIterator[Callable[[Path], object]]:
    started: list[Sandbox] = []
    async with open_backend(backend):

        async def start(directory: Path, allowed: Sequence[str] = ()) -> Sandbox:
            started.append(await backend.sandbox(agent_environment(Task.read(directory).with_access(allowed)), "tests"))
            return started[-1]

        yield start
        for sandbox in started:
            await sandbox.remove()


@pytest.fixture
async def fresh(engine: Engine, make_task: Any) -> AsyncIterator[Callable[..., Task]]:
    """Makes tasks whose environment nobody has built before; removes what was built of them."""
    made: list[Task] = []
    mark = uuid.uuid4().hex

    def make(steps: str = "", *, toml: str = "", docker_image: str | None = None) -> Task:
        image = f'docker_image = "{docker_image}"\n' if docker_image else ""
        path = make_task(
            f"fresh-{uuid.uuid4().hex[:8]}",
            toml=f"[environment]\nmemory_mb = 256\n{image}{toml}",
            dockerfile=f"FROM debian:bookworm-slim\nLABEL tbench.test={mark}.{len(made)}\n{steps}",
        )
        made.append(Task.read(path))
        return made[-1]

    yield make
    images = Images(engine)
    for task in made:
        if await images.find(build_tag(agent_environment(task))) is not None:
            await engine.call(engine.api.remove_image, build_tag(agent_environment(task)), force=True)
    # Builds that failed leave their layers.
    for index in range(len(made)):
        await _prune_images(engine, f"tbench.test={mark}.{index}")


async def _prune_images(engine: Engine, label: str) -> None:
    """Remove untagged images with this label; an engine prunes for one caller at a time and refuses all others."""
    async with asyncio.timeout(120):
        while True:
            try:
                await engine.call(engine.api.prune_images, filters={"label": label})
                return
            except EngineError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            await asyncio.sleep(0.1)


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"reached")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host_port() -> Iterator[int]:
    """A server on all addresses of this host."""
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def pulled() -> Pull:
    """Pulls an agent if it is not here; a test is skipped where its registry is away."""
    pull_once = cache(pull)

    def pull_or_skip(name: str) -> None:
        if why := pull_once(name):
            (pytest.skip if "cannot be had" in why or "no npm here" in why else pytest.fail)(why)

    return pull_or_skip
