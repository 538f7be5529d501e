"""An invoice that is paid or reminded of: a handler that waits for what comes first.

Run it with `python examples/reminder.py`. The testing kit stands in for the database, the worker
and the time: months go by in a moment.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from workhorse import AsyncContext, Workhorse, waits
from workhorse.testing import Kit

app = Workhorse()
DAY = timedelta(days=1)


@app.task("invoices.collect")
async def collect(ctx: AsyncContext, invoice: int) -> str:
    payment = await ctx.token("payment")
    await ctx.checkpoint("invoice", partial(post, invoice, "invoice", payment))

    for letter in (1, 2):
        paid, late = f"paid before letter {letter}", f"14 days to letter {letter}"
        first = await ctx.wait_any({paid: waits.token(payment), late: waits.timer(14 * DAY)})
        if first.name == paid:
            await ctx.sleep("a day for the bank", DAY)
            return f"{first.value['euros']} euros, {paid}"
        what = f"letter {letter}"
        await ctx.checkpoint(what, partial(post, invoice, what, payment))

    await ctx.sleep_until("court", ctx.run.created_at + 60 * DAY)  # the same in each activation
    return "to the court"


# -- what is outside: a post, which knows each letter by its invoice and its kind --

payments: dict[int, str] = {}


async def post(invoice: int, what: str, payment: str) -> None:
    print(f"post: {what} of {invoice}")
    payments[invoice] = payment  # whoever gets the letter can pay by it


def main() -> None:
    """Collect two invoices; the second is paid after its first letter."""
    with Kit(app) as kit:
        unpaid = collect.enqueue(1)
        kit.run_to_end(unpaid)
        view = unpaid.view()
        print(f"{unpaid.result()}: {view.fence} activations, attempt {view.attempt}")

        paid = collect.enqueue(2)
        kit.run_until_idle()
        kit.advance(14 * DAY)
        kit.run_until_idle()
        for _ in range(2):
            answer = app.complete_token(payments[2], {"euros": 80}, idempotency_key="transfer-9")
            print("bank:", answer)
        kit.run_to_end(paid)
        print(paid.result())


if __name__ == "__main__":
    main()
