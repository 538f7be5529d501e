"""What a soak looks at: processes, workers' counts, calls to the broker, claims, its plan."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

from tests.faults.evidence import Evidence, Run
from tests.faults.ledger import START, Line
from tests.soak.__main__ import latencies_of
from tests.soak.app import Timings, read_timings
from tests.soak.plan import PARTS, draw_modest_plan, known_faults, part_of
from tests.soak.procs import group_usage, groups, sockets_to, usage_of
from tests.soak.relay import CallCounter, Relay
from tests.soak.sampler import read_gauges
from tests.support.processes import Processes


def test_a_process_is_seen_with_what_it_takes() -> None:
    before = usage_of(os.getpid())
    held = bytearray(32 * 1024 * 1024)
    held[::4096] = b"x" * len(held[::4096])
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as left:
            server.accept()[0].close()
            assert left.recv(1) == b"", "the other side has gone: it is no connection any more"
            with socket.create_connection(("127.0.0.1", port)):
                after = usage_of(os.getpid(), sockets_to(port))
    over.set()
    for thread in threads:
        thread.join()
    assert after.rss_mb - before.rss_mb > 25, "32 MB were written to"
    assert after.threads == before.threads + 5
    assert after.fds == before.fds + 3
    assert (before.connections, after.connections) == (0, 1)
    assert after.cpu_s >= before.cpu_s
    assert len(held) > 0


def test_the_rest_of_a_group_is_added_up(tmp_path: Path) -> None:
    processes = Processes()
    try:
        code = "import subprocess, sys; print('up', flush=True); subprocess.run(['sleep', '60'])"
        leader = processes.python("-c", code)
        leader.wait_for("up")
        children = Path(f"/proc/{leader.pid}/task/{leader.pid}/children")
        while not children.read_text().split():
            assert leader.exit_code is None
        found = group_usage(leader.pid, groups())
        assert found is not None
        assert found.others == 1
        assert found.others_mb > 0
        leader.kill()
        assert group_usage(leader.pid, groups()) is None
    finally:
        processes.close()


def test_a_workers_counts_are_read() -> None:
    text = (
        "# TYPE workhorse_slots gauge\nworkhorse_slots 8\nworkhorse_slots_free 7\n"
        'workhorse_loop_restarts_total{label="a"} 1\nworkhorse_loop_restarts_total{label="b"} 2\n'
        "workhorse_something_else 5\n"
    )
    assert read_gauges(text) == {"slots": 8.0, "slots_free": 7.0, "loop_restarts_total": 3.0}


def test_calls_are_counted_however_they_are_cut() -> None:
    heads = "".join(
        f"POST / HTTP/1.1\r\nX-Amz-Target: AmazonSQS.{name}\r\nContent-Length: 2\r\n\r\n{{}}"
        for name in ("SendMessageBatch", "ReceiveMessage", "ReceiveMessage")
    ).encode()
    wanted = {"SendMessageBatch": 1, "ReceiveMessage": 2}
    for size in (1, 7, 50, len(heads)):
        found: list[str] = []
        counter = CallCounter(found.append)
        for at in range(0, len(heads), size):
            counter.feed(heads[at : at + size])
        assert Counter(found) == wanted, f"in pieces of {size}"


def test_a_relay_passes_on_what_it_counts() -> None:
    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        relay = Relay(f"http://127.0.0.1:{server.server_port}")
        try:
            connection = http.client.HTTPConnection(relay.url.removeprefix("http://"), timeout=10)
            for size in (10, 200_000):
                headers = {"X-Amz-Target": "AmazonSQS.SendMessageBatch"}
                connection.request("POST", "/", b"y" * size, headers)
                assert connection.getresponse().read() == b"y" * size
            connection.close()
        finally:
            relay.close()
            server.shutdown()
            thread.join()
    assert relay.counts() == {"SendMessageBatch": 2}


def test_claims_are_written_and_read(tmp_path: Path) -> None:
    timings = Timings(tmp_path / "claims.txt")
    timings.note(0.0, 3)
    timings.note(0.0, 0)
    assert read_timings(tmp_path / "claims.txt") == []
    timings.flush()
    with (tmp_path / "claims.txt").open("a") as file:
        file.write("17.0 3")  # cut off
    assert [runs for _, _, runs in read_timings(tmp_path / "claims.txt")] == [3, 0]


def test_faults_come_one_by_one_each_in_its_turn() -> None:
    faults = known_faults()
    plan = draw_modest_plan(5, faults, seconds=1800, every_s=15)
    assert plan == draw_modest_plan(5, faults, seconds=1800, every_s=15)
    gaps = [after.at - before.at for before, after in pairwise(plan)]
    assert min(gaps) >= 10
    assert max(gaps) <= 20.1
    counts = Counter(step.fault for step in plan)
    assert set(counts) == {fault.name for fault in faults}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert plan[0].at == 60
    assert {PARTS[part_of(fault)] for fault in faults} == {"workers", "database", "broker"}
    assert 1700 < plan[-1].at < 1740


def test_latencies_count_from_when_runs_were_due() -> None:
    found = Evidence(lease_s=3.0)
    for run, created in (("a", 10.0), ("b", 10.0), ("c", 10.0), ("d", 10.0)):
        found.runs[run] = Run(run, "t", None, None, None, created)
    for run, way, delay_ms in (
        ("a", "single", 0), ("b", "delayed", 2000), ("c", "session", 0), ("d", "keyed", 0),
        ("lost", "single", 0),
    ):  # fmt: skip
        found.asked.append({"what": "accepted", "run": run, "way": way, "delay_ms": delay_ms})
    for run, at, fence in (("a", 10.25, 1), ("b", 12.5, 1), ("c", 15.0, 1), ("a", 20.125, 2)):
        found.lines.append(Line(at, 1, START, run, fence, f"{run}{fence}", "t"))
    assert latencies_of(found, [("a", 20.0), ("d", 11.0)]) == [
        (10.25, 250.0), (12.5, 500.0), (20.125, 125.0)
    ]  # fmt: skip
