"""Turns stored results into pages. Reads results and statistics; starts nothing."""
