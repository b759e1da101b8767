"""Remedies: each cause has one with a command that tbench accepts, and what moved is put back."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from run_trees import a_result, write_run

from tbench.cli import app
from tbench.cli.parsing.commands import SETTINGS
from tbench.explaining.causes import BY_KEY
from tbench.explaining.remedies import remedy, remedy_of_moved
from tbench.explaining.sameness import IMAGE, Moved
from tbench.explaining.trials import Side, Trial, read_side

OWN = {"agent": "tbench:keystrokes-json", "prompt_hash": "p", "base_url": "http://localhost:8000/v1"}


def a_side(folder: Path, name: str = "run", **settings: Any) -> Side:
    results = [a_result(f"a task {at}", seed, 0.0) for at in range(2) for seed in (3, 4)]
    hashes = {f"a task {at}": "h" for at in range(2)}
    return read_side([write_run(folder / name, results, hashes, (3, 4), **{**OWN, **settings})])


def keep_files(side: Side, trial: Trial, *names: str) -> None:
    side.directory_of(trial).mkdir(parents=True)
    for name in names:
        (side.directory_of(trial) / name).touch()


def accepted(command: str) -> bool:
    """Whether the command line parses."""
    words = shlex.split(command)
    assert words[0] == "tbench"
    found = app.get_command(click.Context(app), words[1])
    assert found is not None
    found.make_context(words[1], words[2:], parent=click.Context(app, **SETTINGS), resilient_parsing=False)
    return True


@pytest.mark.parametrize("key", BY_KEY)
def test_every_cause_has_a_remedy_whose_command_is_accepted(tmp_path: Path, key: str) -> None:
    side = a_side(tmp_path)
    found = remedy(key, side, side.trials["a task 0"])
    assert found.words
    assert accepted(found.command)


def test_a_limit_is_doubled_for_the_tasks_and_seeds_that_it_ended(tmp_path: Path) -> None:
    side = a_side(tmp_path, max_tokens=4096)
    command = remedy("reply_cut", side, side.trials["a task 1"]).command
    assert "-t 'a task 1' -k 2 --first-seed 3" in command
    assert "-c model.max_tokens=8192" in command and "4096" not in command
    assert "a task 0" not in command


def test_what_moved_is_set_back(tmp_path: Path) -> None:
    old, new = a_side(tmp_path, "old", max_tokens=8192), a_side(tmp_path, "new", max_tokens=4096)
    moved = Moved(key="model.max_tokens", words="8192 → 4096", party="harness")
    found = remedy_of_moved("reply_cut", [moved], old, new, new.trials["a task 0"], None)
    assert "-c model.max_tokens=8192" in found.command and accepted(found.command)
    window = Moved(key="server.max_model_len", words="32,768 → 16,384 tokens", party="server")
    assert "32,768 tokens" in remedy_of_moved("context_full", [window], old, new, (), None).words


def test_a_loss_of_the_model_or_an_image_is_looked_at_side_by_side(tmp_path: Path) -> None:
    old, new = a_side(tmp_path, "old"), a_side(tmp_path, "new")
    failed, passed = new.trials["a task 0"], old.trials["a task 0"][1]
    keep_files(new, failed[0], "steps.jsonl")
    keep_files(old, passed, "steps.jsonl")
    for key in ("model", IMAGE):
        found = remedy_of_moved(key, [], old, new, failed, passed)
        assert found.command == f"tbench diff '{tmp_path}/old/a task 0/4' '{tmp_path}/new/a task 0/3'"
        assert accepted(found.command)


def test_no_command_names_a_trial_whose_files_are_gone(tmp_path: Path) -> None:
    old, new = a_side(tmp_path, "old"), a_side(tmp_path, "new")
    failed, passed = new.trials["a task 0"], old.trials["a task 0"][1]
    assert remedy_of_moved("model", [], old, new, failed, passed).command == f"tbench summary {tmp_path}/new"
    assert remedy("model", new, failed).command == f"tbench summary {tmp_path}/new"
    kept = a_side(tmp_path, "kept")
    keep_files(kept, kept.trials["a task 0"][1], "result.json")
    found = remedy_of_moved("model", [], old, kept, kept.trials["a task 0"], passed)
    assert found.command == f"tbench why '{tmp_path}/kept/a task 0/4'"


def test_imported_results_have_commands_too(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"task": "t", "seed": 0, "reward": 0}\n')
    side = read_side([tmp_path / "r.jsonl"])
    for key in BY_KEY:
        assert remedy(key, side, side.trials["t"]).command == f"tbench summary {tmp_path}/r.jsonl"
