"""`workhorse migrate`, `worker` and `maintain`."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from workhorse.cli import exits
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.rendering import Table
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from workhorse.maintenance import Pass
    from workhorse.runtime.process.worker import Worker

_log = get_logger("maintenance")
_worker_log = get_logger("worker")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "migrate", migrate, shown=("database_url", "schema", "environment"))
    shown = ("concurrency", "processes", "lane", "lease_seconds", "health_port", "build")
    command(app, "worker", worker, shown=shown)
    command(app, "maintain", maintain, shown=("lane", "metrics", "health_port"))


def migrate(invocation: Invocation) -> int:
    """Create the tables, or bring them to this version's schema."""
    app = invocation.open()
    with invocation.renderer.progress("migrating"):
        app.migrate()
        from workhorse.store.base.migrating import check_schema

        found = check_schema(app.store)
    invocation.renderer.document(
        {"store": app.store.description, "version": found.version},
        f"{app.store.description} has schema version {found.version}",
    )
    return exits.OK


def worker(
    invocation: Invocation,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Serve this queue; may be repeated."),
    ] = None,
    with_maintenance: Annotated[
        bool,
        typer.Option(
            "--with-maintenance", help="Maintain in this process too: for a laptop, or one machine."
        ),
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="End when no run is left that can be claimed.")
    ] = False,
) -> int:
    """Run the app's tasks until SIGTERM or SIGINT.

    The first signal lets runs end within the drain time and hands the others back; a second one, a
    second later, ends the process at once.
    """
    if drain and with_maintenance:
        raise typer.BadParameter("--drain ends by itself; it goes without --with-maintenance")
    app = invocation.open(tasks=True, long_running=True)
    if queue:
        from workhorse.domain.names import check_queue

        queue = [check_queue(part.strip()) for name in queue for part in name.split(",")]
    one = app.worker(queue or None)
    if drain:
        code, executed = _drained(one, app.settings.drain_seconds)
        invocation.renderer.document(
            {"worker": one.worker_id, "exit_code": code, "executed": executed},
            "1 run was executed" if executed == 1 else f"{executed} runs were executed",
            on_one_line=True,
        )
        return code
    with app.maintenance() if with_maintenance else nullcontext():
        code = one.run()
    counters = dict(app.counters.snapshot())
    invocation.renderer.document(
        {"worker": one.worker_id, "exit_code": code, "counters": counters},
        Table(("count", "value"), list(counters.items()), empty="nothing was done"),
        on_one_line=True,
    )
    return code


def maintain(
    invocation: Invocation,
    once: Annotated[
        bool, typer.Option("--once", help="Do each step now, whenever it was done last, and end.")
    ] = False,
) -> int:
    """Recover, promote, top up: each step once an interval, until SIGTERM or SIGINT."""
    app = invocation.open(long_running=True)
    # With --json, the answer of --once is one document; lines of measures go beside it.
    maintenance = app.maintenance(measures_to=sys.stderr if once and invocation.json else None)
    if not once:
        _log.info("begins: store %s, lane %s", maintenance.place, app.lane_name)
        from workhorse.cli.health import answering

        with answering(app, maintenance):
            maintenance.run(on_pass=lambda done: _tell(invocation, done))
        return exits.OK
    with invocation.renderer.progress("maintaining") as told:
        done = maintenance.run_once(on_step=lambda name, count: told(f"{name} {count:,}"))
    rows = [(name, count, "ok") for name, count in done.counts.items()]
    rows += [(name, 0, f"failed: {error}") for name, error in done.failed.items()]
    invocation.renderer.document(
        {"counts": done.counts, "failed": done.failed},
        Table(("step", "rows", "state"), rows, empty="no step was begun"),
    )
    return exits.BAD_NEWS if done.failed else exits.OK


def _drained(one: Worker, drain_seconds: float) -> tuple[int, int]:
    """Drain until nothing is left or a signal comes; return the exit code and how many ran."""
    from workhorse.runtime.base import exits as ends
    from workhorse.runtime.base.garbage import tend_garbage
    from workhorse.runtime.base.options import Shutdown
    from workhorse.runtime.process.signals import Signals

    drained: Future[int] = Future()
    with Signals(Shutdown(drain_ms=round(drain_seconds * 1000))) as signals:

        def drain() -> None:
            tend_garbage()
            try:
                drained.set_result(one.drain())
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                drained.set_exception(error)
            signals.wake()

        # Beside the main thread, which alone is told of signals.
        threading.Thread(target=drain, name="workhorse-drain", daemon=True).start()
        signals.wait()
        if signals.received is None:
            return exits.OK, drained.result()
        _worker_log.info("worker %s: %s; it stops", one.worker_id, signals.received.name)
        clean = one.stop(max(0.0, drain_seconds - (time.monotonic() - signals.received_at)))
        executed = drained.result()
        if clean:
            signals.disarm()
        return (ends.STOPPED if clean else ends.HANDED_BACK), executed


def _tell(invocation: Invocation, done: Pass) -> None:
    """Print a pass that changed or broke something; most change nothing."""
    counts = {name: count for name, count in done.counts.items() if count}
    if not counts and not done.failed:
        return
    from datetime import UTC, datetime

    said = [f"{name} {count:,}" for name, count in counts.items()]
    said += [f"{name} failed: {error}" for name, error in done.failed.items()]
    now = datetime.now(UTC)
    invocation.renderer.event(
        {"at": now, "counts": counts, "failed": done.failed},
        f"{now:%Y-%m-%d %H:%M:%S}Z {', '.join(said)}",
    )
