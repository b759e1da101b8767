"""Parsing of the command line: commands loaded on demand, types of values, one-line usage errors."""
