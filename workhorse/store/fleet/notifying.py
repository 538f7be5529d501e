"""Bells over PostgreSQL's LISTEN and NOTIFY: one channel for each queue, and nothing in it.

A notification says that a queue has something new. It names no run: who hears it scans. It is rung
within the transaction that stores a run where that can be, so that one commit does both.

Source: docs/adr/0019-notify-lane.md
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from typing import Final

import psycopg
from psycopg.pq import ExecStatus
from sqlalchemy import TwoPhaseTransaction

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.ports import Announce, Bells
from workhorse.store.base.connecting import Target, connect_apart, parse_url, with_credentials
from workhorse.store.base.database import Store, Tx, writes_once
from workhorse.store.producing.enqueueing import enqueue, hints_of
from workhorse.store.producing.inserting_plain import enqueue_alone
from workhorse.store.producing.ringing import channel_of, ring

ANSWER_S: Final = 5.0
"""How long the database may take to answer on a line."""
CHECK_S: Final = 10.0
"""How often a line that is silent is asked whether it is still there."""
UNHEARD_S: Final = 3.0
"""After which a bell that was rung to try a pooler counts as unheard."""
_TRIED: Final = "workhorse:tried"


def enqueue_and_ring(
    tx: Tx,
    new: Sequence[NewRun],
    *,
    reach: Reach,
    stride: int = 1,
    announce: Announce | None = None,
    patient: bool = True,
) -> tuple[list[Enqueued], list[Hint]]:
    """Insert runs, and ring for them in the same transaction where the lane has it so.

    Args:
        tx: The transaction.
        new: The runs, see `enqueue`.
        reach: How far ahead a queue's wakeups can be sent, in milliseconds.
        stride: One wakeup for so many ready runs of a queue.
        announce: The lane's, see `workhorse.ports.announce_of`.
        patient: Whether a key's owner is waited for, see `enqueue`.

    Returns:
        What became of each, and the wakeups that must follow the commit: those not rung for.

    Raises: As `enqueue`.
    """
    done = enqueue(tx, new, reach=reach, patient=patient)
    hints = hints_of(new, done, reach=reach, stride=stride)
    if announce is None or not hints or tx.dialect.name != "postgresql":
        return done, hints
    if isinstance(tx.conn.get_transaction(), TwoPhaseTransaction):
        return done, hints  # PostgreSQL prepares no transaction that has rung
    rung = ring(tx, announce({hint.queue for hint in hints if hint.delay_ms <= 0}))
    return done, [hint for hint in hints if hint.delay_ms > 0 or hint.queue not in rung]


@writes_once
def enqueue_alone_and_ring(
    tx: Tx, run: NewRun, *, reach: Reach, announce: Announce | None = None
) -> tuple[list[Enqueued], list[Hint]]:
    """As `enqueue_and_ring`, for one run of which `stands_alone` is true: by one statement."""
    named = {}
    if announce is not None and tx.dialect.name == "postgresql":
        named = {channel_of(tx.schema or "", queue): queue for queue in announce({run.queue})}
    rung = enqueue_alone(tx, run, list(named))
    done = [Enqueued(run_id=run.id, queue=run.queue, created=True)]
    return done, [] if rung else hints_of([run], done, reach=reach)


def bells_of(store: Store, listen_url: str | None) -> Bells | None:
    """Return the bells of a store's database; None where it has none, which is on SQLite.

    Args:
        store: The store.
        listen_url: What lines connect to, where that is not the store's own address.

    Raises:
        ConfigurationError: `listen_url` is not the address of a PostgreSQL database.
    """
    if store.kind != "postgresql":
        return None
    target = store.target if listen_url is None else parse_url(listen_url, "listen_url")
    if target.kind != "postgresql":
        raise ConfigurationError(
            "listen_url is not the address of a PostgreSQL database; give it that of the database "
            "which database_url reaches, past the pooler, or leave it out"
        )
    credentials = store.target.credentials
    if listen_url is not None and credentials is not None and not target.url.username:
        target = with_credentials(target, credentials, "listen_url")
    return PostgresBells(store, target)


class PostgresBells:
    """Rings over a store's pool, and opens lines to its database.

    Args:
        store: The store.
        target: What lines connect to.
    """

    def __init__(self, store: Store, target: Target) -> None:
        self._store = store
        self._target = target

    def ring(self, queues: Collection[str]) -> None:
        """Ring the bells of queues over the store's own connections."""
        self._store.try_once(ring, queues)

    def open_line(self) -> PostgresLine:
        """Open a line, over a connection of its own."""
        return PostgresLine(self._target, self._store.schema)


