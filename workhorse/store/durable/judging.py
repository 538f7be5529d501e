"""What a delivery is worth beside the one that stands under its name already."""

from __future__ import annotations

from workhorse.domain.boundaries import DeliveryResult, DeliveryState
from workhorse.domain.values import fingerprint
from workhorse.errors import DeliveryConflictError


def judge(
    what: str,
    state: str,
    standing: str | None,
    standing_key: str | None,
    *,
    value: str,
    key: str | None,
) -> DeliveryResult:
    """Say what came of a delivery that was not the first.

    Args:
        what: How an error calls it.
        state: What the delivery that stands brought.
        standing: Its value, JSON text.
        standing_key: Its sender's idempotency key.
        value: The new one's value, JSON text.
        key: The new one's key.

    Raises:
        DeliveryConflictError: Both have the same key, and other values.
    """
    if state != DeliveryState.VALUE or standing is None or key is None or key != standing_key:
        return DeliveryResult.ALREADY_SETTLED
    if standing == value or fingerprint(standing) == fingerprint(value):
        return DeliveryResult.DUPLICATE
    raise DeliveryConflictError(
        f"{what} was delivered under the idempotency key {key!r} before, with another value, which "
        "stands; use a key of its own for another delivery"
    )
