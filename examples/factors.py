"""Work that keeps cores busy, in processes of its own; one of them is killed on its way.

Run it with `python examples/factors.py`; it works in a folder of its own and needs no broker and no
server.
"""

from __future__ import annotations

import os
import signal
import tempfile
from datetime import timedelta
from functools import partial

from workhorse import Context, RetryPolicy, Workhorse

if __name__ == "__main__":
    # The processes of the handlers import this file too, under another name, and find it set.
    folder = tempfile.mkdtemp(prefix="workhorse-example-")
    url = f"sqlite:///{folder}/numbers.sqlite3"
    os.environ["WORKHORSE_DATABASE_URL"] = url  # noqa: TID251 - a program may

app = Workhorse(lane="memory", processes=2)

CURSED = 1_000_003 * 1_000_033


@app.task("numbers.factor", executor="process")
def factor(ctx: Context, number: int) -> list[int]:
    largest = ctx.checkpoint("largest", partial(largest_factor, number))
    if number == CURSED and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory runs out
    return [largest, number // largest]


def largest_factor(number: int) -> int:
    divisor = 2
    while number % divisor:
        divisor += 1
    return number // divisor


def main() -> None:
    """Factor some numbers, and look at the one whose process was killed."""
    app.migrate()
    numbers = [999_983 * 1_000_003, CURSED, 97 * 1_000_003]
    at_once = RetryPolicy(first=timedelta(0))
    with app.worker():
        runs = [factor.enqueue(number, retry=at_once) for number in numbers]
        for number, run in zip(numbers, runs, strict=True):
            print(number, "=", " * ".join(map(str, run.result(timeout=60))))
    for entry in app.admin.timeline(runs[1].id):
        if entry.what in ("boundary", "attempt"):
            print(f"{entry.what}: {entry.name or entry.reason}, {entry.error_type or 'stored'}")
    print("attempts:", [run.view().attempt for run in runs])
    app.close()


if __name__ == "__main__":
    main()
