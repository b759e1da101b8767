"""The night under way: runs its stages one by one, and records the end of each on disk."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from tbench import exit_codes
from tbench.errors import TbenchError
from tbench.nightly.journal import LOG_NAME, CheckpointRecord, NightRecord, Nights, StageName, StageRecord, now
from tbench.nightly.server import ServerFailed
from tbench.text import escape_invisible, one_line


@dataclass(frozen=True)
class StageEnd:
    """How a stage ended."""

    message: str
    code: int = 0
    state: Literal["done", "failed", "skipped"] = "done"


class RunningNight:
    """The night under way; each change of its record is written to disk at once."""

    def __init__(self, nights: Nights, record: NightRecord, lock: int, say: Callable[[str], None]) -> None:
        self.nights = nights
        self.record = record
        self.lock = lock
        self.say = say
        self.folder = nights.night_directory(record.name)
        self.log = self.folder / LOG_NAME

    def change(self, **values: Any) -> None:
        """Set fields of the record and write it. Raises UsageError."""
        self.record = self.record.model_copy(update=values)
        self.nights.write(self.record)

    async def stage(
        self, name: StageName, work: Callable[[], Awaitable[StageEnd]], checkpoint: CheckpointRecord | None = None
    ) -> StageRecord:
        """Run a stage of a checkpoint or of the whole night, and record how it ended, even if it failed.

        Raises UsageError if the end cannot be recorded.
        """
        began = time.monotonic()
        try:
            end = await work()
        except ServerFailed as failure:
            end = StageEnd(str(failure), exit_codes.ENDPOINT_DOWN, "failed")
        except (TbenchError, OSError) as failure:
            end = StageEnd(one_line(str(failure), 1000), exit_codes.USAGE, "failed")
        except Exception as bug:  # noqa: BLE001 - a bug in one stage must not lose the others
            self.note(traceback.format_exc())
            end = StageEnd(f"a bug: {one_line(repr(bug))} (traceback in {self.log})", exit_codes.BUG, "failed")
        seconds = round(time.monotonic() - began, 3)
        stage = StageRecord(state=end.state, words=end.message, code=end.code, ended_at=now(), seconds=seconds)
        self._record_stage(name, stage, checkpoint)
        where = f"{checkpoint.slug}: " if checkpoint else ""
        state = f"{end.state}: " if end.state != "done" else ""
        self.say(f"{name:<8} {where}{state}{end.message}")
        return stage

    def note(self, text: str) -> None:
        """Append lines to the night's log; they are lost if the disk is full."""
        with contextlib.suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8", errors="replace") as log:
                log.write(escape_invisible(text.rstrip("\n")) + "\n")

    def checkpoint(self, slug: str) -> CheckpointRecord:
        """Return the current record of a checkpoint."""
        return next(each for each in self.record.checkpoints if each.slug == slug)

    def _record_stage(self, name: StageName, stage: StageRecord, checkpoint: CheckpointRecord | None) -> None:
        if checkpoint is None:
            self.change(stages={**self.record.stages, name: stage})
            return
        changed = tuple(
            each.model_copy(update={"stages": {**each.stages, name: stage}}) if each.slug == checkpoint.slug else each
            for each in self.record.checkpoints
        )
        self.change(checkpoints=changed)


def exit_code(record: NightRecord) -> int:
    """Return the night's exit code: that of the worst of its stages."""
    stages = [*record.stages.values(), *(stage for each in record.checkpoints for stage in each.stages.values())]
    return exit_codes.worst(stage.code for stage in stages)
