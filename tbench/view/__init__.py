"""Read-only web server for the pages of runs and for live runs."""
