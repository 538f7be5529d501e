"""How programs of tests tell what happens in them."""

from __future__ import annotations


def say(*words: object) -> None:
    """Print a line in one write: the log goes to the same place, from other threads."""
    print(" ".join(map(str, words)) + "\n", end="", flush=True)
