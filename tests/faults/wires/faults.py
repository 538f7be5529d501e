"""What breaks on the way: connections to the database and to the broker, and calls to the broker.

They need a fleet that was started with its members behind proxies: `Fleet(wired=True)`.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from tests.faults.evidence import CUT_OFF
from tests.faults.faults import register
from tests.faults.wires import ANSWERS, BROKER_WIRE, MESSAGES, WIRE, sqs
from tests.faults.wires.proxies import BROKER, DATABASE, Wires
from tests.faults.wires.sqs import Trouble
from tests.faults.wires.tcp import ANSWER, ASK, CUT, DELAY, HALVE, SWALLOW, Harm

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet, Member

_PRODUCERS: Final = 0.25
"""How probably a producer is one of those that are harmed."""
_CONNECT_S: Final = 5.0
"""What a client waits for a database to let it in."""


def _wires(fleet: Fleet) -> Wires:
    if fleet.wires is None:
        raise RuntimeError("the fleet has no proxies: start it with Fleet(wired=True)")
    return fleet.wires


# -- connections ---------------------------------------------------------------------------------


class _Harmed(ABC):
    """What some members, or all, say to one server is harmed."""

    to: ClassVar[str] = DATABASE
    kind: ClassVar[str] = WIRE
    holds: ClassVar[tuple[float, float]] = (0.5, 2.5)

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._hit: set[int] = set()
        self._began = 0.0

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        # Producers mostly go on: where nothing is enqueued, there is nothing to break.
        producers = [each for each in fleet.producers if rng.random() < _PRODUCERS]
        everybody = [*fleet.workers, *fleet.maintainers, *producers]
        self._members = everybody
        if rng.random() < 0.6:  # else all at once, as when the server's own network breaks
            self._members = rng.sample(everybody, rng.randint(1, len(everybody) // 2))
        harm = self.draw(rng)
        self._began = time.monotonic()
        self._note_groups()
        names = [member.name for member in self._members]
        _wires(fleet).harm(self.to, names, harm, rng.getrandbits(31))
        self.wait(rng)
        whose = ", ".join(names)
        if len(names) == len(everybody):
            whose = f"all members but {len(fleet.producers) - len(producers)} producers"
        return f"{self.say(harm)}; {whose}"

    def heal(self, fleet: Fleet) -> None:
        if not self._members:
            return
        _wires(fleet).heal(self.to, [member.name for member in self._members])
        self._note_groups()  # a process may have been replaced meanwhile
        if self.to == DATABASE:
            for group in self._hit:
                fleet.note(CUT_OFF, self._began, group=group)

    def _note_groups(self) -> None:
        self._hit.update(each.pid for each in self._members if each.process is not None)

    @abstractmethod
    def draw(self, rng: random.Random) -> Harm:
        """Draw what is done."""

    @abstractmethod
    def say(self, harm: Harm) -> str:
        """Say what is done, in a few words."""

    def wait(self, rng: random.Random) -> None:  # noqa: B027 - a default, not a duty
        """Let it work for longer than it is held in any case."""


class _Cut(_Harmed):
    def draw(self, rng: random.Random) -> Harm:
        return Harm(CUT, least=0.05, most=rng.choice([0.3, 1.5]), chance=rng.choice([0.3, 1.0]))

    def say(self, harm: Harm) -> str:
        return f"each with a chance of {harm.chance} in up to {harm.most} s"


class _Delayed(_Harmed):
    def draw(self, rng: random.Random) -> Harm:
        low = rng.uniform(0.2, 0.6)
        return Harm(DELAY, least=low, most=rng.uniform(low, 1.5), chance=rng.choice([0.3, 1.0]))

    def say(self, harm: Harm) -> str:
        return f"by {harm.least:.1f} to {harm.most:.1f} s, with a chance of {harm.chance}"


class _Halved(_Harmed):
    def draw(self, rng: random.Random) -> Harm:
        ways = rng.choice([(ASK,), (ANSWER,), (ASK, ANSWER)])
        return Harm(HALVE, chance=rng.choice([0.1, 0.5]), ways=ways)

    def say(self, harm: Harm) -> str:
        return f"of {' and '.join(harm.ways)}, with a chance of {harm.chance}"


class _Swallowed(_Harmed):
    def draw(self, rng: random.Random) -> Harm:
        # Answers alone: what was asked for is done, and nobody hears of it.
        ways = rng.choice([(ASK, ANSWER), (ANSWER,)])
        chance = rng.choice([0.3, 1.0])
        return Harm(SWALLOW, chance=chance, ways=ways, lasting=rng.random() < 0.7)

    def say(self, harm: Harm) -> str:
        what = "everything" if ASK in harm.ways else "answers"
        end = "stay silent" if harm.lasting else "end with it"
        return f"{what}, with a chance of {harm.chance}; connections {end}"

    def wait(self, rng: random.Random) -> None:
        if rng.random() < 0.1:
            time.sleep(_CONNECT_S + rng.uniform(0.5, 2.0))


@register
class DatabaseCut(_Cut):
    """Connections end, and those that take their place."""

    name: ClassVar[str] = "database connections cut"


@register
class DatabaseDelayed(_Delayed):
    """Each chunk is late."""

    name: ClassVar[str] = "database connections delayed"


@register
class DatabaseHalved(_Halved):
    """Half of a message comes through, and then the end."""

    name: ClassVar[str] = "database messages halved"


@register
class DatabaseSwallowed(_Swallowed):
    """Connections stay open, and nothing arrives any more."""

    name: ClassVar[str] = "database connections swallowed"


@register
class BrokerCut(_Cut):
    """Connections end, and those that take their place."""

    name: ClassVar[str] = "broker connections cut"
    kind: ClassVar[str] = BROKER_WIRE
    to: ClassVar[str] = BROKER


@register
class BrokerDelayed(_Delayed):
    """Each chunk is late."""

    name: ClassVar[str] = "broker connections delayed"
    kind: ClassVar[str] = BROKER_WIRE
    to: ClassVar[str] = BROKER


@register
class BrokerHalved(_Halved):
    """Half of a message comes through, and then the end."""

    name: ClassVar[str] = "broker messages halved"
    kind: ClassVar[str] = BROKER_WIRE
    to: ClassVar[str] = BROKER


@register
class BrokerSwallowed(_Swallowed):
    """Connections stay open, and nothing arrives any more."""

    name: ClassVar[str] = "broker connections swallowed"
    kind: ClassVar[str] = BROKER_WIRE
    to: ClassVar[str] = BROKER


# -- calls ---------------------------------------------------------------------------------------


class _Troubled(ABC):
    """Calls to the broker are broken, whoever makes them."""

    kind: ClassVar[str] = MESSAGES
    holds: ClassVar[tuple[float, float]] = (0.5, 2.5)

    def __init__(self) -> None:
        self._applied = False

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        trouble = self.draw(rng)
        _wires(fleet).trouble(self.kind, trouble, rng.getrandbits(31))
        self._applied = True
        which = ", ".join(trouble.actions) or "all calls"
        return f"{which}, with a chance of {trouble.chance}"

    def heal(self, fleet: Fleet) -> None:
        if self._applied:
            _wires(fleet).untrouble(self.kind)

    @abstractmethod
    def draw(self, rng: random.Random) -> Trouble:
        """Draw what is done."""


@register
class Dropped(_Troubled):
    """Sends and deletes are confirmed and not done; what was received is withheld."""

    name: ClassVar[str] = "messages dropped"

    def draw(self, rng: random.Random) -> Trouble:
        actions = rng.choice([(), sqs.SEND, (sqs.RECEIVE,), sqs.SETTLE])
        return Trouble(sqs.DROP, rng.choice([0.5, 1.0]), actions=actions)


@register
class Doubled(_Troubled):
    """Messages are sent twice; what was received, and deleted, comes again."""

    name: ClassVar[str] = "messages doubled"

    def draw(self, rng: random.Random) -> Trouble:
        return Trouble(sqs.DOUBLE, rng.choice([0.5, 1.0]))


@register
class Delayed(_Troubled):
    """What is confirmed is done seconds later; what is received comes late."""

    name: ClassVar[str] = "messages delayed"

    def draw(self, rng: random.Random) -> Trouble:
        return Trouble(sqs.DELAY, rng.choice([0.5, 1.0]), 0.2, rng.choice([1.5, 8.0]))


@register
class Reordered(_Troubled):
    """Messages overtake each other, and older ones come among them."""

    name: ClassVar[str] = "messages reordered"

    def draw(self, rng: random.Random) -> Trouble:
        return Trouble(sqs.REORDER, rng.choice([0.5, 1.0]), 0.0, rng.choice([0.5, 3.0]))


class _Refused(_Troubled):
    kind: ClassVar[str] = ANSWERS
    code: ClassVar[str]

    def draw(self, rng: random.Random) -> Trouble:
        actions = rng.choice([(), sqs.SEND, (sqs.RECEIVE,), sqs.SETTLE])
        return Trouble(sqs.REFUSE, rng.choice([0.5, 1.0]), actions=actions, code=self.code)


@register
class Unavailable(_Refused):
    """The broker has no time."""

    name: ClassVar[str] = "broker answers 503"
    code: ClassVar[str] = "503"


@register
class Denied(_Refused):
    """The credentials may not do it, for a time."""

    name: ClassVar[str] = "broker answers AccessDenied"
    code: ClassVar[str] = "AccessDenied"


@register
class Expired(_Refused):
    """The credentials have expired, for a time."""

    name: ClassVar[str] = "broker answers ExpiredToken"
    code: ClassVar[str] = "ExpiredToken"


@register
class Gone(_Refused):
    """The queues are said not to exist, for a time."""

    name: ClassVar[str] = "broker answers NonExistentQueue"
    code: ClassVar[str] = "NonExistentQueue"
