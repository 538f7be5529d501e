"""The broker loses what it holds, its queues, or itself."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

from tests.faults.faults import BROKER, register

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet


@register
class Purged:
    """All messages are thrown away."""

    name: ClassVar[str] = "queues purged"
    kind: ClassVar[str] = BROKER
    holds: ClassVar[tuple[float, float]] = (0.2, 1.0)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        return f"{fleet.broker.purge()} queues"

    def heal(self, fleet: Fleet) -> None:
        """Do nothing: the nets find what was woken by them."""


@register
class BrokerRestarted:
    """The endpoint is away for a while, and has forgotten all messages when it is back."""

    name: ClassVar[str] = "broker restarted"
    kind: ClassVar[str] = BROKER
    holds: ClassVar[tuple[float, float]] = (0.3, 3.0)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        fleet.broker.kill()
        return "with all that it held"

    def heal(self, fleet: Fleet) -> None:
        fleet.broker.start()
        fleet.broker.create_queues()


@register
class QueuesGone:
    """The queues do not exist for a while."""

    name: ClassVar[str] = "queues deleted"
    kind: ClassVar[str] = BROKER
    holds: ClassVar[tuple[float, float]] = (0.5, 3.0)

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        fleet.broker.delete_queues()
        return f"{len(fleet.broker.names)} queues"

    def heal(self, fleet: Fleet) -> None:
        fleet.broker.create_queues()
