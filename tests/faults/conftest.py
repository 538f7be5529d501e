"""The mark of tests that break a fleet of processes: `make test ARGS="-m 'not faults'"`."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults: a fleet of real processes is broken; a minute each")
