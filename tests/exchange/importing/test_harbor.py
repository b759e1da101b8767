"""`tbench import harbor`: jobs of several versions as runs, and what is said of those that are no good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harbor_jobs import PYTEST_NEVER_BEGAN, atif, context, did, finish, raised, result, said, span, trial, write

from tbench.api.stored_runs import summarise
from tbench.errors import UsageError
from tbench.exchange.importing import foreign_files
from tbench.exchange.importing.common import ImportChoice, Imported
from tbench.exchange.importing.harbor.job import import_harbor
from tbench.results import Blame, Stage, TrialResult
from tbench.storage.read_run import StoredRun, read_run, read_steps
from tbench.storage.run_files import trial_directory

REAL = Path(__file__).parents[3] / "../shared/data/harbor-trials"
SPLIT = ImportChoice(split="model")


def imported(job: Path, choice: ImportChoice | None = None, metric: str | None = None) -> tuple[StoredRun, Imported]:
    """The one run that a job becomes, and what is told of it."""
    (made,) = import_harbor([job], job.parent / f"{job.name}-run", choice or ImportChoice(), metric)
    return read_run(made.directory), made


def complaint(job: Path, choice: ImportChoice | None = None, metric: str | None = None) -> str:
    before = sorted(job.parent.rglob("*"))
    with pytest.raises(UsageError) as caught:
        import_harbor([job], job.parent / "run", choice or ImportChoice(), metric)
    assert sorted(job.parent.rglob("*")) == before, "something was left"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def one(content: dict[str, Any], tmp_path: Path, **files: Any) -> TrialResult:
    """The result of a single trial."""
    trial(tmp_path / "job", content, **files)
    (only,) = imported(finish(tmp_path / "job"))[0].results
    return only


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two tasks, twice each: a pass, a 0, a timeout that passed, and one that was not verified."""
    path = tmp_path / "nightly"
    trial(path, result("a__2", "org/a", {"reward": 0.0}, start_sec=50))
    trial(path, result("a__1", "org/a", {"reward": 1}, start_sec=0), agent__recording_dot_cast="{}")
    timeout = raised("AgentTimeoutError", "Agent execution timed out after 900.0 seconds")
    trial(path, result("b__1", "org/b", {"reward": 1.0}, exception_info=timeout))
    lost = raised("RewardFileNotFoundError", "No reward file found")
    trial(path, result("b__2", "org/b", start_sec=9, exception_info=lost))
    datasets = [{"name": "small", "version": "1.2"}]
    return finish(path, mean=0.5, n_retries=2, config={"n_attempts": 2, "datasets": datasets})


# -- what comes out right ------------------------------------------------------------------------


def test_a_job_becomes_a_run_with_harbors_own_mean(job: Path) -> None:
    run, made = imported(job)
    assert made.lines[:2] == (
        "4 trials, 1 without a verdict: 2 tasks, 2 seeds by terminus-2 with small-model",
        "mean by Harbor's rule 0.500000 (its result.json: 0.500000), score here 0.500000",
    )
    assert len(made.lines) == 2
    assert any("numbered as seeds from 0 in the order of their start" in note for note in made.notes)
    assert "Harbor retried 2 times and kept only the last attempt" in made.notes
    summary = summarise(run)
    assert summary.score is not None
    assert (summary.score.mean, summary.counts.errors, summary.counts.missing) == (0.5, 1, 0)
    assert (run.name, run.model, run.imported, run.document) == ("nightly-run", "small-model", True, None)
    assert run.dataset is not None and run.dataset.title == "small@1.2"


def test_attempts_are_seeds_in_the_order_of_their_start(job: Path) -> None:
    found = {(each.task, each.seed): each for each in imported(job)[0].results}
    assert {key: each.trial for key, each in found.items()} == {
        ("a", 0): "a__1",
        ("a", 1): "a__2",
        ("b", 0): "b__1",
        ("b", 1): "b__2",
    }
    timings = found["a", 0].timings
    assert (timings.sandbox_sec, timings.agent_sec, timings.verifier_sec, timings.wall_sec) == (3, 10, 4, 20)
    assert found["a", 0].usage.prompt_tokens == 100


