"""Recomputes every job's digest and compares the journal and the summary with them."""

import hashlib
import json
from pathlib import Path

QUEUE = Path("/app/queue")
PROGRAM = "691fce25ee0f11434f287797f6c8a73d958d0fb7784785e6484630c9c5375b3d"
JOBS = {f"{n:03}": {"text": f"leaflet {n * 37 % 101}", "copies": n * 5 % 17 + 1} for n in range(1, 25)}


def digests() -> dict[str, str]:
    digest, found = "", {}
    for name, job in JOBS.items():
        digest = hashlib.sha256((digest + "\n" + job["text"] * job["copies"]).encode()).hexdigest()
        found[name] = digest
    return found


def test_the_journal_has_every_job_once_and_in_order() -> None:
    expected = "".join(f"{name}\t{digest}\n" for name, digest in digests().items())
    assert (QUEUE / "journal.tsv").read_text() == expected


def test_the_summary_names_the_last_digest() -> None:
    assert (QUEUE / "summary.txt").read_text() == f"24 jobs\n{digests()['024']}\n"


def test_program_and_jobs_are_the_same_in_a_queue_that_is_done() -> None:
    assert (QUEUE / "summary.txt").exists()
    assert hashlib.sha256((QUEUE / "run_batch.py").read_bytes()).hexdigest() == PROGRAM
    assert {path.stem: json.loads(path.read_text()) for path in (QUEUE / "jobs").glob("*.json")} == JOBS


def test_no_worker_is_left() -> None:
    assert not (QUEUE / "worker.lock").exists()
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"run_batch.py" in command for command in commands)
