"""Handlers that run in processes of their own; those import it too, so it imports little.

Tests and handlers tell each other things by files, in a folder that is the payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from tests.support.eventually import eventually
from workhorse import waits
from workhorse.domain.missing import MISSING
from workhorse.errors import LeaseLostError, NonRetryableError
from workhorse.handlers.context import Context, current_context
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task

registry = TaskRegistry()

if (order := os.environ.get("TEST_AT_IMPORT")) is not None:
    # Only a process sees it: the worker has imported this module before.
    if order == "exit":
        os._exit(7)
    raise ImportError(order)


# -- values --------------------------------------------------------------------------------------


@registry.task("pid", executor="process")
def pid() -> int:
    return os.getpid()


@registry.task("echo", executor="process")
def echo(payload: Any) -> Any:
    return payload


@registry.task("repeats", executor="process")
def repeats(payload: int) -> str:
    return "x" * payload


@registry.task("facts", executor="process")
def facts(ctx: Context) -> dict[str, Any]:
    return {
        "run": [ctx.run.id, ctx.run.task, ctx.run.queue, [*ctx.run.tags]],
        "ids": [ctx.run.session, ctx.run.key],
        "times": [ctx.run.created_at.isoformat(), ctx.run.started_at.isoformat()],
        "attempt": [ctx.attempt, ctx.is_final_attempt],
        "fence": ctx.lease.fence,
        "token": ctx.lease.token,
        "queue_ms": ctx.queue_ms,
        "stops": [bool(ctx.stopping), bool(ctx.cancelled)],
        "current": current_context() is ctx,
        "main thread": threading.current_thread() is threading.main_thread(),
    }


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@registry.task("who", executor="process")
def who(payload: str) -> str:
    before = WHO.get()
    WHO.set(payload)
    return before


@registry.task("prints", executor="process")
def prints(payload: str) -> None:
    print(payload)


# -- boundaries ----------------------------------------------------------------------------------


@registry.task("child", executor="process")
def child(payload: int) -> int:
    return payload * 2


@registry.task("all kinds", executor="process")
def all_kinds(ctx: Context, folder: str) -> dict[str, Any]:
    """Comes to a boundary of each kind; what it does outside of them is noted in a file."""
    note(folder, "called", "x")
    seen: dict[str, Any] = {"missing": ctx.get_checkpoint("stage") is MISSING}
    seen["stage"] = ctx.checkpoint("stage", partial(stage, folder))
    seen["other"] = ctx.checkpoint("other", lambda: 5, input={"b": 1})
    seen["patched"] = ctx.patched("a patch")
    ctx.sleep("a rest", timedelta(hours=1))
    seen["signal"] = ctx.wait_for_signal("a signal")
    seen["early"] = ctx.get_wait("early")
    seen["human"] = ctx.wait_for_human("a human", {"why": "so"})
    reference = ctx.token("a token")
    Path(folder, "token").write_text(reference)
    seen["token"] = ctx.wait_for_token("for the token", reference)
    seen["child"] = ctx.child("a child", child, 4)
    seen["children"] = ctx.children("children", child, [1, 2, 3])
    first = ctx.wait_any({"one": waits.timer(timedelta(days=1)), "two": waits.signal()})
    seen["any"] = [first.name, first.value]
    ctx.progress({"at": "the end"})
    return seen


def stage(folder: str) -> dict[str, Any]:
    note(folder, "stage", "x")
    return {"a": [1, None]}


@registry.task("large values", executor="process")
def large_values(ctx: Context) -> int:
    values = [ctx.checkpoint(f"page {at}", partial(page, at)) for at in range(3)]
    ctx.sleep("a rest", timedelta(hours=1))
    return sum(len(value) for value in values)


def page(at: int) -> str:
    return str(at) * 200_000


@registry.task("conflict", executor="process")
def conflict(ctx: Context, payload: int) -> Any:
    ctx.checkpoint("stage", lambda: 1, input=ctx.attempt)
    raise ValueError("again")


@registry.task("transacts", executor="process")
def transacts(ctx: Context) -> None:
    ctx.transaction("books", lambda connection: None)


@registry.task("threads", executor="process")
def threads(ctx: Context) -> list[int]:
    results: list[int] = []

    def work(number: int) -> None:
        results.append(ctx.checkpoint(f"part {number}", lambda: number))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return sorted(results)


@registry.task("much progress", executor="process")
def much_progress(ctx: Context) -> None:
    for at in range(20_000):
        ctx.progress(at)


@registry.task("swallows", executor="process")
def swallows(ctx: Context) -> str:
    try:
        ctx.sleep("a rest", timedelta(hours=1))
    except BaseException:  # noqa: BLE001 - what it must not do
        return "went on"
    return "rested"


@registry.task("never ends at its wait", executor="process")
def never_ends_at_its_wait(ctx: Context, folder: str) -> None:
    try:
        ctx.sleep("a rest", timedelta(hours=1))
    finally:
        if ctx.get_wait("a rest") is MISSING:
            begun(folder)
            burn()


# -- ends ----------------------------------------------------------------------------------------


@registry.task("dies", executor="process")
def dies(ctx: Context, payload: dict[str, int]) -> str:
    if ctx.attempt > payload.get("times", 1):
        return "survived"
    if "signal" in payload:
        os.kill(os.getpid(), payload["signal"])
        burn()
    os._exit(payload["exit"])


@registry.task("closes its files", executor="process")
def closes_its_files() -> None:
    """What it did not open too, as programs do that become daemons."""
    os.closerange(3, 256)


@registry.task("becomes another program", executor="process")
def becomes_another_program() -> None:
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    os.execv(program[0], program)  # noqa: S606 - that is what it is for


@registry.task("babbles", executor="process")
def babbles() -> None:
    """Writes to its worker's socket what is no message."""
    for fd in range(3, 256):
        try:
            with socket.socket(fileno=os.dup(fd)) as line:
                line.sendall(b"\0\0\0\2{}")
        except OSError:
            continue
    burn()


