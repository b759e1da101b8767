"""`tbench debug`: run a trial step by step, on a full screen or as lines for scripts."""
