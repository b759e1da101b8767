#!/bin/bash
# Verifies the agent's work. Runs in the working directory after the agent has ended, with this folder at /tests, which
# the agent never sees. Only the reward file counts, from 0 to 1; the exit code is ignored.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt # in case the script ends early

expected=162
found=
[ ! -f /app/sum.txt ] || found=$(head -c 100 /app/sum.txt)
if [ "$found" != "$expected" ]; then
    echo "FAILED: /app/sum.txt holds '$found', not $expected"
    exit
fi
echo "PASSED: the sum is right"
echo 1 >/logs/verifier/reward.txt
