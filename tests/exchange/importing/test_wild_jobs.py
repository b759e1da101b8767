"""Whatever stands in the files of a job: it is imported, or told in one line, and nothing is left half written."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from harbor_jobs import atif, context, did, finish, result, said, trial, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbench.api.stored_runs import summarise
from tbench.errors import UsageError
from tbench.exchange.importing.common import ImportChoice
from tbench.exchange.importing.harbor.job import import_harbor
from tbench.storage.read_run import read_run

WILD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1e308,
        "",
        "x",
        "..",
        "a/b",
        "\x1b[31m\n",
        "\ud800",
        [],
        [[]],
        [None],
        {},
        {"x": {"y": []}},
        10**30,
    ]
)


def spoilt(value: Any, dice: random.Random, wild: Any) -> Any:
    """The value with something else in one place of it."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        return {**value, key: spoilt(value[key], dice, wild)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], spoilt(value[at], dice, wild), *value[at + 1 :]]
    return wild


@given(dice=st.randoms(use_true_random=False), wild=st.lists(WILD, min_size=1, max_size=4), cut=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_of_a_job_breaks_the_import(tmp_path: Path, dice: random.Random, wild: list[Any], cut: bool) -> None:
    job, run = tmp_path / "job", tmp_path / "run"
    for path in (job, run):
        shutil.rmtree(path, ignore_errors=True)
    steps = [{"step_name": "one", "agent_result": context(), "verifier_result": {"rewards": {"reward": 1}}}]
    log = atif(said("go"), did("x", "ls\n", shown="y", metrics={"prompt_tokens": 1}), did("", done=True))
    trial(job, result("a__1", "a", {"reward": 1.0}, step_results=steps), agent__trajectory_dot_json=log)
    trial(job, result("b__1", "b", {"reward": 0.0}), steps__one__agent__trajectory_dot_json=log)
    write(job / "lock.json", {"harbor": {"version": "0.25.0"}, "trials": [{"task": {"name": "a"}, "agent": {}}]})
    finish(job, mean=0.5, config={"datasets": [{"name": "d", "version": "1"}], "tasks": [{"path": "a"}]})
    files = sorted(job.rglob("*.json"))
    for each in wild:
        file = dice.choice(files)
        try:
            content = json.loads(file.read_text())
        except ValueError:
            continue
        text = json.dumps(spoilt(content, dice, each))
        write(file, text[: dice.randrange(len(text))] if cut and dice.random() < 0.3 else text)
    try:
        (made,) = import_harbor([job], run, ImportChoice())
    except UsageError as error:
        assert "\n" not in str(error)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["job"]
        return
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "run"]
    assert "\n" not in "".join([*made.lines, *made.notes])
    summarise(read_run(run))
