"""Bugs that are put into the store on purpose, to see that they are found.

They are put into the statements as they are sent, so that nothing else of the store changes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from workhorse.store.base.statements import Builder, Prepared, Statements

_COMPARED: Final = r" AND (live|held)\.token = [uv]\.token"


@dataclass(frozen=True, slots=True)
class Bug:
    """A part that is left out of some statements, or changed in them.

    Args:
        statements: Their builders: module and name.
        pattern: What is changed.
        by: What it is changed to.
    """

    statements: tuple[str, ...]
    pattern: str
    by: str = ""


def _without_token(*statements: str) -> Bug:
    return Bug(statements, _COMPARED)


BUGS: Final = {
    "a checkpoint without the token": _without_token("boundaries._insert"),
    "progress without the token": _without_token("boundaries._write_progress"),
    "a renewal without the token": _without_token("leasing._extend", "leasing._answer"),
    "an end without the token": _without_token("ending._ending", "ending._insert_outcomes"),
    "a retry or a hand-back without the token": _without_token("settling._give"),
    "a wait without the token": _without_token("suspending._suspend"),
    "a renewal that revives": Bug(
        ("leasing._extend",), r"live\.lease_expires_at > :clock_now AND "
    ),
    "a renewal in spite of a cancel": Bug(
        ("leasing._extend",), r" AND live\.cancel_asked_at IS NULL"
    ),
    "recovery of leases that are live": Bug(
        ("sweeping._expired",), r"live\.lease_expires_at <= :clock_now OR", "1 OR"
    ),
    "a retry in spite of a cancel": Bug(
        ("settling._give", "ending._ending", "ending._insert_outcomes"),
        r"WHERE live\.cancel_asked_at IS NULL| OR live\.cancel_asked_at IS NOT NULL",
    ),
    "a fence that stays": Bug(("claiming._take",), r"live\.fence \+ 1", "live.fence"),
    "a claim of what is not due": Bug(("picking.picked_ids",), r"live\.due_at <= :clock_now", "1"),
    "a delivery that is not counted": Bug(
        ("putting._count",), r"live\.inbox \+ v\.added", "live.inbox"
    ),
    "a wait that does not look for deliveries": Bug(
        ("suspending._suspend",), r"live\.inbox != v\.inbox", "0"
    ),
    "a delivery that wakes nobody": Bug(("putting._count",), r"WHEN v\.wake THEN", "WHEN 0 THEN"),
    "an attempt that a lost lease does not spend": Bug(
        ("settling._give",), r"live\.attempt \+ v\.spend", "live.attempt"
    ),
    "promotion of what is not due": Bug(("sweeping._promote",), r"live\.due_at <= :clock_now", "1"),
}  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> set[str]:
    """Put a bug into statements, until the test has ended; return where it has changed one."""
    right = Statements.prepare
    changed: set[str] = set()

    def prepare(self: Statements, builder: Builder, *form: Hashable) -> Prepared:
        prepared = right(self, builder, *form)
        name = f"{builder.__module__.rpartition('.')[2]}.{getattr(builder, '__name__', '')}"
        if name in bug.statements:
            sql, changes = re.subn(bug.pattern, bug.by, prepared.sql)
            if changes:
                changed.add(name)
            return replace(prepared, sql=sql)
        return prepared

    monkeypatch.setattr(Statements, "prepare", prepare)
    return changed
