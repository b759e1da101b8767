"""What is known of a task over all runs, and how its page and the list of tasks show it."""
