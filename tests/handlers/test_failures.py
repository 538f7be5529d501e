"""Case 17: whatever an exception is, it becomes a bounded text that can be stored."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.runs import Failure, Reason
from workhorse.errors import (
    BoundaryLimitExceededError,
    BoundaryNotAwaitedError,
    CheckpointConflictError,
    ConfigurationError,
    DuplicateBoundaryError,
    LeaseLostError,
    NonRetryableError,
    StoreUnavailableError,
    UnstorableValueError,
    ValueTooLargeError,
    WaitConflictError,
    WaitLimitExceededError,
)
from workhorse.handlers.failures import MAX_FAILURE_BYTES, describe, reason_for
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tracebacks import fit, text_of


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - any of them
        return error
    raise AssertionError("nothing was raised")


def raised(error: Any) -> BaseException:
    def handler() -> None:
        raise error

    return raised_by(handler)


def described(error: object) -> Failure:
    """Describe, and check what holds for every description."""
    failure = describe(error)
    stored = (failure.error_type, failure.message, failure.traceback or "")
    for text in stored:
        assert type(text) is str
        assert "\0" not in text
        text.encode()  # no lone surrogates
    assert len(failure.message.encode()) + len(stored[2].encode()) <= MAX_FAILURE_BYTES
    assert len(failure.error_type) <= 300
    assert pickle.loads(pickle.dumps(failure)) == failure  # noqa: S301 - text, whatever the error was
    return failure


class OddError(Exception):
    """Needs two arguments, holds what cannot be pickled, and gives nothing away."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.callback = lambda: None


class TestNested:
    class InnerError(Exception):
        pass


# -- what an ordinary error looks like -----------------------------------------------------------


def test_case_17_type_message_and_traceback_are_text() -> None:
    def handler() -> None:
        secret = "hunter2"  # noqa: F841, S105 - a local variable
        raise OddError(7, "no stock")

    failure = described(raised_by(handler))

    assert failure.error_type == f"{__name__}.OddError"
    assert failure.message == "7: no stock"
    assert failure.traceback is not None
    lines = failure.traceback.split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{__file__}", line ' in lines[-3]
    assert lines[-3].endswith(", in handler")
    assert lines[-2] == '    raise OddError(7, "no stock")'
    assert lines[-1] == f"{__name__}.OddError: 7: no stock"


def test_case_17_local_variables_never_appear() -> None:
    def handler(secret_value: str) -> None:
        secret_valeu  # type: ignore[name-defined]  # noqa: B018, F821 - Python would suggest a name

    secret = "".join(["hunt", "er2"])
    failure = described(raised_by(lambda: handler(secret)))

    assert failure.traceback is not None
    assert secret not in failure.traceback
    assert "Did you mean" not in failure.traceback


def test_case_17_types_are_named_with_their_module() -> None:
    assert described(ValueError("x")).error_type == "builtins.ValueError"
    assert described(TestNested.InnerError()).error_type == f"{__name__}.TestNested.InnerError"
    assert described(ValueError("x")).traceback == "ValueError: x"
    assert described(ValueError()).traceback == "ValueError"


