"""What outlives an activation: boundaries, deliveries, waits, tokens, and links between runs."""
