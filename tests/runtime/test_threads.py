"""Threads for plain functions: reused, never waited for."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable

from tests.support.eventually import eventually
from workhorse.runtime.execution.threads import Threads


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads("reused")
    names: list[str] = []
    for _ in range(5):
        done = threading.Event()
        threads.submit(_noting(names, done))
        assert done.wait(10)
        eventually(lambda: threads._idle == 1)

    assert set(names) == {"reused-1"}
    threads.close()
    eventually(lambda: "reused-1" not in {each.name for each in threading.enumerate()})


def _noting(names: list[str], done: threading.Event) -> Callable[[], None]:
    def note() -> None:
        names.append(threading.current_thread().name)
        done.set()

    return note


def test_each_call_has_a_thread_at_once() -> None:
    threads = Threads("many")
    barrier = threading.Barrier(8)
    done = threading.Semaphore(0)

    def together() -> None:
        barrier.wait(10)
        done.release()

    for _ in range(8):
        threads.submit(together)

    for _ in range(8):
        assert done.acquire(timeout=10)
    threads.close()


def test_a_call_that_raises_costs_no_thread() -> None:
    threads = Threads("raising")

    def fails() -> None:
        raise SystemExit(1)

    threads.submit(fails)
    eventually(lambda: threads._idle == 1)
    done = threading.Event()
    threads.submit(done.set)
    assert done.wait(10)
    threads.close()


def test_threads_are_daemons_and_take_work_after_a_close() -> None:
    threads = Threads("late")
    threads.close()
    daemon: list[bool] = []
    done = threading.Event()

    def note() -> None:
        daemon.append(threading.current_thread().daemon)
        done.set()

    threads.submit(note)
    assert done.wait(10)
    assert daemon == [True]


def test_a_copy_that_a_call_has_forked_does_nothing_else() -> None:
    """What waits for a thread is copied too, and would be done twice, under one lease."""
    threads = Threads("forking")
    reading, writing = os.pipe()
    forked: queue.Queue[int] = queue.Queue()

    def forks() -> None:
        child = os.fork()
        if child:
            forked.put(child)
            return
        os.close(reading)
        os.write(writing, b"forked")
        threads._work.append(lambda: os.write(writing, b", and went on"))

    threads.submit(forks)
    child = forked.get(timeout=10)
    os.close(writing)
    said = b""
    while data := os.read(reading, 100):
        said += data
        if b"went on" in said:  # it would wait for more
            os.kill(child, signal.SIGKILL)
    os.close(reading)
    os.waitpid(child, 0)
    threads.close()

    assert said == b"forked"
