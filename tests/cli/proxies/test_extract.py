"""`tbench extract` and `tbench replay run` as commands, against the demo endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fault_server import FaultServer, Seen, answer, completion
from replay_steps import CARD, asked, by_key, command, echo, environment, invoke, lines, question, record, serves
from replay_steps import write_dataset as write

from harness.model import hashed_seed
from tbench.cli import app
from tbench.demo.server import DemoEndpoint
from tbench.errors import UsageError
from tbench.tasks.sources import BUNDLED, read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
TWO = ("-t", "lab-permissions", "-t", "note-board-service")
SECRET = "sk-planted-secret-4712"


def tbench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    environment.pop("OPENAI_BASE_URL", None)
    return subprocess.run(
        [TBENCH, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def inside(*arguments: str) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, list(arguments), env={"OPENAI_BASE_URL": None})


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoEndpoint]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as endpoint:
        yield endpoint


def test_an_extraction_is_shown_stored_resumed_and_scored_again(demo: DemoEndpoint, tmp_path: Path) -> None:
    output = tmp_path / "x"
    base = ("extract", "bundled", *TWO, "--base-url", demo.base_url, "-o", str(output))
    done = tbench(*base, "-k", "2", OPENAI_API_KEY=SECRET)
    assert done.returncode == 0, done
    assert "extractable 50.00 ± 0.00 % of all 2 tasks (headline; sample std over 2 seeds; replies 4/4)" in done.stdout
    assert "lab-permissions" in done.stdout and "ls -lR /srv/lab" in done.stdout
    assert "note-board-service     0/2          0/2        0/2  - unclosed_block" in done.stdout
    assert all(SECRET not in path.read_text() for path in output.iterdir())
    lines = (output / "extraction.jsonl").read_text().splitlines()
    assert len(lines) == 4

    assert "not empty" in str(inside(*base, "-k", "2").exception)
    (output / "extraction.jsonl").write_text("\n".join(lines[:3]) + '\n{"task": "torn')
    resumed = inside(*base, "-k", "3", "--resume", "--json")
    assert resumed.exit_code == 0, resumed
    assert resumed.stderr.splitlines()[-1] == "3/3 requested, 0 without a reply"
    result = json.loads(resumed.stdout)
    assert (result["replies"], result["planned"], result["levels"]["extractable"]["mean"]) == (6, 6, 0.5)

    again = inside("extract", "--score", str(output), "--relevance", "literal", "--json")
    stored = json.loads((output / "result.json").read_text())
    assert json.loads(again.stdout) == stored
    assert "execution_relevance_literal" in stored["rewards"]
    assert stored["levels"] == result["levels"]

    (output / "extraction.jsonl").write_text("")
    too_few = inside("extract", "--score", str(output), "--min-coverage", "0.9")
    assert too_few.exit_code == 3
    assert "6 x missing" in too_few.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere", "--base-url", "http://localhost:1"], "/nowhere: no such directory"),
        ([], "no endpoint: give --base-url"),
        (["--score", "/nowhere"], "/nowhere/extraction.json: No such file or directory; give the directory of an extr"),
        (["--base-url", "http://localhost:1", "--protocol", "morse"], "unknown protocol 'morse'"),
        (
            ["--base-url", "http://localhost:1", "--relevance", "x"],
            "--relevance: Input should be 'distinct'",
        ),
        (
            ["--base-url", "http://localhost:1", "--top-p", "7"],
            "--top-p: Input should be less than",
        ),
        (["--base-url", "http://localhost:1", "--resume"], "--resume: needs the extraction's directory as --output"),
        (["--base-url", "http://localhost:1", "--retry-budget", "0"], "localhost:1/v1/models: cannot connect"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], said: str) -> None:
    done = inside("extract", *arguments)
    assert isinstance(done.exception, UsageError) and done.stdout == ""
    assert said in str(done.exception) and "\n" not in str(done.exception)


def test_a_mistake_has_exit_code_2_and_no_traceback() -> None:
    done = tbench("extract", "--score", "/nowhere")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_an_interrupted_extraction_keeps_its_replies_and_goes_on(endpoint: FaultServer, tmp_path: Path) -> None:
    """`--render server`: a chat request per task."""
    reply, stalling = completion("<thinking>a</thinking>\n```bash\nls\n```"), threading.Event()

    def second_stalls(seen: Seen) -> bytes | None:
        if len(endpoint.seen) == 2:
            stalling.set()
            return None
        return answer(200, reply)

    endpoint.always_list({"id": "tiny", "max_model_len": 8192})
    endpoint.answer_by(second_stalls)
    output = tmp_path / "x"
    command = ["extract", "bundled", *TWO, "--base-url", endpoint.base_url, "--render", "server", "-n", "1"]
    process = subprocess.Popen(
        [TBENCH, *command, "-o", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert stalling.wait(20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, said.splitlines()[-1]) == (
        130, f"interrupted; replies are kept; continue with --resume --output {output}",
    )  # fmt: skip
    assert len((output / "extraction.jsonl").read_text().splitlines()) == 1
    resumed = inside(*command, "-o", str(output), "--resume", "--json")
    assert resumed.exit_code == 0 and json.loads(resumed.stdout)["replies"] == 2
    assert "1/1 requested" in resumed.stderr


# `tbench replay run`: real HTTP, and real processes that are killed and interrupted.

SHARED_SAMPLE = Path(__file__).parents[3] / "../shared/data/replay/record_sample.jsonl"


@pytest.fixture
def server(endpoint: FaultServer) -> FaultServer:
    return serves(endpoint)


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return str(write(tmp_path / "steps.jsonl", [record(number) for number in range(6)]))


def run(dataset: str, server: FaultServer, directory: Path, *more: str) -> Any:
    return invoke(
        dataset, "--base-url", server.base_url, "-o", str(directory), "--retry-budget", "0", "--max-outage", "0", *more
    )


def refusal(result: Any) -> str:
    assert isinstance(result.exception, UsageError), (result.exception, result.output)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_a_run_leaves_its_manifest_and_every_raw_reply(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    result = run(dataset, server, tmp_path / "run")
    assert result.exit_code == 0, (result.output, result.exception)
    found = by_key(tmp_path / "run")
    assert {key: each["content"] for key, each in found.items()} == {
        f"task-{n // 3:03d}/{n % 3}": f"reply to question {n}" for n in range(6)
    }
    manifest = json.loads((tmp_path / "run" / "replay.json").read_text())
    assert (manifest["model"], manifest["records"], manifest["served"]["root"]) == ("tiny", 6, "tiny")
    assert manifest["sampling"] == {
        "temperature": 0.0, "top_p": 1.0, "max_tokens": 1024, "repetition_penalty": 1.0, "extra_body": {},
    }  # fmt: skip
    assert manifest["prompt"]["template_status_counts"] == {"server": 6}
    assert "6 answered" in result.output and "not checked if prompts fit" in result.output


def test_the_manifest_is_there_before_the_first_request(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    there: list[bool] = []

    def look(seen: Seen) -> bytes:
        if seen.path != "/tokenize":
            there.append((tmp_path / "run" / "replay.json").exists())
        return echo(seen)

    server.answer_by(look)
    run(dataset, server, tmp_path / "run")
    assert there == [True] * 6


def test_what_failed_is_asked_again_and_nothing_else(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    broken = {"question 1", "question 4"}
    server.answer_by(
        lambda seen: (
            answer(500, {"error": "no"}) if seen.path != "/tokenize" and question(seen) in broken else echo(seen)
        )
    )
    first = run(dataset, server, tmp_path / "run")
    assert first.exit_code == 3 and "4 answered, 2 failed" in first.output
    server.answer_by(echo)
    before = len(asked(server))
    again = run(dataset, server, tmp_path / "run", "--resume")
    assert again.exit_code == 0 and "6 steps, 4 already answered" in again.output and "6 answered" in again.output
    assert set(asked(server)[before:]) == broken
    assert all(each["error"] is None for each in by_key(tmp_path / "run").values())
    assert len(lines(tmp_path / "run")) == 8


def test_a_run_whose_first_steps_get_no_answer_stops(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    server.answer_by(lambda seen: answer(503, {"error": "busy"}))
    stopped = run(dataset, server, tmp_path / "run", "-n", "1")
    assert stopped.exit_code == 4 and "3 failed, 3 not requested" in stopped.output
    assert "stopped: the first 3 steps got no answer; last error: unavailable: " in stopped.output
    server.answer_by(echo)
    assert run(dataset, server, tmp_path / "run", "--resume").exit_code == 0
    assert len(by_key(tmp_path / "run")) == 6


def test_a_server_that_is_not_there_holds_up_neither_the_count_nor_the_steps(
    server: FaultServer, dataset: str, tmp_path: Path
) -> None:
    server.answer_by(lambda seen: answer(200, {"count": 9}) if seen.path == "/tokenize" else echo(seen))
    began = time.monotonic()
    more = ["--base-url", "http://127.0.0.1:9", "--base-url", server.base_url, "-o", str(tmp_path / "run")]
    result = invoke(dataset, *more, "--retry-budget", "0.1", "--max-outage", "60")
    assert result.exit_code == 0 and "6 answered" in result.output, result.output
    assert "could be counted" not in result.output
    assert time.monotonic() - began < 10


def test_other_settings_in_the_same_directory_are_refused(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    run(dataset, server, tmp_path / "run")
    words = refusal(run(dataset, server, tmp_path / "run", "--resume", "--max-tokens", "512", "--top-p", "0.9"))
    assert "sampling.max_tokens: 1024 → 512" in words and "sampling.top_p" in words
    write(Path(dataset), [record(number) for number in range(5)])
    assert "dataset_sha256" in refusal(run(dataset, server, tmp_path / "run", "--resume"))
    assert "go on with the run in it with --resume" in refusal(run(dataset, server, tmp_path / "run"))
    assert len(lines(tmp_path / "run")) == 6


def test_shards_and_limit_take_their_steps(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    for index in range(2):
        assert run(dataset, server, tmp_path / str(index), "--shard", f"{index}/2", "--limit", "5").exit_code == 0
    assert sorted(by_key(tmp_path / "0")) == ["task-000/0", "task-000/2", "task-001/1"]
    assert sorted(by_key(tmp_path / "1")) == ["task-000/1", "task-001/0"]
    manifests = [json.loads((tmp_path / name / "replay.json").read_text()) for name in ("0", "1")]
    assert [(each["shard_index"], each["shard_count"], each["limit"]) for each in manifests] == [(0, 2, 5), (1, 2, 5)]
    assert manifests[0]["prompt_sha256"] == manifests[1]["prompt_sha256"]
    assert manifests[0]["prompt"] == manifests[1]["prompt"]
    assert "contains none" in refusal(run(dataset, server, tmp_path / "2", "--shard", "7/8"))


@pytest.mark.parametrize("shard", ["2/2", "a/b", "1", "-1/2", "0/0"])
def test_a_shard_that_is_invalid_is_refused(server: FaultServer, dataset: str, tmp_path: Path, shard: str) -> None:
    assert "must be I/N" in refusal(run(dataset, server, tmp_path / "run", f"--shard={shard}"))


def test_overflow_stops_the_run_before_the_first_request_unless_allowed(
    server: FaultServer, dataset: str, tmp_path: Path
) -> None:
    def count(seen: Seen) -> bytes:
        if seen.path != "/tokenize":
            return echo(seen)
        return answer(200, {"count": 8000 if question(seen) == "question 3" else 20, "max_model_len": 8192})

    server.answer_by(count)
    result = run(dataset, server, tmp_path / "run")
    assert "1 of 6 steps do not fit" in refusal(result) and "task-001/0: overflow: 8000" in result.output
    assert asked(server) == [] and not (tmp_path / "run").exists()
    allowed = run(dataset, server, tmp_path / "run", "--allow-overflow")
    assert allowed.exit_code == 0 and "5 answered, 1 do not fit the context" in allowed.output
    assert "question 3" not in asked(server)
    response = by_key(tmp_path / "run")["task-001/0"]
    assert response["content"] is None and response["error"].startswith("overflow: 8000 prompt tokens + 1024")
    tokens = json.loads((tmp_path / "run" / "prompt_template.json").read_text())
    assert (tokens["prompt_tokens_max"], tokens["prompt_tokens_min"], tokens["prompt_tokens_by"]) == (
        8000,
        20,
        "server",
    )


def test_a_prompt_without_a_template_stops_the_run_unless_allowed(
    server: FaultServer, dataset: str, tmp_path: Path
) -> None:
    words = refusal(run(dataset, server, tmp_path / "run", "--render", "local"))
    assert words.startswith("6 of 6 prompts would have no chat template") and "--allow-raw-fallback" in words
    assert server.seen == []
    server.answer_by(lambda seen: answer(200, {"choices": [{"text": "hi", "finish_reason": "stop"}]}))
    assert run(dataset, server, tmp_path / "run", "--render", "local", "--allow-raw-fallback").exit_code == 0
    prompt = json.loads((tmp_path / "run" / "replay.json").read_text())["prompt"]
    assert (prompt["template_status"], prompt["rank_eligible"]) == ("mixed_or_raw", False)


def test_bad_lines_are_named_with_their_numbers_and_cost_nothing_else(server: FaultServer, tmp_path: Path) -> None:
    wild = record(1)
    wild["messages"][-1]["content"] = "question \ud83d lone, \udcff byte"
    wild["ref_raw"] = "\ud800"
    half = {**record(2), "task_id": "task-\ud800"}
    texts = [json.dumps(record(0)), "{not json", "[1]", json.dumps(wild), "null", '{"task_id": "x"}', json.dumps(half)]
    file = tmp_path / "steps.jsonl"
    file.write_bytes("\n".join(texts).encode() + b"\n\xff\xfe\n" + json.dumps(record(0)).encode() + b"\n")
    result = run(str(file), server, tmp_path / "run")
    assert result.exit_code == 0, (result.output, result.exception)
    for number in (2, 3, 5, 6, 7, 8, 9):
        assert f"left out: {file}:{number}: " in result.output
    assert asked(server) and set(by_key(tmp_path / "run")) == {"task-000/0", "task-000/1"}
    assert by_key(tmp_path / "run")["task-000/1"]["content"] == "reply to question \ufffd lone, \ufffd byte"
    (tmp_path / "run" / "replay.json").read_bytes().decode()


def test_mojibake_and_half_escapes_in_replies_stay_what_they_are(
    server: FaultServer, dataset: str, tmp_path: Path
) -> None:
    said = '\n {"keystrokes": "echo Ã©\\ud83d\\ude00\\u0000", \u2028\x85\x00 caf\u00e9 \U0001f600'
    reply = {"choices": [{"message": {"content": said}, "finish_reason": "length", "stop_reason": 7}]}
    server.answer_by(lambda seen: answer(200, reply))
    run(dataset, server, tmp_path / "run", "--limit", "1")
    [line] = (tmp_path / "run" / "responses.jsonl").read_bytes().split(b"\n")[:-1]
    found = json.loads(line)
    assert (found["content"], found["finish_reason"], found["stop_reason"]) == (said, "length", 7)


def test_sampling_options_are_top_level_fields(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    options = ["--min-p", "0.05", "--stop-string", "END", "--seed", "7", "--extra-body", '{"top_k": 20}']
    more = ["--temperature", "0.6", "--repetition-penalty", "1.1", "--no-skip-special-tokens", "--limit", "1"]
    assert run(dataset, server, tmp_path / "run", *options, *more).exit_code == 0
    sent = next(seen.json for seen in server.seen if seen.path != "/tokenize")
    del sent["messages"]
    assert sent == {
        "model": "tiny", "temperature": 0.6, "top_p": 1.0, "max_tokens": 1024, "min_p": 0.05, "top_k": 20,
        "seed": hashed_seed(7, "task-000", 0), "repetition_penalty": 1.1, "stop": ["END"], "skip_special_tokens": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--extra-body", '{"temperature": 1}'], "temperature cannot be set here"),
        (["--extra-body", '{"min_p": 1}', "--min-p", "0.1"], "min_p: is also given by its own option"),
        (["--top-p", "2"], "--top-p: "),
        (["--render", "magic"], "--render: Input should be 'server' or 'local' (got 'magic')"),
        (["--tokenizer-path", "x", "--render", "server"], "--tokenizer-path: has no effect with --render server"),
        (["--max-tokens", "8192"], "which leaves none for a prompt"),
        (["--model", "other"], "does not serve 'other'"),
    ],
)
def test_settings_that_cannot_be_are_one_clear_line(
    server: FaultServer, dataset: str, tmp_path: Path, options: list[str], words: str
) -> None:
    assert words in refusal(run(dataset, server, tmp_path / "run", *options))
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_result_is_skipped_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    skipped = invoke("no-dataset", "--base-url", "http://127.0.0.1:9", "-o", str(tmp_path), "--skip-if-exists")
    assert skipped.exit_code == 0 and "skipped" in skipped.output


def test_a_run_is_scored_by_the_revision_that_is_asked_for(server: FaultServer, dataset: str, tmp_path: Path) -> None:
    done = run(dataset, server, tmp_path / "run", "--metric-revision", "v1")
    assert done.exit_code == 0 and "metric v1" in done.output, done.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metric_revision"] == "v1"
    assert "(got 'v3')" in refusal(run(dataset, server, tmp_path / "other", "--metric-revision", "v3"))


def test_the_same_answers_come_with_any_number_of_requests_at_once(dataset: str, tmp_path: Path) -> None:
    with DemoEndpoint({}) as demo:
        found = []
        for concurrency in ("1", "8"):
            directory = tmp_path / concurrency
            result = invoke(dataset, "--base-url", demo.base_url, "-o", str(directory), "-n", concurrency)
            assert result.exit_code == 0, result.output
            found.append({key: each["content"] for key, each in by_key(directory).items()})
    assert found[0] == found[1] and len(found[0]) == 6


def test_the_published_records_can_be_asked_for(server: FaultServer, tmp_path: Path) -> None:
    if not SHARED_SAMPLE.is_file():
        pytest.skip(f"no sample at {SHARED_SAMPLE}")
    result = run(str(SHARED_SAMPLE), server, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert len(by_key(tmp_path / "run")) == SHARED_SAMPLE.read_bytes().count(b"\n")


def start(dataset: str, server: FaultServer, directory: Path) -> subprocess.Popen[str]:
    arguments = command(dataset, "--base-url", server.base_url, "-o", str(directory), "-n", "2")
    return subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_lines(directory: Path, count: int, process: subprocess.Popen[str]) -> None:
    ends_at = time.monotonic() + 30
    file = directory / "responses.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_goes_on_where_it_was(
    server: FaultServer, dataset: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    slow = {"question 3", "question 5"}
    server.answer_by(lambda seen: None if seen.path != "/tokenize" and question(seen) in slow else echo(seen))
    process = start(dataset, server, tmp_path / "run")
    wait_for_lines(tmp_path / "run", 4, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code and "Traceback" not in said
    if code == 130:
        assert "replies are kept" in said
    with (tmp_path / "run" / "responses.jsonl").open("ab") as file:
        file.write(
            b'{"schema_version":1,"task_id":"task-001","step_idx":0,"cont'
        )  # as left by a kill in the middle of a write
    server.answer_by(echo)
    before = len(asked(server))
    assert run(dataset, server, tmp_path / "run", "--resume").exit_code == 0
    assert set(asked(server)[before:]) == slow
    assert len(lines(tmp_path / "run")) == 6 == len(by_key(tmp_path / "run"))


def test_help_needs_no_openai() -> None:
    code = "import sys; from tbench.cli.proxies import extract; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_an_endpoint_that_is_not_there_is_one_clear_line(dataset: str, tmp_path: Path) -> None:
    result = invoke(dataset, "--base-url", "http://127.0.0.1:9", "-o", str(tmp_path / "run"), "--retry-budget", "0")
    assert "cannot connect" in refusal(result)
    assert "no endpoint" in refusal(invoke(dataset, "-o", str(tmp_path / "run")))
    assert CARD["id"] not in result.output
