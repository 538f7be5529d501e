"""Rows of the handler's own and its checkpoint, in one transaction: both are there, or neither.

Run it with `python examples/ledger.py`; it works in a folder of its own and needs no broker and no
server.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from workhorse import Context, RetryPolicy, Workhorse

folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
url = f"sqlite:///{folder / 'bank.sqlite3'}"
app = Workhorse(database_url=url, lane="polling")


@app.task("bank.pay_out", retry=RetryPolicy(first=timedelta(0)))
def pay_out(ctx: Context, euros: int) -> int:
    def book(connection: Connection) -> int:
        connection.execute(text("update account set euros = euros - :n"), {"n": euros})
        if ctx.attempt == 1:
            raise ConnectionError("the power goes off")  # what was written is rolled back
        connection.execute(text("insert into bookings values (:n)"), {"n": euros})
        return int(connection.execute(text("select euros from account")).scalar_one())

    left = ctx.transaction("book", book)
    if ctx.attempt == 2:
        raise ConnectionError("and again")  # the booking stands, and is not made again
    return left


def main() -> None:
    """Pay out 30 of 100 euros, in three attempts."""
    app.migrate()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("create table account (euros integer)"))
        connection.execute(text("create table bookings (euros integer)"))
        connection.execute(text("insert into account values (100)"))

    run = pay_out.enqueue(30)
    app.worker().drain()

    print(f"left: {run.result()} euros, after {run.view().attempt} attempts")
    with engine.connect() as connection:
        rows = connection.execute(text("select euros from bookings")).scalars().all()
    print(f"bookings: {list(rows)}")
    app.close()
    engine.dispose()


if __name__ == "__main__":
    main()
