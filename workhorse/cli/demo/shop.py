"""The app of the demo: a shop in which each order is one durable handler.

Whatever a handler asks of the world outside is a line in the shop's ledger, so that the demo can
compare what the store says with what has happened.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from workhorse import RetryPolicy, Workhorse
from workhorse.cli.demo import shelf
from workhorse.cli.demo.ledger import Ledger, Mark
from workhorse.handlers.context import AsyncContext, Context

QUEUES = ("parcels", "counter")
TASKS = ("orders.deliver", "orders.collect")
LARGE_CENTS: Final = 1_500
"""Orders of so much are looked at by a person."""

app = Workhorse()
# Short rests: whoever watches should see the second try.
_retry = RetryPolicy(first=timedelta(milliseconds=400), longest=timedelta(seconds=1))


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


@dataclass(slots=True)
class Pace:
    """How long things take here; whoever has no time changes it.

    `work_s` is what the shortest piece of work takes, `rest` what customers are left alone for, and
    `patience` how long the carrier's or the customer's word is waited for.
    """

    work_s: float = 0.1
    rest: timedelta = timedelta(seconds=2)
    patience: timedelta = timedelta(seconds=5)


pace = Pace()
ledger = Ledger.here()


# -- orders --------------------------------------------------------------------------------------


@app.task("orders.deliver", queue=QUEUES[0], retry=_retry)
async def deliver(ctx: AsyncContext, order: Order) -> str:
    """See an order through that goes by mail, from the card to the last letter."""
    with ledger.activation(_mark(ctx)):
        await ctx.checkpoint("charge", lambda: charge(ctx, order))
        await ctx.sleep("change of mind", pace.rest)
        if order.cents >= LARGE_CENTS:
            shown = {"order": order.number, "cents": order.cents}
            if not await ctx.wait_for_human("review", shown):
                await ctx.checkpoint("refund", lambda: ask(ctx, order, "refund"))
                return "refunded"
        parcel = await ctx.checkpoint("ship", lambda: ship(ctx, order))
        await ctx.checkpoint("welcome mail", lambda: ask(ctx, order, "welcome mail"))
        place = await ctx.wait_for_signal("delivered", pace.patience, default="nobody knows where")
        for letter in ("mail after a day", "mail after a week", "mail after a month"):
            await ctx.sleep(f"rest before {letter}", pace.rest)
            await ctx.checkpoint(letter, lambda named=letter: ask(ctx, order, named))
        await ctx.sleep("time to send it back", pace.rest)
        return f"{parcel}: {place}"


@app.task("orders.collect", queue=QUEUES[1], retry=_retry)
def collect(ctx: Context, order: Order) -> str:
    """See an order through that the customer comes for; the same by a plain function."""
    with ledger.activation(_mark(ctx)):
        ctx.checkpoint("charge", lambda: charge_card(ctx, order))
        ctx.sleep("change of mind", pace.rest)
        # In the shop's own database: the shelf and the checkpoint change together, or not at all.
        left = ctx.transaction(shelf.STAGE, lambda connection: shelf.take(connection, ctx.run.id))
        ctx.checkpoint("ready mail", lambda: ask_now(ctx, order, "ready mail"))
        who = ctx.wait_for_signal("collected", pace.patience, default="nobody")
        ctx.sleep("rest before letter", pace.rest)
        ctx.checkpoint("letter", lambda: ask_now(ctx, order, "letter"))
        return f"collected by {who}, {left} left"


# -- what they ask for ---------------------------------------------------------------------------


async def charge(ctx: AsyncContext, order: Order) -> str:
    """Charge a card; the first try fails for every fifth order."""
    _be_busy(ctx, order)
    return await ask(ctx, order, "charge")


def charge_card(ctx: Context, order: Order) -> str:
    """As `charge`."""
    _be_busy(ctx, order)
    return ask_now(ctx, order, "charge")


async def ship(ctx: AsyncContext, order: Order) -> str:
    """Hand a parcel over, which takes its time; the label printer jams now and then."""
    await asyncio.sleep(5 * pace.work_s)
    if order.number % 8 == 3 and ctx.attempt == 1:
        raise PrinterJamError("the label printer is jammed")
    return await ask(ctx, order, "ship")


async def ask(ctx: AsyncContext, order: Order, stage: str) -> str:
    """Ask a provider for something, with a key by which it knows the same request again."""
    await asyncio.sleep(pace.work_s)
    answer = _asked(ctx, order, stage)
    await asyncio.sleep(pace.work_s)  # who is killed here has asked, and nobody knows
    return answer


def ask_now(ctx: Context, order: Order, stage: str) -> str:
    """As `ask`."""
    time.sleep(pace.work_s)
    answer = _asked(ctx, order, stage)
    time.sleep(pace.work_s)
    return answer


def _be_busy(ctx: Context | AsyncContext, order: Order) -> None:
    if order.number % 5 == 0 and ctx.attempt == 1:
        raise CardServiceBusyError("the card service is busy")


def _asked(ctx: Context | AsyncContext, order: Order, stage: str) -> str:
    key = f"order-{order.number}/{stage}"
    known = ledger.effect(_mark(ctx), stage, key)
    return f"{key} was known" if known else key


def _mark(ctx: Context | AsyncContext) -> Mark:
    return Mark(run=ctx.run.id, fence=ctx.lease.fence, task=ctx.run.task)
