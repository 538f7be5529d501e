"""What an error of a driver means to who asked: what now stands, and what to do.

The driver's own text can hold parameters. Shown are its type, its state, and what a client says of
a server that it did not reach.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import psycopg

from workhorse.errors import SchemaMismatchError, StoreRefusedError, WorkhorseError

_IN_DOUBT: Final = "the operation may have happened"
_NO_RIGHT: Final = "42501"
_NO_SUCH: Final = {"3F000": "schema", "42P01": "table", "42703": "column"}
# What SQLite says, and what is to be done. It says no more of a file than that it cannot be used.
_OF_FILES: Final = {
    "unable to open": "the folder has to exist, and this user has to be allowed to write in it",
    "readonly database": (
        "this user has to be allowed to write the file, the folder that it lies in, and the files "
        "ending in -wal and -shm beside it"
    ),
    "not a database": "name another file; this one was left as it is",
    "malformed": "the file is damaged: put a copy of it back",
}


def refusal(
    error: BaseException, description: str, *, in_doubt: bool = False
) -> WorkhorseError | None:
    """Return the error for what does not pass by itself; None where it is another.

    Args:
        error: The driver's.
        description: The store's.
        in_doubt: A try before it lost its connection, and nobody knows what came of that.
    """
    stands = _IN_DOUBT if in_doubt else "nothing was stored"
    if isinstance(error, sqlite3.Error):
        said = str(error)
        if said.startswith(("no such table", "no such column")):
            return _without_tables(description, "column" if "column" in said else "table", stands)
        advice = next((advice for words, advice in _OF_FILES.items() if words in said), None)
        if advice is None:
            return None
        return StoreRefusedError(f"{description} cannot be used: {said}; {advice}")
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if isinstance(error, psycopg.Error) and state == _NO_RIGHT:
        what = error.diag.message_primary or "no permission"  # it names no more than a table
        return StoreRefusedError(
            f"{description} refused: {what} (SQLSTATE {state}); {stands}. Grant this role "
            "what docs/security.md lists, or use another one"
        )
    if state in _NO_SUCH:
        return _without_tables(description, _NO_SUCH[state], stands)
    return None


def what_stands(*, reads: bool, sent: bool, in_doubt: bool) -> str:
    """Return what now stands of an operation that did not pass.

    Args:
        reads: It writes nothing.
        sent: It was begun on a connection, in one of its tries.
        in_doubt: Such a connection was lost before it had answered.
    """
    if reads:
        return "nothing was to be changed"
    if in_doubt:
        return f"{_IN_DOUBT}, and repeating it is safe"
    return f"nothing was {'stored' if sent else 'sent'}, and repeating it is safe"


def named(error: BaseException) -> str:
    """Return the type and the state of a driver's error."""
    name = type(error).__name__
    if isinstance(error, sqlite3.Error):
        return f"{name}: {error}"
    if not isinstance(error, psycopg.Error):
        return name
    if error.sqlstate:
        return f"{name}, SQLSTATE {error.sqlstate}"
    # Without a state no statement was answered: the client says whom it did not reach, and why.
    first_line = next(iter(str(error).splitlines()), "")[:300]
    return f"{name}: {first_line}" if first_line else name


def _without_tables(description: str, missing: str, stands: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{description} has not the tables that this version of Workhorse needs (a {missing} is "
        f"missing); {stands}. Run `workhorse migrate`"
    )
