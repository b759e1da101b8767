"""Generation: from the records of a dataset to prompts, requests and stored replies."""
