"""Runs as jobs of Harbor, in the layout and with the records of version 0.25."""
