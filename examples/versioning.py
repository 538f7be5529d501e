"""Code that changes while runs sleep: a new branch, a new name, and a worker that is still old.

Run it with `python examples/versioning.py`; it works in a folder of its own and needs no broker and
no server. Two apps on one database stand for the program before and after a deployment.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from workhorse import Context, Workhorse

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
url = f"sqlite:///{folder / 'shop.sqlite3'}"
before = Workhorse(database_url=url, lane="polling")
after = Workhorse(database_url=url, lane="polling")


@before.task("orders.send")
def send(ctx: Context, order: int) -> str:
    ctx.checkpoint("pack", lambda: print(f"{order}: packed"))
    ctx.wait_for_signal("picked up")
    ctx.checkpoint("mail", lambda: print(f"{order}: mailed"))
    return "sent"


@after.task("orders.dispatch", aliases=["orders.send"])  # runs of the old name are still there
def dispatch(ctx: Context, order: int) -> str:
    ctx.checkpoint("pack", lambda: print(f"{order}: packed"))
    if ctx.patched("insurance"):  # False for runs that have been beyond this
        ctx.checkpoint("insure", lambda: print(f"{order}: insured"))
    ctx.wait_for_signal("picked up")
    if ctx.patched("by text"):  # no run has been beyond this, so all take it
        ctx.checkpoint("text message", lambda: print(f"{order}: text message"))
    else:
        ctx.checkpoint("mail", lambda: print(f"{order}: mailed"))
    return "dispatched"


def main() -> None:
    """Let one order begin in the old code and one in the new, and end both in the new."""
    before.migrate()
    old = send.enqueue(1)
    before.worker().drain()  # up to the wait

    new = dispatch.enqueue(2)
    print("old workers execute", before.worker().drain(), "runs")  # they do not know the name
    print(f"the new run is {new.view().state}, in attempt {new.view().attempt}")
    after.worker().drain()

    for run in (old, new):
        after.send_signal(run.id, "picked up")
    after.worker(concurrency=1).drain()

    for run in (old, new):
        view = run.view()
        passed = [entry.name for entry in after.admin.list_checkpoints(run.id)]
        print(f"{view.task}: {run.result()}, attempt {view.attempt}, {passed}")
    before.close()
    after.close()


if __name__ == "__main__":
    main()
