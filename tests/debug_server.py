"""A run that speaks the wire of the debugger on a real socket, without a trial behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Self

COLUMNS, ROWS = 160, 40
TRIAL = "small-task/0"


class FakeRun:
    """A context manager: a run directory whose one trial waits at the draft of its first step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.json").write_text("{}")
        self.asked: list[dict[str, Any]] = []
        self.typed = b""
        self._lines = [f"line {row} of the screen" for row in range(ROWS)]
        self._debug: dict[str, Any] = {"version": 1, "waits_for": "decision", "step": 1, "steps": [], "verdicts": []}
        self._propose(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(20)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def asks(self, do: str) -> list[dict[str, Any]]:
        """The requests of a kind, without what all have."""
        return [{k: v for k, v in each.items() if k not in ("do", "trial")} for each in self.asked if each["do"] == do]

    def hang_up(self) -> None:
        """End as a run does: nobody listens any more, and all connections are closed."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)

    async def _listen(self) -> None:
        self._changed = asyncio.Condition()
        self._clients: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_unix_server(self._serve, self.directory / "control.sock")

    async def _end(self) -> None:
        self._server.close()
        (self.directory / "control.sock").unlink(missing_ok=True)
        for client in tuple(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                self.asked.append(request)
                if request["do"] == "attach":
                    await self._show(request, reader, writer)
                    return
                answer = await self._answers[request["do"]](self, request)
                writer.write(json.dumps({"ok": True, "words": "", **answer}).encode() + b"\n")
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _show(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def take() -> None:
            while data := await reader.read(1000):
                self.typed += data
                self._lines[5] = f"typed: {self.typed!r}"
                await self._change()

        taking = asyncio.create_task(take())
        try:
            while not taking.done():
                answer = {"ok": True, "screen": self._screen, "yours": request["take"]}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
                waiting = asyncio.create_task(self._news())
                try:
                    await asyncio.wait({taking, waiting}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
        finally:
            taking.cancel()

    async def _news(self) -> None:
        async with self._changed:
            await self._changed.wait()

    async def _change(self, **values: Any) -> dict[str, Any]:
        async with self._changed:
            self._debug |= {**values, "version": self._debug["version"] + 1}
            self._changed.notify_all()
        return {"words": "done"}

    @property
    def _screen(self) -> dict[str, Any]:
        return {
            "columns": COLUMNS,
            "rows": ROWS,
            "cursor": [3, 5],
            "cursor_visible": True,
            "application_keys": False,
            "lines": self._lines,
        }

    def _propose(self, step: int, *contents: str) -> None:
        contents = contents or (f"\x1b[31mreply {step}",)
        samples = [
            {"step": step, "content": text, "actions": [f"do {text}\n"], "seed": at, "chosen": at == 0}
            for at, text in enumerate(contents)
        ]
        self._debug |= {"draft": samples[0], "samples": samples, "step": step}

    async def _state(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._changed:
            if request["version"] is not None:
                await self._changed.wait_for(lambda: self._debug["version"] > request["version"])
        steps = [step for step in self._debug["steps"] if step["index"] > request["after"]]
        return {"debug": {**self._debug, "steps": steps}}

    async def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        draft, step = self._debug["draft"], self._debug["step"]
        done = {
            "index": step,
            "thoughts": ("because it is so",),
            "content": draft["content"],
            "actions": draft["actions"],
            "observation": f"done {step}",
            "warnings": [f"odd: step {step} is odd"] if step % 2 else [],
            "exit_code": 0,
        }
        self._lines[5] = f"after step {step}"
        self._propose(step + 1)
        return await self._change(steps=[*self._debug["steps"], done])

    async def _edit(self, request: dict[str, Any]) -> dict[str, Any]:
        self._propose(self._debug["step"], request["text"])
        return await self._change()

    async def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        number = request["number"]
        self._propose(self._debug["step"], "first", *(f"sample {at + 2}" for at in range(number)))
        return await self._change()

    async def _verify(self, request: dict[str, Any]) -> dict[str, Any]:
        step = self._debug["step"] - 1
        await self._change(verdicts=[{"step": step, "state": "running"}])
        await asyncio.sleep(0.05)
        return await self._change(verdicts=[{"step": step, "state": "done", "reward": 0.5}])

    async def _rewind(self, request: dict[str, Any]) -> dict[str, Any]:
        self._propose(request["step"])
        steps = [step for step in self._debug["steps"] if step["index"] < request["step"]]
        return await self._change(attempt=self._debug.get("attempt", 1) + 1, steps=steps, differs="step 1: 'a' was 'b'")

    async def _quit(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._change(ended={"outcome": "submitted", "reward": None, "error": "aborted"})

    async def _read_screen(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"screen": self._screen}

    async def _note(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._change()

    async def _pause(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._change(waits_for="person" if request["do"] == "pause" else "decision")

    _answers: ClassVar[dict[str, Callable[[FakeRun, dict[str, Any]], Awaitable[dict[str, Any]]]]] = {
        "debug": _state,
        "step": _step,
        "run": _step,
        "edit": _edit,
        "sample": _sample,
        "verify": _verify,
        "rewind": _rewind,
        "quit": _quit,
        "screen": _read_screen,
        "pause": _pause,
        "continue": _pause,
        **dict.fromkeys(("stepping", "say", "drop", "choose", "snapshot", "cassette"), _note),
    }
