"""`ctx.transaction` through a worker: lines, budgets, leases meanwhile, stops and crashes."""

from __future__ import annotations

import contextvars
import random
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from lanes.memory import MemoryLane
from tests.runtime.faults import FaultyStore
from tests.runtime.rig import Gate, Rig, beat
from tests.store.acting import a_claimed, do, rows
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse import AsyncContext, Context, Workhorse
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import HandedBack
from workhorse.domain.recording import Record, Recorded
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Reason, RunState
from workhorse.errors import ConfigurationError, LeaseLostError, TransactionTimeoutError
from workhorse.handlers.replay.gate import Gate as Gates
from workhorse.handlers.signals import Stopped, StopReason, StopSwitch
from workhorse.runtime.execution.transactions import CONNECTIONS, Transactions
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.sweeping import recover
from workhorse.telemetry import Metric

AT_ONCE = RetryPolicy(first=timedelta(0))
FINISHED = {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}
ROOT = Path(__file__).resolve().parents[2]


def make_accounts(store: Store) -> None:
    do(store, "create table accounts (run_id varchar(36), stage varchar(20))")


def pay(conn: Connection, run_id: str, stage: str = "pay") -> str:
    conn.execute(
        text("insert into accounts values (:run_id, :stage)"), {"run_id": run_id, "stage": stage}
    )
    return stage


def paid(store: Store) -> int:
    return int(rows(store, "select count(*) from accounts")[0][0])


def boundaries(store: Store) -> int:
    return int(rows(store, "select count(*) from {s}boundaries")[0][0])


def register(rig: Rig, kind: str, operation: Callable[[Any, Connection], Any]) -> None:
    """Register the task `pays`, whose handler has one transaction."""
    if kind == "plain":

        @rig.task("pays")
        def plain(ctx: Context) -> Any:
            return ctx.transaction("pay", lambda conn: operation(ctx, conn))
    else:

        @rig.task("pays")
        async def waits(ctx: AsyncContext) -> Any:
            return await ctx.transaction("pay", lambda conn: operation(ctx, conn))


def ended(rig: Rig, run_id: RunId) -> RunState:
    eventually(lambda: rig.state(run_id) in FINISHED, within=30)
    return rig.state(run_id)


# -- once ----------------------------------------------------------------------------------------


def test_the_handler_gets_the_stored_value_and_a_replay_does_not_repeat_it(
    rig: Rig, kind: str
) -> None:
    make_accounts(rig.store)
    got: list[Any] = []
    operations = 0

    def operation(ctx: Any, conn: Connection) -> Any:
        nonlocal operations
        operations += 1
        return {"stage": pay(conn, ctx.run.id)}

    def after(value: Any) -> str:
        got.append(value)
        if len(got) == 1:
            raise ValueError("once more")
        return "done"

    if kind == "plain":

        @rig.task("pays")
        def plain(ctx: Context) -> str:
            return after(ctx.transaction("pay", lambda conn: operation(ctx, conn)))
    else:

        @rig.task("pays")
        async def waits(ctx: AsyncContext) -> str:
            return after(await ctx.transaction("pay", lambda conn: operation(ctx, conn)))

    run_id = rig.enqueue("pays", retry=AT_ONCE)
    rig.worker().start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert (operations, paid(rig.store), boundaries(rig.store)) == (1, 1, 1)
    assert got == [{"stage": "pay"}] * 2


