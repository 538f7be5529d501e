"""A worker's process with a batch handler, to be killed: as `program`, with one task more."""

from __future__ import annotations

import sys
import threading

from tests.runtime.program import main, registry
from tests.support.saying import say
from workhorse.handlers.batches import BatchItem


@registry.task("batch", batch=4)
def batch(items: list[BatchItem[int]]) -> None:
    """Decide the even ones at once; in a first attempt nothing more is heard of it."""
    for item in items:
        say("started", item.run.id, item.attempt)
    for item in items:
        if item.payload % 2 == 0:
            item.succeed(f"attempt {item.attempt}")
    if items[0].attempt == 1:
        threading.Event().wait(60)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
