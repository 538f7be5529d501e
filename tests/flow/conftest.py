"""A worker on the SQS lane, and the queue as the broker sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.emulators import chosen, sqs_endpoint
from tests.support.sqs import SqsEndpoint


@pytest.fixture(scope="session", params=chosen())
def endpoint(request: pytest.FixtureRequest) -> Iterator[SqsEndpoint]:
    """Each emulator that was chosen, moto's server alone by default."""
    with sqs_endpoint(request.param) as endpoint:
        yield endpoint
