"""Notification and pruning, with webhooks that misbehave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fault_server import FaultServer
from nightly_bench import NightlyBench

from tbench.nightly.journal import NightRecord, Nights
from tbench.nightly.stages import ATTEMPTS, post, prune_night
from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import RUN

HOOK = "NIGHTLY_HOOK"


async def posted(endpoint: FaultServer, deadline_sec: float = 5.0) -> str:
    return await post(f"{endpoint.base_url}/secret", HOOK, {"text": "é"}, deadline_sec, first_wait_sec=0.01)


async def test_the_news_are_posted_as_json(endpoint: FaultServer) -> None:
    endpoint.will_answer(204, b"")
    assert await posted(endpoint) == ""
    (seen,) = endpoint.seen
    assert (seen.method, seen.json, seen.headers["content-type"]) == ("POST", {"text": "é"}, "application/json")


async def test_a_webhook_that_fails_for_a_while_is_tried_again(endpoint: FaultServer) -> None:
    endpoint.will_answer(500)
    endpoint.will_reset()
    endpoint.will_answer(200)
    assert await posted(endpoint) == ""
    assert len(endpoint.seen) == ATTEMPTS


async def test_a_webhook_that_always_fails_is_a_warning_without_its_url(endpoint: FaultServer) -> None:
    endpoint.will_answer(503)
    problem = await posted(endpoint)
    assert problem == f"webhook of {HOOK} at 127.0.0.1: HTTP 503, 3 times" and len(endpoint.seen) == ATTEMPTS


async def test_a_webhook_that_refuses_is_not_asked_again(endpoint: FaultServer) -> None:
    endpoint.will_answer(404)
    assert await posted(endpoint) == f"webhook of {HOOK} at 127.0.0.1: HTTP 404" and len(endpoint.seen) == 1


@pytest.mark.parametrize("how", ["hangs", "drips"])
async def test_a_webhook_that_never_comes_to_an_end_costs_its_deadlines(endpoint: FaultServer, how: str) -> None:
    if how == "hangs":
        endpoint.will_hang()
    else:
        endpoint.will_trickle(b"HTTP/1.1 200 OK\r\nX: ", 0.02)
    assert await posted(endpoint, 0.2) == f"webhook of {HOOK} at 127.0.0.1: no complete answer within 0.2 s"


@pytest.mark.parametrize(
    ("url", "words"),
    [("", "is not set, so nothing is posted"), ("hooks.host/s3cret", "at its URL: not an http or https URL")],
)
async def test_an_invalid_webhook_is_reported(url: str, words: str) -> None:
    assert words in await post(url, HOOK, {}, 1.0, first_wait_sec=0.01)


def test_a_night_is_reported_and_a_failed_webhook_does_not_change_the_exit_code(
    bench: NightlyBench, endpoint: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endpoint.will_answer(404)
    monkeypatch.setenv(HOOK, f"{endpoint.base_url}/secret")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    text = f'[run.model]\nbase_url = "http://h/v1"\n[notify]\nwebhook_env = "{HOOK}"\n'
    bench.write(text, summary=str(tmp_path / "last.md"), page=str(tmp_path / "last.html"))
    record = bench.night("n1")
    assert record.exit_code == 0 and record.stages["notify"].state == "failed"
    assert record.stages["notify"].words.startswith(f"webhook of {HOOK}") and "secret" not in str(bench.said)
    news = endpoint.seen[0].json
    assert news["text"].splitlines()[0] == "quiet: bench, night n1"
    assert (news["benchmark"], news["night"], news["exit_code"]) == ("bench", "n1", 0)
    assert news["checkpoints"][0]["words"].startswith("score 75.0 ± 0.0 %")
    summary = (tmp_path / "last.md").read_text()
    assert "| m | 75.0 % | 0.0 | 8/8 | 6 |" in summary
    assert (tmp_path / "step.md").read_text() == f"{summary}\n"
    assert "report" in (tmp_path / "last.html").read_text()
    assert (bench.directory / "nights" / "n1" / "summary.md").read_text() == summary
    endpoint.answer_all(200)
    assert bench.night("n1").stages["notify"].state == "done", "the next start of the same night tells it"


def test_a_night_with_prices_has_its_cost_in_record_and_summary(bench: NightlyBench) -> None:
    bench.write('[run.model]\nbase_url = "http://h/v1"\n[run.cost]\nprompt_price = 1.0\ncompletion_price = 2.0\n')
    template = json.loads((bench.folder / "template" / "run.json").read_text())
    cost = {"prompt_price": 1.0, "completion_price": 2.0}
    bench.behave(rewards={"beta": 0.0}, document={"config": {**template["config"], "cost": cost}})
    words = bench.night("n1").checkpoints[0].stages["run"].words
    assert "prompt_price = 1.0" in Path(bench.calls[0][bench.calls[0].index("-c") + 1]).read_text()
    score, _, found = words.partition("; cost: ")
    assert score.startswith("score 75.0") and "USD" in found and "per solved trial" in found
    assert "\n- m: cost: " in (bench.directory / "nights" / "n1" / "summary.md").read_text()


def test_a_quiet_night_can_be_silent(
    bench: NightlyBench, endpoint: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOOK, endpoint.base_url)
    bench.write(f'[run.model]\nbase_url = "http://h/v1"\n[notify]\nwebhook_env = "{HOOK}"\nonly_news = true\n')
    assert bench.night("n1").exit_code == 0 and endpoint.seen == []


def test_text_of_others_is_no_markdown(bench: NightlyBench) -> None:
    bench.write(checkpoints=["a|b_<x>(y)\n"])
    bench.night("n1")
    summary = (bench.directory / "nights" / "n1" / "summary.md").read_text()
    assert "\nGate of a\\|b\\_\\<x\\>(y)\\\\u000a:\n" in summary


# What is removed of old nights, and what never is.


@pytest.fixture
def night(bench: NightlyBench) -> NightRecord:
    bench.write()
    return bench.night("n1")


def recordings(bench: NightlyBench) -> list[Path]:
    return sorted(bench.directory.rglob("session.cast"))


def test_a_night_loses_its_large_files_once(bench: NightlyBench, night: NightRecord) -> None:
    nights = Nights(bench.directory)
    assert prune_night(nights, night) == (8 * 3 * 1000, [])
    assert prune_night(nights, night) == (0, [])


def test_a_run_that_is_being_written_is_left_alone(bench: NightlyBench, night: NightRecord) -> None:
    records = RecordDirectory.go_on(bench.directory / "runs" / "n1_m", RUN)
    freed, problems = prune_night(Nights(bench.directory), night)
    records.close()
    assert freed == 0 and problems[0].endswith("not pruned: it is being written") and len(recordings(bench)) == 8


def test_what_is_not_ours_is_left_alone(bench: NightlyBench, night: NightRecord, tmp_path: Path) -> None:
    run = bench.directory / "runs" / "n1_m"
    (tmp_path / "elsewhere").mkdir()
    for name in ("session.cast", "notes.txt"):
        (tmp_path / "elsewhere" / name).write_text("mine")
    (run / "trials" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (run / "trials" / "alpha" / "trajectory.json").symlink_to(tmp_path / "elsewhere" / "notes.txt")
    (run / "trials" / "alpha" / "mine.txt").write_text("mine")
    prune_night(Nights(bench.directory), night)
    assert (tmp_path / "elsewhere" / "session.cast").exists() and (run / "trials" / "alpha" / "mine.txt").exists()
    assert (run / "trials" / "alpha" / "trajectory.json").is_symlink()


@pytest.mark.parametrize(
    "how", ["a link", *(pytest.param(how, marks=pytest.mark.slow) for how in ("another run", "no run"))]
)
def test_a_directory_that_the_night_has_not_made_is_left_alone(
    bench: NightlyBench, night: NightRecord, how: str
) -> None:
    run = bench.directory / "runs" / "n1_m"
    if how == "another run":
        (run / "run.json").write_text('{"run": "other"}')
    elif how == "no run":
        (run / "run.json").unlink()
    else:
        run.rename(bench.folder / "moved")
        run.symlink_to(bench.folder / "moved")
    freed, problems = prune_night(Nights(bench.directory), night)
    assert freed == 0 and problems == [f"{run}: not pruned: it is not the run of this night"]
