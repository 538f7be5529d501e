"""What the rest of a worker stands on: its numbers, clock, loops and calls of the store."""