def test_case_17_causes_contexts_and_notes_are_shown_as_python_shows_them() -> None:
    def handler() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError as error:
            error.add_note("a note")
            raise TypeError("third")  # noqa: B904 - on purpose

    text = described(raised_by(handler)).traceback or ""

    parts = [
        "KeyError: 'first'",
        "The above exception was the direct cause of the following exception:",
        "ValueError: second\na note",
        "During handling of the above exception, another exception occurred:",
        "TypeError: third",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.endswith("TypeError: third")


def test_case_17_a_context_that_was_suppressed_stays_so() -> None:
    def handler() -> None:
        try:
            raise KeyError("hunter2")
        except KeyError:
            raise ValueError("second") from None

    assert "hunter2" not in (described(raised_by(handler)).traceback or "")


# -- errors that fight back ----------------------------------------------------------------------


class Hostile(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise SystemExit(3)


class Quitting(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):  # noqa: N818
    def __str__(self) -> str:
        return str(self)


class Lying(Exception):  # noqa: N818
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Text(str):
    __slots__ = ()

    def __getitem__(self, at: object) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def replace(self, *arguments: object) -> str:
        raise RuntimeError


class Dressed(Exception):  # noqa: N818
    def __str__(self) -> str:
        return Text("dressed up")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Hostile("x"), "[the message could not be read: str() raised RuntimeError]"),
        (Quitting("x"), "[the message could not be read: str() raised SystemExit]"),
        (Endless("x"), "[the message could not be read: str() raised RecursionError]"),
        (Lying("x"), "[the message could not be read: str() raised TypeError]"),
        (Dressed("x"), "dressed up"),
        (OddError(1, "x"), "1: x"),
        (KeyError(Hostile()), "[the message could not be read: str() raised SystemExit]"),
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (GeneratorExit(), ""),
        (StopIteration(5), "5"),
        (asyncio.CancelledError("stray"), "stray"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), None),
        (ValueError("a\0b\udc80c"), "a\\x00b\\udc80c"),
        (NonRetryableError, "<class 'workhorse.errors.NonRetryableError'>"),
        (Hostile, f"<class '{__name__}.Hostile'>"),
        ("not an error at all", "not an error at all"),
    ],
)
def test_case_17_no_error_is_too_odd_to_be_described(error: object, message: str | None) -> None:
    failure = described(error)
    if message is not None:
        assert failure.message == message
    if isinstance(error, BaseException):
        assert described(raised(error)).traceback


def test_case_17_an_error_that_holds_a_socket_is_described() -> None:
    with socket.socket() as held:
        error = OddError(1, "x")
        error.held = held  # type: ignore[attr-defined]
        assert described(raised(error)).message == "1: x"


class Property(Exception):  # noqa: N818
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise SystemExit

    @property
    def __context__(self) -> Any:  # type: ignore[override]
        return "not an exception"

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        return 5


class Masked(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        return 5


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__"):
            raise RuntimeError
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):  # noqa: N818
    pass


class Unclassed(Exception):  # noqa: N818
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit(3)


def test_case_17_attributes_that_lie_or_raise_are_not_believed() -> None:
    assert described(Property("x")).traceback == f"{__name__}.Property: x"
    assert (described(Masked("x", [ValueError()])).traceback or "").startswith(__name__)
    assert described(Nameless("x")).error_type.startswith("<class ")
    error = ValueError("x")
    error.__notes__ = "not a list"  # type: ignore[assignment]
    assert described(error).traceback == "ValueError: x"
    error.__notes__ = [Hostile(), "\0", 5]  # type: ignore[list-item]
    assert "str() raised" in (described(error).traceback or "")
    assert described(ValueError(Unclassed())).error_type == "builtins.ValueError"


def test_case_17_what_cannot_be_printed_at_all_is_still_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> Iterator[str]:
        raise MemoryError

    monkeypatch.setattr("workhorse.handlers.tracebacks._Printer.lines", broken)
    failure = described(ValueError("x"))
    assert failure.message == "x"
    assert failure.traceback == "[the traceback could not be read: MemoryError]"


def test_case_17_a_source_line_that_cannot_be_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> str:
        raise OSError

    monkeypatch.setattr("linecache.getline", broken)
    text = described(raised(ValueError("x"))).traceback or ""
    assert ", in handler\nValueError: x" in text


# -- errors without end --------------------------------------------------------------------------


def a_chain(length: int, link: str) -> BaseException:
    error: BaseException = ValueError("root")
    for number in range(length):
        following = ValueError(f"link {number}")
        setattr(following, link, error)
        error = following
    return error


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_case_17_a_chain_of_3_000_shows_its_root_and_its_end(link: str) -> None:
    text = described(a_chain(3_000, link)).traceback or ""

    assert text.startswith("ValueError: root\n")
    assert text.endswith("ValueError: link 2999")
    assert "2,971 exceptions of this chain are left out" in text
    assert text.count("ValueError") == 30


