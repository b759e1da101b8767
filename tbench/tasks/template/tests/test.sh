#!/bin/bash
# Judges what the agent left: runs in the working directory when the agent has ended. This folder is at /tests then, and
# was not there before. Only the reward file counts, from 0 to 1; the exit code means nothing.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt # so that there is a reward whatever happens below

expected=162
found=
[ ! -f /app/sum.txt ] || found=$(head -c 100 /app/sum.txt)
if [ "$found" != "$expected" ]; then
    echo "FAILED: /app/sum.txt holds '$found', not $expected"
    exit
fi
echo "PASSED: the sum is right"
echo 1 >/logs/verifier/reward.txt
