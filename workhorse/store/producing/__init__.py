"""Runs come into the store: one or many, by key, after others, with their bells."""
