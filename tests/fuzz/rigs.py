"""What fuzzed calls work on: an installation on SQLite, and an eye on what it stores."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.judging import refusal_of
from tests.support.folders import quick_root
from workhorse.app import Workhorse
from workhorse.errors import WorkhorseError


@contextmanager
def folder() -> Iterator[Path]:
    """A folder in memory, where there is enough; it goes with the rig."""
    made = Path(tempfile.mkdtemp(prefix="wh-fuzz-", dir=quick_root()))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Installation:
    """An app on a database of its own, and a second connection that sees each commit to it."""

    app: Workhorse
    path: Path
    eye: sqlite3.Connection

    def commits(self) -> int:
        """Return a number that changes with each commit that changed anything."""
        (number,) = self.eye.execute("pragma data_version").fetchone()
        return int(number)

    def refusal_of(
        self,
        call: Callable[[], Any],
        *,
        also: tuple[type[Exception], ...] = (),
        names: bool = False,
    ) -> WorkhorseError | None:
        """As `refusal_of`; and a call that was refused has stored nothing."""
        before = self.commits()
        error = refusal_of(call, also=also, names=names)
        if error is not None:
            assert self.commits() == before, f"refused, and stored something: {error}"
        return error


@contextmanager
def installation(**settings: Any) -> Iterator[Installation]:
    """A migrated, empty database, with an app that has no tasks yet."""
    with folder() as place:
        path = place / "fuzz.sqlite3"
        app = Workhorse(database_url=f"sqlite:///{path}", **({"lane": "polling"} | settings))
        app.migrate()
        eye = sqlite3.connect(path, isolation_level=None)
        try:
            yield Installation(app, path, eye)
        finally:
            eye.close()
            app.close()