@registry.task("leaves a copy", executor="process")
def leaves_a_copy(folder: str) -> None:
    """Dies, while a copy of its process lives on and holds all that it had open."""
    copy = os.fork()
    if copy == 0:
        try:
            eventually(lambda: Path(folder, "let go").exists(), within=60)
            Path(folder, "copy ended").touch()
        finally:
            os._exit(0)
    os._exit(4)


@registry.task("asks a program", executor="process")
def asks_a_program() -> str:
    """What a program that it starts does at Ctrl-C: it must not have learned to ignore it."""
    return subprocess.run(
        [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGTERM).name)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@registry.task("listens", executor="process")
def listens(ctx: Context, folder: str) -> None:
    begun(folder)
    ctx.cancelled.wait(60)
    note(folder, "cancelled", str(ctx.cancelled.reason))
    ctx.cancelled.raise_if_set()


@registry.task("comes to a boundary", executor="process")
def comes_to_a_boundary(ctx: Context, folder: str) -> None:
    begun(folder)
    ctx.cancelled.wait(60)
    try:
        ctx.checkpoint("late", lambda: note(folder, "late", "x"))
    except LeaseLostError:
        note(folder, "lost", "x")
        raise


@registry.task("ends", executor="process")
def ends(ctx: Context, folder: str) -> str:
    begun(folder)
    ctx.stopping.wait(60)
    return str(ctx.stopping.reason)


@registry.task("goes on without its boundary", executor="process")
def goes_on_without_its_boundary(ctx: Context, folder: str) -> str:
    begun(folder)
    ctx.stopping.wait(60)
    with contextlib.suppress(BaseException):  # what it must not do
        return ctx.checkpoint("charge", lambda: "charged")
    return "went on"


@registry.task("deaf", executor="process")
def deaf(folder: str) -> None:
    begun(folder)
    burn()


@registry.task("deaf on the loop")
async def deaf_on_the_loop(folder: str) -> None:
    begun(folder)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)


@registry.task("leaves a thread", executor="process")
def leaves_a_thread(ctx: Context, folder: str) -> int:
    """Returns while a thread of its own is in the operation of a checkpoint."""

    def stay_behind() -> None:
        try:
            ctx.checkpoint("left", partial(goes_when_let.handler, folder))
        except BaseException as error:  # noqa: BLE001 - the test looks at what it is
            note(folder, "thread", type(error).__name__)
        else:
            note(folder, "thread", "stored")

    threading.Thread(target=stay_behind, daemon=True).start()
    eventually(lambda: Path(folder, "begun").exists(), within=60)
    return os.getpid()


