"""A worker's process whose handlers have processes: `python -m ... URL DRAIN_MS [LEASE_MS]`."""

from __future__ import annotations

import logging
import sys

from lanes.polling import PollingLane
from tests.runtime.process_handlers import registry
from tests.support.saying import say
from workhorse.runtime.base.options import Shutdown, WorkerOptions
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import Store


def main(url: str, drain_ms: str, lease_ms: str = "30000") -> int:
    logging.basicConfig(level="INFO", format="%(message)s")
    store = Store.open(url)
    worker = Worker(
        ["default"],
        1,
        store=store,
        lane=PollingLane(),
        registry=registry,
        publish=lambda hints: say("published", *(hint.run_id for hint in hints)),
        options=WorkerOptions(
            lease_ms=int(lease_ms),
            idle_ms=100,
            processes=1,
            shutdown=Shutdown(
                drain_ms=int(drain_ms), cancel_grace_ms=300, hand_back_ms=3_000, backstop_ms=6_000
            ),
        ),
    )
    code = worker.run()
    say("exit", code)
    store.close()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
