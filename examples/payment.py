"""A card is charged once, although the handler is called three times.

Run it with `python examples/payment.py`; it works in a folder of its own and needs no broker and no
server.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from workhorse import Context, RetryPolicy, Workhorse

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
app = Workhorse(database_url=f"sqlite:///{folder / 'shop.sqlite3'}", lane="polling")


class CardDeclinedError(Exception):
    """The bank said no. It will say so tomorrow, too."""


AT_ONCE = RetryPolicy(max_attempts=4, first=timedelta(0))  # a shop leaves the default, or longer


@app.task("orders.pay", retry=AT_ONCE, not_retryable=(CardDeclinedError,))
def pay(ctx: Context, order: int) -> str:
    key = f"order-{order}"  # the same in each attempt, and in each rerun
    payment = ctx.checkpoint("charge", lambda: charge(order, idempotency_key=key))
    ctx.checkpoint("receipt", lambda: mail(f"paid: {payment}", ctx.attempt))
    return payment


# -- what is outside: a bank that knows a request by its key, and two networks with bad days --

payments: dict[str, str] = {}


def charge(order: int, *, idempotency_key: str) -> str:
    if order == 13:
        raise CardDeclinedError("the bank declined")
    if idempotency_key in payments:
        print(f"bank: {idempotency_key} is charged already")
        return payments[idempotency_key]
    payments[idempotency_key] = f"payment {len(payments) + 1}"
    print(f"bank: {idempotency_key} charged")
    raise ConnectionError("the bank's answer was lost")


def mail(text: str, attempt: int) -> None:
    if attempt == 2:
        raise ConnectionError("the mail server is away")
    print(f"mail: {text}")


def main() -> None:
    """Pay an order, and one whose card is declined; look at what is stored."""
    app.migrate()
    paid, declined = pay.enqueue(7), pay.enqueue(13)
    app.worker(concurrency=1).drain()

    print(f"{paid.result()}, attempt {paid.view().attempt}")
    for entry in app.admin.list_checkpoints(paid.id):
        print(f"stored: {entry.name} = {entry.value}")
    view = declined.view()
    print(f"order 13: {view.state}, {view.reason}, attempt {view.attempt}: {view.error_message}")
    app.close()


if __name__ == "__main__":
    main()
