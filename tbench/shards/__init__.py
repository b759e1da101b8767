"""Parts of one run that are done by themselves, on as many machines as there are, and put together again."""
