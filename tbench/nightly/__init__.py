"""A benchmark every night: model server, runs, index, pages, comparison, gate, pruning, news."""
