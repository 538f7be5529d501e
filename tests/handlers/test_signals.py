"""Stop signals: falsy until set, the first reason stands, and every waiter wakes."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from workhorse.errors import InvalidInstantError, LeaseLostError
from workhorse.handlers.signals import (
    AsyncStopSignal,
    Stopped,
    StopReason,
    StopSignal,
    StopSwitch,
)

PATIENCE = 10  # seconds; far more than any of these waits takes


def test_a_signal_is_falsy_and_without_reason_until_it_is_set() -> None:
    switch = StopSwitch()
    views = (StopSignal(switch), AsyncStopSignal(switch))

    assert [(bool(view), view.reason) for view in views] == [(False, None)] * 2
    assert "not set" in repr(views[0])

    switch.set(StopReason.TIMEOUT)

    assert bool(switch)
    assert [(bool(view), view.reason) for view in views] == [(True, StopReason.TIMEOUT)] * 2
    assert "timeout" in repr(views[1])


def test_the_first_reason_stands() -> None:
    switch = StopSwitch()

    assert switch.set(StopReason.SHUTDOWN) is True
    assert switch.set(StopReason.LEASE_LOST) is False
    assert switch.reason is StopReason.SHUTDOWN


def test_of_many_threads_exactly_one_sets_the_signal() -> None:
    switch = StopSwitch()
    start = threading.Barrier(8)
    firsts: list[bool] = []

    def race() -> None:
        start.wait(PATIENCE)
        firsts.append(switch.set(StopReason.CANCELLED))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(firsts) == [False] * 7 + [True]


def test_raise_if_set_does_nothing_until_it_is_set() -> None:
    switch = StopSwitch()
    StopSignal(switch).raise_if_set()
    AsyncStopSignal(switch).raise_if_set()


def test_a_lost_lease_is_raised_as_the_error_that_the_docs_name() -> None:
    switch = StopSwitch("run 0197c2")
    switch.set(StopReason.LEASE_LOST)

    with pytest.raises(LeaseLostError, match="run 0197c2"):
        StopSignal(switch).raise_if_set()


@pytest.mark.parametrize("reason", [r for r in StopReason if r is not StopReason.LEASE_LOST])
def test_any_other_reason_passes_an_except_exception(reason: StopReason) -> None:
    switch = StopSwitch("run 0197c2")
    switch.set(reason)

    def handler() -> None:
        try:
            StopSignal(switch).raise_if_set()
        except Exception as error:  # noqa: BLE001 - what handlers do
            pytest.fail(f"swallowed {error!r}")

    with pytest.raises(Stopped, match=f"run 0197c2.*{reason.value}") as raised:
        handler()
    assert raised.value.reason is reason


def test_a_callback_is_called_once_in_the_thread_that_sets_the_signal() -> None:
    switch = StopSwitch()
    callers: list[int] = []
    switch.on_set(lambda: callers.append(threading.get_ident()))
    setter = threading.Thread(target=switch.set, args=[StopReason.CANCELLED])
    setter.start()
    identity = setter.ident
    setter.join(PATIENCE)
    switch.set(StopReason.CANCELLED)

    assert callers == [identity]


def test_a_callback_that_comes_late_is_called_at_once() -> None:
    switch = StopSwitch()
    switch.set(StopReason.CANCELLED)
    called: list[int] = []

    forget = switch.on_set(lambda: called.append(1))
    forget()

    assert called == [1]


def test_a_callback_taken_back_is_not_called() -> None:
    switch = StopSwitch()
    called: list[int] = []
    forget = switch.on_set(lambda: called.append(1))
    switch.on_set(lambda: called.append(2))

    forget()
    forget()
    switch.set(StopReason.CANCELLED)
    forget()

    assert called == [2]


def test_a_callback_that_fails_keeps_no_other_asleep(caplog: pytest.LogCaptureFixture) -> None:
    switch = StopSwitch()
    called: list[int] = []
    switch.on_set(lambda: 1 / 0)
    switch.on_set(lambda: called.append(1))

    with caplog.at_level(logging.ERROR, "workhorse.handlers"):
        assert switch.set(StopReason.CANCELLED) is True

    assert called == [1]
    assert [record.name for record in caplog.records] == ["workhorse.handlers"]


def test_a_callback_may_set_the_signal_again_or_add_another() -> None:
    """Callbacks run outside the lock, so they may use the signal."""
    switch = StopSwitch()
    called: list[object] = []
    switch.on_set(lambda: called.append(switch.set(StopReason.TIMEOUT)))
    switch.on_set(lambda: switch.on_set(lambda: called.append("late")))

    switch.set(StopReason.CANCELLED)

    assert called == [False, "late"]


# -- plain handlers ------------------------------------------------------------------------------


def test_a_plain_wait_ends_when_another_thread_sets_the_signal() -> None:
    switch = StopSwitch()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(StopSignal(switch).wait()))
    waiter.start()

    switch.set(StopReason.CANCELLED)
    waiter.join(PATIENCE)

    assert answers == [True]


def test_a_plain_wait_answers_false_when_its_time_is_over_and_leaves_nothing_behind() -> None:
    switch = StopSwitch()

    assert StopSignal(switch).wait(0) is False
    assert StopSignal(switch).wait(timedelta(milliseconds=1)) is False
    assert switch._callbacks == ()


def test_a_plain_wait_for_a_set_signal_returns_at_once() -> None:
    switch = StopSwitch()
    switch.set(StopReason.CANCELLED)

    assert StopSignal(switch).wait() is True
    assert StopSignal(switch).wait(0) is True


@pytest.mark.parametrize(
    "timeout", [-1, timedelta(seconds=-1), float("nan"), float("inf"), 10**12, "5"]
)
def test_a_wait_refuses_a_timeout_that_is_no_time(timeout: float) -> None:
    with pytest.raises(InvalidInstantError, match="timeout"):
        StopSignal(StopSwitch()).wait(timeout)
    with pytest.raises(InvalidInstantError, match="timeout"):
        asyncio.run(AsyncStopSignal(StopSwitch()).wait(timeout))


# -- async handlers ------------------------------------------------------------------------------


def test_an_async_wait_wakes_when_a_thread_sets_the_signal() -> None:
    switch = StopSwitch()

    async def handler() -> tuple[bool, bool]:
        signal = AsyncStopSignal(switch)
        first = asyncio.create_task(signal.wait())
        second = asyncio.create_task(signal.wait(PATIENCE))
        await asyncio.sleep(0)  # both wait now
        await asyncio.to_thread(switch.set, StopReason.CANCELLED)
        return await asyncio.wait_for(first, PATIENCE), await second

    assert asyncio.run(handler()) == (True, True)


def test_waits_in_two_event_loops_both_wake() -> None:
    switch = StopSwitch()
    waiting = threading.Barrier(3)
    answers: list[bool] = []

    async def handler() -> None:
        wait = asyncio.create_task(AsyncStopSignal(switch).wait())
        await asyncio.sleep(0)
        waiting.wait(PATIENCE)
        answers.append(await wait)

    threads = [threading.Thread(target=lambda: asyncio.run(handler())) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait(PATIENCE)
    switch.set(StopReason.CANCELLED)
    for thread in threads:
        thread.join(PATIENCE)

    assert answers == [True, True]


def test_an_async_wait_answers_false_when_its_time_is_over_and_leaves_nothing_behind() -> None:
    switch = StopSwitch()

    assert asyncio.run(AsyncStopSignal(switch).wait(timedelta(milliseconds=1))) is False
    assert switch._callbacks == ()


def test_an_async_wait_for_a_set_signal_returns_at_once() -> None:
    switch = StopSwitch()
    switch.set(StopReason.CANCELLED)

    assert asyncio.run(AsyncStopSignal(switch).wait()) is True
    assert asyncio.run(AsyncStopSignal(switch).wait(0)) is True


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    switch = StopSwitch()

    async def handler() -> None:
        wait = asyncio.create_task(AsyncStopSignal(switch).wait())
        await asyncio.sleep(0)
        assert len(switch._callbacks) == 1
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(handler())

    assert switch._callbacks == ()


def test_setting_the_signal_does_not_fail_when_a_waiters_loop_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = StopSwitch()
    loop = asyncio.new_event_loop()
    wait = AsyncStopSignal(switch).wait()

    async def begin_to_wait() -> None:
        wait.send(None)

    loop.run_until_complete(begin_to_wait())
    loop.close()
    assert len(switch._callbacks) == 1

    assert switch.set(StopReason.CANCELLED) is True
    assert caplog.records == []
    wait.close()
