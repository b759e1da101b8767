"""What a run shows of itself while it runs, and writes into run.log: each is a subscriber of its events."""
