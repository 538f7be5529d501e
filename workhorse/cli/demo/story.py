"""The demo, act by act."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Final, TypeVar

from workhorse.cli.demo import shelf
from workhorse.cli.demo.broker import Broker, LaneBroker, SqsBroker
from workhorse.cli.demo.fleet import DemoFailedError, Fleet, Member
from workhorse.cli.demo.reckoning import Books, Reckoning, read_books, reckon
from workhorse.cli.demo.stage import Stage
from workhorse.cli.demo.victims import Victims
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.migrating import migrate
from workhorse.store.operators import timelines, viewing
from workhorse.store.operators.timelines import TimelineEntry

ORDERS: Final = 24
QUEUES: Final = ("parcels", "counter")  # the shop's; importing the shop would make an app here
TASKS: Final = ("orders.deliver", "orders.collect")
WORKERS: Final = 3
_PAUSE_MS: Final = 60
_MIDST: Final = "mail after a day"
"""When the first order is here, many others sleep and wait."""
_STALE: Final = 10
_CLI: Final = ("-m", "workhorse.cli")
_AT_MOST_S: Final = 110.0
"""It takes a fourth of that; a busy machine may take its time, what hangs may not."""

T = TypeVar("T")


class Story:
    """What happens, in order; each step waits for what it needs and for no more."""

    def __init__(self, stage: Stage, fleet: Fleet, endpoint: Member | None) -> None:
        self._stage = stage
        self._fleet = fleet
        self._endpoint = endpoint
        self._orders = 0
        self._killed_with: set[tuple[RunId, int]] = set()
        self.shown: tuple[RunId, list[TimelineEntry]] | None = None
        """When all is over: a run to which much has happened, and its timeline."""

    def play(self) -> Reckoning:
        """Play it all; return the figures."""
        store = Store.open(self._url, connections=1)
        self._victims = Victims(store, self._stage)
        try:
            return self._play(store)
        finally:
            self._victims.close()
            store.close()

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._fleet.folder / 'shop.sqlite3'}"

    def _play(self, store: Store) -> Reckoning:
        migrate(store)
        with store.engine.begin() as connection:
            shelf.open_shelf(connection)
        self._stage.watch(store)
        self._stage.say("demo", f"SQLite store {self._fleet.folder / 'shop.sqlite3'}")
        broker = self._broker()
        environment = self._fleet.environment
        environment["WORKHORSE_DATABASE_URL"] = self._url
        self._fleet.start("maintenance", *_CLI, "maintain", "--json")
        for number in range(1, WORKERS + 1):
            self._start_worker(f"worker {number}")
        self._stage.hear(self._fleet.start("people", "-m", "workhorse.cli.demo.people"))
        self._take_orders(ORDERS)
        self._disturb(store, broker)
        self._kill_one(store)
        self._kill_all(store)
        self._wait("all runs succeed", lambda: self._all_succeeded(store))
        stale_sent = self._send_stale(store, broker)
        return self._close_the_books(store, stale_sent)

    # -- acts ------------------------------------------------------------------------------------

    def _broker(self) -> Broker:
        endpoint = self._endpoint
        if endpoint is None:
            return LaneBroker("polling")

        def port() -> int | None:
            if not endpoint.running:
                raise DemoFailedError("the SQS endpoint has ended")
            words = endpoint.output().split()
            return int(words[1]) if len(words) == 2 else None

        found = self._wait("the SQS endpoint answers", port)
        self._fleet.environment["WORKHORSE_AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{found}"
        self._stage.say("sqs endpoint", f"answers on 127.0.0.1:{found}")
        return SqsBroker(found, QUEUES)

    def _take_orders(self, count: int) -> None:
        words = ("-m", "workhorse.cli.demo.producer", self._orders + 1, count, _PAUSE_MS)
        self._fleet.start("producer", *map(str, words))
        self._orders += count
        self._stage.say("producer", f"{count} orders come in, each one durable run")

    def _start_worker(self, name: str) -> Member:
        return self._fleet.start(name, *_CLI, "worker", "--json")

    def _disturb(self, store: Store, broker: Broker) -> None:
        """Send a second and a third wakeup for runs that had theirs, and a message that is none."""
        first = self._wait(
            "the first runs",
            lambda: found if len(found := store.run(viewing.list_runs, limit=_STALE)) > 5 else None,
        )
        sent = broker.send([(run.id, run.queue) for run in first] * 2)
        self._stage.say("demo", f"{sent} wakeups are sent again for runs that had theirs")
        if broker.send_rubbish(QUEUES[0]):
            self._stage.say("demo", "a message that names no run is sent")

    def _kill_one(self, store: Store) -> None:
        """Kill a worker that holds leases, and start another in its place."""
        victim = self._wait("a worker holds leases", lambda: self._held_or_more_orders(store))
        leases = ", ".join(f"{run_id[-6:]}/{fence}" for run_id, fence in sorted(self._killed_with))
        self._fleet.kill(victim)
        self._stage.say(
            victim.name, f"SIGKILL while it holds {len(self._killed_with)} leases: {leases}"
        )
        self._start_workers(1)

    def _kill_all(self, store: Store) -> None:
        """Kill every worker while orders sleep and wait, and start as many others."""
        self._wait("letters go out", lambda: self._stage.asked_for(_MIDST) or None)
        workers = [each for each in self._workers() if each.state == "working"]
        for member in workers:
            self._fleet.kill(member)
        running = store.run(viewing.list_runs, state=RunState.RUNNING, limit=self._orders)
        self._killed_with |= {(run.id, run.fence) for run in running}
        counts = store.run(viewing.counts)
        waiting = counts[RunState.SCHEDULED] + counts[RunState.WAITING]
        self._stage.say(
            "demo",
            f"SIGKILL for all {len(workers)} workers: {len(running)} leases die with them; "
            f"{waiting} orders sleep or wait, and hold none",
        )
        self._start_workers(WORKERS)

    def _start_workers(self, count: int) -> None:
        first = len(self._workers()) + 1
        names = [f"worker {number}" for number in range(first, first + count)]
        for name in names:
            self._start_worker(name)
        verb = "takes its place" if count == 1 else "take their places"
        self._stage.say("demo", f"{', '.join(names)} {verb}")

    def _workers(self) -> list[Member]:
        return [each for each in self._fleet.members if each.name.startswith("worker")]

    def _held_or_more_orders(self, store: Store) -> Member | None:
        found = self._victims.find(self._workers())
        if found is not None:
            victim, self._killed_with = found
            return victim
        if self._all_succeeded(store):
            # A busy machine may have looked away while all of it was done.
            self._take_orders(ORDERS // 2)
        return None

    def _all_succeeded(self, store: Store) -> bool:
        counts = store.run(viewing.counts)
        if counts[RunState.FAILED]:
            raise DemoFailedError(f"{counts[RunState.FAILED]} runs have failed")
        return counts[RunState.SUCCEEDED] == self._orders

    def _send_stale(self, store: Store, broker: Broker) -> int:
        finished = store.run(viewing.list_runs, state=RunState.SUCCEEDED, limit=_STALE)
        sent = broker.send([(run.id, run.queue) for run in finished])
        self._stage.say("demo", f"{sent} stale wakeups are sent, for runs that have succeeded")
        self._wait("all messages are settled", lambda: broker.depth() == 0)
        return sent

    def _close_the_books(self, store: Store, stale_sent: int) -> Reckoning:
        working = [
            each for each in self._fleet.members if each.running and each is not self._endpoint
        ]
        self._fleet.stop(working)
        for member in working:
            code = member.process.returncode
            # By the signal itself: it had not come as far as handling any.
            if code not in (0, -signal.SIGTERM):
                raise DemoFailedError(f"{member.name} was stopped and ended with exit code {code}")
        self._stage.say("demo", "the fleet has stopped; store, counters and ledger are compared")
        if self._endpoint is not None:
            workers = [each for each in self._workers() if each in working]
            stale = sum(_counted(each, "messages[stale]") for each in workers)
        else:
            # Nothing carries them, so nobody counts them: the ledger shows that nothing came of it.
            stale = stale_sent
        collected = self._orders // 3
        books = store.run(read_books)
        self.shown = store.run(_most_eventful, books)
        return reckon(
            books,
            self._stage.lines(),
            expected=dict(zip(TASKS, (self._orders - collected, collected), strict=True)),
            killed_with=self._killed_with,
            stale=stale,
            stale_sent=stale_sent,
        )

    def _wait(self, what: str, look: Callable[[], T | None]) -> T:
        """Look until there is something to see, drawing meanwhile."""
        while not (seen := look()):
            self._stage.draw()
            if self._stage.elapsed_s > _AT_MOST_S:
                raise DemoFailedError(f"not within {_AT_MOST_S:.0f} s: {what}")
            for member in self._fleet.members:
                if member.state == "working" and member.process.poll() not in (None, 0):
                    raise DemoFailedError(
                        f"{member.name} has ended with exit code {member.process.returncode}"
                    )
            self._fleet.pause(0.05)
        return seen


def _most_eventful(tx: Tx, books: Books) -> tuple[RunId, list[TimelineEntry]]:
    """Return a run that a person decided on, the one that had most deaths, and its timeline."""

    def events(told: tuple[RunId, list[TimelineEntry]]) -> tuple[bool, int, int]:
        run_id, entries = told
        return any(each.by for each in entries), len(books.attempts[run_id]), len(entries)

    return max(((run.id, timelines.timeline(tx, run.id)) for run in books.runs), key=events)


def _counted(member: Member, name: str) -> int:
    """Return a count from what a worker prints at its end; 0 where it printed nothing."""
    try:
        last = member.output().splitlines()[-1]
        return int(json.loads(last)["counters"].get(name, 0))
    except (IndexError, ValueError):
        return 0
