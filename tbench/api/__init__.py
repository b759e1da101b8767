"""The public Python interface of tbench: single trials, tasks, stored runs and their summaries."""