@registry.task("lets the thread go", executor="process")
def lets_the_thread_go(folder: str) -> int:
    Path(folder, "let go").touch()
    with contextlib.suppress(AssertionError):  # what it did is seen in the store
        eventually(lambda: Path(folder, "thread").exists(), within=5)
    return os.getpid()


@registry.task("dies at the next", executor="process")
def dies_at_the_next() -> int:
    """Leaves a process that dies when it is handed its next run, before it calls a handler."""
    from workhorse.runtime.execution.processes import child as process

    process.Process._call = lambda self, work: os._exit(9)  # type: ignore[method-assign]
    return os.getpid()


@registry.task("holds the interpreter", executor="process")
def holds_the_interpreter(folder: str) -> None:
    """In C, so that no other thread of its process runs: not the one that hears the worker."""
    begun(folder)
    re.match("(a+)+b", "a" * 60)


@registry.task("goes when let", executor="process")
def goes_when_let(folder: str) -> int:
    begun(folder)
    eventually(lambda: Path(folder, "let go").exists(), within=60)
    return os.getpid()


@registry.task("light")
def light() -> str:
    return "done"


# -- errors --------------------------------------------------------------------------------------


class NeedsTwoError(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one}: {two}")


class Hostile(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise SystemExit(3)


def holding(held: object) -> BaseException:
    error = ValueError("holds something")
    error.held = held  # type: ignore[attr-defined]
    return error


@cache
def an_open_socket() -> socket.socket:
    return socket.socket()


def deep() -> BaseException:
    error = ValueError("the root")
    for number in range(3_000):
        following = ValueError(f"caused {number}")
        following.__cause__ = error
        error = following
    return error


def circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    return one


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "second argument": (lambda: NeedsTwoError(1, 2), f"{__name__}.NeedsTwoError"),
    "lambda": (lambda: holding(lambda: None), "builtins.ValueError"),
    "socket": (lambda: holding(an_open_socket()), "builtins.ValueError"),
    "lock": (lambda: holding(threading.Lock()), "builtins.ValueError"),
    "str and repr raise": (Hostile, f"{__name__}.Hostile"),
    "3,000 causes": (deep, "builtins.ValueError"),
    "circle": (circle, "builtins.ValueError"),
    "group": (
        lambda: BaseExceptionGroup("several", [ValueError("a"), Hostile()]),
        "builtins.ExceptionGroup",
    ),
    "class": (lambda: LookupError, "builtins.LookupError"),
    "no error at all": (lambda: 5, "builtins.TypeError"),
    "exit": (lambda: SystemExit(3), "builtins.SystemExit"),
    "interrupt": (KeyboardInterrupt, "builtins.KeyboardInterrupt"),
    "generator": (GeneratorExit, "builtins.GeneratorExit"),
    "stop": (lambda: StopIteration(5), "builtins.StopIteration"),
    "surrogate": (lambda: ValueError("a\0b\udc80c"), "builtins.ValueError"),
    "recursion": (lambda: RecursionError("too deep"), "builtins.RecursionError"),
}
"""What a handler raises, and the type that is stored."""


def raises(payload: str) -> NoReturn:
    raise ERRORS[payload][0]()


raises_in_process: Task[str, Any] = registry.task("raises", executor="process")(raises)
raises_in_thread: Task[str, Any] = registry.task("raises in a thread")(raises)


@registry.task("fails for good", executor="process", not_retryable=[NeedsTwoError])
def fails_for_good(payload: str) -> None:
    raise NeedsTwoError(1, 2) if payload == "named" else NonRetryableError("no")


# -- telling -------------------------------------------------------------------------------------


def note(folder: str, name: str, text: str) -> None:
    """Append a line to a file."""
    with Path(folder, name).open("a") as file:
        file.write(f"{text}\n")


def begun(folder: str) -> None:
    """Say that the handler was called, and in which process."""
    partial = Path(folder, "begun.new")
    partial.write_text(str(os.getpid()))
    partial.rename(Path(folder, "begun"))


def burn() -> NoReturn:
    """Keep a core busy; the test ends the process, or the time does."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sum(range(500))
    os._exit(99)
