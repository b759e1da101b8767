"""What is asked of a trial that has ended."""
