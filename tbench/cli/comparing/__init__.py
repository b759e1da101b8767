"""`tbench compare`, `flaky`, `power` and `explain`: compare runs, and explain their scores."""