def test_case_17_a_chain_of_a_million_ends() -> None:
    error = a_chain(100_000, "__cause__")
    text = described(error).traceback or ""
    assert text.startswith("[... what led to this is left out ...]")
    assert text.endswith("link 99999")
    while error.__cause__ is not None:  # taking it apart from inside would be deep
        error, error.__cause__ = error.__cause__, None


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_case_17_a_cycle_ends(link: str) -> None:
    first, second = ValueError("first"), KeyError("second")
    setattr(first, link, second)
    setattr(second, link, first)
    alone = ValueError("alone")
    setattr(alone, link, alone)

    text = described(first).traceback or ""

    assert text.count("ValueError: first") == 1
    assert text.count("KeyError: 'second'") == 1
    assert (described(alone).traceback or "").count("alone") == 1
    first.__cause__ = first.__context__ = None


def test_case_17_a_group_shows_its_parts_with_their_own_causes() -> None:
    def part(number: int) -> Exception:
        cause = KeyError(f"cause {number}")
        error = ValueError(f"part {number}")
        error.__cause__ = cause
        return raised(error)  # type: ignore[return-value]

    inner = ExceptionGroup("inner", [part(1), part(2)])
    text = described(raised(ExceptionGroup("outer", [inner, part(3)]))).traceback or ""

    assert "ExceptionGroup: outer (2 sub-exceptions)" in text
    assert "  + 1 of 2\n  | ExceptionGroup: inner (2 sub-exceptions)" in text
    assert "  |   | KeyError: 'cause 2'" in text
    assert "  |   | ValueError: part 2" in text
    assert "  | ValueError: part 3" in text


def test_case_17_groups_nested_without_end_end() -> None:
    error: Exception = ValueError("root")
    for number in range(3_000):
        error = ExceptionGroup(f"group {number}", [error])

    text = described(error).traceback or ""

    assert "group 2999" in text
    assert "group 2991" in text
    assert "group 2990" not in text
    assert "1 parts of this group are left out" in text


def test_case_17_a_group_of_a_million_parts_shows_some() -> None:
    text = described(ExceptionGroup("wide", [ValueError(str(n)) for n in range(100_000)]))
    assert "99,901 parts of this group are left out" in (text.traceback or "")


def test_case_17_a_group_that_stands_in_its_own_cause_ends() -> None:
    part = ValueError("part")
    group = ExceptionGroup("group", [part, part])
    part.__cause__ = group

    text = described(group).traceback or ""

    assert text.count("ValueError: part") == 1
    part.__cause__ = None


def test_case_17_groups_and_chains_together_show_a_hundred_errors() -> None:
    parts: list[BaseException] = [a_chain(20, "__cause__") for _ in range(50)]
    text = described(BaseExceptionGroup("many", parts)).traceback or ""
    assert text.count("ValueError:") == 99
    assert "more exceptions are left out" in text


def test_case_17_a_deep_stack_keeps_both_ends() -> None:
    def outer() -> None:
        inner(0)

    def inner(depth: int) -> None:
        if depth == 400:
            raise ValueError("deep")
        inner(depth + 1)

    text = described(raised_by(outer)).traceback or ""

    assert "in outer" in text
    assert 'raise ValueError("deep")' in text
    assert "calls are left out" in text
    assert text.count("  File ") == 50


def test_case_17_endless_recursion_is_described() -> None:
    def forever() -> None:
        forever()

    failure = described(raised_by(forever))
    assert failure.error_type == "builtins.RecursionError"


def test_case_17_a_message_of_50_megabytes_keeps_both_ends_in_little_time_and_memory() -> None:
    error = raised(ValueError("head" + "é" * 50_000_000 + "tail"))

    tracemalloc.start()
    begun = time.process_time()
    failure = described(error)
    took = time.process_time() - begun
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert failure.message.startswith("head")
    assert failure.message.endswith("tail")
    assert "50,000,008 characters" in failure.message
    assert peak < 2_000_000
    assert took < 5


