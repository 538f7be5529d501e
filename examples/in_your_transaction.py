"""A run is enqueued in the caller's own transaction: both are there, or neither.

Run it with `python examples/in_your_transaction.py`; it works in a folder of its own and needs no
broker and no server.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine, text

from workhorse import AsyncContext, NonRetryableError, RetryPolicy, Workhorse

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
url = f"sqlite:///{folder / 'shop.sqlite3'}"
app = Workhorse(database_url=url, lane="polling")


@app.task("orders.confirm", retry=RetryPolicy(max_attempts=3, first=timedelta(0)))
async def confirm(ctx: AsyncContext, order: int) -> str:
    if order < 0:
        raise NonRetryableError("an order's number is positive")
    if ctx.attempt == 1:
        raise ConnectionError("the mail server is away")  # tried again by the policy
    return f"order {order} confirmed at attempt {ctx.attempt}"


def main() -> None:
    """Place two orders, the second of which is rolled back, and run what was enqueued."""
    app.migrate()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("create table orders (number integer)"))

    with engine.begin() as connection:
        connection.execute(text("insert into orders values (1)"))
        kept = confirm.enqueue(1, connection=connection)

    with engine.connect() as connection:
        connection.execute(text("insert into orders values (2)"))
        confirm.enqueue(2, connection=connection)
        connection.rollback()

    refused = confirm.enqueue(-1)
    executed = app.worker().drain()

    print(f"{executed} activations")
    print(kept.result())
    print(f"refused: {refused.view().state}, {refused.view().reason}")
    app.close()
    engine.dispose()


if __name__ == "__main__":
    main()
