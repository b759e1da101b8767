"""How the command line is read: commands loaded on demand, kinds of values, mistakes in one line."""
