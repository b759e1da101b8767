"""Reads job directories and ATIF documents with Harbor's own code. Run by the Python of an environment that has Harbor.

harbor_reads.py DIRECTORY_OF_JOBS [ATIF_FILE ...] prints a JSON object: what of it Harbor understood.
"""

import json
import sys
from pathlib import Path

from harbor.metrics.mean import Mean
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.utils.trajectory_validator import TrajectoryValidator
from harbor.viewer.scanner import JobScanner


def problems_of(file: Path) -> list[str]:
    validator = TrajectoryValidator()
    return [] if validator.validate(file) else [f"{file}: {error}" for error in validator.get_errors()]


def read_job(jobs: Path, name: str) -> dict:
    scanner, job = JobScanner(jobs), jobs / name
    config = JobConfig.model_validate_json((job / "config.json").read_text())
    stated = JobResult.model_validate_json((job / "result.json").read_text())
    trials = [
        TrialResult.model_validate_json((job / each / "result.json").read_text()) for each in scanner.list_trials(name)
    ]
    for trial in trials:
        beside = TrialConfig.model_validate_json((job / trial.trial_name / "config.json").read_text())
        assert beside == trial.config, trial.trial_name
        assert scanner.get_trial_result(name, trial.trial_name) is not None
    assert scanner.get_job_config(name) == config and scanner.get_job_result(name) is not None
    counted = JobStats.from_trial_results(trials, n_total_trials=stated.n_total_trials)
    mine, theirs = stated.stats.model_dump(mode="json"), counted.model_dump(mode="json")
    for evaluation in [*mine["evals"].values(), *theirs["evals"].values()]:
        evaluation["metrics"] = []  # made by the job's configuration
        for names in [each for stats in evaluation["reward_stats"].values() for each in stats.values()]:
            names.sort()
        for names in evaluation["exception_stats"].values():
            names.sort()
    valid = [trial.verifier_result.rewards for trial in trials if trial.reward_valid]
    by_harbor = [Mean().compute(valid)] if valid else []
    differing = [key for key in theirs if mine[key] != theirs[key] and key != "n_retries"]
    return {
        "trials": {trial.trial_name: trial.reward_valid for trial in trials},
        "metrics": [each.metrics for each in stated.stats.evals.values()],
        "by_harbor": [by_harbor],
        "stats_that_harbor_counts_otherwise": differing,
        "problems": [each for file in sorted(job.rglob("agent/trajectory*.json")) for each in problems_of(file)],
        "trajectories": len(list(job.rglob("agent/trajectory.json"))),
    }


if __name__ == "__main__":
    jobs = Path(sys.argv[1])
    found = {name: read_job(jobs, name) for name in JobScanner(jobs).list_jobs()}
    documents = [each for file in sys.argv[2:] for each in problems_of(Path(file))]
    print(json.dumps({"jobs": found, "documents": documents, "read": len(sys.argv[2:])}))
