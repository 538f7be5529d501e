"""SQLite databases that are there at once, migrated and empty, and go with the test."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate


@contextmanager
def throwaway_database(environment: str = "") -> Iterator[str]:
    """Make a database and yield its URL; it is removed afterwards, whatever is in it."""
    with tempfile.TemporaryDirectory(prefix="workhorse-kit-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "workhorse.sqlite3")
        path.write_bytes(_migrated(environment))
        yield f"sqlite:///{path}"


@functools.cache
def _migrated(environment: str) -> bytes:
    """Return a migrated file: made once a process, for a migration takes longer than most tests."""
    with tempfile.TemporaryDirectory(prefix="workhorse-kit-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "template.sqlite3")
        store = Store.open(f"sqlite:///{path}", environment=environment)
        try:
            migrate(store)
        finally:
            store.close()
        return path.read_bytes()
