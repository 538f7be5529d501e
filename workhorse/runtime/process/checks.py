"""Makes sure that the database's schema fits before anything is claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from workhorse.errors import ConfigurationError, SchemaMismatchError, StoreUnavailableError
from workhorse.runtime.base.calls import StoreCalls
from workhorse.store.base.migrating import SchemaVersion, check_schema
from workhorse.store.lifecycle.claiming import claimed_under
from workhorse.telemetry import get_logger

if TYPE_CHECKING:
    from workhorse.store.base.database import Store

_log = get_logger("worker")


class SchemaCheck:
    """Checks a store's schema once; safe in threads.

    Args:
        passed: Called when it fits, once.
        failed: Called when it does not.
    """

    def __init__(
        self,
        store: Store,
        calls: StoreCalls,
        *,
        passed: Callable[[SchemaVersion], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._calls = calls
        self._passed = passed
        self._failed = failed
        self._lock = threading.Lock()
        self.done = False
        """Whether the schema fits."""

    def __call__(self) -> None:
        """Check, if it was not done.

        Raises:
            SchemaMismatchError: The schema does not fit this version.
            ConfigurationError: The tables belong to another environment.
            StoreUnavailableError: The database does not answer.
        """
        if not self.done:
            with self._lock:
                self._check()

    def _check(self) -> None:
        if self.done:
            return
        try:
            found = check_schema(self._store)
        except (SchemaMismatchError, ConfigurationError) as error:
            self._failed(error)
            raise
        self._passed(found)
        self.done = True

    def at_start(self) -> None:
        """Check, unless the database is away: a worker that starts waits for it.

        Raises:
            SchemaMismatchError: The schema does not fit this version.
            ConfigurationError: The tables belong to another environment.
        """
        try:
            self._look()
            self()  # it may also go away in between
        except StoreUnavailableError:
            _log.warning("the store is away; the worker starts and waits for it")

    def _look(self) -> None:
        try:
            self._calls.try_once(claimed_under, 0)
        except StoreUnavailableError:
            raise
        except Exception:  # noqa: BLE001 - it answered, and the check says what is wrong
            _log.debug("the store refused a look", exc_info=True)
