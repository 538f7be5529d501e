"""Random handlers, under crashes, lost leases, lost and doubled wakeups and moved clocks.

What is stored, and what each call answers, is compared with a plain model after each operation; in
the end every run comes to its end. See `machine` and `model`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.durable.looking import Looker
from tests.durable.machine import FlowMachine
from workhorse.store.database import ManualClock, Store

EXAMPLES = 300 if os.environ.get("CI") else 60
STEPS = 50


@pytest.fixture
def machine(database_url: str) -> Iterator[type[FlowMachine]]:
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
