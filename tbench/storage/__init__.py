"""Directories of records on disk: a manifest and JSON lines that one process at a time adds to, and their readers."""
