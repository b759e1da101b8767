"""Nightly benchmarks: model server, runs, index, pages, comparison, gate, pruning, notification."""
