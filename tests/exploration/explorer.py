"""Goes through all interleavings, breadth first, so that what is found is as short as can be.

Each step is one transaction of the store on SQLite. That takes its write lock at BEGIN, so nothing
happens within a transaction of another: to run a step behind a savepoint, look, and roll it back is
what a commit would have shown. A world is made again by writing its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from tests.exploration.rules import held, judge, kind_of
from tests.exploration.steps import NEW, Answer, Bounds, Runner, Step, possible, reach, take
from tests.exploration.world import TABLES, TICK_MS, Rows, Seen, World, canonical, see
from workhorse.domain.instants import to_micros
from workhorse.errors import WorkhorseError
from workhorse.store.base.database import ManualClock, Store, Tx
from workhorse.store.producing.enqueueing import enqueue

P = ParamSpec("P")
T = TypeVar("T")

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_READ: Final = "select * from {}"
_CLEAR: Final = "delete from {}"
_WRITE: Final = "insert into {} values ({})"


class FoundError(AssertionError):
    """A rule is broken: how it came to that, and what is broken."""

    def __init__(self, path: list[Step], said: str) -> None:
        self.path = path
        self.said = said
        lines = [f"  {n}. {step}" for n, step in enumerate(path, 1)]
        super().__init__("\n".join([f"after {len(path)} steps: {said}", *lines]))


@dataclass(slots=True)
class Explored:
    """What an exploration has gone through."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    changes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often a kind of step has changed a state to another."""
    farthest: tuple[list[Step], Seen] | None = None
    """A way to one of the worlds that are farthest from the enqueue, and what is seen there."""

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, at most {self.depth} steps "
            "from the enqueue"
        )


class Table:
    """The rows that steps may change, on one connection of a store."""

    def __init__(self, store: Store, raw: Any) -> None:
        self.raw = raw
        self.columns: Mapping[str, tuple[str, ...]] = {
            name: tuple(row[1] for row in raw.execute(f"pragma table_info({name})"))
            for name in TABLES
        }

    def read(self) -> Rows:
        return tuple(tuple(self.raw.execute(_READ.format(name))) for name in TABLES)

    def write(self, rows: Rows) -> None:
        for name, found in zip(TABLES, rows, strict=True):
            self.raw.execute(_CLEAR.format(name))
            if found:
                marks = ", ".join("?" * len(self.columns[name]))
                self.raw.executemany(_WRITE.format(name, marks), found)

    def see(self, rows: Rows) -> Seen:
        return see(self.columns, rows, to_micros(EPOCH))


