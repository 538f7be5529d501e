"""Enqueues of many callers at once share a commit, and a send.

Nothing waits for a timer: while one commit is under way the next batch gathers, so batches grow
with the load, and a caller on his own waits for nobody. Each caller waits for the commit of his own
run and gets its own answer; an error of one is nobody else's.

Source: docs/adr/0018-shared-commits.md
"""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from workhorse.client.background import Background
from workhorse.client.publishing import Publisher
from workhorse.domain.hints import Hint
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.errors import ConfigurationError, SchemaMismatchError, StoreUnavailableError
from workhorse.store.producing.idempotency import KeysHeldError

MOST_RUNS: Final = 1_000
MOST_CHARS: Final = 8 * 1024 * 1024
IDLE_S: Final = 5.0

_EVERYBODYS = (StoreUnavailableError, SchemaMismatchError, ConfigurationError)
"""Errors that are no single run's: each caller gets one."""


class StoreRuns(Protocol):
    """What `Client.store_runs` is."""

    def __call__(
        self, runs: Sequence[NewRun], *, patient: bool = True
    ) -> tuple[list[Enqueued], list[Hint]]:
        """Insert runs in one transaction; return the answers and the wakeups that must follow."""
        ...


class SharedCommits:
    """Stores runs of concurrent callers together, on one thread. Safe in threads.

    Args:
        store_runs: Inserts runs, see `Client.store_runs`.
        publisher: Sends wakeups.
        background: Where a run of an async caller is stored that no batch can take.
        idle_s: How long the thread rests before it ends; the next caller starts another.
    """

    def __init__(
        self,
        store_runs: StoreRuns,
        publisher: Publisher,
        background: Background,
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        self._store_runs = store_runs
        self._publisher = publisher
        self._background = background
        self._idle_s = idle_s
        self.abandon()

    @property
    def waiting(self) -> int:
        """How many callers wait for a commit that has not begun."""
        return self._committer.waiting

    def enqueue(self, run: NewRun) -> Enqueued:
        """Store a run; returns when it is committed and its wakeup was sent.

        Raises: As `Client.store_runs`.
        """
        if not self._is_alone():
            caller = _Thread(run)
            self._admit(caller)
            caller.wait()
            if (answer := caller.outcome()) is not None:
                return answer
        done, hints = self._store_runs([run])
        self._publisher.publish(hints)
        return done[0]

    async def enqueue_async(self, run: NewRun) -> Enqueued:
        """As `enqueue`, without blocking the event loop, and without a thread of the caller's own.

        A caller that is cancelled while it waits may have its run stored all the same.
        """
        if not self._is_alone():
            caller = _Task(run)
            self._admit(caller)
            await caller.told
            if (answer := caller.outcome()) is not None:
                return answer
        done, hints = await self._background.call(self._store_runs, [run])
        await self._publisher.publish_async(hints)
        return done[0]

    def close(self) -> None:
        """Commit what waits, and end the thread; a later caller starts another."""
        if not self._is_alone():
            self._committer.close()

    def abandon(self) -> None:
        """Begin anew in a process that was forked: the thread, and who waits, are the parent's."""
        self._committer = _Committer(self._commit, self._idle_s)

    def _is_alone(self) -> bool:
        # On the thread itself a lane or a log handler of the program may get here, and a destructor
        # when the interpreter has stopped that thread: nobody else would ever answer it.
        return self._committer.is_here() or sys.is_finalizing()

    def _admit(self, caller: _Caller) -> None:
        while not (committer := self._committer).admit(caller):
            # It was closed; two callers may both get here, and one of theirs stays.
            if self._committer is committer:
                self._committer = _Committer(self._commit, self._idle_s)

    # -- on the thread ---------------------------------------------------------------------------

    def _commit(self, callers: Sequence[_Caller]) -> None:
        """Store the runs of some callers, and answer each of them."""
        try:
            done, hints = self._store_runs([caller.run for caller in callers], patient=False)
        except KeysHeldError:
            # Who waits for another's transaction does so by himself; the others go on.
            _tell([caller for caller in callers if caller.run.key is not None])
            if others := [caller for caller in callers if caller.run.key is None]:
                self._commit(others)
            return
        except _EVERYBODYS as error:
            for caller in callers:
                caller.answer = copy.copy(error)  # a traceback grows where an error is raised
                caller.answer.__cause__ = error
        except Exception as error:  # noqa: BLE001 - it is raised where its run was enqueued
            if len(callers) > 1:
                # In their order: of two with one key the first stands, and the second conflicts.
                half = len(callers) // 2
                self._commit(callers[:half])
                self._commit(callers[half:])
                return
            callers[0].answer = error
        else:
            self._publisher.publish(hints)
            for caller, answer in zip(callers, done, strict=True):
                caller.answer = answer
        _tell(callers)


class _Committer:
    """A queue of callers, and the thread that works it off, which lives while there is work.

    Args:
        commit: Stores the runs of some callers and answers them.
        idle_s: How long the thread waits for the next caller.
    """

    def __init__(self, commit: Callable[[Sequence[_Caller]], None], idle_s: float) -> None:
        self._commit = commit
        self._idle_s = idle_s
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[_Caller] = deque()
        self._serving = False
        self._resting = False
        self._closed = False
        self._thread = 0

    def is_here(self) -> bool:
        """Say whether the thread that calls is the one that works the queue off."""
        return threading.get_ident() == self._thread

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admit(self, caller: _Caller) -> bool:
        """Take a caller in, who is answered in any case; False when this is closed."""
        start = False
        try:
            with self._changed:
                if self._closed:
                    return False
                self._waiting.append(caller)
                start = not self._serving
                self._serving = True
                if self._resting:
                    self._changed.notify()
            if start:
                threading.Thread(target=self._serve, name="workhorse-commits", daemon=True).start()
        except BaseException as error:
            if start:
                self._give_up(())
            if not isinstance(error, RuntimeError):  # an interrupt, which is this caller's
                raise
            # No thread can be started: the process has too many, or is about to end.
        return True

    def close(self) -> None:
        """Take nobody in any more; wait until all are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._serving)

    def _serve(self) -> None:
        batch: Sequence[_Caller] = ()
        self._thread = threading.get_ident()
        try:
            while self._wait():
                batch = self._gather()
                if batch:
                    self._commit(batch)
        except BaseException:
            self._give_up(batch)
            raise

    def _wait(self) -> bool:
        """Wait for callers; False where the thread is to end, and counts as ended."""
        with self._changed:
            self._resting = True
            self._changed.wait_for(lambda: self._waiting or self._closed, self._idle_s)
            self._resting = False
            self._serving = bool(self._waiting)
            if not self._serving:
                self._thread = 0  # another may get its number
                self._changed.notify_all()
            return self._serving

    def _gather(self) -> list[_Caller]:
        # Callers of the last commit are on their way back: as long as each turn of theirs brings
        # more, they are let in: fewer commits for many threads, and a caller alone loses nothing.
        seen = 0
        while seen < (seen := len(self._waiting)) < MOST_RUNS:
            time.sleep(0)
        batch: list[_Caller] = []
        chars = 0
        with self._changed:
            while self._waiting and len(batch) < MOST_RUNS and chars < MOST_CHARS:
                caller = self._waiting.popleft()
                if not caller.gone:
                    batch.append(caller)
                    chars += len(caller.run.payload)
        return batch

    def _give_up(self, batch: Sequence[_Caller]) -> None:
        """Send away who waits, each to store his run by himself: there is no thread for them."""
        with self._changed:
            left = [*batch, *self._waiting]
            self._waiting.clear()
            self._serving = False
            self._thread = 0
            self._changed.notify_all()
        _tell(left)


class _Caller(ABC):
    """Somebody who waits for the commit of a run.

    `answer` is what became of it, or the error to raise; None sends him away to store it himself.
    """

    __slots__ = ("answer", "run")

    def __init__(self, run: NewRun) -> None:
        self.run = run
        self.answer: Enqueued | Exception | None = None

    @property
    @abstractmethod
    def gone(self) -> bool:
        """Whether he waits no longer, and his run need not be stored."""

    def outcome(self) -> Enqueued | None:
        """Return the answer, or raise the error."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class _Thread(_Caller):
    """A caller that blocks its thread."""

    __slots__ = ("_told",)
    gone = False

    def __init__(self, run: NewRun) -> None:
        super().__init__(run)
        self._told = threading.Lock()  # a fraction of what an event or a future costs
        self._told.acquire()

    def wait(self) -> None:
        self._told.acquire()

    def tell(self) -> None:
        with suppress(RuntimeError):  # told before
            self._told.release()


class _Task(_Caller):
    """A caller on an event loop."""

    __slots__ = ("loop", "told")

    def __init__(self, run: NewRun) -> None:
        super().__init__(run)
        self.loop = asyncio.get_running_loop()
        self.told: asyncio.Future[None] = self.loop.create_future()

    @property
    def gone(self) -> bool:
        return self.told.cancelled()


def _tell(callers: Sequence[_Caller]) -> None:
    """Let callers go on; a loop is called once for all of its own."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for caller in callers:
        if isinstance(caller, _Thread):
            caller.tell()
        elif isinstance(caller, _Task):
            loops.setdefault(caller.loop, []).append(caller.told)
    for loop, told in loops.items():
        with suppress(RuntimeError):  # it is closed, and nobody waits there
            loop.call_soon_threadsafe(_resolve, told)


def _resolve(told: Sequence[asyncio.Future[None]]) -> None:
    for future in told:
        if not future.done():
            future.set_result(None)
