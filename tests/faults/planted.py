"""Bugs that are planted in worker processes, to see that a campaign finds them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final


def _settle_without_token() -> None:
    """An activation's last write names the run, and not the lease."""
    from workhorse.store.live import ending

    vars(ending)["held_by"] = _by_id_alone
    _renew_late()


def _renew_late() -> None:
    """Renewals take half a second longer, so that they do not tell it first that a lease is gone.

    Which of them is quicker would be up to the disk, that handlers write their ledger to.
    """
    from workhorse.runtime.execution.heartbeat import Heartbeat

    ask = Heartbeat._ask

    def late(self: Heartbeat, activations: Any) -> None:
        time.sleep(0.5)
        ask(self, activations)

    Heartbeat._ask = late  # type: ignore[method-assign]


def _by_id_alone(row: Any, named: Any) -> Any:
    return row.c.id == named.c.id


BUGS: Final[dict[str, Callable[[], None]]] = {
    "settle without token": _settle_without_token,
}


def plant(name: str) -> None:
    """Plant a bug in this process, before its statements are compiled."""
    BUGS[name]()
