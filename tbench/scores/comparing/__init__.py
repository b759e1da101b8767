"""Which of two runs is better, by how much, and whether it is noise: paired by task and seed. Pure."""
