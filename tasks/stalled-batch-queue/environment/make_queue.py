"""Leaves the queue as a crashed worker would: five jobs done, a sixth half written, a lock without its process."""

import sys

sys.path.insert(0, "/app/queue")
from run_batch import JOURNAL, LOCK, QUEUE, print_job

digest, lines = "", []
(QUEUE / "jobs").mkdir()
for number in range(1, 25):
    job = {"text": f"leaflet {number * 37 % 101}", "copies": number * 5 % 17 + 1}
    comma = "," if number == 13 else ""
    text = f'{{\n  "text": "{job["text"]}",\n  "copies": {job["copies"]}{comma}\n}}\n'
    (QUEUE / "jobs" / f"{number:03}.json").write_text(text)
    digest = print_job(job, digest)
    lines.append(f"{number:03}\t{digest}\n")
JOURNAL.write_text("".join(lines[:5]) + lines[5][:21])
LOCK.write_text("31337\n")
