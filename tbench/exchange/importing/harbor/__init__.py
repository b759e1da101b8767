"""Import of Harbor jobs and trials, versions 0.6 to 0.25, as runs."""
