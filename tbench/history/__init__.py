"""An index over run directories in one SQLite file: quick to ask, rebuildable at any time; the files stay the truth."""
