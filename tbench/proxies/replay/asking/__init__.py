"""From the records of a dataset to stored replies: prompts, whether they fit, endpoints, requests."""
