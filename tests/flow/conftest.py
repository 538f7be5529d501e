"""A worker on the SQS lane, and the queue as the broker sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sqs import SqsEndpoint, moto_server


@pytest.fixture(scope="session")
def endpoint() -> Iterator[SqsEndpoint]:
    """An SQS endpoint of its own process."""
    with moto_server() as server:
        yield server
