"""Finds a worker that is worth killing: one that the store says holds leases."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from workhorse.cli.demo import ledger
from workhorse.domain.runs import RunState
from workhorse.store.operators import viewing

if TYPE_CHECKING:
    from workhorse.cli.demo.fleet import Member
    from workhorse.cli.demo.stage import Stage
    from workhorse.domain.ids import RunId
    from workhorse.store.base.database import Store

_LEAST: Final = 2
_FROZEN_S: Final = 0.5
"""A fourth of a lease: who was frozen and not killed goes on as if nothing had been."""
_MOST: Final = 1_000


class Victims:
    """Looks among workers for one that holds leases.

    Args:
        store: What says who holds a lease.
        stage: Has the ledger, which says which worker has it.
    """

    def __init__(self, store: Store, stage: Stage) -> None:
        self._store = store
        self._stage = stage
        self._looks = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="demo")

    def close(self) -> None:
        """Let go of the thread."""
        self._looks.shutdown(cancel_futures=True)

    def find(self, workers: Sequence[Member]) -> tuple[Member, set[tuple[RunId, int]]] | None:
        """Return a worker and its leases, two at least; it is frozen, so it keeps them."""
        lines = self._stage.lines()
        in_hand = {each: len(ledger.in_hand(lines, each.pid)) for each in workers}
        for member in sorted(in_hand, key=lambda each: -in_hand[each]):
            if in_hand[member] < _LEAST:
                continue
            os.kill(member.pid, signal.SIGSTOP)
            held = self._confirmed(member)
            if len(held) >= _LEAST:
                return member, held
            os.kill(member.pid, signal.SIGCONT)
        return None

    def _confirmed(self, member: Member) -> set[tuple[RunId, int]]:
        """Return the leases that a frozen worker holds by the ledger and by the store."""
        mine = {(mark.run, mark.fence) for mark in ledger.in_hand(self._stage.lines(), member.pid)}
        # On a thread: a worker that was frozen in the middle of a write holds the file's lock, and
        # the answer comes only after it goes on.
        look = self._looks.submit(
            self._store.run, viewing.list_runs, state=RunState.RUNNING, limit=_MOST
        )
        try:
            running = look.result(_FROZEN_S)
        except concurrent.futures.TimeoutError:
            return set()
        now = datetime.now(UTC)  # the host's clock is SQLite's
        return {
            (run.id, run.fence)
            for run in running
            if (run.id, run.fence) in mine and run.lease_expires_at and run.lease_expires_at > now
        }
