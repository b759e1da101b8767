"""Jobs and trials of Harbor, versions 0.6 to 0.25, as runs."""