def test_a_timeout_is_an_outcome_and_an_exception_an_error(job: Path) -> None:
    found = {each.trial: each for each in imported(job)[0].results}
    assert (found["b__1"].reward, found["b__1"].outcome, found["b__1"].error) == (1.0, "agent_timeout", None)
    error = found["b__2"].error
    assert error is not None and found["b__2"].reward is None
    assert (error.stage, error.type, error.blame, error.retryable) == (
        Stage.VERIFIER,
        "verifier_no_reward",
        Blame.TASK,
        False,
    )
    assert error.message == "RewardFileNotFoundError: No reward file found"


def test_recording_and_verifiers_output_are_where_the_page_looks(tmp_path: Path) -> None:
    path = tmp_path / "job"
    files = {"agent__recording_dot_cast": "cast", "verifier__test-stdout_dot_txt": "1 passed in 0.1s"}
    trial(path, result("a__1", "a", {"reward": 1.0}), **files, exception_dot_txt="x", agent__secret_dot_log="no")
    run, _ = imported(finish(path))
    directory = trial_directory(run.path, "a", 0)
    found = sorted(file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file())
    assert found == ["exception.txt", "result.json", "session.cast", "verifier/stdout.txt"]


def test_the_lock_gives_hashes_planned_tasks_and_the_version(job: Path) -> None:
    digest = "a" * 64
    for directory in job.glob("a__*"):
        write(directory / "lock.json", {"schema_version": 2, "task": {"name": "org/a", "digest": f"sha256:{digest}"}})
    locks = [{"task": {"name": f"org/{name}"}, "agent": {}} for name in "abc"]
    write(job / "lock.json", {"schema_version": 3, "harbor": {"version": "0.25.0"}, "trials": locks})
    run, _ = imported(job)
    assert run.planned_tasks == ["a", "b", "c"]
    assert run.task_hashes == {"a": digest}
    assert run.plan is not None
    assert (run.plan.imported.version, run.plan.imported.source) == ("0.25.0", "nightly")
    assert [task.checksum for task in run.plan.tasks] == ["checksum of org/a", "checksum of org/b", None]


def test_a_job_of_version_0_6_is_read(job: Path) -> None:
    for file in job.glob("*/result.json"):
        old = json.loads(file.read_text())
        old.pop("verifier_environment_mode", None)
        write(file, {**old, "step_results": None})
    stats = {"n_trials": 4, "n_errors": 1, "evals": {"terminus-2__small-model__small": {"metrics": [{"mean": 0.5}]}}}
    old_job = {"id": "x", "started_at": "2026-03-01T12:00:00", "finished_at": "2026-03-01T12:09:00"}
    write(job / "result.json", {**old_job, "n_total_trials": 4, "stats": stats})
    write(job / "config.json", {"job_name": "nightly", "n_attempts": 2, "orchestrator": {"type": "local"}})
    run, made = imported(job)
    assert run.plan is not None and (run.plan.reported_mean, run.plan.status) == (0.5, "finished")
    assert "its result.json: 0.500000" in made.lines[1]


def test_a_zero_without_a_test_is_an_error_and_the_score_stays(tmp_path: Path) -> None:
    path = tmp_path / "job"
    zero = {"reward": 0.0}
    trial(path, result("a__1", "a", zero), **{"verifier__test-stdout_dot_txt": PYTEST_NEVER_BEGAN})
    trial(path, result("b__1", "b", zero, exception_info=raised("ApiRateLimitError", "429")))
    trial(path, result("c__1", "c", zero), **{"verifier__test-stdout_dot_txt": "1 failed in 0.2s"})
    trial(path, result("d__1", "d", {"reward": 1.0}))
    run, made = imported(finish(path, mean=0.25))
    errors = {each.task: each.error.type for each in run.results if each.error is not None}
    assert errors == {"a": "verifier_never_ran", "b": "endpoint_unavailable"}
    assert made.lines[1].startswith("mean by Harbor's rule 0.250000 (its result.json: 0.250000), score here 0.250000")
    assert made.lines[2].startswith("2 trials with 0 there and an error here (verifier_never_ran 1, endpoint_")


