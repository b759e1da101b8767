#!/bin/bash
# The reward is the share of tests that passed; none if pytest itself could not do its work.
export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1  # nothing left in /app is imported
mkdir -p /logs/verifier
cd /app || cd /
python3 -m pytest -p no:cacheprovider -rA --junitxml=/logs/verifier/junit.xml /tests/test_outputs.py
case $? in
  0|1) python3 /tests/share_passed.py /logs/verifier/junit.xml > /logs/verifier/reward.txt ;;
esac