def test_case_17_a_long_chain_of_long_messages_is_bounded() -> None:
    error = ValueError("x" * 1_000_000)
    for _ in range(3_000):
        following = ValueError(error.args[0])
        following.__cause__ = error
        error = following
    assert (described(error).traceback or "").startswith("ValueError: xxx")


def test_case_17_long_names_files_and_lines_are_cut() -> None:
    kind = type("E" * 10_000, (Exception,), {})
    program = f"def {'f' * 10_000}():\n    raise error('{'m' * 100}')\n{'f' * 10_000}()"
    code = compile(program, "/" + "d" * 10_000, "exec")

    failure = described(raised_by(lambda: exec(code, {"error": kind})))  # noqa: S102

    assert len(failure.error_type) <= 300
    assert len(failure.traceback or "") < 5_000


def test_case_17_types_with_names_that_cannot_be_stored_are_described() -> None:
    kind = type("Odd", (Exception,), {"__module__": "a\0b\udc80"})
    assert described(kind("x")).error_type == "a\\x00b\\udc80.Odd"


# -- texts ---------------------------------------------------------------------------------------


@given(st.text(), st.integers(200, 1_000))
def test_a_text_that_fits_is_kept_and_one_that_does_not_keeps_both_ends(
    text: str, most: int
) -> None:
    text = text * 20
    shown = fit(text, most)
    assert len(shown.encode()) <= most
    assert "\0" not in shown
    clean = text.replace("\0", "\\x00").encode(errors="backslashreplace")
    if len(clean) <= most:
        assert shown == clean.decode()
    else:
        assert f"{len(text):,} characters" in shown


@given(st.text())
def test_the_text_of_an_error_is_its_message(text: str) -> None:
    assert text_of(ValueError(text)) == text


# -- whether it is tried again -------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        NonRetryableError("x"),
        type("Own", (NonRetryableError,), {})("x"),
        UnstorableValueError("x"),
        ValueTooLargeError("x", 2, 1),
        CheckpointConflictError("x"),
        DuplicateBoundaryError("x"),
        BoundaryNotAwaitedError("x"),
        WaitConflictError("x"),
        WaitLimitExceededError("x"),
        BoundaryLimitExceededError("x"),
        LookupError("x"),
        KeyError("a subclass of what the task names"),
        ExceptionGroup("x", [OSError(), ExceptionGroup("y", [NonRetryableError("x")])]),
        BaseExceptionGroup("x", [KeyboardInterrupt(), IndexError()]),
    ],
)
def test_case_17_what_ends_the_run_at_once(error: BaseException) -> None:
    task = TaskRegistry().register(lambda: None, "x", not_retryable=(LookupError,))
    assert reason_for(task, error) is Reason.NOT_RETRYABLE


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        OSError(),
        LeaseLostError("x"),
        StoreUnavailableError("x"),
        ConfigurationError("x"),
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        ExceptionGroup("x", [ValueError()]),
    ],
)
def test_case_17_what_may_be_tried_again(error: BaseException) -> None:
    task = TaskRegistry().register(lambda: None, "x", not_retryable=(LookupError,))
    assert reason_for(task, error) is Reason.ERROR
    assert reason_for(None, error) is Reason.ERROR


def test_the_cause_of_an_error_does_not_decide() -> None:
    error = ValueError("x")
    error.__cause__ = NonRetryableError("x")
    assert reason_for(None, error) is Reason.ERROR


def test_a_group_that_stands_in_itself_many_times_is_looked_at_once() -> None:
    """2 to the 50th paths lead to its leaf."""
    group: Exception = ValueError("leaf")
    for _ in range(50):
        group = ExceptionGroup("x", [group, group])
    assert reason_for(None, group) is Reason.ERROR
