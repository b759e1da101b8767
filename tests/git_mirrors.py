"""Repositories with datasets for tests: made with git on the spot, and reached by `file://`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tbench.tasks.task import Task

PARTS = {
    "task.toml": "[environment]\nmemory_mb = 256\nallow_internet = false\n",
    "instruction.md": "Create the file /app/done.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
    "solution/solve.sh": "touch /app/done\n",
    "tests/test.sh": "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
}
_WHO = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *_WHO, *arguments], cwd=directory, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


class Mirror:
    """A bare repository, and a checkout in which its next commit is made."""

    def __init__(self, directory: Path, name: str = "mirror", *, filters: bool = True) -> None:
        self.path = directory / f"{name}.git"
        self.work = directory / f"{name}-work"
        self.head = ""
        """The commit that was made last."""
        for path, bare in ((self.path, ["--bare"]), (self.work, [])):
            path.mkdir(parents=True)
            git(path, "init", "--quiet", "--initial-branch=main", *bare)
        git(self.path, "config", "uploadpack.allowFilter", str(filters).lower())
        git(self.path, "config", "uploadpack.allowAnySHA1InWant", "true")

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def task(self, name: str, folder: str = "tasks", **parts: str) -> Path:
        """Write a task into the checkout; `parts` replace those that it has, by the stem of their names."""
        directory = self.work / folder / name
        for part, text in PARTS.items():
            (directory / part).parent.mkdir(parents=True, exist_ok=True)
            (directory / part).write_text(parts.get(Path(part).stem.lower(), text))
        return directory

    def publish(self, folder: str = "tasks", *, other: Mapping[str, str] | None = None) -> None:
        """Write a dataset.toml with the digests of the tasks in the checkout, or with `other` ones."""
        digests = {path.name: Task.read(path).hash for path in tasks_in(self.work / folder)} | dict(other or {})
        lines = ['[dataset]\nname = "tests/made-up"\n']
        lines += [f'[[tasks]]\nname = "tests/{name}"\ndigest = "sha256:{hex_}"\n' for name, hex_ in digests.items()]
        (self.work / folder / "dataset.toml").write_text("".join(lines))

    def commit(self) -> str:
        """Commit what the checkout holds to the mirror's branch main, and give the commit's id."""
        git(self.work, "add", "--all", "--force")
        git(self.work, "commit", "--quiet", "--allow-empty", "--message", "tasks")
        git(self.work, "push", "--quiet", str(self.path), "HEAD:main")
        self.head = git(self.work, "rev-parse", "HEAD")
        return self.head


def tasks_in(directory: Path) -> Iterable[Path]:
    return sorted(path.parent for path in directory.glob("*/task.toml"))


def registry(path: Path, *rows: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(list(rows)))
    return path


def row(name: str, version: str, mirror: Mirror, commit: str | None, names: Iterable[str]) -> dict[str, Any]:
    """A row of Harbor's registry.json; without a commit, of whatever is there."""
    at = {"git_url": mirror.url} | ({"git_commit_id": commit} if commit else {})
    tasks = [{"name": each, "path": f"tasks/{each}", **at} for each in names]
    return {"name": name, "version": version, "description": f"{name} of a test", "tasks": tasks}
