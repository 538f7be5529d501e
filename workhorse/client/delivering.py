"""Deliveries from outside: signals, decisions, completed tokens. Each is kept, and acts once.

The store raises, the lane never does: once a delivery is committed it is accepted, and a wakeup
that is lost is found by the nets.

Source: docs/design.md, section 7
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from workhorse.client.background import Background
from workhorse.client.checks import check_said
from workhorse.client.passing import pass_on
from workhorse.client.publishing import Publisher
from workhorse.domain.boundaries import BoundaryKind, DeliveryResult
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId, parse_run_id
from workhorse.domain.instants import to_millis
from workhorse.domain.names import check_boundary, check_key
from workhorse.domain.references import check_reference, new_reference
from workhorse.domain.values import MAX_DELIVERY_BYTES, encode
from workhorse.handlers.producing import check_limit
from workhorse.store.base.database import Store, Tx
from workhorse.store.durable import tokens
from workhorse.store.durable.delivering import deliver, was_delivered
from workhorse.store.durable.freeing import SMALL_PASS
from workhorse.store.operators.operating import note
from workhorse.telemetry import get_logger

DECIDE: Final = "decide"
"""What the audit calls a decision."""
Stored = tuple[DeliveryResult, list[Hint]]

_log = get_logger("client")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that is checked and encoded, and not stored yet; `store` stores it."""

    store: Callable[[], Stored]


class Deliveries:
    """Checks, stores and follows up what comes for runs from outside. Safe in threads.

    Args:
        store: Returns the store.
        publisher: Sends wakeups.
        background: Where store calls of async callers run.
    """

    def __init__(
        self, store: Callable[[], Store], publisher: Publisher, background: Background
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._background = background

    def signal(self, run_id: str, name: str, value: object, key: str | None) -> Delivery:
        """Check a signal; see `Workhorse.send_signal`."""
        named, name = parse_run_id(run_id), check_boundary(name)
        text = _encoded(f"signal {name!r} of run {named}", value)
        return Delivery(partial(self._to_run, named, BoundaryKind.SIGNAL, name, text, _key(key)))

    def decision(
        self, run_id: str, name: str, value: object, by: str, why: str, key: str | None
    ) -> Delivery:
        """Check an operator's decision; see `Workhorse.complete_human_wait`."""
        named, name = parse_run_id(run_id), check_boundary(name)
        said = check_said("by", by, least=1), check_said("why", why)
        text = _encoded(f"decision {name!r} of run {named}", value)
        return Delivery(
            partial(self._to_run, named, BoundaryKind.HUMAN, name, text, _key(key), said)
        )

    def token(self, ref: str, value: object, key: str | None) -> Delivery:
        """Check a token's value; see `Workhorse.complete_token`."""
        ref, text = check_reference(ref), _encoded("value of a token", value)
        return Delivery(partial(self._to_token, ref, text, _key(key)))

    def make(self, delivery: Delivery) -> DeliveryResult:
        """Store a delivery, and wake who waited for it."""
        result, hints = delivery.store()
        self._publisher.publish(hints)
        return result

    async def make_async(self, delivery: Delivery) -> DeliveryResult:
        """As `make`, without blocking the event loop."""
        result, hints = await self._background.call(delivery.store)
        await self._publisher.publish_async(hints)
        return result

    def create_token(self, timeout: timedelta | None) -> str:
        """Make a token; see `Workhorse.create_token`."""
        timeout_ms = None if timeout is None else to_millis(check_limit("timeout", timeout))
        ref = new_reference()
        # Drawn before, so that trying again after a lost answer makes no second one.
        self._store().run(tokens.create_token, ref, timeout_ms=timeout_ms)
        return ref

    async def create_token_async(self, timeout: timedelta | None) -> str:  # noqa: ASYNC109
        """As `create_token`, without blocking the event loop."""
        return await self._background.call(self.create_token, timeout)

    # -- in the store ----------------------------------------------------------------------------

    def _to_run(
        self,
        run_id: RunId,
        kind: BoundaryKind,
        name: str,
        value: str,
        key: _Key,
        said: tuple[str, str] | None = None,
    ) -> Stored:
        result, hints = self._store().run(_deliver, run_id, kind, name, value, key.text, said)
        return key.told(result), hints

    def _to_token(self, ref: str, value: str, key: _Key) -> Stored:
        result = self._store().run(tokens.complete_token, ref, value, key=key.text)
        hints: list[Hint] = []
        if result in (DeliveryResult.DELIVERED, DeliveryResult.DUPLICATE):
            # One that is repeated may be so because nobody heard of the first.
            hints = pass_on(self._store(), [ref], limit=SMALL_PASS)
        return key.told(result), hints


@dataclass(frozen=True, slots=True)
class _Key:
    """The idempotency key of a delivery; drawn where the sender gave none.

    So a try whose answer was lost is known again by the next one, and not taken for another's.
    """

    text: str
    drawn: bool

    def told(self, result: DeliveryResult) -> DeliveryResult:
        """Return what the sender is told: a duplicate under a drawn key is this very delivery."""
        if self.drawn and result is DeliveryResult.DUPLICATE:
            return DeliveryResult.DELIVERED
        return result


def _key(given: str | None) -> _Key:
    return _Key(uuid.uuid4().hex, True) if given is None else _Key(check_key(given), False)


def _encoded(what: str, value: object) -> str:
    return encode(what, value, cap=MAX_DELIVERY_BYTES)


def _deliver(
    tx: Tx,
    run_id: RunId,
    kind: BoundaryKind,
    name: str,
    value: str,
    key: str,
    said: tuple[str, str] | None,
) -> Stored:
    by, why = said or (None, None)
    result, hints = deliver(tx, run_id, kind, name, value, key=key, by=by, why=why)
    if result is DeliveryResult.RUN_FINISHED:
        # It may have ended by this very value, whose commit had no answer.
        before = was_delivered(tx, run_id, kind, name, value, key=key)
        return (DeliveryResult.DUPLICATE if before else result), hints
    if said is not None and result in (DeliveryResult.DELIVERED, DeliveryResult.KEPT):
        # Once for each decision that stands; which one, but not what was decided.
        note(tx, DECIDE, run_id, by=said[0], why=said[1], answer=name)
    return result, hints