class Explorer:
    """Explores a store, which is empty and has a clock of its own."""

    def __init__(self, store: Store, clock: ManualClock, bounds: Bounds, workers: int = 2) -> None:
        self._store = store
        self._clock = clock
        self._bounds = bounds
        self._workers = workers

    # -- all ways --------------------------------------------------------------------------------

    def explore(self, depth: int | None = None) -> Explored:
        """Go through everything within the bounds, or up to so many steps from the enqueue.

        Raises:
            FoundError: A rule is broken.
        """
        explored = Explored()
        with self._store.engine.connect() as conn, conn.begin() as transaction:
            tx = Tx(conn, self._store)
            table = Table(self._store, conn.connection.driver_connection)

            def run(op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
                return op(tx, *args, **kwargs)

            try:
                self._go(run, table, explored, depth)
            finally:
                transaction.rollback()
        return explored

    def _go(self, run: Runner, table: Table, explored: Explored, depth: int | None) -> None:
        first = self._enqueue(run, table)
        parents: dict[Any, tuple[Any, Step] | None] = {}
        start = canonical(first, table.see(first.rows))
        parents[start] = None
        level = [(start, first)]
        while depth is None or explored.depth < depth:
            following: list[tuple[Any, World]] = []
            for key, world in level:
                for step, after, now, said in self._steps(run, table, world, first, explored):
                    if said:
                        raise FoundError([*_path(parents, key), step], said)
                    found = canonical(after, now)
                    if found not in parents:
                        parents[found] = (key, step)
                        following.append((found, after))
            explored.states += len(level)
            if not following:
                break
            explored.depth += 1
            level = following
        key, world = level[-1]
        explored.farthest = _path(parents, key), table.see(world.rows)

    def _steps(
        self, run: Runner, table: Table, world: World, first: World, explored: Explored
    ) -> Iterator[tuple[Step, World, Seen, str]]:
        self._set_clock(world.now)
        was = table.see(world.rows)
        with _undone(table.raw, "world"):
            table.write(world.rows)
            for step in possible(world, was, self._bounds):
                with _undone(table.raw, "step"):
                    after, now, said = self._step(run, table, world, was, step, first)
                explored.transitions += 1
                if was.state != now.state:
                    explored.changes[kind_of(step), was.state, now.state] += 1
                yield step, after, now, said

    def _step(
        self, run: Runner, table: Table, world: World, was: Seen, step: Step, first: World
    ) -> tuple[World, Seen, str]:
        if step.what == "the database is set back":
            after = _set_back(world, first)
            table.write(after.rows)
            now = table.see(after.rows)
            return after, now, judge(world, was, step, Answer(), after, now)
        try:
            answer, after = take(run, step, world)
        except (DBAPIError, WorkhorseError, AssertionError) as error:
            return world, was, f"{type(error).__name__}: {error}".partition("\n")[0]
        rows = table.read()
        now = was if rows == world.rows else table.see(rows)
        after = _told(world, replace(after, rows=rows), was, step, now)
        return after, now, judge(world, was, step, answer, after, now)

    # -- one way ---------------------------------------------------------------------------------

    def replay(self, path: list[Step]) -> Seen:
        """Let steps happen one after the other, each in a real transaction that is committed.

        Returns:
            What is seen at its end.

        Raises:
            FoundError: A rule is broken.
        """

        def rows() -> Rows:
            with self._store.engine.connect() as conn, conn.begin():
                return Table(self._store, conn.connection.driver_connection).read()

        with self._store.engine.connect() as conn, conn.begin():
            table = Table(self._store, conn.connection.driver_connection)
        self._set_clock(0)
        self._store.run(enqueue, [NEW], reach=reach)
        first = World(rows(), 0, (None,) * self._workers)
        world = first
        for n, step in enumerate(path, 1):
            self._set_clock(world.now)
            was = table.see(world.rows)
            if step.what == "the database is set back":
                with self._store.engine.connect() as conn, conn.begin():
                    Table(self._store, conn.connection.driver_connection).write(first.rows)
                answer, after = Answer(), _set_back(world, first)
            else:
                try:
                    answer, after = take(self._store.run, step, world)
                except (DBAPIError, WorkhorseError, AssertionError) as error:
                    said = f"{type(error).__name__}: {error}".partition("\n")[0]
                    raise FoundError(path[:n], said) from error
            after = replace(after, rows=rows())
            now = table.see(after.rows)
            after = _told(world, after, was, step, now)
            said = judge(world, was, step, answer, after, now)
            if said:
                raise FoundError(path[:n], said)
            world = after
        return table.see(world.rows)

    # -- worlds ----------------------------------------------------------------------------------

    def _enqueue(self, run: Runner, table: Table) -> World:
        self._set_clock(0)
        run(enqueue, [NEW], reach=reach)
        return World(table.read(), 0, (None,) * self._workers, fences=self._bounds.restores)

    def _set_clock(self, ticks: int) -> None:
        self._clock.advance(EPOCH + timedelta(milliseconds=ticks * TICK_MS) - self._clock.now)


def _told(before: World, after: World, was: Seen, step: Step, now: Seen) -> World:
    """Note who holds the lease now, and what was spent, from what was seen to happen."""
    if after.claims > before.claims:
        return replace(after, holder=after.claims)
    if was.state != "running" or now.state == "running":
        return after
    kind = kind_of(step)
    after = replace(
        after,
        holder=None,
        ended_by=before.holder if now.end is not None and held(before, step) else None,
    )
    if now.state == "succeeded":
        return after
    if kind in ("fail", "give up"):
        return replace(after, errors=after.errors + 1)
    if kind in ("recovery", "finishing"):
        return replace(after, recoveries=after.recoveries + 1)
    return after


def _set_back(world: World, first: World) -> World:
    return replace(
        world, rows=first.rows, restored_at=world.claims, holder=None, ended_by=None, errors=0,
        recoveries=0, looked=(),
    )  # fmt: skip


def _path(parents: Mapping[Any, tuple[Any, Step] | None], key: Any) -> list[Step]:
    path: list[Step] = []
    while (came := parents[key]) is not None:
        key, step = came
        path.append(step)
    return path[::-1]


@contextmanager
def _undone(raw: Any, name: str) -> Iterator[None]:
    raw.execute(f"savepoint {name}")
    try:
        yield
    finally:
        raw.execute(f"rollback to {name}")
        raw.execute(f"release {name}")
