"""Numbers over rewards: statistics, the summary of a run, and its tables."""
