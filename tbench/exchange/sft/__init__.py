"""Conversations as training data: OpenAI's `messages`, one JSON object per line, and who may learn from what."""
