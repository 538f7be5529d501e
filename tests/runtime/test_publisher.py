"""Wakeups on their way: a delay counts from the commit, however long a send waits for its turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from workhorse.domain.hints import Hint
from workhorse.domain.ids import new_run_id
from workhorse.runtime.publisher import Publisher
from workhorse.telemetry import Counters


def test_a_delay_does_not_count_from_the_send(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("workhorse.runtime.publisher.time.monotonic", lambda: now)
    sending, go_on = threading.Event(), threading.Event()
    sent: list[Hint] = []

    def publish(hints: Sequence[Hint]) -> None:
        sent.extend(hints)
        sending.set()
        go_on.wait(10)

    publisher = Publisher(publish, counters=Counters())
    thread = threading.Thread(target=publisher.serve)
    thread.start()
    publisher.put([Hint(new_run_id(), "default", 5_000)])
    assert sending.wait(10)

    publisher.put([Hint(new_run_id(), "default", delay_ms) for delay_ms in (0, 700, 5_000)])
    now += 1.5  # the first send is slow
    go_on.set()
    publisher.close()
    thread.join(10)

    assert [hint.delay_ms for hint in sent] == [5_000, 0, 0, 3_500]
