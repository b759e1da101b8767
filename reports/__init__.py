"""Turns stored results into HTML pages. Only reads; starts nothing."""
