"""The health check of containers, against the real endpoint and against what answers nothing."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.support.processes import Processes
from workhorse.probe import main
from workhorse.runtime.process.health import HealthServer, Report
from workhorse.telemetry import Counters


class Subject:
    """Something that answers `/livez` and `/readyz`."""

    def __init__(self) -> None:
        self.live = self.ready = True
        self.server = HealthServer("127.0.0.1", 0, self._report, Counters())
        self.env = {"WORKHORSE_HEALTH_PORT": str(self.server.address[1])}

    def _report(self) -> Report:
        return Report(live=self.live, ready=self.ready, details={}, gauges={})


@pytest.fixture
def subject() -> Iterator[Subject]:
    subject = Subject()
    yield subject
    subject.server.close()


def test_what_is_live_and_ready_is_good(subject: Subject) -> None:
    assert main([], subject.env) == 0
    assert main(["--ready"], subject.env) == 0


def test_what_is_live_and_not_ready_is_good_unless_one_asks_for_it(
    subject: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    subject.ready = False
    assert main([], subject.env) == 0
    assert main(["--ready"], subject.env) == 1
    assert " says 503" in capsys.readouterr().err


def test_what_is_not_live_is_bad(subject: Subject) -> None:
    subject.live = False
    assert main([], subject.env) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", ""])  # noqa: S104
def test_it_asks_loopback_where_the_endpoint_listens_everywhere(
    subject: Subject, host: str
) -> None:
    assert main([], subject.env | {"WORKHORSE_HEALTH_HOST": host}) == 0


def test_options_stand_above_the_environment(subject: Subject) -> None:
    port = subject.env["WORKHORSE_HEALTH_PORT"]
    wrong = {"WORKHORSE_HEALTH_PORT": "1", "WORKHORSE_HEALTH_HOST": "127.0.0.2"}
    assert main([], wrong) == 1
    assert main(["--port", port, "--host", "127.0.0.1"], wrong) == 0


@pytest.mark.parametrize("port", ["", "0", "x", "70000", "-1"])
def test_without_a_port_it_is_bad_and_says_so(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], {"WORKHORSE_HEALTH_PORT": port}) == 1
    assert "WORKHORSE_HEALTH_PORT" in capsys.readouterr().err


def test_an_unknown_option_is_bad_and_shows_the_usage(
    subject: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--verbose"], subject.env) == 1
    assert main(["--port"], subject.env) == 1
    assert "usage: python -m workhorse.probe" in capsys.readouterr().err


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], object]], str]]:
    """Answers one connection as a function says."""
    threads: list[threading.Thread] = []

    def start(answer: Callable[[socket.socket], object]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            with listener:
                client, _ = listener.accept()
            with client, suppress(OSError):  # the probe has given up
                answer(client)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return str(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def _silent(client: socket.socket) -> None:
    while client.recv(1_024):
        pass


def _drips(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.0 2")
    while True:
        time.sleep(0.02)  # more often than a time-out of one read
        client.sendall(b"0")


@pytest.mark.parametrize("answer", [_silent, _drips])
def test_a_process_that_hangs_is_bad_in_time(
    serve: Callable[[Callable[[socket.socket], object]], str],
    answer: Callable[[socket.socket], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = serve(answer)
    assert main(["--port", port], {}, limit_s=0.3) == 1
    assert "no answer within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said", [b"", b"garbage\n", b"HTTP/1.0\n", b"SSH-2.0 200\r\n", b"HTTP/1.0 0200\n"]
)
def test_an_answer_that_is_none_is_bad(
    serve: Callable[[Callable[[socket.socket], object]], str], said: bytes
) -> None:
    assert main(["--port", serve(lambda client: client.sendall(said))], {}) == 1


@pytest.mark.parametrize("port", ["9" * 5_000, "0", "65536", "²", "-1", " 80"], ids=range(6))
def test_a_port_that_is_none_is_bad(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {"WORKHORSE_HEALTH_PORT": port}) == 1
    assert "names no port; set it, or give --port" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a\0b", "a..b", "x" * 300], ids=range(3))
def test_a_host_that_is_none_is_bad(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", host, "--port", "1"], {}) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_nobody_there_is_bad(subject: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    subject.server.close()
    assert main([], subject.env) == 1
    assert "refused" in capsys.readouterr().err
    subject.server = Subject().server


def test_the_command_imports_nothing_that_takes_long(
    subject: Subject, processes: Processes
) -> None:
    """It is started every few seconds: the standard library's small modules, and no more."""
    code = (
        "import runpy, sys, os\n"
        "sys.argv = ['probe']\n"
        "try:\n"
        "    runpy.run_module('workhorse.probe', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print('code', end.code)\n"
        "print('modules', *sorted(name.partition('.')[0] for name in sys.modules))\n"
    )
    process = processes.python("-c", code, env=subject.env)
    assert process.wait() == 0
    assert process.wait_for(r"^code (\d)")[1] == "0"
    loaded = set(process.wait_for("^modules (.*)$")[1].split())
    heavy = "pydantic sqlalchemy typer boto3 asyncio http email json logging"
    assert loaded & set(heavy.split()) == set()
    assert loaded - sys.stdlib_module_names <= {"workhorse", "__main__", "sitecustomize"} | {
        name for name in loaded if name.startswith("_")
    }
