"""Next-action replay: a model continues recorded conversations, step by step; nothing is executed."""
