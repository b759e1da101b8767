"""Sandboxes of trials: what a backend and its sandboxes can do, files on their way in and out, and a fake."""
