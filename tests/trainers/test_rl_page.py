"""docs/python.md: its loop of rollouts runs, with a scripted model and real containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tbench
from tbench.demo.server import DemoEndpoint

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.engine
def test_the_loop_learns_from_groups_of_rollouts(tools_volume: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [each for each in blocks if "runner.rollout(" in each]
    tasks = tbench.read_tasks("bundled").tasks
    with DemoEndpoint({task.name: task.instruction for task in tasks}) as demo:
        code = code.replace("http://localhost:8000/v1", demo.base_url).replace(".tasks[:2]", ".tasks[:1]")
        # One container for each trial: it is not the verdict that is tested.
        code = code.replace('"limits":', '"verify": {"mode": "shared"}, "limits":')
        exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    groups = [eval(each) for each in re.findall(r"^step \d: (.*)$", said, re.MULTILINE)]
    assert [[len(group) for group in groups_of_step] for groups_of_step in groups] == [[4]] * 2
    learned = re.findall(r"^(\d+) sequences, (\d+) tokens to learn from$", said, re.MULTILINE)
    for groups_of_step, (sequences, tokens) in zip(groups, learned, strict=True):
        spread = sum(len(set(group)) > 1 for group in groups_of_step)
        assert int(sequences) >= 4 * spread and (int(tokens) > 0) == (spread > 0)
    assert any(int(sequences) for sequences, _ in learned)
