"""Compares all that a store has with a model, and empties it for the next example."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

import psycopg

from tests.durable.model import Model
from workhorse.store.base.database import Store

_COLUMNS: Final = {
    "live": "id, state, attempt, fence, token, inbox, watched, due_at, lease_expires_at,"
    " cancel_asked_at, session, line_at, blockers",
    "outcomes": "id, state, reason, attempt, fence, result",
    "boundaries": "run_id, name, kind, seq, value, detail, fingerprint, wake_at",
    "deliveries": "run_id, kind, name, state, inbox, value, key",
    "tokens": "ref, state, value, key, due_at",
    "links": "source, run_id, name",
    "freed": "source",
    "progress": "run_id, value",
}
_OTHERS: Final = ("runs", "attempts", "audit", "queues")


class Looker:
    """Looks at a store's tables on a connection of its own, since it does so at each step.

    Args:
        url: Where the store is.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._read = store.dialect.read_instant
        self._conn: Any
        if store.kind == "postgresql":
            self._conn = psycopg.connect(url, autocommit=True, prepare_threshold=None)
            place = f'"{store.schema}".'
        else:
            self._conn = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            place = ""
        self._selects = [
            f"select {columns} from {place}{table}"  # noqa: S608 - all of it from here
            for table, columns in _COLUMNS.items()
        ]
        self._deletes = [f"delete from {place}{table}" for table in (*_COLUMNS, *_OTHERS)]  # noqa: S608

    def close(self) -> None:
        self._conn.close()

    def check(self, model: Model) -> None:
        """Fail where the store has anything else than the model says, in any table."""
        found, expected = self._stored(), _expected(model)
        differing = {
            f"{table} {key}": (found[table].get(key), rows.get(key))
            for table, rows in expected.items()
            for key in found[table].keys() | rows.keys()
            if found[table].get(key) != rows.get(key)
        }
        assert not differing, f"(stored, expected): {differing}"

    def clear(self) -> None:
        """Remove what an example has left behind."""
        if isinstance(self._conn, psycopg.Connection):
            self._conn.execute(";".join(self._deletes).encode())
            return
        for delete in self._deletes:
            self._conn.execute(delete)

    def places(self, run_id: str) -> dict[tuple[str, str], int]:
        """The numbers of a run's deliveries, by kind and name."""
        return {
            (kind, name): place
            for (run, kind, name), (_, place, _, _) in self._stored()["deliveries"].items()
            if run == run_id
        }

    def _stored(self) -> dict[str, dict[Any, Any]]:
        live, outcomes, boundaries, deliveries, tokens, links, freed, progress = self._rows()
        at = self._at
        return {
            "live": {
                str(key): (
                    *more,
                    bool(watched),
                    at(due),
                    at(expires),
                    asked is not None,
                    session,
                    at(line),
                    blockers,
                )
                for key, *more, watched, due, expires, asked, session, line, blockers in live
            },
            "outcomes": {str(key): tuple(more) for key, *more in outcomes},
            "boundaries": {
                (str(run), name): (*more, at(wake)) for run, name, *more, wake in boundaries
            },
            "deliveries": {
                (str(run), kind, name): (state, inbox, _told(state, value), key)
                for run, kind, name, state, inbox, value, key in deliveries
            },
            "tokens": {ref: (*more, at(due)) for ref, *more, due in tokens},
            "links": {(source, str(run), name): True for source, run, name in links},
            "freed": {source: True for (source,) in freed},
            "progress": {str(run): value for run, value in progress},
        }

    def _rows(self) -> list[list[Any]]:
        if isinstance(self._conn, psycopg.Connection):
            cursor = self._conn.execute(";".join(self._selects).encode())  # one trip to the server
            return [cursor.fetchall() for _ in cursor.results()]
        return [self._conn.execute(select).fetchall() for select in self._selects]

    def _at(self, raw: Any) -> Any:
        return None if raw is None else self._read(raw)


def _told(state: str, value: str | None) -> str | None:
    """Of a child's failure the model knows which child it was, and the reason."""
    if state not in ("failed", "cancelled"):
        return value
    end = json.loads(value or "")
    return json.dumps({"run_id": end["run_id"], "reason": end["reason"]})


def _expected(model: Model) -> dict[str, dict[Any, Any]]:
    runs = model.runs.values()
    return {
        "live": {
            run.id: (
                run.state, run.attempt, run.fence, run.token, run.inbox, run.watched, run.due_at,
                run.expires_at, run.cancel_asked, run.session, run.line_at, run.blockers,
            )
            for run in runs
            if not run.finished
        },
        "outcomes": {
            run.id: (run.state, run.reason, run.attempt, run.fence, run.result)
            for run in runs
            if run.finished
        },
        "boundaries": {
            (run.id, name): (
                each.kind, each.seq, each.value, each.detail, each.fingerprint, each.wake_at,
            )
            for run in runs
            for name, each in run.boundaries.items()
        },
        "deliveries": {
            (run.id, kind, name): (each.state, each.inbox, each.value, each.key)
            for run in runs
            for (kind, name), each in run.deliveries.items()
        },
        "tokens": {
            ref: (each.state, each.value, each.key, each.due_at)
            for ref, each in model.tokens.items()
        },
        "links": dict.fromkeys(model.links, True),
        "freed": dict.fromkeys(model.noted, True),
        "progress": {run.id: run.progress for run in runs if run.progress is not None},
    }  # fmt: skip
