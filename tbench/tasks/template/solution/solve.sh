#!/bin/bash
# The reference solution: `tbench task check` runs it, and it has to score 1. Agents never see it.
set -e
sum=0
while read -r number; do
    sum=$((sum + number))
done </app/numbers.txt
echo "$sum" >/app/sum.txt
