"""The demo's producer: a process that takes orders in, one by one.

Usage: python -m workhorse.cli.demo.producer FIRST COUNT PAUSE_MS
"""

from __future__ import annotations

import sys
import time

from workhorse.cli.demo.shop import Order, app, charge

_ITEMS = ("horseshoe", "saddle", "bridle", "oats", "brush")


def take_orders(first: int, count: int, pause_s: float) -> None:
    """Enqueue the first task of each order."""
    with app:
        for number in range(first, first + count):
            order = Order(number, _ITEMS[number % len(_ITEMS)], 100 * number)
            charge.enqueue(order, key=f"order-{number}", tags=[f"order:{number}"])
            time.sleep(pause_s)


if __name__ == "__main__":
    take_orders(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000)
