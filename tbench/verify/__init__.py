"""Finds out whether a task was solved: runs the verifier, reads its reward, and checks it for tampering."""
