"""Writes conversations of a run as training data, and beside them what LLaMA-Factory has to know about the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tbench.exchange.chosen import ExportedTrial
from tbench.exchange.sft.rows import Thinking, training_rows
from tbench.files import write_json
from tbench.text import counted, visible

DATASET_INFO = "dataset_info.json"
_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}
_COLUMNS: dict[str, dict[str, Any]] = {
    "messages": {"formatting": "sharegpt", "columns": {"messages": "messages"}},
    # Only this of LLaMA-Factory's forms knows calls of functions.
    "messages-with-tools": {"formatting": "openai", "columns": {"messages": "messages", "tools": "tools"}},
}


class TrainingData:
    """Files of rows in a directory. Rows with calls of functions have a file of their own: they have other columns."""

    def __init__(self, directory: Path, thinking: Thinking) -> None:
        self._directory = directory
        self._thinking = thinking
        self._files: dict[str, IO[bytes]] = {}
        self.trials = 0
        self.rows = 0
        self.replies = 0
        """Replies that are to be learnt."""
        self._partial = self._uneven = self._without_functions = 0

    def add(self, trial: ExportedTrial) -> bool:
        """Write the rows of a trial; whether there is anything to learn from it. Raises OSError."""
        rows = list(training_rows(trial, self._thinking))
        for row in rows:
            self._write(row)
        self.trials += bool(rows)
        self._partial += any(not row["is_whole"] for row in rows)
        self._without_functions += any(_calls(row) and "tools" not in row for row in rows)
        return bool(rows)

    def close(self) -> None:
        """Close the files and write dataset_info.json. Raises OSError."""
        for file in self._files.values():
            file.close()
        info = {
            f"tbench-{name}": {"file_name": f"{name}.jsonl", **_COLUMNS[name], "tags": _TAGS} for name in self._files
        }
        if info:
            write_json(self._directory / DATASET_INFO, info)

    def notes(self) -> list[str]:
        """What a reader of the files has to know, a line each."""
        notes = []
        if self._partial:
            notes.append(f"note: of {counted(self._partial, 'trial')} only the last context is known")
        if self._without_functions:
            of = counted(self._without_functions, "trial")
            notes.append(f"note: of {of} with calls of functions it is not known how these were described")
        if self._uneven:
            notes.append(f"note: {counted(self._uneven, 'row')} without taking turns: LLaMA-Factory skips them")
        return notes

    def _write(self, row: Mapping[str, Any]) -> None:
        name = "messages-with-tools" if "tools" in row or _calls(row) else "messages"
        if name not in self._files:
            self._files[name] = (self._directory / f"{name}.jsonl").open("wb")
        line = visible(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        self._files[name].write(line.encode("utf-8", "replace") + b"\n")
        self.rows += 1
        self.replies += sum(message["train"] for message in row["messages"])
        self._uneven += not _takes_turns([message["role"] for message in row["messages"]])


def _calls(row: Mapping[str, Any]) -> bool:
    return any(message.get("tool_calls") for message in row["messages"])


def _takes_turns(roles: list[str]) -> bool:
    """Whether user or tool, and assistant, take turns behind a system message, as LLaMA-Factory demands."""
    said = roles[1:] if roles[:1] == ["system"] else roles
    return all((role == "assistant") == bool(n % 2) for n, role in enumerate(said)) and len(said) % 2 == 0
