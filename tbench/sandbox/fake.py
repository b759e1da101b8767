"""A backend without containers, whose sandboxes give scripted answers. For tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from harness.stream import ByteStream, Connect
from tbench.errors import TrialError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.archive import FileEntry, pack
from tbench.sandbox.backend import BackendFacts, Capacity, ExecResult, Say
from tbench.tasks.environment import Environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.task import Task

REWARD_ONE: Mapping[str, bytes] = {"verifier/reward.txt": b"1\n", "verifier/stdout.txt": b"1 passed in 0.01s\n"}

_AMPLE = Capacity(1e6, 1e9)


@dataclass(frozen=True)
class Call:
    """A command run in the sandbox."""

    script: str
    user: str | None
    environment: Mapping[str, str]
    stdin: bytes
    timeout_sec: float


class FakeSandbox:
    """A `Sandbox` without a container, with the optional protocols that `require` knows, except `HasTty`.

    `logs` is the content of /logs. `shell` returns the `answers` in turn, or raises them if they are exceptions; after
    the last, every command ends with 0. `calls`, `files` and `removed` record what was done to the sandbox.
    """

    def __init__(
        self,
        logs: Mapping[str, bytes] = REWARD_ONE,
        answers: Iterable[ExecResult | Exception] = (),
        *,
        connect: Connect | None = None,
        workdir: str = "/app",
        runs_as_root: bool = True,
        printed: bytes = b"",
    ) -> None:
        self.workdir = workdir
        self.runs_as_root = runs_as_root
        self._printed = printed
        self._first_answers = tuple(answers)
        self.answers = deque(self._first_answers)
        self.calls: list[Call] = []
        self.files: dict[str, FileEntry] = {}
        self.removed = False
        self.kept = False
        self.snapshots = 0
        self.copies: list[FakeSandbox] = []
        self.is_fresh = False
        self.ran_out_of_memory = False
        self.networks: list[NetworkPolicy] = []
        """Network policies applied so far, in order."""
        self.repairs: tuple[str, ...] = ()
        """Result of the next `make_room`."""
        self._logs = logs
        self._connect = connect

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str], user: str | None = None) -> ByteStream:
        if self._connect is None:
            raise TrialError("sandbox_failed", "this fake was given nothing to connect to")
        return await self._connect(argv, environment)

    def image_id(self) -> str:
        return ""

    async def backend_facts(self) -> BackendFacts:
        return BackendFacts()

    async def shell(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        if self.removed:
            raise TrialError("sandbox_lost", "this fake was removed")
        self.calls.append(Call(script, user, dict(environment or {}), stdin, timeout_sec))
        answer = self.answers.popleft() if self.answers else self._default_answer(script)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        source: IO[bytes] | None = None,
        sink: IO[bytes] | None = None,
        limit_bytes: int = 64 << 20,
    ) -> ExecResult:
        packs = sum(line.startswith(("pack ", "pack_small ")) for line in script.splitlines())
        if sink is not None and not self.answers:
            # None of the requested files exist: an empty archive each.
            self.answers.append(ExecResult(0, bytes(1024 * packs)))
        ended = await self.shell(script, timeout_sec=timeout_sec, user=user, stdin=source.read() if source else b"")
        if sink is None:
            return ended
        sink.write(ended.output[:limit_bytes])
        return ExecResult(ended.exit_code, b"", ended.timed_out, was_cut=len(ended.output) > limit_bytes)

    def _default_answer(self, script: str) -> ExecResult:
        """Let every command succeed; the verifier's script also gets the report that tbench.verify expects."""
        is_verifier = "/tests/test.sh" in script
        if "/bin/changed -a" in script and not is_verifier:
            listed = "".join(f"0{path}\0" for path in ("/", *self.files)).encode()
            return ExecResult(0, listed + b"\0/usr/bin:/bin" if "$PATH" in script else listed)
        if not is_verifier and "tar -cf -" not in script:
            return ExecResult(0)
        mark = b"0" * 36
        archive = pack({f"/logs/{name}": FileEntry(self._logs[name]) for name in self._logs})
        return ExecResult(0, b"%b\n%b%b\ncode\t0\n%b end\n" % (mark, archive, mark, mark))

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        self.files.update(files)

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        inside = f"{directory.rstrip('/')}/"
        there = {f"/logs/{name}": data for name, data in self._logs.items()}
        there |= {path: entry.data for path, entry in self.files.items() if entry.data is not None}
        return {path.removeprefix(inside): there[path][:limit_bytes] for path in there if path.startswith(inside)}

    async def use_network(self, policy: NetworkPolicy) -> None:
        self.networks.append(policy)

    async def original(self) -> FakeSandbox:
        return self

    def can_be_apart(self) -> bool:
        return True

    async def start_copy(self, *, is_apart: bool = False) -> FakeSandbox:
        return await self.make_fresh()

    async def copy_into(
        self, starting: asyncio.Future[FakeSandbox], paths: Collection[str], removed: Collection[str]
    ) -> None:
        (await asyncio.shield(starting)).files = {path: entry for path, entry in self.files.items() if path in paths}

    async def make_fresh(self) -> FakeSandbox:
        made = FakeSandbox(self._logs, self._first_answers, workdir=self.workdir, runs_as_root=self.runs_as_root)
        made.is_fresh = True
        self.copies.append(made)
        return made

    async def logs(self) -> Mapping[str, bytes]:
        return {"entrypoint.log": self._printed} if self._printed else {}

    async def snapshot(self) -> str:
        self.snapshots += 1
        return f"sha256:{self.snapshots}"

    async def keep(self) -> str:
        self.kept = True
        return "fake"

    async def make_room(self) -> tuple[str, ...]:
        repairs, self.repairs = self.repairs, ()
        return repairs

    async def remove(self) -> None:
        self.removed = True


class FakeBackend:
    """A `Backend` whose sandboxes come from `make`, which may raise an engine's errors; `made` lists them by trial."""

    name = "the fake backend"
    sandbox_type: type = FakeSandbox

    def __init__(
        self, make: Callable[[Task], FakeSandbox] = lambda _: FakeSandbox(), capacity: Capacity = _AMPLE
    ) -> None:
        self.made: dict[str, FakeSandbox] = {}
        self.image_ids: dict[str, str] = {}
        self.image_origins: dict[str, ImageOrigin] = {}
        self.is_open = False
        self.prefetched: list[str] = []
        self.dropped: list[str] = []
        self._make = make
        self._capacity = capacity

    async def open(self, say: Say) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def prepare(self, environment: Environment) -> None:
        self.image_ids[environment.name] = "fake"
        self.image_origins[environment.name] = ImageOrigin(how="present", reference="fake")

    def capacity(self) -> Capacity:
        return self._capacity

    def describe(self) -> dict[str, Any]:
        return {"backend": "fake", "cpus": self._capacity.cpus, "memory_mb": self._capacity.memory_mb}

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> FakeSandbox:
        on_phase("sandbox")
        sandbox = self._make(environment.task)
        self.made[trial if environment.role == "agent" else f"{trial}.{environment.role}"] = sandbox
        await self.prepare(environment)
        return sandbox

    async def describe_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        return ()

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        self.prefetched += [each.name for each in environments]
        return {}

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        self.dropped.append(environment.name)
        return 1_000_000

    @property
    def left(self) -> list[str]:
        """Trials whose sandboxes were not removed."""
        return [trial for trial, sandbox in self.made.items() if not (sandbox.removed or sandbox.kept)]
