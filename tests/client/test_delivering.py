"""Deliveries from outside: each call's answer, the wakeup behind it, the audit, the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.client.ends import end_run, lease_run
from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.domain.boundaries import BoundaryKind, DeliveryResult, NewBoundary, Wait
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish, Suspend
from workhorse.domain.runs import RunState
from workhorse.errors import (
    DeliveryConflictError,
    InvalidInstantError,
    InvalidNameError,
    RunNotFoundError,
    StoreUnavailableError,
    TokenNotFoundError,
    UnstorableValueError,
    ValueTooLargeError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.tokens import complete_token
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.operators import history
from workhorse.store.operators.inspecting import list_waits, read_deliveries

DELIVERED, KEPT, DUPLICATE, SETTLED, FINISHED = DeliveryResult
HUMAN, SIGNAL, TOKEN = BoundaryKind.HUMAN, BoundaryKind.SIGNAL, BoundaryKind.TOKEN


def a_waiting_run(
    store: Store, task: Task[int, int], kind: BoundaryKind, name: str, *, token: str | None = None
) -> RunId:
    """A run that waits for something of that kind and name."""
    run_id = task.enqueue(1).id
    wait_at(store, run_id, kind, name, token=token)
    return run_id


def wait_at(
    store: Store, run_id: RunId, kind: BoundaryKind, name: str, *, token: str | None = None
) -> None:
    detail = None if token is None else f'"{token}"'
    new = NewBoundary(name=name, kind=kind, seq=1, detail=detail)
    wait = Wait(kind=kind, name=name, new=new, token=token)
    lease = lease_run(store, run_id)
    settled = store.run(settle, [Entry(lease, Suspend((wait,)))], reach=no_reach)
    assert run_id in settled.written


def values_of(store: Store, run_id: RunId) -> list[tuple[str, str, str | None]]:
    return [(each.kind, each.name, each.value) for each in store.run(read_deliveries, run_id)]


# -- signals -------------------------------------------------------------------------------------


def test_a_signal_wakes_the_run_that_waits_for_it(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """And no other; the wakeup follows the commit."""
    run_id = a_waiting_run(store, double, SIGNAL, "paid")
    lane.sent.clear()

    assert app.send_signal(run_id, "paid", {"sum": 7}) is DELIVERED

    assert app.run(run_id).view().state is RunState.READY
    assert values_of(store, run_id) == [("signal", "paid", '{"sum":7}')]
    assert lane.ids == [run_id]
    assert [each.form for each in lane.sent] == ["send"]


def test_a_signal_that_comes_early_is_kept(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """Nobody is woken for it."""
    run = double.enqueue(1)
    lane.sent.clear()

    assert run.send_signal("paid") is KEPT
    assert run.send_signal("paid") is SETTLED, "a name takes one value"

    assert values_of(store, run.id) == [("signal", "paid", "null")]
    assert lane.sent == []


def test_the_same_key_is_known_again(app: Workhorse, store: Store, double: Task[int, int]) -> None:
    """With the same value; another under it is a conflict, and another key comes too late."""
    run_id = double.enqueue(1).id

    assert app.send_signal(run_id, "paid", 1, idempotency_key="k") is KEPT
    assert app.send_signal(run_id, "paid", 1, idempotency_key="k") is DUPLICATE
    assert app.send_signal(run_id, "paid", 1, idempotency_key="other") is SETTLED
    with pytest.raises(DeliveryConflictError, match="stands"):
        app.send_signal(run_id, "paid", "secret", idempotency_key="k")

    assert values_of(store, run_id) == [("signal", "paid", "1")]


def test_a_finished_run_takes_nothing(app: Workhorse, store: Store, double: Task[int, int]) -> None:
    run_id = double.enqueue(1).id
    end_run(store, run_id, Finish(RunState.SUCCEEDED, result="2"))

    assert app.send_signal(run_id, "paid", 1) is FINISHED
    assert app.complete_human_wait(run_id, "approve", 1, by="ann") is FINISHED
    assert values_of(store, run_id) == []
    assert store.run(history.acts_on, run_id) == []
    with pytest.raises(RunNotFoundError):
        app.send_signal(new_run_id(), "paid", 1)


def test_a_value_that_a_run_has_ended_by_is_known_again(
    app: Workhorse, store: Store, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who sends it again, and by the store, which tries again where a commit had no answer."""
    run_id = a_waiting_run(store, double, SIGNAL, "paid")
    run = Store.run

    def unanswered(self: Store, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        run(self, op, *args, **kwargs)
        monkeypatch.undo()
        end_run(store, run_id, Finish(RunState.SUCCEEDED, result="2"))
        return run(self, op, *args, **kwargs)

    monkeypatch.setattr(Store, "run", unanswered)
    assert app.send_signal(run_id, "paid", 1) is DELIVERED

    other = a_waiting_run(store, double, HUMAN, "approve")
    assert app.complete_human_wait(other, "approve", 1, by="ann", idempotency_key="k") is DELIVERED
    end_run(store, other, Finish(RunState.SUCCEEDED, result="2"))
    assert app.complete_human_wait(other, "approve", 1, by="ann", idempotency_key="k") is DUPLICATE
    assert app.complete_human_wait(other, "approve", 2, by="ann", idempotency_key="k") is FINISHED
    assert app.complete_human_wait(other, "approve", 1, by="bob") is FINISHED
    assert [act.by for act in store.run(history.acts_on, other)] == ["ann"]


def test_an_async_caller_sends_over_the_async_lane(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    first, second = (a_waiting_run(store, double, SIGNAL, "paid") for _ in range(2))
    lane.sent.clear()

    async def send() -> list[DeliveryResult]:
        return [
            await app.send_signal_async(first, "paid", 1, idempotency_key="k"),
            await app.send_signal_async(first, "paid", 1, idempotency_key="k"),
            await app.run(second).send_signal_async("paid", 2),
        ]

    assert asyncio.run(send()) == [DELIVERED, DUPLICATE, DELIVERED]
    assert lane.ids == [first, second]
    assert {each.form for each in lane.sent} == {"send_async"}


def test_a_lane_that_fails_is_only_counted(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """The delivery is stored, and a scan finds the run."""
    run_id = a_waiting_run(store, double, SIGNAL, "paid")
    lane.error = ConnectionError("no broker")

    assert app.send_signal(run_id, "paid", 1) is DELIVERED
    assert app.run(run_id).view().state is RunState.READY


def test_a_lost_answer_does_not_make_a_delivery_somebody_elses(
    app: Workhorse, store: Store, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store tries again after a commit without an answer, and finds its own row."""
    run_id = a_waiting_run(store, double, SIGNAL, "paid")
    other = app.create_token()
    monkeypatch.setattr("workhorse.client.delivering.deliver", twice(deliver))
    monkeypatch.setattr("workhorse.store.durable.tokens.complete_token", twice(complete_token))

    assert app.send_signal(run_id, "paid", 1) is DELIVERED
    assert app.complete_token(other, 1) is DELIVERED
    assert values_of(store, run_id) == [("signal", "paid", "1")]


def twice(op: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that is repeated, as it is when its first answer was lost."""

    def repeated(tx: Tx, *args: Any, **kwargs: Any) -> Any:
        op(tx, *args, **kwargs)
        return op(tx, *args, **kwargs)

    return repeated


# -- decisions -----------------------------------------------------------------------------------


def test_a_decision_is_audited_but_for_its_value(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane, clock: ManualClock
) -> None:
    """Once, in the transaction that stores it."""
    run_id = a_waiting_run(store, double, HUMAN, "approve")
    lane.sent.clear()

    def decide(**said: Any) -> DeliveryResult:
        return app.complete_human_wait(run_id, "approve", {"grant": "secret"}, **said)

    assert decide(by="ann", why="looks good", idempotency_key="k") is DELIVERED
    assert decide(by="ann", idempotency_key="k") is DUPLICATE
    assert decide(by="bob", why="no") is SETTLED

    (act,) = store.run(history.acts_on, run_id)
    assert (act.act, act.by, act.why, act.answer) == ("decide", "ann", "looks good", "approve")
    assert act.at == clock.now
    assert "secret" not in repr(act)
    assert values_of(store, run_id) == [("human", "approve", '{"grant":"secret"}')]
    assert lane.ids == [run_id]


def test_a_decision_whose_audit_fails_is_not_made(
    app: Workhorse, store: Store, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both or neither."""
    run_id = a_waiting_run(store, double, HUMAN, "approve")

    def fail(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("no audit")

    monkeypatch.setattr("workhorse.client.delivering.note", fail)
    with pytest.raises(RuntimeError):
        app.complete_human_wait(run_id, "approve", 1, by="ann")

    assert values_of(store, run_id) == []
    assert app.run(run_id).view().state is RunState.WAITING


def test_two_decisions_under_one_key_are_two_acts(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    """A key belongs to a name of a run."""
    run_id = double.enqueue(1).id
    for name in ("first", "second"):
        assert app.complete_human_wait(run_id, name, 1, by="ann", idempotency_key="k") is KEPT

    assert [act.answer for act in store.run(history.acts_on, run_id)] == ["first", "second"]


def test_a_decision_is_no_signal(app: Workhorse, store: Store, double: Task[int, int]) -> None:
    """A name may be of both kinds, and a wait takes what is of its own."""
    run_id = a_waiting_run(store, double, HUMAN, "approve")

    assert app.send_signal(run_id, "approve", 1) is KEPT
    assert app.run(run_id).view().state is RunState.WAITING
    decided = asyncio.run(app.complete_human_wait_async(run_id, "approve", 2, by="ann", why="w"))
    assert decided is DELIVERED
    assert store.run(list_waits, run_id=run_id) == []


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_resumes_twenty_in_the_same_call_and_maintenance_the_rest(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    ref = app.create_token()
    runs = [a_waiting_run(store, double, TOKEN, "hook", token=ref) for _ in range(23)]
    lane.sent.clear()

    assert app.complete_token(ref, {"ok": True}) is DELIVERED

    ready = [run for run in runs if app.run(run).view().state is RunState.READY]
    assert len(ready) == 20
    assert sorted(lane.ids) == sorted(ready)
    assert app.complete_token(ref, {"ok": True}) is SETTLED
    app.maintenance().run_once()
    assert {app.run(run).view().state for run in runs} == {RunState.READY}
    for run in runs:
        assert values_of(store, run) == [("token", "hook", '{"ok":true}')]


def test_a_repeated_completion_does_a_pass_for_what_the_first_left(
    app: Workhorse, store: Store, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose caller may have died behind its commit."""
    ref = app.create_token()
    run = a_waiting_run(store, double, TOKEN, "hook", token=ref)

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise StoreUnavailableError("it did not answer")

    with monkeypatch.context() as patched:
        patched.setattr("workhorse.client.passing.free_all", unreachable)
        assert app.complete_token(ref, 1, idempotency_key="k") is DELIVERED
    assert app.run(run).view().state is RunState.WAITING

    assert app.complete_token(ref, 1, idempotency_key="k") is DUPLICATE
    assert app.run(run).view().state is RunState.READY


def test_tokens_are_unguessable_and_time_out(
    app: Workhorse, store: Store, double: Task[int, int], clock: ManualClock
) -> None:
    async def make() -> str:
        return await app.create_token_async(timedelta(minutes=1))

    refs = {app.create_token() for _ in range(20)} | {asyncio.run(make())}
    assert len(refs) == 21
    assert all(ref.startswith("wht_") and len(ref) >= 40 for ref in refs)
    ref = asyncio.run(make())
    run = a_waiting_run(store, double, TOKEN, "hook", token=ref)
    clock.advance(timedelta(minutes=1))
    app.maintenance().run_once()

    assert app.run(run).view().state is RunState.READY
    assert asyncio.run(app.complete_token_async(ref, 1)) is SETTLED
    with pytest.raises(TokenNotFoundError) as caught:
        app.complete_token(ref + "x", 1)
    assert ref not in str(caught.value)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(-1), timedelta(days=366), 5])
def test_a_token_that_could_not_be_completed_is_refused(app: Workhorse, timeout: Any) -> None:
    with pytest.raises(InvalidInstantError):
        app.create_token(timeout)


# -- what is refused at the call -----------------------------------------------------------------


def _never(*_args: object, **_kwargs: object) -> None:
    raise AssertionError("the database was asked")


RUN = new_run_id()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("x", "paid", 1), InvalidNameError, "is not a UUID"),
        ((RUN, "", 1), InvalidNameError, "boundary has 0 characters"),
        ((RUN, "n" * 201, 1), InvalidNameError, "boundary has 201 characters"),
        ((RUN, "a\nb", 1), InvalidNameError, "cannot be printed"),
        ((RUN, "paid", {"a": (1,)}), UnstorableValueError, r"\$\.a"),
        ((RUN, "paid", float("nan")), UnstorableValueError, "'paid' of run"),
        ((RUN, "paid", "x" * 65_535), ValueTooLargeError, "65,537 bytes of JSON and may be 65,536"),
    ],
)
def test_what_cannot_be_delivered_is_refused_at_the_call(
    app: Workhorse,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[Any, ...],
    error: type[Exception],
    said: str,
) -> None:
    """Before the database is asked; no message holds the value."""
    monkeypatch.setattr(Store, "run", _never)
    calls: list[Callable[[], object]] = [
        lambda: app.send_signal(*arguments),
        lambda: asyncio.run(app.send_signal_async(*arguments)),
        lambda: app.complete_human_wait(*arguments, by="ann"),
        lambda: asyncio.run(app.complete_human_wait_async(*arguments, by="ann")),
    ]
    for call in calls:
        with pytest.raises(error, match=said):
            call()


def test_who_and_keys_and_references_are_checked(
    app: Workhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "run", _never)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: app.complete_human_wait(RUN, "a", 1, by=""), "by has 0 characters"),
        (lambda: app.complete_human_wait(RUN, "a", 1, by="a", why="w" * 1_001), "why has 1,001"),
        (lambda: app.send_signal(RUN, "a", 1, idempotency_key=""), "key has 0 characters"),
        (lambda: app.send_signal(RUN, "a", 1, idempotency_key="k" * 257), "257 characters"),
        (lambda: app.complete_token("", 1), "reference is 1 to 256"),
        (lambda: app.complete_token(7, 1), "must be text; got int"),  # type: ignore[arg-type]
        (lambda: app.complete_token("r", 1, idempotency_key="k" * 257), "257 characters"),
    ]
    for call, said in refused:
        with pytest.raises(InvalidNameError, match=said):
            call()
    with pytest.raises(ValueTooLargeError, match="value of a token is 65,537 bytes"):
        app.complete_token("r", "x" * 65_535)
