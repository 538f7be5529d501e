"""`/livez`, `/readyz` and `/metrics` of `workhorse maintain`, where the setting asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workhorse.runtime.process.health import HealthServer, Report

if TYPE_CHECKING:
    from workhorse.app import Workhorse
    from workhorse.maintenance import Maintenance


@contextmanager
def answering(app: Workhorse, maintenance: Maintenance) -> Iterator[HealthServer | None]:
    """Answer for the time of the context, at the app's `health_port`; without one, do not."""
    settings = app.settings
    if settings.health_port is None:
        yield None
        return
    server = HealthServer(
        settings.health_host, settings.health_port, lambda: _report(maintenance), app.counters
    )
    try:
        yield server
    finally:
        server.close()


def _report(maintenance: Maintenance) -> Report:
    health = maintenance.health()
    return Report(
        live=health.live,
        ready=health.ready,
        details={
            "store_answers": health.store_answers,
            "passed_s_ago": health.passed_s_ago and round(health.passed_s_ago, 1),
            "stopping": health.stopping,
        },
        gauges={"store_is_away": health.passed_s_ago is not None and not health.store_answers},
    )
