"""The pytest plugin: fixtures for programs that use Workhorse. It is found by its entry point.

It costs who does not use it one small import: no part of Workhorse that opens anything is loaded
before a test asks for a fixture.

Source: docs/testing.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from workhorse.app import Workhorse
    from workhorse.store.base.clock import ManualClock
    from workhorse.testing.kit import Kit

_INI: Final = "workhorse_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting."""
    parser.addini(_INI, "The app that workhorse_kit is for: module:attribute")


@pytest.fixture
def workhorse_app(pytestconfig: pytest.Config) -> Workhorse:
    """The app that is tested: what the setting `workhorse_app` names; or override this fixture."""
    import pkgutil

    from workhorse.app import Workhorse

    named = str(pytestconfig.getini(_INI))
    if not named:
        raise pytest.UsageError(
            "which app is to be tested? Set it in pytest's configuration, e.g. "
            f"{_INI} = shop.jobs:app, or define a fixture workhorse_app that returns it"
        )
    try:
        found = pkgutil.resolve_name(named)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"{_INI} = {named}: {error}; it is module:attribute, e.g. shop.jobs:app"
        ) from error
    if not isinstance(found, Workhorse):
        raise pytest.UsageError(f"{_INI} = {named}: that is a {type(found).__name__}, no Workhorse")
    return found


@pytest.fixture
def workhorse_clock() -> ManualClock:
    """The clock of `workhorse_kit`: it begins about now, and stands still until it is moved."""
    from datetime import UTC, datetime

    from workhorse.store.base.clock import ManualClock

    return ManualClock(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def workhorse_kit(
    workhorse_app: Workhorse, workhorse_clock: ManualClock, request: pytest.FixtureRequest
) -> Iterator[Kit]:
    """A kit that is open for the test: the app on a throw-away database, by the clock."""
    from workhorse.testing.kit import Kit

    failed_before = request.session.testsfailed
    with Kit(workhorse_app, clock=workhorse_clock) as kit:
        yield kit
        if request.session.testsfailed > failed_before:
            kit.crashes.forget()  # the test's own failure says enough