@pytest.mark.parametrize(
    ("exception", "reward", "type_", "stage"),
    [
        ("EnvironmentStartTimeoutError", None, "sandbox_failed", Stage.SANDBOX),
        ("SandboxBuildFailedError", None, "image_build_failed", Stage.IMAGE),
        ("SandboxLikelyOutOfMemoryError", None, "sandbox_lost", Stage.AGENT),
        ("AgentAuthenticationError", None, "endpoint_refused", Stage.AGENT),
        ("NonZeroAgentExitCodeError", None, "agent_crashed", Stage.AGENT),
        ("VerifierTimeoutError", None, "verifier_timeout", Stage.VERIFIER),
        ("CancelledError", 0.0, "CancelledError", Stage.VERIFIER),
        ("SomethingNew", None, "SomethingNew", Stage.VERIFIER),
        ("AgentTimeoutError", None, "verifier_failed", Stage.VERIFIER),
    ],
)
def test_an_exception_is_reported_in_our_words(
    tmp_path: Path, exception: str, reward: float | None, type_: str, stage: Stage
) -> None:
    rewards = None if reward is None else {"reward": reward}
    found = one(result("a__1", "a", rewards, exception_info=raised(exception)), tmp_path)
    assert found.reward is None and found.error is not None
    assert (found.error.type, found.error.stage) == (type_, stage)
    assert exception in found.error.message
    assert found.out_of_memory == (exception == "SandboxLikelyOutOfMemoryError")


def test_an_unknown_exception_before_the_agent_is_of_the_sandbox(tmp_path: Path) -> None:
    early = {"agent_setup": None, "agent_execution": None, "verifier": None, "agent_result": None}
    found = one(result("a__1", "a", None, exception_info=raised("RuntimeError"), **early), tmp_path)
    assert found.error is not None and found.outcome is None
    assert (found.error.stage, found.error.blame) == (Stage.SANDBOX, Blame.INFRA)
    assert (found.error.type, found.error.message) == ("sandbox_failed", "RuntimeError: it went wrong")


def test_a_reward_beside_an_exception_stands_with_a_remark(tmp_path: Path) -> None:
    found = one(result("a__1", "a", {"reward": 1.0}, exception_info=raised("ApiError", "gone")), tmp_path)
    assert (found.reward, found.integrity.remarks) == (1.0, ("exception: ApiError: gone",))


def test_several_rewards_are_metrics_and_reward_counts(tmp_path: Path) -> None:
    path = tmp_path / "job"
    trial(path, result("a__1", "a", {"speed": 3, "reward": 0.5}))
    trial(path, result("b__1", "b", {"speed": 1}))
    run, made = imported(finish(path))
    found = {each.task: each for each in run.results}
    assert (found["a"].reward, found["a"].metrics) == (0.5, {"speed": 3.0, "reward": 0.5})
    assert found["b"].error is not None and found["b"].error.type == "verifier_bad_reward"
    assert "score here 0.250000" in made.lines[1] and "rule 0.250000" in made.lines[1]


def test_a_single_reward_counts_whatever_its_name_and_several_have_to_be_chosen(tmp_path: Path) -> None:
    assert one(result("a__1", "a", {"accuracy": 0.75}), tmp_path).reward == 0.75
    several = tmp_path / "several"
    trial(several, result("a__1", "a", {"accuracy": 0.75, "speed": 2}))
    finish(several)
    assert "has rewards accuracy, speed; choose one with --metric NAME" in complaint(several)
    assert "no trial has a reward 'depth'" in complaint(several, metric="depth")
    assert imported(several, metric="speed")[0].results[0].reward == 2


@pytest.mark.parametrize("rewards", [{"reward": None}, {"reward": float("nan")}, {"reward": 1e300}, {"reward": "1"}])
def test_what_is_no_number_is_no_reward(tmp_path: Path, rewards: dict[str, Any]) -> None:
    found = one(result("a__1", "a", rewards), tmp_path)
    assert found.error is not None and found.error.type == "verifier_bad_reward"


def test_steps_of_a_task_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "job"
    steps = [
        {
            "step_name": name,
            "agent_result": context(),
            "verifier_result": {"rewards": {"reward": reward}},
            "exception_info": None,
            "agent_execution": span(3, 8),
            "verifier": span(8, 9),
        }
        for name, reward in (("one", 1.0), ("two", 0.0))
    ]
    content = result("a__1", "a", {"reward": 0.5}, step_results=steps, agent_result=None, verifier=None)
    log = atif(said("do it"), did("", "ls\n", shown="x"))
    files = {"steps__one__agent__trajectory_dot_json": log, "steps__two__verifier__test-stdout_dot_txt": "1 failed"}
    trial(path, {**content, "agent_execution": None}, **files)
    run, _ = imported(finish(path))
    (found,) = run.results
    assert [(step.name, step.reward, step.steps) for step in found.task_steps] == [("one", 1.0, 1), ("two", 0.0, 0)]
    assert [step.metrics for step in found.task_steps] == [{"reward": 1.0}, {"reward": 0.0}]
    assert (found.reward, found.timings.agent_sec, found.usage.completion_tokens) == (0.5, 10, 20)
    home = trial_directory(run.path, "a", 0) / "steps"
    assert read_steps(home / "one")[0].actions == ("ls\n",)
    assert (home / "two" / "verifier" / "stdout.txt").is_file()


