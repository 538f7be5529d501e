"""Recover, promote, publish: one bounded page a transaction."""
