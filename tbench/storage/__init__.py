"""Run directories and other records on disk, and their readers."""
