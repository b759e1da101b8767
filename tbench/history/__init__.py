"""An index over run directories in one SQLite file, for fast queries. It can be rebuilt from the files at any time."""
