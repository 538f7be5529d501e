"""What an app offers to whoever sends something to a run: signals, decisions, tokens.

Source: docs/design.md, section 7
"""

from __future__ import annotations

from datetime import timedelta

from workhorse.client.delivering import Deliveries
from workhorse.domain.boundaries import DeliveryResult


class DeliveryCalls:
    """The calls of `Workhorse` that deliver from outside; each is kept, and acts once."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def send_signal(
        self, run_id: str, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """Send a run a signal: the value of its `ctx.wait_for_signal(name)`.

        A name takes one value in a run; the first stands. A run that has not got to the wait yet
        finds the value when it does.

        Args:
            run_id: The run.
            name: The wait's name, 1 to 200 characters.
            value: At most 64 KiB of JSON.
            idempotency_key: 1 to 256 characters; a repetition under the same key is known as one.

        Returns:
            What came of it: `delivered`, `kept`, `duplicate`, `already_settled` or `run_finished`.

        Raises:
            RunNotFoundError: No such run.
            DeliveryConflictError: The key came with another value before, which stands.
            DeliveryLimitExceededError: 1,000 signals and decisions lie with the run unread.
            UnstorableValueError: The value would not come back unchanged.
            ValueTooLargeError: The value is too large.
            InvalidNameError: An id, name or key is not of the allowed form.
            StoreUnavailableError: The database does not answer; repeat it with a key.
        """
        return self._deliveries.make(self._deliveries.signal(run_id, name, value, idempotency_key))

    async def send_signal_async(
        self, run_id: str, name: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """As `send_signal`, without blocking the event loop."""
        return await self._deliveries.make_async(
            self._deliveries.signal(run_id, name, value, idempotency_key)
        )

    def complete_human_wait(
        self,
        run_id: str,
        name: str,
        value: object = None,
        *,
        by: str,
        why: str = "",
        idempotency_key: str | None = None,
    ) -> DeliveryResult:
        """Decide for a run: the value of its `ctx.wait_for_human(name)`.

        Who decided, when and why is audited together with the decision; the value is not.

        Args:
            run_id: The run.
            name: The wait's name, 1 to 200 characters.
            value: The decision, at most 64 KiB of JSON.
            by: Who decides; up to 1,000 characters, as `why`.
            why: The reason.
            idempotency_key: As for `send_signal`.

        Returns: As `send_signal`.

        Raises: As `send_signal`.
        """
        return self._deliveries.make(
            self._deliveries.decision(run_id, name, value, by, why, idempotency_key)
        )

    async def complete_human_wait_async(
        self,
        run_id: str,
        name: str,
        value: object = None,
        *,
        by: str,
        why: str = "",
        idempotency_key: str | None = None,
    ) -> DeliveryResult:
        """As `complete_human_wait`, without blocking the event loop."""
        return await self._deliveries.make_async(
            self._deliveries.decision(run_id, name, value, by, why, idempotency_key)
        )

    def create_token(self, timeout: timedelta | None = None) -> str:
        """Make a wait token and return its reference, which nobody can guess.

        Runs wait for it by `ctx.wait_for_token(name, reference)`, any number of them; whoever knows
        the reference completes it by `complete_token`.

        Args:
            timeout: After which it settles by itself, and each wait for it has timed out; at most
                365 days, None for never.

        Raises:
            InvalidInstantError: The time-out is zero, negative or too long.
            StoreUnavailableError: The database does not answer.
        """
        return self._deliveries.create_token(timeout)

    async def create_token_async(self, timeout: timedelta | None = None) -> str:  # noqa: ASYNC109
        """As `create_token`, without blocking the event loop."""
        return await self._deliveries.create_token_async(timeout)

    def complete_token(
        self, ref: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """Complete a wait token: the value of each `ctx.wait_for_token` that names it.

        It is settled once; up to 20 runs that wait for it go on within this call, maintenance
        wakes the others. A run that gets to such a wait later goes on at once.

        Args:
            ref: The token's reference.
            value: At most 64 KiB of JSON.
            idempotency_key: As for `send_signal`.

        Returns:
            What came of it: `delivered`, `duplicate` or `already_settled`.

        Raises:
            TokenNotFoundError: No such token.
            DeliveryConflictError: The key came with another value before, which stands.
            UnstorableValueError: The value would not come back unchanged.
            ValueTooLargeError: The value is too large.
            StoreUnavailableError: The database does not answer; repeat it with a key.
        """
        return self._deliveries.make(self._deliveries.token(ref, value, idempotency_key))

    async def complete_token_async(
        self, ref: str, value: object = None, *, idempotency_key: str | None = None
    ) -> DeliveryResult:
        """As `complete_token`, without blocking the event loop."""
        return await self._deliveries.make_async(
            self._deliveries.token(ref, value, idempotency_key)
        )
