"""The sentence of a night: with an alarm or a named cause it comes first, and a damaged run does not stop the night."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from explained_histories import draw
from nightly_bench import NightlyBench
from run_trees import FIRST_NIGHT, a_result, write_run

from tbench.nightly.configuration import Checkpoint, ServeSection
from tbench.nightly.explained import explained_night, news_lines, with_server
from tbench.nightly.server import server_by_hand
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.verdict import GateVerdict
from tbench.storage.read_run import read_run
from tbench.storage.summaries import final_rewards


def judged(runs: list[Path]) -> GateVerdict:
    nights = [
        Night(run.name, (FIRST_NIGHT + timedelta(days=at)).isoformat(), final_rewards(read_run(run)), {})
        for at, run in enumerate(runs)
    ]
    return judge(nights, GateRule(base_nights=4))


def test_a_drop_is_explained_in_one_sentence_with_its_command(tmp_path: Path) -> None:
    draw(tmp_path, ("context",), 1)
    runs = sorted(tmp_path.iterdir())
    verdict = judged(runs)
    found = explained_night(runs, [run.name for run in runs], verdict)
    assert found["named"] and "context full" in found["sentence"]
    assert [part["cause"] for part in found["parts"] if part["named"]] == ["context_full"]
    gate = {**verdict.as_json(), "lines": list(verdict.lines()), "explained": found}
    assert news_lines(gate)[:2] == [verdict.lines()[0], found["sentence"]]


def test_the_command_asks_the_server_of_the_night_where_it_is_started_again() -> None:
    command = "tbench run -t a --base-url http://127.0.0.1:51234/v1 -m m"
    found = {"sentence": f"lower. Next, repeat these: {command}", "command": command, "named": True, "parts": []}
    serve = ServeSection(command=("serve", "{checkpoint}", "--port", "{port}"), port=0, env={"A": "b c"})
    again = with_server(found, *server_by_hand(serve, Checkpoint("/ckpt/latest", "/ckpt/latest")))
    assert again["command"] == "tbench run -t a --base-url http://127.0.0.1:8000/v1 -m m"
    assert again["sentence"].endswith(again["command"])
    assert again["server"].endswith("goes here): A='b c' serve /ckpt/latest --port 8000")
    assert news_lines({"state": "alarm", "lines": ["gate"], "explained": again})[2] == again["server"]
    assert with_server({"sentence": "s", "command": "tbench diff a b"}, "x", "y") == {
        "sentence": "s", "command": "tbench diff a b"
    }  # fmt: skip


def test_a_quiet_night_says_nothing_and_the_first_has_nothing_to_say(tmp_path: Path) -> None:
    draw(tmp_path, (), 1)
    runs = sorted(tmp_path.iterdir())
    verdict = judged(runs)
    found = explained_night(runs, [run.name for run in runs], verdict)
    assert not found["named"]
    assert news_lines({"state": "quiet", "lines": ["gate: quiet"], "explained": found}) == ["gate: quiet"]
    assert explained_night(runs[:1], [runs[0].name], verdict) == {}
    assert news_lines({"state": "alarm", "lines": ["gate: alarm"]}) == ["gate: alarm"]


def test_runs_that_cannot_be_compared_are_said_in_one_line(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / task, [a_result(task, 0, 1.0)], {task: "h"}, [0]) for task in "ab"]
    found = explained_night(runs, ["a", "b"], judged([runs[0], runs[0]]))
    assert found["sentence"].startswith("not explained: ") and "no task in common" in found["sentence"]


def test_a_night_records_its_explanation(bench: NightlyBench) -> None:
    bench.write()
    bench.night("n1")
    (gate,) = bench.night("n2").gates.values()
    assert "nothing is beyond chance" in gate["explained"]["sentence"]
