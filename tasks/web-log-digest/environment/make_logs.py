"""Writes three days of requests as three rotated log files, the same each time."""

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

PATHS = ["/", "/search", "/items", "/items/export", "/cart", "/login", "/static/app.js"]
MEAN_MS = [12, 140, 45, 410, 60, 95, 3]
LOGS = Path("/app/logs")


def lines() -> list[str]:
    source = Random(20240311).random
    now = datetime(2024, 3, 11, 20, 0, 0)
    written = []
    for number in range(1500):
        now += timedelta(seconds=int(source() ** 3 * 300))
        which = min(int(source() * source() * 9), len(PATHS) - 1)
        path = PATHS[which]
        if path in ("/search", "/items") or source() < 0.1:
            path += f"?q={int(source() * 900)}"
        elapsed = max(1, int(MEAN_MS[which] * (0.5 + source())))
        if "?" in path and source() < 0.004:
            elapsed *= 40
        chance = source()
        status = 404 if chance < 0.09 else 200
        if chance < 0.03 and now.day != 13:
            status = 503 if chance < 0.02 else 500
        client = f"10.{int(source() * 3)}.{int(source() * 4)}.{int(source() * 25) + 1}"
        written.append(f"{now.isoformat()}Z {client} GET {path} {status} {elapsed}ms")
        if number % 167 == 0:
            written.append(f"# {now.isoformat()}Z 127.0.0.1 GET /health 500 9000ms (probe, not a request)")
    return written


LOGS.mkdir(parents=True, exist_ok=True)
written = lines()
(LOGS / "web.log.2.gz").write_bytes(gzip.compress("".join(line + "\n" for line in written[:600]).encode(), mtime=0))
(LOGS / "web.log.1").write_text("".join(line + "\n" for line in written[600:1150]))
(LOGS / "web.log").write_text("".join(line + "\n" for line in written[1150:]))
