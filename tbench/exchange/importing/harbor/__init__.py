"""Import of Harbor jobs and trials, versions 0.6 to 0.26, as runs."""
