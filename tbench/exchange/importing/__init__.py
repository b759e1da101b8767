"""Import of other programs' results as run directories, for all tables and pages. Nothing is executed."""
