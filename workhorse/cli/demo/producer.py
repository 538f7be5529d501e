"""The demo's producer: a process that takes orders in, one by one.

Usage: python -m workhorse.cli.demo.producer FIRST COUNT PAUSE_MS
"""

from __future__ import annotations

import sys
import time

from workhorse.cli.demo.shop import Order, app, collect, deliver

_ITEMS = ("horseshoe", "saddle", "bridle", "oats", "brush")


def take_orders(first: int, count: int, pause_s: float) -> None:
    """Enqueue orders; every third one is collected."""
    with app:
        for number in range(first, first + count):
            order = Order(number, _ITEMS[number % len(_ITEMS)], 100 * number)
            task = collect if number % 3 == 0 else deliver
            task.enqueue(order, key=f"order-{number}", tags=[f"order:{number}"])
            time.sleep(pause_s)


if __name__ == "__main__":
    take_orders(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000)
