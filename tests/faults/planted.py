"""Bugs that are planted in worker processes, to see that a campaign finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


def _settle_without_token() -> None:
    """An activation's last write names the run, and not the lease."""
    from workhorse.store import ending

    ending.__dict__["held_by"] = _by_id_alone


def _checkpoint_without_token() -> None:
    """A boundary's write locks the run, whoever holds it."""
    from workhorse.store import leasing

    leasing.__dict__["held_by"] = _by_id_alone


def _by_id_alone(row: Any, named: Any) -> Any:
    return row.c.id == named.c.id


BUGS: Final[dict[str, Callable[[], None]]] = {
    "settle without token": _settle_without_token,
    "writes without token": _checkpoint_without_token,
}


def plant(name: str) -> None:
    """Plant a bug in this process."""
    BUGS[name]()
