#!/bin/bash
# Reward 1 if every test passes and 0 if one fails; none if pytest itself could not do its work.
export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1  # nothing left in /app is imported
mkdir -p /logs/verifier
cd /app || cd /
python3 -m pytest -p no:cacheprovider -rA /tests/test_outputs.py
case $? in
  0) echo 1 > /logs/verifier/reward.txt ;;
  1) echo 0 > /logs/verifier/reward.txt ;;
esac
