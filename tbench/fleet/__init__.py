"""The machines that one run has its sandboxes on: their engines, who is there, and who is lost."""
