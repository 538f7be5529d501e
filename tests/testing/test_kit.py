"""The kit: months in milliseconds, the app in it wherever it is used, and clear ends."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workhorse import (
    AsyncContext,
    Context,
    RetryPolicy,
    RunState,
    Workhorse,
    WorkhorseError,
)
from workhorse.domain.boundaries import DeliveryResult
from workhorse.errors import ConfigurationError, InvalidInstantError
from workhorse.testing import Kit, ManualClock, NotAtRestError

MONTH = timedelta(days=30)


def test_a_plain_handler_that_sleeps_for_a_month(app: Workhorse, kit: Kit) -> None:
    called: list[str] = []

    @app.task("remind")
    def remind(ctx: Context, whom: str) -> str:
        ctx.checkpoint("first", lambda: called.append("first"))
        ctx.sleep("month", MONTH)
        ctx.checkpoint("second", lambda: called.append("second"))
        return f"reminded {whom} in attempt {ctx.attempt}"

    run = remind.enqueue("ann")

    assert kit.run_until_idle() == 1
    assert kit.run(run.id).view().state is RunState.SCHEDULED
    kit.advance(MONTH - timedelta(milliseconds=1))
    assert kit.run_until_idle() == 0
    kit.advance(timedelta(milliseconds=1))
    assert kit.run_until_idle() == 1
    assert run.result() == "reminded ann in attempt 1"
    assert called == ["first", "second"]


def test_an_async_handler_that_sleeps_for_a_month(app: Workhorse, kit: Kit) -> None:
    called: list[str] = []

    @app.task("remind")
    async def remind(ctx: AsyncContext, whom: str) -> str:
        await ctx.checkpoint("first", lambda: called.append("first"))
        await ctx.sleep("month", MONTH)
        await ctx.checkpoint("second", lambda: called.append("second"))
        return f"reminded {whom} in attempt {ctx.attempt}"

    run = remind.enqueue("ann")

    assert kit.run_until_idle() == 1
    kit.advance(MONTH)
    assert kit.run_until_idle() == 1
    assert run.result() == "reminded ann in attempt 1"
    assert called == ["first", "second"]


def test_an_async_test_uses_the_kit_too(app: Workhorse, kit: Kit) -> None:
    """`run_until_idle_async` lets the test's own loop go on: a handler may need a server on it."""

    async def scenario() -> str:
        served: list[str] = []
        loop = asyncio.get_running_loop()

        async def serve() -> str:
            served.append("asked")
            return "answer"

        @app.task("ask")
        def ask(ctx: Context) -> str:
            return asyncio.run_coroutine_threadsafe(serve(), loop).result(10)

        run = await ask.enqueue_async()
        assert await kit.run_until_idle_async() == 1
        kit.run_until_idle()  # and the plain call, for a moment
        assert served == ["asked"]
        answer: str = await run.result_async()
        return answer

    assert asyncio.run(scenario()) == "answer"


def test_signals_decisions_and_tokens_go_through_the_app(app: Workhorse, kit: Kit) -> None:
    @app.task("order")
    def order(ctx: Context) -> list[object]:
        paid = ctx.wait_for_signal("paid")
        checked = ctx.wait_for_human("check", {"sum": 7})
        token = ctx.token("reference")
        called = ctx.wait_for_token("callback", token)
        return [paid, checked, called]

    run = order.enqueue()
    kit.run_until_idle()
    assert app.send_signal(run.id, "paid", 5) is DeliveryResult.DELIVERED
    kit.run_until_idle()
    app.complete_human_wait(run.id, "check", "yes", by="ann")
    kit.run_until_idle()
    (reference,) = [
        each["value"]
        for each in app.admin.export(run.id)["boundaries"]
        if each["kind"] == "reference"
    ]
    app.complete_token(reference, "done")

    assert kit.run_until_idle() == 1
    assert run.result() == [5, "yes", "done"]


def test_parents_and_children_come_to_rest_in_one_call(app: Workhorse, kit: Kit) -> None:
    @app.task("part")
    def part(ctx: Context, number: int) -> int:
        return number * number

    @app.task("whole")
    def whole(ctx: Context) -> int:
        return sum(ctx.children("parts", part, [1, 2, 3]))

    run = whole.enqueue()

    kit.run_until_idle()

    assert run.result() == 14


def test_the_clock_moves_to_the_next_time_that_is_set(app: Workhorse, kit: Kit) -> None:
    """Timers, time-outs and backoffs alike; nothing is set when all has ended."""
    began = kit.now

    @app.task("nap")
    def nap(ctx: Context, days: int) -> None:
        ctx.sleep("nap", timedelta(days=days))

    @app.task("ask")
    def ask(ctx: Context) -> None:
        ctx.wait_for_signal("answer", timeout=timedelta(days=2), default=None)

    nine = timedelta(days=9)
    patient = RetryPolicy(max_attempts=2, first=nine, longest=nine, jitter=False)

    @app.task("fail", retry=patient)
    def fail(ctx: Context) -> None:
        raise ValueError("no")

    nap.enqueue(5)
    ask.enqueue()
    fail.enqueue()
    kit.run_until_idle()

    seen = []
    while (then := kit.advance_to_next()) is not None:
        seen.append((then - began).days)
        kit.run_until_idle()

    assert seen == [2, 5, 9]
    assert kit.advance_to_next() is None


