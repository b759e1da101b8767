"""From stored replies to scores: the parser, the metric, results, shards put together, and the leaderboard."""
