"""What others notify on our channels, and on theirs: heard as a ring, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg

from tests.fuzz.evil import TEXTS, just, texts
from tests.fuzz.kind import Check, Kind
from tests.fuzz.source import Source
from tests.support.installations import CHOICE
from tests.support.postgres import PostgresServer
from workhorse.store.base.database import Store
from workhorse.store.fleet.notifying import PostgresBells
from workhorse.store.producing.ringing import channel_of

_MOST: Final = 7_999
"""Bytes of a payload that PostgreSQL takes."""


@contextmanager
def _ringing() -> Iterator[Check]:
    import os

    if os.environ.get(CHOICE) == "off":
        import pytest

        pytest.skip(f"PostgreSQL is left out by {CHOICE}=off; run them without that setting")
    with PostgresServer() as server:
        url = server.url()
        store = Store.open(url)
        with (
            closing(store),
            closing(PostgresBells(store, store.target).open_line()) as line,
            psycopg.connect(url, autocommit=True) as somebody,
        ):
            line.hear(["mail", "bulk"], 0)

            def check(given: tuple[str, str]) -> bool:
                channel, payload = given
                queue = {"@mail": "mail", "@bulk": "bulk"}.get(channel)
                name = channel if queue is None else channel_of("workhorse", queue)
                try:
                    somebody.execute("select pg_notify(%s, %s)", (name, payload))
                except (psycopg.Error, UnicodeError):
                    return True  # PostgreSQL takes no such name or payload
                heard = line.hear(["mail", "bulk"], 5_000 if queue else 0)
                assert set(heard) == ({queue} if queue else set())
                return False

            yield check


def _notified(source: Source) -> tuple[str, Any]:
    channel = source.one(just("@mail", "@bulk"), just("@mail", "@bulk"), texts)
    payload = source.one(texts, lambda s: texts(s) * (1 + s.below(200)))
    return channel, payload.encode(errors="ignore")[:_MOST].decode(errors="ignore")


KINDS: Final = (
    Kind(
        name="notify",
        share=2_000,
        draw=_notified,
        corpus=[(channel, each) for channel in ("@mail", "other") for each in TEXTS],
        rig=_ringing,
    ),
)
