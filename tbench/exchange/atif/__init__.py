"""Agent Trajectory Interchange Format (ATIF), version 1.8: trajectories as viewers, converters, trainers read them."""
