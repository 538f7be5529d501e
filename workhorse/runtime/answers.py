"""Answers of one commit to the handlers that wait for them."""

from __future__ import annotations

from collections.abc import Callable


class Answers:
    """Collects answers and gives them: those for the event loop cross to it in one call.

    Waking the loop is a system call; a commit may bear hundreds of answers.

    Args:
        post: Has a callable called in the loop's thread; False when there is no loop.
    """

    def __init__(self, post: Callable[[Callable[[], None]], bool]) -> None:
        self._post = post
        self._here: list[Callable[[], object]] = []
        self._there: list[Callable[[], object]] = []

    def add(self, give: Callable[[], object], *, in_loop: bool) -> None:
        """Have `give` called, which must not raise; `in_loop` says who waits for it."""
        (self._there if in_loop else self._here).append(give)

    def give(self) -> None:
        """Give all that was collected, once."""
        here, self._here = self._here, []
        there, self._there = self._there, []

        def give_there() -> None:
            for each in there:
                each()

        if there and not self._post(give_there):
            give_there()
        for each in here:
            each()
