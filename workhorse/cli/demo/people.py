"""The demo's world outside: a carrier, customers and an operator, who answer what runs wait for.

Usage: python -m workhorse.cli.demo.people

What is worth telling is a line of standard output: who, a tab, what.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from workhorse.cli.demo.shop import app
from workhorse.domain.boundaries import BoundaryKind
from workhorse.store.operators.inspecting import WaitView

_LOOK_S: Final = 0.25
_ON_THE_WAY: Final = timedelta(seconds=1)
"""How long a parcel takes; the host's clock is SQLite's."""
_LOST: Final = 7
"""Of so many parcels one never arrives, and its order goes on without the carrier's word."""
_REFUSED: Final = 20
"""The order that the operator does not like."""


def answer_for_ever() -> None:
    """Answer each wait; until the process is ended."""
    with app:
        told: set[str] = set()
        while True:
            for wait in app.admin.list_waits(limit=1_000):
                if wait.kind is BoundaryKind.HUMAN:
                    _decide(wait)
                elif wait.kind is BoundaryKind.SIGNAL:
                    _bring(wait, told)
            time.sleep(_LOOK_S)


def _decide(wait: WaitView) -> None:
    order = json.loads(wait.context or "{}")
    approved = order["order"] != _REFUSED
    why = "a customer of many years" if approved else "there is no such address"
    answer = app.complete_human_wait(wait.run_id, wait.name, approved, by="Ada", why=why)
    said = "approves" if approved else "refuses"
    _tell("operator", f"Ada {said} order {order['order']} of {order['cents']} cents: {answer}")


def _bring(wait: WaitView, told: set[str]) -> None:
    """Send an event twice, as those do who did not hear of the first answer."""
    number = json.loads(app.admin.show(wait.run_id).payload)["number"]
    if number % _LOST == 0 or datetime.now(UTC) - wait.since < _ON_THE_WAY:
        return
    key = f"event of order {number}"
    answers = [
        app.send_signal(wait.run_id, wait.name, "the customer", idempotency_key=key)
        for _ in range(2)
    ]
    if wait.name not in told:
        told.add(wait.name)
        who = "carrier" if wait.name == "delivered" else "customer"
        _tell(who, f"order {number} is {wait.name}: {answers[0]}; told again: {answers[1]}")


def _tell(who: str, what: str) -> None:
    print(f"{who}\t{what}", flush=True)


if __name__ == "__main__":
    answer_for_ever()
