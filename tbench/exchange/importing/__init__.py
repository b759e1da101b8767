"""Results of others as run directories, so that every table and page shows them; nothing is executed."""
