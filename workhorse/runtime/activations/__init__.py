"""One run in this worker, from its claim to its settle: its state, and what it asks for."""
