"""The thread that commits for many callers: how it lives and ends, and how a batch is cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.eventually import eventually
from workhorse.client import sharing
from workhorse.client.background import Background
from workhorse.client.publishing import Publisher
from workhorse.client.sharing import SharedCommits
from workhorse.domain.hints import Hint
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.errors import StoreUnavailableError
from workhorse.telemetry import Counters

Share = Callable[..., SharedCommits]


class Runs:
    """Stands for the client: keeps what it is handed, and fails as it is told."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: list[str] = []
        self.refuse: Callable[[Sequence[NewRun], bool], BaseException | None] = (
            lambda _runs, _patient: None
        )

    def __call__(
        self, runs: Sequence[NewRun], *, patient: bool = True
    ) -> tuple[list[Enqueued], list[Hint]]:
        self.batches.append([run.payload for run in runs])
        self.threads.append(threading.current_thread().name)
        error = self.refuse(runs, patient)
        if error is not None:
            raise error
        return [Enqueued(run.id, run.queue, created=True) for run in runs], []


def a_run(payload: str) -> NewRun:
    return NewRun(id=new_run_id(), task="t", queue="q", payload=payload)


@pytest.fixture
def runs() -> Runs:
    """What stores."""
    return Runs()


@pytest.fixture
def share(runs: Runs) -> Iterator[Share]:
    """Makes what is tested."""
    background = Background()
    made: list[SharedCommits] = []

    def make(**options: Any) -> SharedCommits:
        publisher = Publisher(lambda: pytest.fail("there is nothing to send"), Counters())
        made.append(SharedCommits(runs, publisher, background, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    background.close()


def test_the_thread_ends_when_nobody_comes(share: Share, runs: Runs) -> None:
    """And the next caller starts another."""
    shared = share(idle_s=0.0)
    for number in range(3):
        assert shared.enqueue(a_run(str(number))).created
        eventually(lambda: not shared._committer._serving)

    assert runs.batches == [["0"], ["1"], ["2"]]
    assert set(runs.threads) == {"workhorse-commits"}
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "workhorse-commits"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [SystemExit(), KeyboardInterrupt()], ids=repr)
def test_a_thread_that_dies_leaves_nobody_waiting(
    share: Share, runs: Runs, end: BaseException
) -> None:
    """Each of its callers stores his run by himself."""
    shared = share()
    runs.refuse = lambda _runs, patient: None if patient else end

    assert shared.enqueue(a_run("1")).created
    assert asyncio.run(shared.enqueue_async(a_run("2"))).created

    assert runs.batches == [["1"], ["1"], ["2"], ["2"]]
    assert runs.threads[1] == threading.current_thread().name


def test_who_enqueues_on_the_thread_itself_does_not_wait_for_it(share: Share, runs: Runs) -> None:
    """A log handler, say, that is told of a wakeup which was not sent."""
    shared = share()

    def enqueue_too(batch: Sequence[NewRun], _patient: bool) -> None:
        if batch[0].payload == "1":
            assert shared.enqueue(a_run("from within")).created

    runs.refuse = enqueue_too
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shared.enqueue, a_run("1")).result(10).created

    assert runs.batches == [["1"], ["from within"]]
    assert set(runs.threads) == {"workhorse-commits"}


def test_who_enqueues_there_on_a_loop_does_not_wait_for_it_either(share: Share, runs: Runs) -> None:
    """Nor who closes there."""
    shared = share()

    def enqueue_too(batch: Sequence[NewRun], _patient: bool) -> None:
        if batch[0].payload == "1":
            within = shared.enqueue_async(a_run("from within"))
            assert asyncio.run(asyncio.wait_for(within, 10)).created
            shared.close()

    runs.refuse = enqueue_too
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shared.enqueue, a_run("1")).result(20).created

    assert runs.batches == [["1"], ["from within"]]


def test_where_no_thread_can_be_started_each_stores_his_own(
    share: Share, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has too many, or is about to end."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shared = share()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for number in range(2):
        assert shared.enqueue(a_run(str(number))).created

    assert runs.threads == [threading.current_thread().name] * 2


def test_an_interrupt_while_the_thread_starts_is_the_callers(
    share: Share, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next caller starts another."""

    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    shared = share()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shared.enqueue(a_run("1"))

    assert shared.enqueue(a_run("2")).created
    assert runs.batches == [["2"]]


def _until_waiting(shared: SharedCommits, count: int) -> None:
    eventually(lambda: shared.waiting == count)


def test_a_batch_is_halved_until_the_guilty_stand_alone(share: Share, runs: Runs) -> None:
    """In its order, and nobody innocent is asked for twice more than it takes."""
    go = threading.Event()

    def refuse(batch: Sequence[NewRun], _patient: bool) -> BaseException | None:
        go.wait(10)
        bad = [run.payload for run in batch if run.payload in ("2", "5")]
        return ValueError(bad[0]) if bad else None

    runs.refuse = refuse
    shared = share()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(shared.enqueue, a_run("first"))
        eventually(lambda: runs.batches)
        futures = []
        for number in range(8):
            futures.append(threads.submit(shared.enqueue, a_run(str(number))))
            _until_waiting(shared, number + 1)
        go.set()
        errors = [future.exception(10) for future in futures]
        assert first.result(10).created

    assert [str(error) if error else None for error in errors] == [
        None, None, "2", None, None, "5", None, None,
    ]  # fmt: skip
    assert runs.batches[1:] == [
        list("01234567"), list("0123"), list("01"), list("23"), ["2"], ["3"],
        list("4567"), list("45"), ["4"], ["5"], list("67"),
    ]  # fmt: skip


def test_a_batch_is_bounded_by_runs_and_by_size(
    share: Share, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is more comes in the next."""
    monkeypatch.setattr(sharing, "MOST_RUNS", 3)
    monkeypatch.setattr(sharing, "MOST_CHARS", 10)
    shared = share()
    given = ["1", "2", "3", "4", "x" * 9, "y", "z"]

    async def main() -> None:
        await asyncio.gather(*(shared.enqueue_async(a_run(text)) for text in given))

    asyncio.run(main())

    assert [text for batch in runs.batches for text in batch] == given
    assert max(map(len, runs.batches)) <= 3
    assert all(sum(map(len, batch[:-1])) < 10 for batch in runs.batches)


def test_an_error_of_everybody_is_copied_whole(share: Share, runs: Runs) -> None:
    """Its class, its text and its notes; the first one is its cause."""
    error = StoreUnavailableError("gone")
    error.add_note("a note")
    runs.refuse = lambda _runs, _patient: error
    with pytest.raises(StoreUnavailableError) as raised:
        share().enqueue(a_run("1"))

    assert raised.value is not error
    assert (type(raised.value), str(raised.value)) == (StoreUnavailableError, "gone")
    assert raised.value.__notes__ == ["a note"]
    assert raised.value.__cause__ is error
