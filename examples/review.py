"""A refund that a person decides on, and another one when nobody does.

Run it with `python examples/review.py`. The testing kit stands in for the database, the worker and
the time: days go by in a moment.
"""

from __future__ import annotations

from datetime import timedelta

from workhorse import AsyncContext, Workhorse
from workhorse.testing import Kit

app = Workhorse()


@app.task("refunds.decide")
async def decide(ctx: AsyncContext, euros: int) -> str:
    shown = {"euros": euros, "question": "refund?"}
    in_time = timedelta(days=2)
    yes = await ctx.wait_for_human("desk", context=shown, timeout=in_time, default=None)
    if yes is None:
        yes = await ctx.wait_for_human("boss", context=shown)
    if not yes:
        return "refused"
    key = f"refund-{ctx.run.id}"
    await ctx.checkpoint("refund", lambda: pay(euros, idempotency_key=key))
    return "refunded"


async def pay(euros: int, *, idempotency_key: str) -> None:
    print(f"bank: {euros} euros go back")


def main() -> None:
    """Decide on one refund; let the other come before the boss."""
    with Kit(app) as kit:
        quick = decide.enqueue(20)
        kit.run_until_idle()
        (wait,) = app.admin.list_waits(kind="human")
        print(f"to decide: '{wait.name}', {wait.context}")
        ada = app.complete_human_wait(quick.id, wait.name, True, by="ada", why="a regular")
        bob = app.complete_human_wait(quick.id, wait.name, False, by="bob")
        print(f"ada: {ada}, bob: {bob}")
        kit.run_until_idle()
        print(quick.result())

        slow = decide.enqueue(900)
        kit.run_until_idle()
        kit.advance(timedelta(days=2))
        kit.run_until_idle()
        (wait,) = app.admin.list_waits(kind="human")
        print(f"to decide: '{wait.name}', {wait.context}")
        app.complete_human_wait(slow.id, wait.name, False, by="eve", why="no receipt")
        kit.run_until_idle()
        print(slow.result())

        for entry in app.admin.timeline(slow.id):
            by = f", by {entry.by}: {entry.why}" if entry.by else ""
            print(f"  {entry.what} {entry.name or ''} {entry.state or ''}{by}")


if __name__ == "__main__":
    main()
