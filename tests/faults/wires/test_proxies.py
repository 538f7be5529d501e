"""The process of the proxies, as a fleet uses it: each member has its own way to both servers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.faults.wires.proxies import BROKER, DATABASE, Wires
from tests.faults.wires.sqs import REFUSE, Trouble
from tests.faults.wires.tcp import CUT, Harm
from tests.support.eventually import eventually


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of a server that answers a word with its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(100):
            connection.sendall(data)


def _speaks(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(b"word")
            return client.recv(4) == b"word"
    except ConnectionError:
        return False


def test_a_members_way_is_harmed_and_nobody_elses(listening: int) -> None:
    url = f"postgresql://user:secret@127.0.0.1:{listening}/name?options=x"
    with Wires(url, f"http://127.0.0.1:{listening}", ["one", "two"]) as wires:
        one, two = (int(wires.database_url(each).split(":")[-1][:5]) for each in ("one", "two"))
        assert wires.env("one") == {
            "WORKHORSE_DATABASE_URL": f"postgresql://user:secret@127.0.0.1:{one}/name?options=x",
            "WORKHORSE_AWS_ENDPOINT_URL": wires.broker_url("one"),
        }
        assert len({one, two, wires.broker_url("one"), wires.broker_url("two")}) == 4
        wires.harm(DATABASE, ["one"], Harm(CUT, least=0.01, most=0.01), seed=1)
        eventually(lambda: not _speaks(one))
        assert _speaks(two)
        wires.heal(DATABASE, ["one"])
        eventually(lambda: _speaks(one))
        assert wires.counts()["database cut"] >= 1
        wires.harm(BROKER, ["one"], Harm(CUT, least=0.01, most=0.01), seed=1)
        assert _speaks(one)


def test_calls_of_all_members_are_refused(listening: int) -> None:
    place = f"127.0.0.1:{listening}"
    with Wires(f"postgresql://{place}/x", f"http://{place}", ["one"]) as wires:
        wires.trouble("t", Trouble(REFUSE, code="503"), seed=1)
        port = int(wires.broker_url("one").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(b"POST / HTTP/1.1\r\nx-amz-target: AmazonSQS.GetQueueUrl\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert wires.counts() == {"refuse GetQueueUrl": 1}
        wires.untrouble("t")


def test_the_process_ends_with_its_driver(listening: int) -> None:
    wires = Wires(f"postgresql://127.0.0.1:{listening}/x", f"http://127.0.0.1:{listening}", ["one"])
    wires.close()
    assert wires._process.returncode == 0
