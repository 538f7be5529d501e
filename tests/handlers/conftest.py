"""Fixtures: a run that both kinds of context are tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.handlers.durable import World


@pytest.fixture(params=["plain", "async"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A run with an empty history; each test runs with `Context` and with `AsyncContext`."""
    if request.param == "plain":
        yield World(None)
    else:
        with asyncio.Runner() as runner:
            yield World(runner)
