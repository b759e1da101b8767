"""Runs of tasks × seeds: their trials are planned, admitted, tried, verified, stored, resumed and graded again."""
