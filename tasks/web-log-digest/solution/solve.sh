#!/bin/bash
set -e
{ zcat logs/web.log.2.gz; cat logs/web.log.1 logs/web.log; } | python3 -c '
import json, sys
from collections import Counter, defaultdict

clients, minutes, errors, durations = set(), Counter(), Counter(), defaultdict(list)
for line in sys.stdin:
    if line.startswith("#"):
        continue
    time, client, _, path, status, elapsed = line.split()
    clients.add(client)
    minutes[time[:16]] += 1
    durations[path.partition("?")[0]].append(int(elapsed.removesuffix("ms")))
    if int(status) >= 500:
        errors[time[:10]] += 1
report = {
    "requests": sum(minutes.values()),
    "clients": len(clients),
    "errors_by_day": errors,
    "slowest_path": max(durations, key=lambda path: sum(durations[path]) / len(durations[path])),
    "busiest_minute": min(minutes, key=lambda minute: (-minutes[minute], minute)),
}
json.dump(report, open("/app/report.json", "w"), indent=2)
'
cat /app/report.json
