"""What was under way when a fault struck is counted by process, and until that process ended."""

from __future__ import annotations

from tests.faults.evidence import Activation
from tests.faults.fleet import Hit
from tests.faults.flights import Flights


def call(nonce: str, group: int, started: float, over: float | None) -> Activation:
    return Activation("r", 1, nonce, "faults.plain", group, started, over=over)


FLIGHTS = Flights(
    [call("a", 7, 10.0, 12.0), call("b", 7, 11.0, None), call("c", 8, 11.5, 20.0)], {7: 15.0}
)


def test_a_call_is_under_way_until_it_is_over_or_its_process_ends() -> None:
    assert [FLIGHTS.under_way(at) for at in (9.9, 10.0, 11.7, 13.0, 15.5, 20.5)] == [
        0, 1, 3, 2, 1, 0,
    ]  # fmt: skip


def test_of_a_fault_that_strikes_one_process_its_calls_are_counted() -> None:
    hits = [Hit("killed", 11.7, 7), Hit("killed", 16.0, 7), Hit("restarted", 11.7)]
    assert FLIGHTS.by_fault(hits) == {"killed": {2: 1, 0: 1}, "restarted": {3: 1}}
