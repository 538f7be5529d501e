"""A long export that says how far it is, and that somebody cancels.

Run it with `python examples/export.py`; it works in a folder of its own and needs no broker and no
server.
"""

from __future__ import annotations

import tempfile
import threading
from functools import partial
from pathlib import Path

from workhorse import Context, Workhorse
from workhorse.errors import RunCancelledError

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
url = f"sqlite:///{folder / 'shop.sqlite3'}"
app = Workhorse(database_url=url, lane="memory", lease_seconds=1.5)  # in a hurry; 30 by default


@app.task("exports.write")
def export(ctx: Context, pages: int) -> str:
    for page in range(1, pages + 1):
        ctx.checkpoint(f"page {page}", partial(write, page))
        ctx.progress({"page": page, "of": pages})
    written.set()
    try:
        ctx.cancelled.wait(timeout=60)  # work that may be interrupted, in small steps
        ctx.checkpoint("deliver", deliver)  # begins no more
    finally:
        print(f"clean up: {ctx.cancelled.reason}")
    return "delivered"


# -- what is outside: a file, in which a page that is written again is the same page --

written = threading.Event()


def write(page: int) -> None:
    print(f"write page {page}")


def deliver() -> None:
    print("deliver")


def main() -> None:
    """Cancel one export while it runs, and one that has not begun."""
    app.migrate()
    first = export.enqueue(2)
    worker = app.worker()
    worker.start()
    written.wait(60)
    print("asked: it is", first.cancel(by="ada", why="wrong customer"))
    try:
        first.result(timeout=60)
    except RunCancelledError:
        print(f"cancelled; progress {first.view().progress}")
    worker.stop()

    second = export.enqueue(3)
    print("not begun: it is", second.cancel(by="ada"))
    print("again: it is", second.cancel(by="bob"))
    app.close()


if __name__ == "__main__":
    main()