def test_settings_are_kept_without_secrets_and_addresses(tmp_path: Path) -> None:
    kwargs = {
        "api_base": "http://me:hunter2@host/v1",
        "temperature": 0.6,
        "llm_kwargs": {"max_tokens": 9, "api_key": "hunter2", "extra_headers": {"x": "hunter2"}},
    }
    path = tmp_path / "job"
    trial(path, result("a__1", "a", {"reward": 1.0}, kwargs=kwargs))
    run, _ = imported(finish(path))
    assert run.plan is not None
    assert run.plan.settings == {
        "timeout_multiplier": 1.0,
        "agent.kwargs.temperature": 0.6,
        "agent.kwargs.llm_kwargs.max_tokens": 9,
    }
    assert "hunter2" not in "".join(file.read_text() for file in run.path.rglob("*.json*"))


def test_a_step_limit_and_a_submission_are_recognised_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "job"
    long = atif(said("go"), did("", "a\n", shown="1"), did("", "b\n", shown="2"))
    short = atif(said("go"), did("", "a\n", shown="sure?", done=True), did("", shown="", done=True))
    for name, log in (("a", long), ("b", short)):
        content = result(f"{name}__1", name, {"reward": 1.0}, kwargs={"max_turns": 2})
        trial(path, content, agent__trajectory_dot_json=log)
    run, _ = imported(finish(path))
    assert {each.task: each.outcome for each in run.results} == {"a": "step_limit", "b": "submitted"}


def test_two_tasks_of_one_name_keep_their_owners(tmp_path: Path) -> None:
    path = tmp_path / "job"
    for owner in ("one", "two"):
        trial(path, result(f"{owner}__1", f"{owner}/same", {"reward": 1.0}))
    assert imported(finish(path))[0].planned_tasks == ["one__same", "two__same"]


def test_several_jobs_are_several_runs(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job, tmp_path / "jobs" / "first")
    shutil.copytree(job, tmp_path / "jobs" / "second")
    made = import_harbor([tmp_path / "jobs"], tmp_path / "runs", ImportChoice())
    assert [each.directory for each in made] == [tmp_path / "runs" / "first", tmp_path / "runs" / "second"]
    assert [read_run(each.directory).name for each in made] == ["first", "second"]


def test_trials_can_be_imported_one_by_one(job: Path, tmp_path: Path) -> None:
    (made,) = import_harbor([job / "a__1", job / "b__1"], tmp_path / "run", ImportChoice())
    assert [(each.task, each.seed) for each in read_run(made.directory).results] == [("a", 0), ("b", 0)]


# -- what is no good -----------------------------------------------------------------------------


def test_a_job_that_was_cut_short_says_so_and_plans_what_is_missing(job: Path) -> None:
    (job / "a__2" / "result.json").write_text('{"id": "x", "task_na')
    (job / "b__2" / "result.json").unlink()
    write(job / "result.json", {**json.loads((job / "result.json").read_text()), "finished_at": None})
    run, made = imported(job)
    assert (run.planned_tasks, run.planned_seeds) == (["a", "b"], [0, 1])
    assert summarise(run).counts.missing == 2
    assert run.plan is not None and run.plan.status == "interrupted"
    assert made.notes[0].startswith("2 trials without a result: a__2/result.json is not valid JSON or is incomplete (")
    assert made.notes[0].endswith(", and 1 more")
    assert "the job has not ended, or was interrupted" in made.notes
    assert "its result.json was computed from other trials than these" in made.lines
    assert any(line.startswith("they differ because 2 planned trials without a result") for line in made.lines)


def test_a_job_without_config_and_result_is_read_from_its_trials(job: Path) -> None:
    (job / "config.json").unlink()
    (job / "result.json").unlink()
    run, made = imported(job)
    assert (len(run.results), len(run.planned_seeds)) == (4, 2)
    assert made.notes[:2] == (
        "config.json of the job is missing: the plan is derived from the trials",
        "result.json of the job is missing: the job's mean cannot be compared",
    )
    assert "none in its result.json" in made.lines[1]