class PostgresLine:
    """A line over a connection of its own, which is asked now and then whether it still answers.

    Here the socket is waited for, so that each wait has an end whatever the network does, and can
    be interrupted. psycopg's own calls wait for the server for as long as it takes.

    Args:
        target: What to connect to.
        schema: The schema of the store whose bells are heard.
        check_s: How often a silent line is asked.
        answer_s: How long it may take to answer.

    Raises:
        StoreUnavailableError: The database did not answer.
    """

    def __init__(
        self, target: Target, schema: str, *, check_s: float = CHECK_S, answer_s: float = ANSWER_S
    ) -> None:
        self._target = target
        self._description = target.description
        self._proven = False
        self._schema = schema
        self._check_s = check_s
        self._answer_s = answer_s
        self._queues: dict[str, str] = {}
        try:
            self._raw = connect_apart(target)
        except psycopg.Error as error:
            raise self._dead(error) from error
        self._pg = self._raw.pgconn
        self._alarm, self._cord = socket.socketpair()
        self._alarm.setblocking(False)
        self._cord.setblocking(False)
        self._interrupted = False
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._pg.socket, selectors.EVENT_READ)
        self._ready.register(self._alarm, selectors.EVENT_READ)
        self._heard_of_at = time.monotonic()

    def hear(self, queues: Collection[str], wait_ms: float) -> Collection[str]:
        """Return the queues, of these, whose bells were rung since the last call."""
        until = time.monotonic() + wait_ms / 1000
        try:
            heard = self._listen_to(queues) | self._taken()
            while not heard and not self._interrupted:
                now = time.monotonic()
                check_at = self._heard_of_at + self._check_s
                if now >= check_at:
                    self._ask("select 1")
                elif now >= until:
                    break
                else:
                    self._wait(min(until, check_at) - now)
                heard = self._taken()
        except (psycopg.Error, OSError) as error:
            raise self._dead(error) from error
        self._interrupted = False
        return heard

    def ring(self, queues: Collection[str]) -> None:
        """Ring the bells of queues, now."""
        names = json.dumps([channel_of(self._schema, queue) for queue in sorted(queues)])
        try:
            self._ask("select pg_notify(value, '') from json_array_elements_text($1)", names)
        except (psycopg.Error, OSError) as error:
            raise self._dead(error) from error

    def interrupt(self) -> None:
        """End a wait that is under way, or the next one, at once; from any thread."""
        with suppress(OSError):  # it is closed, or has been interrupted often enough
            self._cord.send(b"!")

    def close(self) -> None:
        """Let go of the connection."""
        self._ready.close()
        self._alarm.close()
        self._cord.close()
        self._raw.close()

    # -- what is said ----------------------------------------------------------------------------

    def _listen_to(self, queues: Collection[str]) -> set[str]:
        """Listen to these queues and to no others; return those that were not listened to."""
        wanted = {channel_of(self._schema, queue): queue for queue in queues}
        if wanted.keys() == self._queues.keys():
            return set()
        if not self._proven:
            self._prove()
        new = wanted.keys() - self._queues.keys()
        orders = [
            *(f'listen "{channel}"' for channel in sorted(new)),
            *(f'unlisten "{channel}"' for channel in sorted(self._queues.keys() - wanted.keys())),
        ]
        self._ask("; ".join(orders))
        self._queues = wanted
        return {wanted[channel] for channel in new}

    def _prove(self) -> None:
        """Make sure that bells are heard here: a pooler in transaction mode keeps them."""
        (pid,) = self._ask("select pg_backend_pid()")
        if int(pid or 0) != self._pg.backend_pid and not self._hears_itself():
            raise StoreUnavailableError(
                f"{self._description} is reached through a pooler in transaction mode, where no "
                "bell is heard: listen_url must be the database's own address; its queues are "
                "scanned meanwhile"
            )
        self._proven = True

    def _hears_itself(self) -> bool:
        """Have a bell rung by another session, and say nothing meanwhile: is it heard?"""
        # The word is new each time: a lent session may have listened for others before.
        word = secrets.token_hex(8)
        self._ask(f'listen "{_TRIED}"')
        with closing(PostgresLine(self._target, self._schema)) as other:
            other._ask("select pg_notify($1, $2)", _TRIED, word)
        until = time.monotonic() + UNHEARD_S
        while (left := until - time.monotonic()) > 0:
            self._wait(left)
            self._pg.consume_input()
            while (notify := self._pg.notifies()) is not None:
                if notify.extra.decode() == word:
                    self._ask(f'unlisten "{_TRIED}"')
                    return True
        return False

    def _ask(self, sql: str, *params: str) -> list[str | None]:
        """Return the first row of the answer."""
        until = time.monotonic() + self._answer_s
        if params:
            self._pg.send_query_params(sql.encode(), [value.encode() for value in params])
        else:  # several statements in one, which takes no parameters
            self._pg.send_query(sql.encode())
        while self._pg.flush():
            self._wait_for_answer(until)
        row: list[str | None] = []
        while True:
            while not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:
                    self._heard_of_at = time.monotonic()
                    return row
                if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                    raise psycopg.OperationalError(result.get_error_message())
                if result.ntuples:
                    values = [result.get_value(0, at) for at in range(result.nfields)]
                    row = [None if value is None else value.decode() for value in values]
            self._wait_for_answer(until)
            self._pg.consume_input()

    def _wait_for_answer(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise psycopg.OperationalError(f"no answer within {self._answer_s:g} s")
        self._wait(left)

    # -- what is heard ---------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Wait until something comes; an interruption is remembered."""
        for key, _ in self._ready.select(seconds):
            if key.fileobj is self._alarm:
                self._interrupted = True
                with suppress(BlockingIOError):
                    while self._alarm.recv(4096):
                        pass

    def _taken(self) -> set[str]:
        """Return the queues whose bells have come over the line."""
        self._pg.consume_input()
        heard: set[str] = set()
        while (notify := self._pg.notifies()) is not None:
            self._heard_of_at = time.monotonic()
            queue = self._queues.get(notify.relname.decode())
            if queue is not None:
                heard.add(queue)
        return heard

    def _dead(self, error: BaseException) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._description} cannot be listened to ({_named(error)}); its queues are scanned "
            "meanwhile"
        )


def _named(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None)
    first_line = f"SQLSTATE {state}" if state else next(iter(str(error).splitlines()), "")[:300]
    return ": ".join(filter(None, (type(error).__name__, first_line)))
