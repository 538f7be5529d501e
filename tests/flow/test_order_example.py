"""The demo's orders, whose workers are killed with SIGKILL at every boundary, on both databases.

An order's worker dies at one boundary, or at each of them in turn: right after its commit, or right
before, when its effect has happened and is not stored. Another process takes over when the lease
has run out. The ledger, which the providers keep, judges.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.flow.orders import AFTER, BEFORE, EVERY, KILLS, QUEUE, Death
from tests.support.eventually import eventually
from tests.support.processes import Processes
from workhorse.app import Workhorse
from workhorse.cli.demo import shelf, shop
from workhorse.cli.demo.ledger import EFFECT, NAME, Ledger, Line
from workhorse.domain.boundaries import BoundaryKind, DeliveryResult
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.handlers.producing import RunHandle
from workhorse.store.operators import history, viewing

ROOT = Path(__file__).parents[2]
AT_ONCE = RetryPolicy(max_attempts=100, first=timedelta(0))
LOST = re.compile(r"run (\S+): its lease (?:ran out|is gone)")
"""What a worker says that lost a lease and is alive: the machine was too busy for its renewals."""
DELIVER = [
    "charge",
    "change of mind",
    "review",
    "ship",
    "welcome mail",
    "delivered",
    "rest before mail after a day",
    "mail after a day",
    "rest before mail after a week",
    "mail after a week",
    "rest before mail after a month",
    "mail after a month",
    "time to send it back",
]
COLLECT = [
    "charge",
    "change of mind",
    "pack",
    "ready mail",
    "collected",
    "rest before letter",
    "letter",
]
PASSED = {shop.deliver: DELIVER, shop.collect: COLLECT}


@dataclass
class Doomed:
    """An order, where its workers die, and what it passes on its way."""

    run: RunHandle[str]
    death: Death
    passes: list[str]

    @property
    def deaths(self) -> set[str]:
        return set(self.passes) if self.death.boundary == EVERY else {self.death.boundary}


@pytest.fixture
def app(database_url: str) -> Iterator[Workhorse]:
    """The shop's app, on this test's database."""
    twin = Workhorse(database_url=database_url, lane="polling", registry=shop.app.registry)
    with shop.app.replaced_by(twin):
        with twin.store.engine.begin() as connection:
            shelf.open_shelf(connection)
        yield twin
    twin.close()


def place(when: str) -> list[Doomed]:
    """Place an order for each boundary, and one for all boundaries in turn."""
    # Neither the card service nor the label printer has trouble with these.
    numbers = (number for number in range(1, 1_000) if number % 5 and number % 8 != 3)
    placed = []
    for task, passes in PASSED.items():
        for boundary in [*passes, EVERY] if when == AFTER else passes:
            order = shop.Order(next(numbers), "saddle", shop.LARGE_CENTS)
            run = task.enqueue(order, queue=QUEUE, retry=AT_ONCE)
            placed.append(Doomed(run, Death(when, boundary), passes))
    return placed


def answer_all(app: Workhorse) -> None:
    """Be the carrier, the customers and the operator: answer whatever is waited for."""
    for wait in app.admin.list_waits(limit=1_000):
        if wait.kind is BoundaryKind.SIGNAL:
            told = app.send_signal(wait.run_id, wait.name, "Ada", idempotency_key="told")
        elif wait.kind is BoundaryKind.HUMAN:
            told = app.complete_human_wait(wait.run_id, wait.name, True, by="Ada")
        else:
            continue
        assert told in (DeliveryResult.DELIVERED, DeliveryResult.KEPT)


@pytest.mark.parametrize("when", [AFTER, BEFORE])
def test_each_effect_whose_checkpoint_was_stored_is_done_once(
    app: Workhorse, processes: Processes, tmp_path: Path, when: str
) -> None:
    placed = place(when)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({each.run.id: each.death for each in placed}))
    environment = {
        "PYTHONPATH": str(ROOT),
        "WORKHORSE_DATABASE_URL": app.settings.database_url.get_secret_value(),
        "WORKHORSE_LANE": "polling",
    }
    program = processes.python("-m", "tests.flow.orders", plan, env=environment, cwd=tmp_path)

    def all_ended() -> bool:
        answer_all(app)
        assert program.exit_code is None, program.output()
        counts = app.store.run(viewing.counts)
        return sum(counts[state] for state in RunState if state.finished) == len(placed)

    eventually(all_ended, within=300, every=0.2, what="all orders have ended")
    program.kill()

    books = read_books(app, tmp_path, lost_alive=Counter(LOST.findall(program.output())))
    for each in placed:
        judge(app, each, books)
    assert not books.asked, "effects without a checkpoint"


@dataclass
class Books:
    """What was asked of providers, by run and stage; kills by run; what was taken; and complaints.

    `lost_alive` counts the leases that were lost while their worker was alive.
    """

    asked: dict[tuple[str, str], list[Line]]
    killed: dict[str, set[str]]
    taken: list[str]
    lost_alive: Counter[str]


def read_books(app: Workhorse, folder: Path, *, lost_alive: Counter[str]) -> Books:
    asked: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in Ledger(folder / NAME).lines():
        if line.event == EFFECT:
            asked[line.mark.run, line.stage].append(line)
    killed: dict[str, set[str]] = defaultdict(set)
    for note in (folder / KILLS).iterdir():
        run, _, boundary = note.name.partition(": ")
        killed[run].add(boundary)
    with app.store.engine.begin() as connection:
        return Books(asked, killed, shelf.taken(connection), lost_alive)


def judge(app: Workhorse, order: Doomed, books: Books) -> None:
    """Hold what the store says of an order against the ledger and the notes of its kills."""
    view = order.run.view()
    assert view.state is RunState.SUCCEEDED
    kinds = {row["name"]: row["kind"] for row in app.admin.export(view.id)["boundaries"]}
    assert list(kinds) == order.passes
    assert books.killed[view.id] == order.deaths

    # The commit of a wait gives the lease up: who is killed after it takes nothing along.
    held = {
        boundary
        for boundary in order.deaths
        if order.death.when == BEFORE or kinds[boundary] == BoundaryKind.CHECKPOINT
    }
    # Only the kills cost attempts: five sleeps, a signal and a decision were waited for in one.
    lost = app.store.run(history.attempts_of, view.id)
    assert {attempt.reason for attempt in lost} <= {Reason.LOST}
    assert view.attempt == 1 + len(lost)
    too_many = len(lost) - len(held)
    assert 0 <= too_many <= books.lost_alive[view.id]

    assert books.taken.count(view.id) == (shelf.STAGE in order.passes)
    for row in app.admin.list_checkpoints(view.id):
        if row.name == shelf.STAGE:
            continue
        *repeated, last = books.asked.pop((view.id, row.name))
        assert last.mark.fence == row.fence, "done under the lease that its checkpoint came with"
        assert {line.key for line in repeated} <= {last.key}
        assert {line.mark.fence for line in repeated} <= {attempt.fence for attempt in lost}
        known = order.death == Death(BEFORE, row.name)
        assert known <= len(repeated) <= known + too_many
