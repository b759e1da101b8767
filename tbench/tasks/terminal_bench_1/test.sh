#!/bin/bash
# Judges a converted task of Terminal-Bench 1 by what its run-tests.sh prints, never by how that ends: verdict.sh.
# All of the output is in /logs/verifier/run-tests.txt, also where time runs out.
export TEST_DIR="${TEST_DIR:-/tests}"
output=/logs/verifier/run-tests.txt
mkdir -p /logs/verifier
# Into a file: a server that the tests leave behind would hold a pipe open.
exec 3>&1 4>&2 >"$output" 2>&1
bash /tests/run-tests.sh 3>&- 4>&-
exec >&3 2>&4
cat "$output"
bash /tests/verdict.sh @PARSER@ "$output"
case $? in
    0) echo 1 >/logs/verifier/reward.txt ;;
    1) echo 0 >/logs/verifier/reward.txt ;;
esac
