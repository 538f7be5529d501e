"""An order in one durable handler: the card, a review, the parcel, and mails over days.

What has a name is done once and kept. After a crash, an error or a wait the handler starts at its
top, and what it has passed answers from the database. While it waits it holds no worker.

Run it with `python examples/order.py`; it works in a folder of its own and needs no broker and no
server.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from workhorse import AsyncContext, RetryPolicy, Workhorse

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
app = Workhorse(database_url=f"sqlite:///{folder / 'shop.sqlite3'}", lane="memory")

DAY = timedelta(milliseconds=20)  # this program is in a hurry; a shop says timedelta(days=1)


@dataclass(frozen=True)
class Order:
    """What a customer has ordered."""

    number: int
    item: str
    euros: int


@app.task("orders.fulfil", retry=RetryPolicy(first=timedelta(0)))
async def fulfil(ctx: AsyncContext, order: Order) -> str:
    """See an order through, from the card to the last mail."""
    key = f"order-{order.number}"

    # A crash between the charge and its checkpoint charges again: the provider knows it by its key.
    payment = await ctx.checkpoint("charge", lambda: charge(order.euros, idempotency_key=key))

    if order.euros >= 1_000:
        shown = {"order": order.number, "euros": order.euros}
        if not await ctx.wait_for_human("review", context=shown):
            await ctx.checkpoint("refund", lambda: refund(payment, idempotency_key=key))
            return "refunded"

    parcel = await ctx.checkpoint("ship", lambda: ship(order.item, idempotency_key=key))
    await ctx.checkpoint("welcome mail", lambda: mail(f"{parcel} is on its way", ctx.attempt))

    event = await ctx.wait_for_signal("delivered", timeout=14 * DAY, default={"to": "nobody"})

    for days in (1, 7, 30):
        await ctx.sleep(f"{days} days later", days * DAY)
        ask = partial(mail, f"day {days}: all well?")
        await ctx.checkpoint(f"mail after {days} days", ask)
    return f"delivered to {event['to']}"


# -- what is outside: providers that know a request by its key, and a mail server that fails once --


async def charge(euros: int, *, idempotency_key: str) -> str:
    print(f"card: {euros} euros, key {idempotency_key}")
    return f"payment of {idempotency_key}"


async def refund(payment: str, *, idempotency_key: str) -> None:
    print(f"card: {payment} goes back, key {idempotency_key}")


async def ship(item: str, *, idempotency_key: str) -> str:
    print(f"carrier: a {item}, key {idempotency_key}")
    return f"parcel of {idempotency_key}"


async def mail(text: str, attempt: int = 0) -> None:
    if attempt == 1:
        raise ConnectionError("the mail server is away")  # tried again by the policy
    print(f"mail: {text}")


def main() -> None:
    """Place an order, review it, tell of its delivery, and wait for the end."""
    app.migrate()
    run = fulfil.enqueue(Order(1, "saddle", 1_200), key="order-1")

    worker = app.worker()
    worker.drain()  # until there is nothing to do
    (wait,) = app.admin.list_waits(run.id)
    print(f"{run.view().state}: {wait.kind} '{wait.name}', {wait.context}")

    print("ada:", app.complete_human_wait(run.id, wait.name, True, by="ada", why="known customer"))
    # Nobody waits for it yet, so it is kept. Who sends it again, with its key, does no harm.
    for _ in range(2):
        event = {"to": "a neighbour"}
        answer = app.send_signal(run.id, "delivered", event, idempotency_key="event-17")
        print("carrier's event:", answer)

    worker.start()
    print(run.result(timeout=60))
    worker.stop()

    view = run.view()
    print(f"{view.fence} activations, attempt {view.attempt}")
    app.close()


if __name__ == "__main__":
    main()
