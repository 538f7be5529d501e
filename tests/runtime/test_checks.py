"""A worker that starts waits for a database that is away, whenever it went."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.rig import Rig
from workhorse.errors import StoreUnavailableError
from workhorse.runtime.process.checks import SchemaCheck
from workhorse.store.base.migrating import SchemaVersion, check_schema

CHECK = "workhorse.runtime.process.checks.check_schema"


def fail(error: Exception) -> None:
    raise AssertionError(error)


def away(*_: Any) -> Any:
    raise StoreUnavailableError("it did not answer")


@pytest.mark.parametrize("when", ["before the look", "between look and check"])
def test_a_database_that_goes_away_at_the_start_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    passed: list[SchemaVersion] = []
    calls = rig.worker()._calls
    check = SchemaCheck(rig.store, calls, passed=passed.append, failed=fail)
    with monkeypatch.context() as patched:
        patched.setattr(CHECK, away)
        if when == "before the look":
            patched.setattr(calls, "try_once", away)
        check.at_start()
    done_while_away = check.done
    check()

    assert not done_while_away
    assert check.done
    assert passed == [check_schema(rig.store)]
