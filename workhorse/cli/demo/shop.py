"""The app of the demo: a shop whose orders are charged, shipped and mailed about.

Each handler writes to the shop's own ledger what it does, so that the demo can compare what the
store says with what has happened.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

from workhorse import RetryPolicy, Workhorse
from workhorse.cli.demo.ledger import Ledger, Mark
from workhorse.handlers.context import AsyncContext, Context

QUEUES = ("orders", "mail")
TASKS = ("orders.charge", "orders.ship", "orders.mail")

app = Workhorse()
# Short rests: whoever watches should see the second try.
_retry = RetryPolicy(first=timedelta(milliseconds=400), longest=timedelta(seconds=1))
_ledger = Ledger.here()


class CardServiceBusyError(Exception):
    """The card service asks to come back later."""


class PrinterJamError(Exception):
    """The label printer is jammed."""


@dataclass(frozen=True)
class Order:
    """What a customer has ordered."""

    number: int
    item: str
    cents: int


@dataclass(frozen=True)
class Receipt:
    """What was charged."""

    order: int
    cents: int


@app.task("orders.charge", queue="orders", retry=_retry)
def charge(ctx: Context, order: Order) -> Receipt:
    """Charge a card; the first try fails for every fifth order."""
    with _ledger.activation(_mark(ctx)):
        time.sleep(0.15)
        if order.number % 5 == 0 and ctx.attempt == 1:
            raise CardServiceBusyError("the card service is busy")
        # With a key, since this line may run again: a crash can come between it and the settle.
        ship.enqueue(order, key=f"order-{order.number}")
        return Receipt(order.number, order.cents)


@app.task("orders.ship", queue="orders", retry=_retry)
async def ship(ctx: AsyncContext, order: Order) -> str:
    """Pack a parcel, which takes its time; the label printer jams now and then."""
    with _ledger.activation(_mark(ctx)):
        await asyncio.sleep(0.7)
        if order.number % 8 == 3 and ctx.attempt == 1:
            raise PrinterJamError("the label printer is jammed")
        await mail.enqueue_async(order, key=f"order-{order.number}")
        return f"parcel-{order.number}"


@app.task("orders.mail", queue="mail", retry=_retry)
def mail(ctx: Context, order: Order) -> None:
    """Tell the customer."""
    with _ledger.activation(_mark(ctx)):
        time.sleep(0.05)


def _mark(ctx: Context | AsyncContext) -> Mark:
    return Mark(run=ctx.run.id, fence=ctx.lease.fence, task=ctx.run.task)
