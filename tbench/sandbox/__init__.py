"""Sandboxes of trials: interfaces of backends and sandboxes, file transfer, and a fake backend for tests."""
