"""The endpoint of a command that is given none: a model server of this machine, which is named, or a clear line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import tbench

from tbench.demo.server import DemoEndpoint


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model server where vLLM serves by default."""
    with DemoEndpoint({}) as demo:
        monkeypatch.setattr("tbench.agents.setup.LOCAL_ENDPOINT", demo.base_url)
        yield demo.base_url


def taken(url: str) -> str:
    return f"endpoint: {url}, as it answers and no other is given"


@pytest.mark.engine
def test_a_run_takes_the_model_server_of_this_machine_and_says_so(local: str) -> None:
    done = tbench("run", "-t", "tidy-notes", "--dry-run")
    assert (done.returncode, done.stderr) == (0, f"{taken(local)}\n")
    assert f"endpoint  {local} answers: scripted-demo" in done.stdout


def test_an_extraction_and_a_replay_take_it_too(local: str, tmp_path: Path) -> None:
    extracted = tbench("extract", "-t", "tidy-notes", "-o", str(tmp_path / "replies"))
    assert extracted.returncode == 0 and extracted.stderr.startswith(taken(local)), extracted
    replayed = tbench("replay", "run", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "replay"))
    assert replayed.stderr.startswith(taken(local)) and "no endpoint" not in replayed.stderr


@pytest.mark.parametrize("given", ["flag", "variable"])
def test_an_endpoint_that_is_given_comes_before_it(local: str, given: str) -> None:
    elsewhere = "http://127.0.0.1:9/v1"
    flags = ["--base-url", elsewhere] if given == "flag" else []
    variables = {"OPENAI_BASE_URL": elsewhere} if given == "variable" else {}
    done = tbench("extract", *flags, "--retry-budget", "0", **variables)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tbench: endpoint: {elsewhere}/models: cannot connect")


def test_a_key_is_not_sent_to_a_server_that_nobody_has_named(local: str) -> None:
    done = tbench("run", "--dry-run", OPENAI_API_KEY="sk-planted")
    said = f"tbench: no endpoint: {local} answers; to send OPENAI_API_KEY there, give it as --base-url\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_without_any_endpoint_each_command_names_only_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbench.agents.setup.LOCAL_ENDPOINT", "http://127.0.0.1:9/v1")
    run, extract = tbench("run"), tbench("extract")
    assert [run.returncode, extract.returncode] == [2, 2]
    assert "no endpoint: give --base-url" in run.stderr and "--agent oracle" in run.stderr
    assert "no endpoint: give --base-url" in extract.stderr and "--agent" not in extract.stderr
