"""Next-action replay: replies to recorded steps, and how alike their commands are to the recorded ones."""
