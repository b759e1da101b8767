#!/bin/bash
set -e
cd /app/queue
if [ -e worker.lock ] && ! [ -d "/proc/$(cat worker.lock)" ]; then rm worker.lock; fi
grep -P '^\d+\t[0-9a-f]{64}$' journal.tsv > /tmp/journal
cp /tmp/journal journal.tsv
for job in jobs/*.json; do
  python3 -m json.tool "$job" > /dev/null 2>&1 || sed -i -z 's/,\n}/\n}/' "$job"
done
python3 run_batch.py
cat summary.txt
