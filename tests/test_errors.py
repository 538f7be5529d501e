"""Errors: one base, the built-in kind that a caller would catch, and safe to send on."""

import inspect
import pickle

import pytest

from workhorse import errors
from workhorse.errors import (
    ChildFailedError,
    RunFailedError,
    UnstorableValueError,
    ValueTooLargeError,
    WorkhorseError,
)

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, WorkhorseError)
]


def an_error(kind: type[WorkhorseError]) -> WorkhorseError:
    if kind is ValueTooLargeError:
        return ValueTooLargeError("result of task 'mail'", 70_000, 65_536)
    if kind is RunFailedError:
        return RunFailedError("it failed", reason="error", error_type="E", error_message="m")
    if kind is ChildFailedError:
        return ChildFailedError(
            "it failed", run_id="1", reason="error", error_type="E", error_message="m"
        )
    if kind is UnstorableValueError:
        return UnstorableValueError("payload: $.a is a set", path="$.a")
    return kind("what happened")


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_crosses_to_another_process_whole(kind: type[WorkhorseError]) -> None:
    error = an_error(kind)

    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_is_documented(kind: type[WorkhorseError]) -> None:
    assert kind.__doc__


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("InvalidNameError", ValueError),
        ("InvalidInstantError", ValueError),
        ("UnstorableValueError", ValueError),
        ("ValueTooLargeError", ValueError),
        ("UnknownTaskError", LookupError),
        ("RunNotFoundError", LookupError),
        ("TokenNotFoundError", LookupError),
        ("ResultTimeoutError", TimeoutError),
        ("WaitTimeoutError", TimeoutError),
        ("TransactionTimeoutError", TimeoutError),
    ],
)
def test_an_error_is_also_of_the_built_in_kind(name: str, kind: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), kind)


def test_a_value_that_is_too_large_says_what_how_large_and_what_to_do() -> None:
    assert str(ValueTooLargeError("result of task 'mail'", 70_000, 65_536)) == (
        "result of task 'mail' is 70,000 bytes of JSON and may be 65,536 at most; nothing was "
        "stored. Keep the value where it belongs (an object store, a table) and pass its key "
        "instead"
    )