def test_an_error_of_the_operation_spends_an_attempt(rig: Rig, kind: str) -> None:
    make_accounts(rig.store)
    calls = 0

    def operation(ctx: Any, conn: Connection) -> str:
        nonlocal calls
        calls += 1
        pay(conn, ctx.run.id)
        if calls == 1:
            raise ValueError("not yet")
        return "paid"

    register(rig, kind, operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    rig.worker().start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert rig.view(run_id).attempt == 2
    assert paid(rig.store) == 1


def test_an_operation_cannot_ask_for_another(rig: Rig) -> None:
    """All that are under way would wait for the place of one of them, for ever."""
    make_accounts(rig.store)

    @rig.task("nests")
    def nests(ctx: Context) -> str:
        def outer(conn: Connection) -> str:
            pay(conn, ctx.run.id)
            return ctx.transaction("inner", lambda inner: pay(inner, ctx.run.id))

        with pytest.raises(ConfigurationError, match="'inner' is asked for by the operation"):
            ctx.transaction("outer", outer)
        return ctx.transaction("alone", lambda conn: pay(conn, ctx.run.id))

    many = [rig.enqueue("nests") for _ in range(2 * CONNECTIONS)]
    rig.worker(concurrency=2 * CONNECTIONS).start()

    assert {ended(rig, run_id) for run_id in many} == {RunState.SUCCEEDED}
    assert (paid(rig.store), boundaries(rig.store)) == (len(many), len(many))


def test_an_end_of_its_own_fails_the_run_without_another_attempt(rig: Rig, kind: str) -> None:
    make_accounts(rig.store)

    def operation(ctx: Any, conn: Connection) -> None:
        pay(conn, ctx.run.id)
        conn.commit()

    register(rig, kind, operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    rig.worker().start()

    assert ended(rig, run_id) is RunState.FAILED
    view = rig.view(run_id)
    assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
    assert view.error_type == "workhorse.errors.TransactionMisuseError"
    assert (paid(rig.store), boundaries(rig.store)) == (0, 0)


def test_the_operation_sees_a_copy_of_the_handlers_context_variables(rig: Rig, kind: str) -> None:
    seen: list[str] = []
    who = contextvars.ContextVar("who", default="nobody")

    def operation(ctx: Any, conn: Connection) -> None:
        seen.append(who.get())
        who.set("the operation")

    def finish() -> str:
        seen.append(who.get())
        return "done"

    if kind == "plain":

        @rig.task("pays")
        def plain(ctx: Context) -> str:
            who.set("the handler")
            ctx.transaction("pay", lambda conn: operation(ctx, conn))
            return finish()
    else:

        @rig.task("pays")
        async def waits(ctx: AsyncContext) -> str:
            who.set("the handler")
            await ctx.transaction("pay", lambda conn: operation(ctx, conn))
            return finish()

    run_id = rig.enqueue("pays", retry=AT_ONCE)
    rig.worker().start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert seen == ["the handler", "the handler"]


def test_a_run_is_enqueued_in_the_operations_transaction(database_url: str) -> None:
    """It is there, and woken, only when the operation's writes are."""
    with Workhorse(database_url=database_url, lane=MemoryLane()) as app:
        tries = 0

        @app.task("mail")
        def mail(payload: str) -> str:
            return payload

        @app.task("order", retry=AT_ONCE)
        def order(ctx: Context) -> str:
            def operation(conn: Connection) -> str:
                nonlocal tries
                tries += 1
                run = mail.enqueue(f"try {tries}", connection=conn)
                if tries == 1:
                    raise ValueError("not yet")
                return str(run.id)

            return ctx.transaction("send", operation)

        worker = app.worker()
        worker.start()
        mailed = order.enqueue().result(timeout=30)

        assert app.run(mailed).result(timeout=30) == "try 2"
        assert rows(app.store, "select count(*) from {s}runs where task = 'mail'") == [(1,)]
        worker.stop(5)


# -- a line for few connections ------------------------------------------------------------------


def sessions(store: Store) -> int:
    found = rows(store, "select count(*) from pg_stat_activity where datname = current_database()")
    return int(found[0][0])


def test_100_handlers_at_once_keep_the_budget_of_connections(
    postgresql_rig: Rig, kind: str
) -> None:
    rig = postgresql_rig
    make_accounts(rig.store)
    lock, under_way, most, seen = threading.Lock(), 0, 0, 0
    full = Gate()

    def operation(ctx: Any, conn: Connection) -> str:
        nonlocal under_way, most, seen
        with lock:
            under_way += 1
            most = max(most, under_way)
            if under_way == CONNECTIONS:
                full.reached.set()
        assert full.opened.wait(20)
        try:
            return pay(conn, ctx.run.id)
        finally:
            with lock:
                under_way -= 1

    register(rig, kind, operation)
    runs = rig.enqueue_many("pays", 100)
    # The rig's own three, the worker's three, the heartbeat's one, and ours.
    store = rig.store.sibling(connections=3)
    worker = rig.worker(concurrency=100, store=store)
    worker.start()
    full.wait()
    eventually(
        lambda: rows(rig.store, "select count(*) from {s}live where state = 'running'") == [(100,)]
    )
    seen = sessions(rig.store)
    threads = [each for each in threading.enumerate() if "transaction" in each.name]
    full.open()

    assert {ended(rig, run_id) for run_id in runs} == {RunState.SUCCEEDED}
    assert most == CONNECTIONS
    assert len(threads) == CONNECTIONS  # nobody waits for a connection, who could time out
    assert seen <= 3 + 3 + 1 + CONNECTIONS
    assert paid(rig.store) == 100
    assert all(rig.view(run_id).attempt == 1 for run_id in runs)
    worker.stop(5)
    store.close()


def test_no_connection_is_made_where_no_transaction_is(rig: Rig) -> None:
    @rig.task("light")
    def light() -> str:
        return "done"

    worker = rig.worker()
    run_id = rig.enqueue("light")
    worker.start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert worker._parts.engine._transactions._store._engine is None


# -- leases meanwhile ----------------------------------------------------------------------------


def test_a_lease_is_renewed_while_the_operation_runs(postgresql_rig: Rig, kind: str) -> None:
    rig = postgresql_rig
    make_accounts(rig.store)

    def expiry(run_id: str) -> Any:
        found = rows(rig.store, "select lease_expires_at from {s}live where id = :id", id=run_id)
        return found[0][0]

    def renewed(run_id: str, before: Any) -> bool:
        return bool(expiry(run_id) > before)

    def operation(ctx: Any, conn: Connection) -> str:
        value = pay(conn, ctx.run.id)
        for _ in range(4):
            before = expiry(ctx.run.id)
            beat(worker)
            eventually(partial(renewed, ctx.run.id, before))
        return value

    register(rig, kind, operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    worker = rig.worker()
    worker.start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert rig.view(run_id).attempt == 1
    assert paid(rig.store) == 1


ENDLESS = text(
    "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
)


@pytest.fixture
def sqlite_rig(sqlite_url: str) -> Iterator[Rig]:
    store = Store.open(sqlite_url)
    rig = Rig(store)
    make_accounts(store)
    yield rig
    rig.close()
    store.close()


def test_on_sqlite_a_line_of_operations_lets_the_heartbeat_have_its_turn(
    sqlite_rig: Rig, kind: str
) -> None:
    """All of them together take longer than a lease; each waits in line under one that is kept."""
    rig = sqlite_rig
    begun, meanwhile = [0], []

    def operation(ctx: Any, conn: Connection) -> str:
        begun[0] += 1
        time.sleep(0.2)  # with the write lock
        return pay(conn, ctx.run.id)

    def renews(carry_out: Callable[[], Any]) -> Any:
        before = begun[0]
        answer = carry_out()
        meanwhile.append(begun[0] - before)
        return answer

    register(rig, kind, operation)
    runs = rig.enqueue_many("pays", 12)
    heartbeat = FaultyStore(rig.store, connections=1)
    heartbeat.faults["renew"] = renews
    rig.worker(concurrency=12, lease_ms=3_000, heartbeat_store=heartbeat).start()

    assert {ended(rig, run_id) for run_id in runs} == {RunState.SUCCEEDED}
    assert [rig.view(run_id).attempt for run_id in runs] == [1] * 12
    assert rig.count(Metric.LEASES_LAPSED) == rig.count(Metric.LEASES_LOST) == 0
    assert paid(rig.store) == 12
    # One may have taken the lock just before the renewal was sent, and counted itself after.
    assert len(meanwhile) >= 2
    assert max(meanwhile) <= 1, meanwhile
    rig.close()
    heartbeat.close()


def test_on_sqlite_an_operation_that_takes_too_long_spends_its_attempt_alone(
    sqlite_rig: Rig, kind: str
) -> None:
    rig = sqlite_rig
    errors: list[BaseException] = []

    def operation(ctx: Any, conn: Connection) -> str:
        try:
            if ctx.attempt == 1:
                conn.execute(ENDLESS)
        except BaseException as error:
            errors.append(error)
            raise
        return pay(conn, ctx.run.id)

    register(rig, kind, operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    rig.worker(lease_ms=3_000).start()

    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert rig.view(run_id).attempt == 2
    assert rig.count(Metric.LEASES_LAPSED) == rig.count(Metric.LEASES_LOST) == 0
    assert len(errors) == 1
    attempts = rows(rig.store, "select error_type from {s}attempts")
    assert attempts == [(f"workhorse.errors.{TransactionTimeoutError.__name__}",)]


# -- stops ---------------------------------------------------------------------------------------


class Line:
    """Operations in line at a worker's transactions, without the worker."""

    def __init__(self, store: Store) -> None:
        self.store = store
        make_accounts(store)
        self.width = CONNECTIONS if store.kind == "postgresql" else 1
        self.answered = threading.Event()
        self.answered.set()
        self.renewals = 0
        self.transactions = Transactions(
            store.sibling(connections=self.width, bounded=False),
            lease_ms=180_000,
            let_renew=self._let_renew,
        )
        self.gate = Gate()
        self.started: list[str] = []
        self._lock = threading.Lock()
        # Claimed before the first operation takes SQLite's write lock.
        claimed = [a_claimed(store) for _ in range(self.width + 2)]
        self.activations = [an_activation(each) for each in claimed]
        self.pending = [self.ask(each) for each in self.activations]

    def ask(self, activation: Any) -> Any:
        run_id = activation.claimed.id

        def operation(conn: Connection) -> str:
            with self._lock:
                self.started.append(run_id)
                if len(self.started) == self.width:
                    self.gate.reached.set()
            assert self.gate.opened.wait(20)
            return f'"{pay(conn, run_id)}"'

        boundary = NewBoundary(name="pay", kind=BoundaryKind.CHECKPOINT, seq=1)
        record = Record(lease=activation.claimed.lease, boundary=boundary)
        return self.transactions.transact(activation, record, operation)

    def _let_renew(self, seconds: float) -> None:
        assert seconds == 60  # the third of a lease that a renewal may take
        self.renewals += 1
        assert self.answered.wait(seconds)


def an_activation(claimed: ClaimedRun) -> Any:
    switches = {"cancelled": StopSwitch(f"run {claimed.id}"), "stopping": StopSwitch()}
    gate = Gates("the run", None, **switches)
    core = SimpleNamespace(**switches, suspended=False, replay=SimpleNamespace(gate=gate))
    recorder = SimpleNamespace(take=lambda record, answer: None)
    return SimpleNamespace(claimed=claimed, core=core, recorder=recorder, outcome=None)


@pytest.fixture
def line(store: Store) -> Iterator[Line]:
    """All threads are at work, and two more operations are in line."""
    line = Line(store)
    line.gate.wait()
    yield line
    line.gate.open()
    line.transactions.close()


@pytest.mark.parametrize(
    ("switch", "reason", "error"),
    [
        ("cancelled", StopReason.CANCELLED, Stopped),
        ("cancelled", StopReason.LEASE_LOST, LeaseLostError),
        ("stopping", StopReason.SHUTDOWN, Stopped),
    ],
)
def test_who_is_told_to_stop_in_line_is_answered_at_once_and_does_not_start(
    line: Line, switch: str, reason: StopReason, error: type[BaseException]
) -> None:
    getattr(line.activations[-2].core, switch).set(reason)

    with pytest.raises(error):
        line.pending[-2].result()

    line.gate.open()
    others = [pending for pending in line.pending if pending is not line.pending[-2]]
    assert {pending.result().result for pending in others} == {Recorded.STORED}
    assert line.activations[-2].claimed.id not in line.started
    assert paid(line.store) == line.width + 1


@pytest.mark.parametrize("how", ["ended", "suspended", "answered"])
def test_whose_activation_is_over_in_line_does_not_start(line: Line, how: str) -> None:
    over = line.activations[-2]
    if how == "ended":
        over.outcome = HandedBack()
    elif how == "suspended":
        over.core.suspended = True
    else:
        line.pending[-2].fail(LeaseLostError("cut off"))
    line.gate.open()

    with pytest.raises(LeaseLostError):
        line.pending[-2].result()
    assert line.pending[-1].result().result is Recorded.STORED
    assert over.claimed.id not in line.started


def test_an_operation_under_way_is_not_judged_by_a_stop_but_by_its_token(line: Line) -> None:
    line.activations[0].core.cancelled.set(StopReason.LEASE_LOST)
    line.gate.open()

    assert line.pending[0].result().result is Recorded.STORED


def test_on_sqlite_the_next_operation_waits_for_the_renewal_under_way(line: Line) -> None:
    """A heartbeat on a busy machine comes too late for the moment in which the file is free."""
    line.answered.clear()
    line.gate.open()

    waiting = 1 if line.store.kind == "sqlite" else 0
    eventually(lambda: line.renewals == waiting and line.pending[0].done)
    if waiting:
        assert line.started == [line.activations[0].claimed.id]
    line.answered.set()
    assert {pending.result().result for pending in line.pending} == {Recorded.STORED}
    assert line.renewals >= waiting * (len(line.pending) - 1)


def test_closing_answers_the_line_and_keeps_no_connection(line: Line) -> None:
    closed: list[object] = []
    event.listen(line.transactions._store.engine, "close", lambda raw, _: closed.append(raw))
    line.transactions.close()

    for pending in line.pending[-2:]:
        with pytest.raises(Stopped, match="the worker has ended"):
            pending.result()
    with pytest.raises(Stopped, match="the worker has ended"):
        line.ask(line.activations[-1]).result()
    line.gate.open()
    for pending in line.pending[:-2]:
        assert pending.result().result is Recorded.STORED  # its token was still there
    eventually(lambda: len(closed) == line.width)


def test_a_run_that_is_handed_back_during_its_operation_stores_nothing(
    postgresql_rig: Rig, kind: str
) -> None:
    """The operation cannot be stopped; its lease is gone when it ends, and it is repeated."""
    rig, gate, calls = postgresql_rig, Gate(), []
    make_accounts(rig.store)

    def operation(ctx: Any, conn: Connection) -> str:
        calls.append(ctx.run.id)
        value = pay(conn, ctx.run.id)
        if len(calls) == 1:
            gate.come()
        return value

    register(rig, kind, operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    worker = rig.worker()
    worker.start()
    gate.wait()

    worker.stop(0)
    assert rig.state(run_id) is RunState.READY
    gate.open()
    eventually(lambda: worker._parts.engine._transactions._busy == 0)
    assert (paid(rig.store), boundaries(rig.store)) == (0, 0)

    rig.worker().start()
    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert (paid(rig.store), boundaries(rig.store), len(calls)) == (1, 1, 2)


# -- killed --------------------------------------------------------------------------------------

_WORKER = """
    import os, signal, sys, threading
    from sqlalchemy import text
    from sqlalchemy.engine import default
    from lanes.polling import PollingLane
    from workhorse.handlers.context import Context
    from workhorse.handlers.registry import TaskRegistry
    from workhorse.runtime.base.options import WorkerOptions
    from workhorse.runtime.process.worker import Worker
    from workhorse.store.durable import transacting
    from workhorse.store.base.database import Store

    url, where = sys.argv[1:]

    def die(at):
        if at == where:
            os.kill(os.getpid(), signal.SIGKILL)

    class InOurs(transacting.Guard):
        ours = None  # the thread of the handler's transaction: others commit beside it

        def take_back(self):
            super().take_back()
            die("before the lease is checked")
            InOurs.ours = threading.get_ident()

    transacting.Guard = InOurs
    do_commit = default.DefaultDialect.do_commit

    def commit(self, raw):
        if InOurs.ours == threading.get_ident():
            die("before the commit")
        do_commit(self, raw)
        if InOurs.ours == threading.get_ident():
            die("after the commit")

    default.DefaultDialect.do_commit = commit
    registry = TaskRegistry()

    @registry.task("pays")
    def pays(ctx: Context) -> str:
        def operation(conn):
            conn.execute(
                text("insert into accounts values (:id, 'pay')"), {"id": ctx.run.id}
            )
            die("in the operation")
            return "paid"
        return ctx.transaction("pay", operation)

    Worker(
        ["default"], 1, store=Store.open(url), lane=PollingLane(), registry=registry,
        publish=lambda hints: None, options=WorkerOptions(lease_ms=1_000),
    ).run()
"""


@pytest.mark.parametrize(
    ("where", "happened"),
    [
        ("in the operation", False),
        ("before the lease is checked", False),
        ("before the commit", False),
        ("after the commit", True),
    ],
)
def test_a_worker_that_is_killed_leaves_both_or_neither(
    live_rig: Rig, processes: Processes, tmp_path: Path, where: str, happened: bool
) -> None:
    rig = live_rig
    make_accounts(rig.store)
    operations: list[str] = []

    def operation(ctx: Any, conn: Connection) -> str:
        operations.append(ctx.run.id)
        return pay(conn, ctx.run.id)

    register(rig, "plain", operation)
    run_id = rig.enqueue("pays", retry=AT_ONCE)
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(_WORKER))

    url = rig.store.target.url.render_as_string(hide_password=False)
    process = processes.python(program, url, where, env={"PYTHONPATH": str(ROOT)})
    assert process.wait() == -signal.SIGKILL

    assert (paid(rig.store), boundaries(rig.store)) == ((1, 1) if happened else (0, 0))
    # The next worker finds the lease expired.
    eventually(
        lambda: rig.store.run(recover, reach=rig.lane.reach_ms, draw=random.Random(1)).count,
        every=0.05, within=30,
    )  # fmt: skip
    rig.worker().start()
    assert ended(rig, run_id) is RunState.SUCCEEDED
    assert (paid(rig.store), boundaries(rig.store)) == (1, 1)
    assert len(operations) == (0 if happened else 1)
