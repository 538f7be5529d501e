"""A carrier's events reach a handler by their names, whenever they come.

Run it with `python examples/shipment.py`. The testing kit stands in for the database, the worker
and the time: days go by in a moment.
"""

from __future__ import annotations

from datetime import timedelta

from workhorse import Context, Workhorse
from workhorse.errors import DeliveryConflictError
from workhorse.testing import Kit

app = Workhorse()


@app.task("parcels.follow")
def follow(ctx: Context, parcel: str) -> str:
    ctx.checkpoint("book", lambda: book(parcel, idempotency_key=parcel))
    depot = ctx.wait_for_signal("at the depot")
    door = ctx.wait_for_signal("at the door", timeout=timedelta(days=3), default=None)
    if door is None:
        return f"{parcel} is still in {depot}"
    return f"{parcel} went from {depot} to {door}"


def book(parcel: str, *, idempotency_key: str) -> None:
    print(f"carrier: {parcel} is booked, key {idempotency_key}")


def main() -> None:
    """Follow two parcels: one comes to its door, of the other nothing is heard."""
    with Kit(app) as kit:
        one, two = follow.enqueue("parcel 1"), follow.enqueue("parcel 2")
        kit.run_until_idle()
        print(f"{one.view().state}: {[wait.name for wait in app.admin.list_waits(one.id)]}")

        # In the wrong order: the second event is kept until the handler asks for it.
        print("door: ", app.send_signal(one.id, "at the door", "Eve", idempotency_key="e-2"))
        print("depot:", app.send_signal(one.id, "at the depot", "Rome", idempotency_key="e-1"))
        print("again:", app.send_signal(one.id, "at the depot", "Rome", idempotency_key="e-1"))
        print("other:", app.send_signal(one.id, "at the depot", "Oslo", idempotency_key="e-3"))
        try:
            app.send_signal(one.id, "at the depot", "Oslo", idempotency_key="e-1")
        except DeliveryConflictError:
            print("error: one key, two values")
        two.send_signal("at the depot", "Bonn")
        kit.run_until_idle()
        print(one.result())

        kit.advance(timedelta(days=3))
        kit.run_until_idle()
        print(two.result())
        print("late: ", two.send_signal("at the door", "Bob"))


if __name__ == "__main__":
    main()
