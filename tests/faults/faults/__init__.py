"""What a fault is, and the list of all of them.

A module of faults registers its classes:

    @register
    class Killed:
        name = "SIGKILL"
        kind = "worker"
        holds = (0.0, 0.5)

        def apply(self, fleet: Fleet, rng: random.Random) -> str: ...
        def heal(self, fleet: Fleet) -> None: ...

`kind` is the track it is on: faults of one kind come one after the other, those of different kinds
at the same time. A fault is made anew for each time that it is applied, so it may keep in itself
what `heal` needs. All that is drawn is drawn from `rng`, so that a seed replays.

What needs the server while another track has taken it away need not look: where `apply` or `heal`
raises an error of psycopg's, it is called again a little later, and counts once.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

KILLS: Final = "kills"
FREEZES: Final = "freezes"
STOPS: Final = "stops"
SERVER: Final = "server"
SESSIONS: Final = "sessions"
DEFAULTS: Final = "defaults"
LOCKS: Final = "locks"
BROKER: Final = "broker"
WIRE: Final = "wire"


class Fault(Protocol):
    """Something that breaks a part of a fleet, and lets it go again."""

    name: ClassVar[str]
    """What plan and report call it."""
    kind: ClassVar[str]
    """Its track: one of the words above, or a word of its own."""
    holds: ClassVar[tuple[float, float]]
    """For how many seconds it is left to work between `apply` and `heal`: the least, the most."""

    def apply(self, fleet: Fleet, rng: random.Random) -> str | Coroutine[Any, Any, str]:
        """Break it; return what was done to whom, in a few words."""
        ...

    def heal(self, fleet: Fleet) -> Coroutine[Any, Any, None] | None:
        """Take it back; called also where `apply` has raised, and again where it raises itself."""
        ...


FAULTS: Final[list[type[Fault]]] = []
"""All faults, in the order of their registration; `load` fills it."""

_F = TypeVar("_F", bound=type[Fault])
_MODULES: Final = (
    "tests.faults.faults.signals",
    "tests.faults.faults.postgres",
    "tests.faults.faults.setting_back",
    "tests.faults.faults.contention",
    "tests.faults.faults.broker",
    "tests.faults.wires.faults",
    "tests.faults.wires.pooler",  # where PgBouncer is there
    "tests.faults.wires.clocks",  # where libfaketime is there
)


def register(fault: _F) -> _F:
    """Add a class of faults to `FAULTS`; a decorator."""
    if fault.name in {each.name for each in FAULTS}:
        raise ValueError(f"two faults are called {fault.name!r}")
    FAULTS.append(fault)
    return fault


def load() -> list[type[Fault]]:
    """Import all modules of faults, and return the list."""
    for module in _MODULES:
        parent = module.rpartition(".")[0]
        if importlib.util.find_spec(parent) and importlib.util.find_spec(module):
            importlib.import_module(module)
    return FAULTS
