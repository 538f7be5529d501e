"""What an app opens when it is first needed: the store and the lane.

Source: docs/design.md, section 5; docs/cases.md, case 13.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Final

from workhorse.client.discovery import open_lane, open_secrets
from workhorse.errors import StoreUnavailableError
from workhorse.ports import Bells, Lane, LaneContext
from workhorse.settings import Settings
from workhorse.store.base.credentials import Credentials
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import check_schema
from workhorse.store.fleet.notifying import bells_of
from workhorse.telemetry import Counters

CONNECTIONS: Final = 3
"""The most connections of producers and operators in a process, and of each worker, which has one
more for its heartbeat."""

_inherited: list[object] = []


class Resources:
    """Opens the store and the lane once, whoever asks first; safe in threads.

    Args:
        settings: Where they are.
        lane: A lane that is the caller's own, which is not closed here.
        clock: Stands for the database's clock, for tests.
        counters: For the lane.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        lane: Lane | None,
        clock: ManualClock | None,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._given_lane = lane
        self._clock = clock
        self._counters = counters
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._checked: Store | None = None
        self._lane: Lane | None = None
        self._siblings: weakref.WeakSet[Store] = weakref.WeakSet()

    @property
    def lane_is_open(self) -> bool:
        """Whether anybody has asked for the lane."""
        return self._lane is not None

    def store(self) -> Store:
        """Return the store, whatever its schema.

        Raises:
            ConfigurationError: The URL names no database that Workhorse can use.
        """
        store = self._store
        if store is None:
            with self._lock:
                store = self._store
                if store is None:
                    store = self._store = Store.open(
                        self._settings.database_url.get_secret_value(),
                        schema=self._settings.scoped_schema,
                        environment=self._settings.environment,
                        clock=self._clock,
                        connections=CONNECTIONS,
                        pooler=self._settings.pooler,
                        credentials=self._credentials(),
                    )
        return store

    def checked_store(self) -> Store:
        """Return the store once its schema has been found to fit.

        Raises:
            SchemaMismatchError: It does not.
            StoreUnavailableError: The database does not answer.
        """
        store = self._checked
        if store is None:
            with self._lock:
                store = self._checked
                if store is None:
                    store = self.store()
                    check_schema(store)  # again at the next use where it fails
                    self._checked = store
        return store

    def expected_store(self) -> Store:
        """Return the store for what waits for a database that does not answer yet.

        Where it answers, its schema fits; otherwise the caller checks that later.

        Raises:
            SchemaMismatchError: The schema does not fit.
        """
        with suppress(StoreUnavailableError):
            return self.checked_store()
        return self.store()

    def sibling_store(self) -> Store:
        """Return an `expected_store` with connections of its own, closed with the others at last.

        Raises:
            SchemaMismatchError: The schema does not fit.
        """
        with self._lock:
            store = self.store().sibling(connections=CONNECTIONS)
            self._siblings.add(store)
            if self._checked is None:
                # Over a connection that the sibling goes on to use: one of the other store's would
                # stay open, idle, in each process that is only a worker.
                try:
                    check_schema(store)
                    self._checked = self.store()
                except StoreUnavailableError:
                    pass
                except BaseException:
                    store.close()
                    raise
        return store

    def unchecked_sibling(self) -> Store:
        """Return a store with connections of its own, whatever its schema; none is made yet."""
        with self._lock:
            store = self.store().sibling(connections=CONNECTIONS)
            self._siblings.add(store)
        return store

    def lane(self) -> Lane:
        """Return the lane.

        Raises:
            ConfigurationError: No lane of that name is installed, or a setting of it is wrong.
        """
        lane = self._lane
        if lane is None:
            with self._lock:
                lane = self._lane
                if lane is None:
                    lane = self._given_lane
                    if lane is None:
                        context = LaneContext(self._settings, self._counters, self._bells)
                        lane = open_lane(self._settings.lane, context)
                    self._lane = lane
        return lane

    def _credentials(self) -> Credentials | None:
        name = self._settings.database_secret
        if name is None:
            return None
        secrets = open_secrets("aws", self._settings)
        return Credentials(lambda: secrets.read(name), f"the secret {name}")

    def _bells(self) -> Bells | None:
        listen_url = self._settings.listen_url
        return bells_of(self.store(), None if listen_url is None else listen_url.get_secret_value())

    def close(self) -> None:
        """Close what is open; what is used afterwards is opened again."""
        with self._lock:
            stores = [*self._siblings, *([self._store] if self._store is not None else [])]
            lane = self._lane
            self._siblings.clear()
            self._store = self._checked = self._lane = None
        for store in stores:
            store.close()
        if lane is not None and lane is not self._given_lane:
            lane.close()

    def abandon(self) -> None:
        """Open a lane of its own in a forked process; what is open is the parent's.

        It is kept, so that no destructor here ends a connection that the parent talks over. (The
        store makes its own by itself.)
        """
        _inherited.append(self._lane)
        self._lock = threading.RLock()
        self._lane = None
