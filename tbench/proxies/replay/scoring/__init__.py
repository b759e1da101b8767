"""Scoring: from stored replies to step scores, results and the leaderboard."""
