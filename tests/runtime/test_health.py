"""`/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.runtime.faults import Away, FaultyStore, Refused
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError
from workhorse.runtime.process.worker import Worker


def get(worker: Worker, path: str) -> tuple[int, str]:
    assert worker.health_address is not None
    host, port = worker.health_address
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _host(worker: Worker) -> str | None:
    address = worker.health_address
    return address[0] if address is not None else None


def livez(worker: Worker) -> tuple[int, Any]:
    status, body = get(worker, "/livez")
    return status, json.loads(body)


@pytest.fixture
def faulty(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store)
    yield store
    rig.close()
    store.close()


def test_a_worker_that_works_is_live_and_ready(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    worker = rig.worker(health_port=0)
    assert _host(worker) is None
    worker.start()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    assert _host(worker) == "127.0.0.1"
    status, body = livez(worker)
    assert (status, body["ok"], body["worker"]) == (200, True, worker.worker_id)
    assert set(body["loops"]) == {
        "writer", "publisher", "heartbeat", "monitor", "async", "intake-default",
    }  # fmt: skip
    assert get(worker, "/readyz")[0] == 200
    eventually(
        lambda: 'workhorse_runs_settled_total{label="succeeded"} 1' in get(worker, "/metrics")[1]
    )
    metrics = get(worker, "/metrics")[1]
    assert "# TYPE workhorse_slots gauge\nworkhorse_slots 4\n" in metrics
    assert "workhorse_runs_claimed_total 1\n" in metrics
    assert get(worker, "/elsewhere")[0] == 404

    worker.stop()
    assert _host(worker) is None


def test_case_11_a_store_that_is_away_shows_in_readyz(rig: Rig, faulty: FaultyStore) -> None:
    away = Away()
    rig.task("t")(lambda: None)
    worker = rig.worker(health_port=0, store=faulty)
    worker.start()
    faulty.faults |= {"claim": away, "claimed_under": away}

    eventually(lambda: get(worker, "/readyz")[0] == 503)
    assert livez(worker)[0] == 200
    away.back.set()
    eventually(lambda: get(worker, "/readyz")[0] == 200)


def test_case_11_a_loop_that_fails_shows_in_livez(rig: Rig, faulty: FaultyStore) -> None:
    rig.task("t")(lambda: None)
    faulty.faults["claim"] = fault = Refused(RuntimeError("a bug"), times=10**9)
    worker = rig.worker(health_port=0, store=faulty)
    worker.start()

    eventually(lambda: livez(worker)[1]["loops"]["intake-default"] is False)
    fault.times = 0
    eventually(lambda: livez(worker)[0] == 200)


def test_stuck_handlers_show_and_take_the_life_when_all_slots_are_stuck(rig: Rig) -> None:
    gate = Gate()
    rig.task("t")(gate.come)
    runs = rig.enqueue_many("t", 2, timeout_ms=30, retry=RetryPolicy(max_attempts=1))
    worker = rig.worker(concurrency=2, health_port=0)
    worker.start()

    eventually(lambda: livez(worker)[0] == 503)
    assert livez(worker)[1]["stuck"] == 2
    assert {rig.state(run_id) for run_id in runs} == {RunState.FAILED}
    gate.open()
    eventually(lambda: livez(worker)[0] == 200)


def test_a_worker_that_stops_is_not_ready(rig: Rig) -> None:
    gate = Gate()
    rig.task("t")(gate.come)
    rig.enqueue("t")
    worker = rig.worker(health_port=0)
    worker.start()
    gate.wait()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()

    eventually(lambda: get(worker, "/readyz")[0] == 503)
    assert livez(worker)[1]["stopping"] is True
    gate.open()
    stopping.join(20)


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_that_cannot_be_opened_is_named(rig: Rig, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = rig.worker(health_port=port, health_host=host)
        with pytest.raises(ConfigurationError, match=f"health_port: {host}:{port} cannot be"):
            worker.start()
