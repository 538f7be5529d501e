"""What stands between a fleet and what it reaches, and breaks what goes through it.

`tcp` cuts, delays, halves and swallows connections; `sqs` drops, doubles, delays, reorders and
refuses calls. Both run in a process of their own, which `proxies` starts and commands: it goes on
when a server is restarted, and has no part in what the driver does meanwhile.
"""

from __future__ import annotations

from typing import Final

WIRE: Final = "wire"
"""The kind of harms on the way to the database."""
BROKER_WIRE: Final = "broker wire"
"""The kind of harms on the way to the broker."""
MESSAGES: Final = "messages"
"""The kind of calls to the broker that are not done as they are confirmed."""
ANSWERS: Final = "answers"
"""The kind of calls to the broker that are refused."""
POOLER: Final = "pooler"
"""The kind of what becomes of a pooler before the database: `Fleet(pooler=True)`."""
CLOCK: Final = "clock"
"""The kind of clocks that are moved: `Fleet(clocks=True)`."""
APART: Final = frozenset({POOLER, CLOCK})
"""Kinds that need a program of others, and are there where it is."""
WIRED: Final = frozenset({WIRE, BROKER_WIRE, MESSAGES, ANSWERS})
"""Kinds of faults that need a fleet behind proxies: `Fleet(wired=True)`."""
