"""What the tests share: throw-away databases, real processes, and waiting with a deadline."""
