"""Enqueue, wait for results, act on runs from outside."""
