"""Client of OpenAI-compatible endpoints: addresses, requests, answers, retries and outages."""
