"""A worker as a process: its parts, start, health, signals and end."""
