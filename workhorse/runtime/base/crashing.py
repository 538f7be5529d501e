"""A seam for tests: an activation that ends as if its process had died.

Source: docs/design.md, section 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from workhorse.runtime.activations.activation import Activation

AfterRecord: TypeAlias = "Callable[[Activation, str], bool]"
"""Told the name of a boundary once it is committed, in a thread of the worker's.

When it answers True, the activation ends there: nothing more is written for it, its lease is
neither renewed nor given back, and no wakeup of that commit is sent. The lease runs out, as that of
a process which was killed at this moment.
"""


class Crashed(BaseException):
    """Unwinds a handler whose activation was ended as if its process had died.

    It is no `Exception`: what a dead process would not do, an `except Exception` must not do.
    """
