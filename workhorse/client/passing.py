"""What an end sets off: the first pass over those who waited for it, by whoever brought it about.

Source: docs/design.md, section 2; docs/adr/0013-what-ends-frees.md
"""

from __future__ import annotations

from collections.abc import Sequence

from workhorse.domain.hints import Hint
from workhorse.errors import WorkhorseError
from workhorse.store.base.database import Store
from workhorse.store.base.pages import PAGE
from workhorse.store.durable.freeing import free_all
from workhorse.telemetry import get_logger

_log = get_logger("client")


def pass_on(store: Store, sources: Sequence[str], *, limit: int = PAGE) -> list[Hint]:
    """Do one pass for runs or tokens that have come to their end; return the wakeups to follow.

    The end stands whatever becomes of the pass, so it never raises for the store: maintenance does
    what it leaves.
    """
    try:
        return store.run(free_all, sources, limit=limit).hints
    except WorkhorseError as error:
        _log.warning(
            "whoever waits for the end of %d runs or tokens was not woken yet (%s); "
            "maintenance does it",
            len(sources),
            type(error).__name__,
        )
        return []
