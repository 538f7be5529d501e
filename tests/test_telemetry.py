"""Counters count by metric and label, from any thread."""

import threading

from workhorse.telemetry import Counters, Metric, get_logger


def test_a_count_that_was_never_added_to_is_zero() -> None:
    assert Counters().get(Metric.RUNS_CLAIMED) == 0


def test_labels_are_counted_apart() -> None:
    counters = Counters()

    counters.add(Metric.MESSAGES, label="stale")
    counters.add(Metric.MESSAGES, 2, label="claimed")
    counters.add(Metric.MESSAGES)

    assert counters.get(Metric.MESSAGES, label="claimed") == 2
    assert counters.snapshot() == {"messages": 1, "messages[claimed]": 2, "messages[stale]": 1}


def test_adding_nothing_leaves_no_trace() -> None:
    counters = Counters()

    counters.add(Metric.TOP_UPS, 0)

    assert counters.snapshot() == {}


def test_a_snapshot_is_sorted_and_does_not_move_afterwards() -> None:
    counters = Counters()
    counters.add(Metric.WAKEUPS_SENT)
    counters.add(Metric.HANDLERS_STUCK)

    before = counters.snapshot()
    counters.add(Metric.WAKEUPS_SENT)

    assert list(before.items()) == [("handlers_stuck", 1), ("wakeups_sent", 1)]


def test_nothing_is_lost_between_threads() -> None:
    counters = Counters()
    go = threading.Barrier(8)

    def add() -> None:
        go.wait()
        for _ in range(2_000):
            counters.add(Metric.RUNS_SETTLED, label="succeeded")

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counters.get(Metric.RUNS_SETTLED, label="succeeded") == 16_000


def test_metric_names_are_plain_so_that_labels_can_stand_behind_them() -> None:
    for metric in Metric:
        assert metric.value.replace("_", "").isalpha()
        assert metric.value.islower()


def test_loggers_are_parts_of_one() -> None:
    assert get_logger("worker").name == "workhorse.worker"
