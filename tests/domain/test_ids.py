"""Run ids are UUIDs of version 7, rise within a process and never meet."""

import os
import signal
import threading
import time
import uuid

import pytest

from workhorse.domain import ids
from workhorse.domain.ids import RunId, new_run_id, parse_run_id
from workhorse.errors import InvalidNameError


def test_an_id_is_a_uuid_of_version_7_in_its_canonical_form() -> None:
    run_id = new_run_id()

    parsed = uuid.UUID(run_id)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert str(parsed) == run_id


def test_an_id_begins_with_the_time_it_was_drawn() -> None:
    before = time.time_ns() // 1_000_000
    drawn = uuid.UUID(ids._Sequence().draw()).int >> 80
    after = time.time_ns() // 1_000_000

    assert before <= drawn <= after


def test_ids_rise_in_every_thread_and_none_comes_twice() -> None:
    drawn: list[list[RunId]] = [[] for _ in range(8)]
    go = threading.Barrier(len(drawn))

    def draw(mine: list[RunId]) -> None:
        go.wait()
        mine.extend(new_run_id() for _ in range(5_000))

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for mine in drawn:
        assert mine == sorted(mine)
    together = [run_id for mine in drawn for run_id in mine]
    assert len(set(together)) == len(together)
    assert all(uuid.UUID(run_id).version == 7 for run_id in together)


def test_ids_rise_while_the_clock_stands_still_or_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequence = ids._Sequence()
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    first = [sequence.draw() for _ in range(10_000)]  # more than a millisecond's counter holds
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    then = [sequence.draw() for _ in range(10)]

    together = [uuid.UUID(text).int for text in first + then]
    # Each part before the random digits rises; so do the ids.
    assert [one >> 64 for one in together] == sorted({one >> 64 for one in together})
    assert all(one >> 76 & 0xF == 7 for one in together)


def _drawn_in_a_child(count: int) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits for a lock which nobody holds any more
        os.write(writing, "\n".join(new_run_id() for _ in range(count)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        drawn = told.read().split()
    os.waitpid(child, 0)
    return drawn


# Python 3.12 warns when a process with threads forks; another test may have left one.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@forks
def test_a_child_process_draws_ids_of_its_own() -> None:
    new_run_id()
    first, second = _drawn_in_a_child(100), _drawn_in_a_child(100)
    mine: list[str] = [new_run_id() for _ in range(100)]

    assert len(set(first + second + mine)) == 300


@forks
def test_a_fork_while_an_id_is_drawn_does_not_block_the_child() -> None:
    # The parent's lock is held at the fork; the child gets a new one.
    with ids._sequence._lock:
        assert len(_drawn_in_a_child(1)) == 1


@pytest.mark.parametrize(
    "typed",
    [
        "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d",
        "0197C5A0-7B5E-7C7B-9F5D-1D4C3A1B2C3D",
        "0197c5a07b5e7c7b9f5d1d4c3a1b2c3d",
        "{0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d}",
        uuid.UUID("0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d"),
    ],
)
def test_an_id_is_read_in_whatever_form_it_was_typed(typed: object) -> None:
    assert parse_run_id(typed) == "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d"


@pytest.mark.parametrize("typed", ["", "7", "0197c5a0", "x" * 32, None, 7, "ü" * 10_000])
def test_what_is_no_uuid_is_refused_and_shown_in_bounds(typed: object) -> None:
    with pytest.raises(InvalidNameError, match="is not a UUID; `workhorse runs list`") as refused:
        parse_run_id(typed)

    assert len(str(refused.value)) < 200
