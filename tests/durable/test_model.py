"""Random handlers, under crashes, lost leases, lost and doubled wakeups and moved clocks.

What is stored, and what each call answers, is compared with a plain model after each operation; in
the end every run comes to its end. See `machine` and `model`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import FromClause, Select, false, select, true
from sqlalchemy.sql.expression import Executable

from tests.durable.looking import Looker
from tests.durable.machine import FlowMachine
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import live
from workhorse.store.durable import boundaries, freeing
from workhorse.store.lifecycle import picking
from workhorse.store.live import ending
from workhorse.store.operators import many
from workhorse.store.producing import copying

EXAMPLES = 300 if os.environ.get("CI") else 60
STEPS = 50


@pytest.fixture
def machine(database_url: str) -> Iterator[type[FlowMachine]]:
    with _a_machine(database_url) as machine:
        yield machine


@contextmanager
def _a_machine(database_url: str) -> Iterator[type[FlowMachine]]:
    """The machine on a database of its own, which all examples share, one after the other."""
    own_clock = ManualClock()
    own_store = Store.open(database_url, clock=own_clock)
    own_looker = Looker(own_store, database_url)
    with asyncio.Runner() as runner:

        class Machine(FlowMachine):
            store, clock, looker = own_store, own_clock, own_looker
            loop = runner.get_loop()
            examples = itertools.count()

        yield Machine
    own_looker.close()
    own_store.close()


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def test_random_handlers_under_trouble_do_what_a_plain_model_says(
    machine: type[FlowMachine],
) -> None:
    run_state_machine_as_test(machine, settings=examples(EXAMPLES))


def test_without_the_leases_token_in_the_insert_the_model_is_violated(
    machine: type[FlowMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the checkpoint's insert is taken out: it compares the run's id alone."""
    guarded = boundaries._insert

    def by_id_alone(u: FromClause, *columns: Any, delete: bool = False) -> Select[Any]:
        said = [u.c.token if column is live.c.token else column for column in columns]
        return (
            select(live.c.id, *said)
            .select_from(u.join(live, live.c.id == u.c.id))
            .order_by(live.c.id)
            .with_for_update(key_share=True, of=live)
        )

    def unguarded(d: Dialect) -> Executable:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(boundaries, "lock_held", by_id_alone)
            return guarded(d)

    monkeypatch.setattr(boundaries, "_insert", unguarded)

    _assert_found(machine)


def _nothing(*_args: Any, **_more: Any) -> Any:
    return ()


PLANTED: Final = {
    "turns that nobody waits for": (picking, "has_turn", lambda _row: true()),
    "the next of a session is not woken": (ending, "next_turns", lambda _tx, _sessions: []),
    "who comes after one that has ended waits for ever": (freeing, "note_freed", _nothing),
    "a request that is repeated is done again": (many, "done_before", _nothing),
    "a rerun forgets what it was sent": (copying, "_has_boundary", lambda _run_id: false()),
}
"""A part of the store, and what stands in its place."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_violates_the_model(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.setattr(*PLANTED[bug])

    with _a_machine(sqlite_url) as machine:
        machine.store._statements._prepared.clear()
        try:
            _assert_found(machine)
        finally:
            machine.store._statements._prepared.clear()


def _assert_found(machine: type[FlowMachine]) -> None:
    # Ten are enough for most, a hundred for some; what is drawn depends on the modules that are
    # loaded, whose constants hypothesis takes up, and so on the tests that ran before.
    found = settings(
        examples(1_000), derandomize=True, database=None, phases=[Phase.generate], print_blob=False,
        report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=found)
