"""What of a task looks like a mistake of its author: found in its texts, without starting anything.

Each finding is a hint, and few are better than many: what good tasks do is not reported.
"""