def test_a_torn_or_endless_trajectory_costs_the_steps_and_not_the_trial(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "LARGEST_BYTES", 10_000)
    write(job / "a__1" / "agent" / "trajectory.json", '{"schema_version": "ATIF-v1.8", "steps": [{"st')
    write(job / "a__2" / "agent" / "trajectory.json", " " * 20_000)
    run, made = imported(job)
    assert len(run.results) == 4
    first, second = made.notes[-2:]
    assert first.startswith("trajectory.json is not valid JSON or is incomplete (")
    assert second.startswith("trajectory.json has 20 kB, more than the maximum of 10 kB: left out of 1 trial, such as ")


def test_keys_of_a_later_version_are_let_through_and_said_once(job: Path) -> None:
    for file in job.glob("*/result.json"):
        write(file, {**json.loads(file.read_text()), "colour": "blue", "mood": 1})
    assert "unknown keys of result.json were ignored: colour, mood" in imported(job)[1].notes


def test_an_invalid_reward_of_version_0_26_is_an_error_and_in_no_mean(tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "new"
    beside = raised("VerifierTimeoutError") | {"policy": {"has_valid_reward": False}}
    trial(job, result("a__1", "org/kept", {"reward": 1.0}) | {"reward_valid": True})
    trial(job, result("b__1", "org/timeout", {"reward": 1.0}, exception_info=beside) | {"reward_valid": False})
    trial(job, result("c__1", "org/none") | {"reward_valid": False})
    finish(job, 1.0)
    run, done = imported(job)
    assert {each.task: each.reward for each in run.results} == {"kept": 1.0, "timeout": None, "none": None}
    assert next(each.error.type for each in run.results if each.task == "timeout") == "verifier_timeout"
    assert done.lines[1].startswith("mean by Harbor's rule 1.000000 (its result.json: 1.000000), score here 0.333333")
    assert "2 trials without a valid reward count as 0 here and are left out there" in done.lines[2]
    assert not any("unknown keys" in note for note in done.notes)


def test_the_policy_of_an_exception_decides_about_a_steps_reward_and_about_retries(tmp_path: Path) -> None:
    policy = {"should_retry": False, "should_grade": True, "has_valid_reward": False}
    beside = raised("SomethingNewError") | {"policy": policy}
    ended = {"verifier_result": {"rewards": {"reward": 1.0}}, "agent_execution": span(0, 1), "exception_info": beside}
    steps = [{"step_name": "one", **ended}]
    record = result("a__1", "org/two", {"reward": 1.0}, step_results=steps) | {"reward_valid": False}
    trial(tmp_path / "jobs" / "new", record)
    finish(tmp_path / "jobs" / "new", None)
    run, _ = imported(tmp_path / "jobs" / "new")
    (step,) = run.results[0].task_steps
    assert (step.reward, step.error and step.error.type) == (None, "SomethingNewError")
    assert run.results[0].error is not None and not run.results[0].error.retryable


def test_a_job_that_was_cut_before_any_result_does_not_keep_its_folder_from_being_imported(
    job: Path, tmp_path: Path
) -> None:
    (job.parent / "cut" / "a__1" / "agent").mkdir(parents=True)
    (job.parent / "cut" / "config.json").write_text("{}")
    (only,) = import_harbor([job.parent], tmp_path / "runs", ImportChoice())
    assert any(note.startswith("left out: ") and "cut" in note for note in only.notes)
    with pytest.raises(UsageError, match="no trial has a result"):
        import_harbor([job.parent / "cut"], tmp_path / "other", ImportChoice())


def test_links_are_not_followed(job: Path, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.txt", "hunter2")
    elsewhere = trial(tmp_path / "elsewhere", result("c__1", "c", {"reward": 1.0}))
    (job / "c__1").symlink_to(elsewhere)
    (job / "a__1" / "verifier").mkdir()
    (job / "a__1" / "verifier" / "reward.txt").symlink_to(secret)
    (job / "a__2" / "verifier").symlink_to(tmp_path)
    (job / "b__1" / "trial.log").symlink_to(secret)
    run, made = imported(job)
    assert "links were not followed: c__1" in made.notes
    assert run.planned_tasks == ["a", "b"]
    assert "hunter2" not in "".join(file.read_text() for file in run.path.rglob("*") if file.is_file())


def test_several_models_or_agents_are_refused_by_name_and_can_be_split(job: Path, tmp_path: Path) -> None:
    trial(job, result("a__3", "a", {"reward": 1.0}, model="org/large"))
    assert "results of 2 models: small-model, org/large; choose one with --model NAME" in complaint(job)
    assert "no result of model 'medium'; known: org/large, small-model" in complaint(job, ImportChoice("medium"))
    made = import_harbor([job], tmp_path / "runs", SPLIT)
    assert [each.directory.name for each in made] == ["nightly-small-model", "nightly-org-large"]
    assert [len(read_run(each.directory).results) for each in made] == [4, 1]
    trial(job, result("a__4", "a", {"reward": 1.0}, agent="nop"))
    assert "by agents nop, terminus-2; choose one with --agent NAME" in complaint(job, ImportChoice("small-model"))
    run, _ = imported(job, ImportChoice("small-model", "nop"))
    assert (len(run.results), run.plan and run.plan.agent) == (1, "nop")


def test_one_trial_twice_is_refused(job: Path) -> None:
    shutil.copytree(job / "a__1", job / "a__copy")
    assert "trial 'a__1' is also in" in complaint(job)


def test_nothing_is_overwritten_and_nothing_half_written_is_left(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(job)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="nightly-run: not empty; name a new directory with --output"):
        imported(job)
    assert sorted(tmp_path.rglob("*")) == before

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    write(job / "a__1" / "trial.log", "x")
    assert "cannot be written: No space left on device" in complaint(job)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "neither a job nor a trial of Harbor"),
        (lambda path: write(path / "config.json", {"agents": []}), "is a job without trials"),
        (lambda path: write(path, "x"), "no such directory"),
        (
            lambda path: write(path / "a__1" / "result.json", '{"task_name": "a"}'),
            "a__1/result.json is not the result of a trial",
        ),
        (lambda path: write(path / "a__1" / "trial.log", ""), "no trial has a result: a__1/result.json is missing"),
        (lambda path: trial(path, result("a__1", "..", {}, task_id={})), "task '..' cannot be a file name"),
        (
            lambda path: trial(path, result("a__1", "a", {}, started_at="never")),
            "a__1/result.json is not the result of a trial: started",
        ),
    ],
)
def test_what_is_no_job_is_reported_in_one_line(tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "job")
    assert says in complaint(tmp_path / "job")


