"""The public face of tbench, for programs that use it: single trials, tasks, stored runs and their summaries."""
