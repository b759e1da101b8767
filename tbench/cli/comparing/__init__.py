"""Commands that compare runs, and say what noise leaves to be seen."""
