"""Works through jobs/*.json in order and appends one line per finished job to journal.tsv.

Jobs that the journal names are done and are skipped, so the program can be started again after a stop. Each job takes
its time, because the press behind it does. When the last job is done, summary.txt is written.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

QUEUE = Path("/app/queue")
JOURNAL, LOCK, SUMMARY = QUEUE / "journal.tsv", QUEUE / "worker.lock", QUEUE / "summary.txt"
SECONDS_PER_JOB = 0.6


def print_job(job: dict, before: str) -> str:
    """The digest of one job; it depends on the digest of the job before."""
    text = before + "\n" + job["text"] * job["copies"]
    return hashlib.sha256(text.encode()).hexdigest()


def finished() -> dict[str, str]:
    """The digests of the jobs that are done, by name."""
    done = {}
    for number, line in enumerate(JOURNAL.read_text().splitlines(keepends=True), 1):
        name, _, digest = line.partition("\t")
        if len(digest) != 65 or not digest.endswith("\n"):
            sys.exit(f"run_batch: {JOURNAL} line {number} is incomplete, its job did not finish")
        done[name] = digest.strip()
    return done


def work() -> None:
    done = finished()
    digest = ""
    paths = sorted((QUEUE / "jobs").glob("*.json"))
    for path in paths:
        if path.stem in done:
            digest = done[path.stem]
            continue
        try:
            job = json.loads(path.read_text())
        except ValueError as error:
            sys.exit(f"run_batch: {path} is not valid JSON ({error}); stopped")
        time.sleep(SECONDS_PER_JOB)
        digest = print_job(job, digest)
        with JOURNAL.open("a") as journal:
            journal.write(f"{path.stem}\t{digest}\n")
        print(f"{path.stem} done", flush=True)
    SUMMARY.write_text(f"{len(paths)} jobs\n{digest}\n")


def main() -> None:
    try:
        lock = os.open(LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        sys.exit(f"run_batch: {LOCK} exists, a worker with pid {LOCK.read_text().strip()} is running")
    with os.fdopen(lock, "w") as file:
        file.write(f"{os.getpid()}\n")
    try:
        work()
    finally:
        LOCK.unlink()


if __name__ == "__main__":
    main()