def test_a_run_is_brought_to_its_end_through_all_its_times(app: Workhorse, kit: Kit) -> None:
    began = kit.now

    @app.task("dunning")
    def dunning(ctx: Context) -> int:
        for step in range(3):
            ctx.sleep(f"wait {step}", MONTH)
        return ctx.attempt

    run = kit.run_to_end(dunning.enqueue())

    assert run.result() == 1
    assert kit.now - began == 3 * MONTH


def test_a_run_that_no_time_brings_to_its_end_says_what_it_waits_for(
    app: Workhorse, kit: Kit
) -> None:
    @app.task("order")
    def order(ctx: Context) -> None:
        ctx.wait_for_signal("paid")

    run = order.enqueue()

    with pytest.raises(NotAtRestError, match="it waits for signal 'paid'") as raised:
        kit.run_to_end(run.id)

    assert run.id in str(raised.value)


def test_a_run_that_takes_longer_than_allowed_leaves_the_clock_where_it_was(
    app: Workhorse, kit: Kit
) -> None:
    @app.task("nap")
    def nap(ctx: Context) -> None:
        ctx.sleep("nap", timedelta(days=2))

    began = kit.now
    with pytest.raises(NotAtRestError, match="timer 'nap'"):
        kit.run_to_end(nap.enqueue(), within=timedelta(days=1))

    assert kit.now == began


def test_handlers_that_never_come_to_rest_are_named(app: Workhorse, kit: Kit) -> None:
    @app.task("again")
    def again(ctx: Context) -> None:
        again.enqueue()

    again.enqueue()

    with pytest.raises(NotAtRestError, match=r"task 'again' \(21\)"):
        kit.run_until_idle(most=20)


def test_as_many_activations_as_are_allowed_are_no_unrest(app: Workhorse, kit: Kit) -> None:
    @app.task("once")
    def once(ctx: Context) -> None:
        pass

    for _ in range(20):
        once.enqueue()

    assert kit.run_until_idle(most=20) == 20


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_does_not_return_is_named(app: Workhorse, kit: Kit, kind: str) -> None:
    released = threading.Event()

    if kind == "plain":

        @app.task("hang")
        def hang(ctx: Context) -> None:
            released.wait(20)
    else:

        @app.task("hang")
        async def hang_async(ctx: AsyncContext) -> None:
            await asyncio.Event().wait()

    run = app.registry.require("hang").enqueue()
    try:
        with pytest.raises(NotAtRestError, match=f"run {run.id} of task 'hang'"):
            kit.run_until_idle(within=timedelta(milliseconds=200))
    finally:
        released.set()

    # And the kit goes on: with a worker of its own making, on what was handed back.
    app.cancel(run.id)
    assert kit.run_until_idle() == 0