def test_a_name_cannot_lead_out_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "job"
    steps = [{"step_name": "../../../../evil", "verifier_result": {"rewards": {"reward": 1}}}]
    trial(
        path, result("../../x", "../../../evil", {"reward": 1.0}, task_id={}, step_results=steps) | {"trial_name": "x"}
    )
    run, _ = imported(finish(path))
    assert run.planned_tasks == ["evil"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job", "job-run"]


# -- real trials ---------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL.is_dir(), reason="no recorded trials here")
def test_real_trials_come_out_right(tmp_path: Path) -> None:
    made = import_harbor([REAL], tmp_path / "runs", SPLIT)
    found = {each.task: each for run in made for each in read_run(run.directory).results}
    told = {
        task: (each.reward, each.outcome, each.error and each.error.type, each.steps) for task, each in found.items()
    }
    assert told == {
        "hf-model-inference": (1.0, "submitted", None, 11),
        "pypi-server": (1.0, "agent_timeout", None, 13),
        "vulnerable-secret": (None, None, "verifier_failed", 3),
        "mteb-leaderboard": (0.0, "submitted", None, 13),
        "polyglot-c-py": (None, "submitted", "verifier_never_ran", 16),
        "sqlite-with-gcov": (0.0, "submitted", None, 18),
    }
    runs = {run.directory.name.rpartition("trials-")[2]: run for run in made}
    assert "1 trial with 0 there and an error here (verifier_never_ran 1)" in runs["qwen36-27b"].lines[2]
    trial_of = trial_directory(runs["qwen36-27b"].directory, "sqlite-with-gcov", 0)
    steps = read_steps(trial_of)
    assert [step.index for step in steps if step.format_error] == [13]
    log = json.loads((trial_of / "trajectory.json").read_text())
    assert (log["outcome"], len(log["messages"]), log["usage"]["prompt_tokens"]) == ("submitted", 38, 73540)
    several = read_steps(trial_directory(runs["swerl-qwen35-2b-step100"].directory, "mteb-leaderboard", 0))
    assert [len(step.actions) for step in several if len(step.reply.tool_calls) > 1] == [1, 1, 1]
