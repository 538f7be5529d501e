"""The demo, act by act."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from workhorse.cli import exits
from workhorse.cli.demo import ledger
from workhorse.cli.demo.broker import PREFIX, REGION, Broker, LaneBroker, SqsBroker
from workhorse.cli.demo.fleet import Fleet, Member, StoppedError
from workhorse.cli.demo.reckoning import Reckoning, read_books, reckon
from workhorse.cli.demo.stage import Stage
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError
from workhorse.settings import child_environment

if TYPE_CHECKING:
    from workhorse.cli.rendering import Renderer
    from workhorse.store.database import Store

ORDERS: Final = 24
QUEUES: Final = ("orders", "mail")  # the shop's; importing the shop would make an app here
TASKS: Final = ("orders.charge", "orders.ship", "orders.mail")
WORKERS: Final = 3
LANES: Final = ("sqs", "polling")
_PAUSE_MS: Final = 60
_STALE: Final = 10
_CLI: Final = ("-m", "workhorse.cli")
_AT_MOST_S: Final = 110.0
"""It takes a fifth of that; a busy machine may take its time, what hangs may not."""

T = TypeVar("T")


def run_demo(renderer: Renderer, lane: str) -> int:
    """Run the demo; return the exit code.

    Raises:
        ConfigurationError: The lane is none of the demo's, or what it needs is not installed.
    """
    if lane not in LANES:
        raise ConfigurationError(f"the demo knows the lanes {' and '.join(LANES)}; got {lane!r}")
    if lane == "sqs" and not all(map(importlib.util.find_spec, ("moto", "flask", "boto3"))):
        raise ConfigurationError(
            "the demo's SQS endpoint is moto, which is not installed; "
            "pip install 'moto[server,sqs]', or use `workhorse demo --lane polling`"
        )
    with Fleet(child_environment(_environment(lane))) as fleet, renderer.live() as draw:
        stage = Stage(renderer, fleet, draw)
        try:
            sums = _Story(stage, fleet, lane).play()
        except StoppedError as stopped:
            stage.say("demo", f"{stopped}: ending all processes")
            return stopped.exit_code
        except (TimeoutError, OSError, ConnectionError) as failed:
            stage.explain_failure([str(failed)])
            return exits.BAD_NEWS
        fleet.stop(fleet.members)
        if sums.problems:
            stage.explain_failure(sums.problems)
    renderer.event(
        {"event": "summary", **_figures(sums)},
        str(sums),
    )
    return exits.BAD_NEWS if sums.problems else exits.OK


class _Story:
    """What happens, in order; each step waits for what it needs and for no more."""

    def __init__(self, stage: Stage, fleet: Fleet, lane: str) -> None:
        self._stage = stage
        self._fleet = fleet
        self._lane = lane
        self._killed_with: set[tuple[RunId, int]] = set()

    def play(self) -> Reckoning:
        """Play it all; return the figures."""
        from workhorse.store.database import Store

        endpoint = None
        if self._lane == "sqs":
            endpoint = self._fleet.start(
                "sqs endpoint", "-m", "workhorse.cli.demo.endpoint", held=True
            )
        store = Store.open(self._url, connections=1)
        try:
            return self._play(store, endpoint)
        finally:
            store.close()

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._fleet.folder / 'shop.sqlite3'}"

    def _play(self, store: Store, endpoint: Member | None) -> Reckoning:
        from workhorse.store.migrating import migrate

        migrate(store)
        self._stage.watch(store)
        self._stage.say("demo", f"SQLite store {self._fleet.folder / 'shop.sqlite3'}")
        broker: Broker = LaneBroker(self._lane) if endpoint is None else self._broker(endpoint)
        environment = self._fleet.environment
        environment["WORKHORSE_DATABASE_URL"] = self._url
        self._fleet.start("maintenance", *_CLI, "maintain", "--json")
        for number in range(1, WORKERS + 1):
            self._start_worker(f"worker {number}")
        pause = str(_PAUSE_MS)
        self._fleet.start("producer", "-m", "workhorse.cli.demo.producer", str(ORDERS), pause)
        self._stage.say("producer", f"{ORDERS} orders come in, each a charge, a parcel and a mail")
        self._disturb(store, broker)
        self._kill_one(store)
        self._wait("all runs succeed", lambda: self._all_succeeded(store))
        stale_sent = self._send_stale(store, broker)
        return self._close_the_books(store, stale_sent)

    # -- acts ------------------------------------------------------------------------------------

    def _broker(self, endpoint: Member) -> Broker:
        def port() -> int | None:
            if not endpoint.running:
                raise ConnectionError(f"the SQS endpoint has ended: {endpoint.last_words(1)}")
            words = endpoint.output().split()
            return int(words[1]) if len(words) == 2 else None

        found = self._wait("the SQS endpoint answers", port)
        self._fleet.environment["WORKHORSE_AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{found}"
        self._stage.say("sqs endpoint", f"answers on 127.0.0.1:{found}")
        return SqsBroker(found, QUEUES)

    def _start_worker(self, name: str) -> Member:
        return self._fleet.start(name, *_CLI, "worker", "--json")

    def _disturb(self, store: Store, broker: Broker) -> None:
        """Send a second and a third wakeup for runs that had theirs, and a message that is none."""
        from workhorse.store import viewing

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
        victim = self._wait("a worker holds leases", lambda: self._held(store))
        leases = ", ".join(f"{run_id[-6:]}/{fence}" for run_id, fence in sorted(self._killed_with))
        self._fleet.kill(victim)
        self._stage.say(
            victim.name, f"SIGKILL while it holds {len(self._killed_with)} leases: {leases}"
        )
        name = f"worker {WORKERS + 1}"
        self._start_worker(name)
        self._stage.say(name, "takes its place")

    def _held(self, store: Store) -> Member | None:
        """Return a worker that the store says holds leases; it is frozen, so it keeps them."""
        from workhorse.store import viewing

        lines = self._stage.lines()
        candidates = [each for each in self._fleet.members if each.name.startswith("worker")]
        for member in sorted(candidates, key=lambda each: -len(ledger.in_hand(lines, each.pid))):
            if len(ledger.in_hand(lines, member.pid)) < 2:
                continue
            os.kill(member.pid, signal.SIGSTOP)
            mine = {
                (mark.run, mark.fence) for mark in ledger.in_hand(self._stage.lines(), member.pid)
            }
            running = store.run(viewing.list_runs, state=RunState.RUNNING, limit=100)
            held = {(run.id, run.fence) for run in running if (run.id, run.fence) in mine}
            if len(held) >= 2:
                self._killed_with = held
                return member
            os.kill(member.pid, signal.SIGCONT)
        return None

    def _all_succeeded(self, store: Store) -> bool:
        from workhorse.store import viewing

        counts = store.run(viewing.counts)
        if counts[RunState.FAILED]:
            raise TimeoutError(f"{counts[RunState.FAILED]} runs have failed")
        return counts[RunState.SUCCEEDED] == ORDERS * len(TASKS)

    def _send_stale(self, store: Store, broker: Broker) -> int:
        from workhorse.store import viewing

        finished = store.run(viewing.list_runs, state=RunState.SUCCEEDED, limit=_STALE)
        sent = broker.send([(run.id, run.queue) for run in finished])
        self._stage.say("demo", f"{sent} stale wakeups are sent, for runs that have succeeded")
        self._wait("all messages are settled", lambda: broker.depth() == 0)
        return sent

    def _close_the_books(self, store: Store, stale_sent: int) -> Reckoning:
        working = [
            each for each in self._fleet.members if each.running and each.name != "sqs endpoint"
        ]
        self._fleet.stop(working)
        self._stage.say("demo", "the fleet has stopped; store, counters and ledger are compared")
        if self._lane == "sqs":
            workers = [each for each in working if each.name.startswith("worker")]
            stale = sum(_counted(each, "messages[stale]") for each in workers)
        else:
            # Nothing carries them, so nobody counts them: the ledger shows that nothing came of it.
            stale = stale_sent
        return reckon(
            store.run(read_books),
            self._stage.lines(),
            expected=dict.fromkeys(TASKS, ORDERS),
            killed_with=self._killed_with,
            stale=stale,
            stale_sent=stale_sent,
        )

    def _wait(self, what: str, look: Callable[[], T | None]) -> T:
        """Look until there is something to see, drawing meanwhile."""
        while not (seen := look()):
            self._stage.draw()
            if self._stage.elapsed_s > _AT_MOST_S:
                raise TimeoutError(f"not within {_AT_MOST_S:.0f} s: {what}")
            for member in self._fleet.members:
                if member.state == "working" and member.process.poll() not in (None, 0):
                    raise TimeoutError(
                        f"{member.name} has ended with exit code {member.process.returncode}"
                    )
            self._fleet.pause(0.05)
        return seen


def _environment(lane: str) -> Mapping[str, str]:
    """Return what the processes are told; nothing of it leads outside this machine."""
    return {
        "WORKHORSE_APP": "workhorse.cli.demo.shop:app",
        "WORKHORSE_LANE": lane,
        "WORKHORSE_QUEUES": ",".join(QUEUES),
        "WORKHORSE_LEASE_SECONDS": "2",
        "WORKHORSE_CONCURRENCY": "4",
        "WORKHORSE_DRAIN_SECONDS": "3",
        "WORKHORSE_SQS_QUEUE_PREFIX": PREFIX,
        "WORKHORSE_SQS_CLIENT": "boto3",
        "WORKHORSE_AWS_REGION": REGION,
        # For an emulator that checks none of it.
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def _counted(member: Member, name: str) -> int:
    """Return a count from what a worker prints at its end; 0 where it printed nothing."""
    try:
        last = member.output().splitlines()[-1]
        return int(json.loads(last)["counters"].get(name, 0))
    except (IndexError, ValueError):
        return 0


def _figures(sums: Reckoning) -> dict[str, object]:
    return {
        "runs": sums.runs,
        "succeeded": sums.succeeded,
        "recovered": sums.recovered,
        "retried": sums.retried,
        "stale": sums.stale,
        "problems": sums.problems,
    }