def test_a_step_of_maintenance_that_fails_is_no_rest(
    app: Workhorse, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("workhorse.store.lifecycle.sweeping.promote", broken)

    with pytest.raises(WorkhorseError, match=r"promote \(ZeroDivisionError\)"):
        kit.run_until_idle()


def test_every_queue_is_served(app: Workhorse, kit: Kit) -> None:
    """Those of the settings, those of tasks, and those that a producer names."""

    @app.task("mail", queue="mail")
    def mail(ctx: Context) -> str:
        return ctx.run.queue

    runs = [mail.enqueue(), mail.enqueue(queue="elsewhere")]

    assert kit.run_until_idle() == 2
    assert [run.result() for run in runs] == ["mail", "elsewhere"]
    assert mail.enqueue(queue="new").view().state is RunState.READY
    assert kit.run_until_idle() == 1


def test_wakeups_are_captured(app: Workhorse, kit: Kit) -> None:
    """As SQS would get them: near timers with a delay, far ones once they are near."""

    @app.task("nap", queue="naps")
    def nap(ctx: Context, minutes: int) -> None:
        ctx.sleep("nap", timedelta(minutes=minutes))

    near = nap.enqueue(10)
    kit.run_until_idle()
    assert [(sent.run_id, sent.queue, sent.delay) for sent in kit.wakeups] == [
        (near.id, "naps", timedelta(0)),
        (near.id, "naps", timedelta(minutes=10)),
    ]

    kit.wakeups.clear()
    far = nap.enqueue(60)
    kit.run_until_idle()
    assert [(sent.run_id, sent.delay) for sent in kit.wakeups] == [(far.id, timedelta(0))]
    kit.advance(timedelta(minutes=50))
    kit.run_until_idle()
    assert (far.id, timedelta(minutes=10)) in [(s.run_id, s.delay) for s in kit.wakeups]
    assert kit.wakeups[-1].at == kit.now


def test_handlers_see_the_tests_context_variables(app: Workhorse, kit: Kit) -> None:
    from contextvars import ContextVar

    variable: ContextVar[str] = ContextVar("variable")

    @app.task("look")
    def look(ctx: Context) -> str:
        return variable.get()

    variable.set("seen")
    run = look.enqueue()
    kit.run_until_idle()

    assert run.result() == "seen"


def test_a_transaction_writes_to_the_throw_away_database(app: Workhorse, kit: Kit) -> None:
    from sqlalchemy import Connection, create_engine, text

    engine = create_engine(app.settings.database_url.get_secret_value())
    with engine.begin() as connection:
        connection.execute(text("create table orders (number integer)"))

    @app.task("order")
    def order(ctx: Context) -> None:
        def insert(connection: Connection) -> int:
            return connection.execute(text("insert into orders values (1)")).rowcount

        ctx.transaction("insert", insert)

    order.enqueue()
    kit.run_until_idle()

    with engine.begin() as connection:
        assert connection.execute(text("select number from orders")).scalars().all() == [1]
    engine.dispose()


def test_a_handler_may_sleep_until_an_instant_of_a_clock_that_is_years_ahead(
    app: Workhorse, kit: Kit
) -> None:
    """What is too far ahead is judged by the kit's clock, too."""

    @app.task("nap")
    def nap(ctx: Context) -> None:
        ctx.sleep_until("nap", at)

    for _ in range(5):
        kit.advance(timedelta(days=365))
    at = kit.now + timedelta(days=300)

    assert kit.run_to_end(nap.enqueue()).view().state is RunState.SUCCEEDED
    assert kit.now == at


# -- the app in it -------------------------------------------------------------------------------


def test_the_app_is_in_the_kit_and_given_back(app: Workhorse, tmp_path: Path) -> None:
    """Whatever a test or a handler does with it; afterwards it is what it was."""

    @app.task("echo")
    def echo(ctx: Context, value: int) -> int:
        return value

    own_url = app.settings.database_url
    with Kit(app) as kit:
        inside = app.settings.database_url.get_secret_value()
        assert inside != own_url.get_secret_value()
        assert Path(inside.removeprefix("sqlite:///")).exists()
        run = echo.enqueue(3)
        kit.run_until_idle()
        assert app.run(run.id).result() == 3

    assert app.settings.database_url == own_url
    assert not Path(inside.removeprefix("sqlite:///")).parent.exists()
    app.migrate()
    outside = echo.enqueue(4)
    assert app.worker().drain() == 1
    assert outside.result() == 4
    app.close()
    assert (tmp_path / "forbidden.sqlite3").exists()


def test_tasks_that_are_registered_inside_are_the_apps(app: Workhorse) -> None:
    with Kit(app):

        @app.task("late")
        def late(ctx: Context) -> None:
            pass

        late.enqueue()

    assert "late" in app.registry
    app.migrate()
    assert late.enqueue().view().state is RunState.READY
    app.close()


def test_the_app_is_given_back_when_the_test_fails(app: Workhorse) -> None:
    own = app.settings
    with pytest.raises(ZeroDivisionError), Kit(app):
        raise ZeroDivisionError

    assert app.settings is own


def test_each_kit_begins_with_nothing(app: Workhorse) -> None:
    @app.task("echo")
    def echo(ctx: Context) -> None:
        pass

    with Kit(app):
        echo.enqueue()
    with Kit(app) as kit:
        assert kit.run_until_idle() == 0
        assert app.admin.list_runs() == []


def test_an_environment_is_no_hindrance(tmp_path: Path) -> None:
    app = Workhorse(database_url=f"sqlite:///{tmp_path / 'x.sqlite3'}", environment="prod")

    @app.task("echo")
    def echo(ctx: Context) -> int:
        return 1

    with Kit(app) as kit:
        run = echo.enqueue()
        kit.run_until_idle()
        assert run.result() == 1


# -- how it is used ------------------------------------------------------------------------------


def test_a_clock_begins_about_now_or_where_it_is_told(app: Workhorse) -> None:
    """About now, so that an instant which a handler makes of the host's clock fits."""
    before = datetime.now(UTC)
    assert before - timedelta(seconds=1) <= Kit(app).now <= datetime.now(UTC)
    start = datetime(2030, 1, 1, tzinfo=UTC)
    assert Kit(app, start=start).now == start


def test_what_cannot_work_is_refused(app: Workhorse) -> None:
    with pytest.raises(ConfigurationError, match="str"):
        Kit("shop:app")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a clock, or where its own starts"):
        Kit(app, clock=ManualClock(), start=datetime.now(UTC))
    closed = Kit(app)
    for call in (closed.run_until_idle, closed.advance_to_next, lambda: closed.run("x")):
        with pytest.raises(ConfigurationError, match="not open"):
            call()
    with Kit(app) as kit:
        with pytest.raises(ConfigurationError, match="open"):
            kit.__enter__()
        with pytest.raises(InvalidInstantError):
            kit.advance(timedelta(seconds=-1))
