"""Live control of running trials: commands, debugging, and sharing their terminals."""
