"""The fleet's SQS endpoint: moto's server, or the benchmarks' own where calls must cost little.

Its port stays its own across restarts.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from tests.support.processes import RunningProcess
from tests.support.sqs import raw_client
from tools.emulators import free_port

_SERVE: Final = """
import logging, signal, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
signal.pause()
"""


class Broker:
    """An endpoint that may be killed and started again; its messages are gone then.

    Args:
        quick: Whether it is the benchmarks' endpoint in place of moto's server.
    """

    def __init__(self, *, quick: bool = False) -> None:
        self._program = ["-m", "benchmarks.sqs_endpoint"] if quick else ["-c", _SERVE]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.names: list[str] = []
        self._process: RunningProcess | None = None
        self._client: Any = raw_client(self.url)

    def start(self) -> None:
        """Start it; its queues are not made again."""
        for left in reversed(range(20)):
            self._process = RunningProcess([sys.executable, *self._program, str(self.port)])
            try:
                self._process.wait_for(r"^port \d+$", within=60)
            except RuntimeError:  # the port is not free yet
                self._process.close()
                if not left:
                    raise
                time.sleep(0.5)
            else:
                return

    def create_queues(self, names: Sequence[str] = ()) -> None:
        """Make these queues, or all that there were."""
        self.names = list(names) or self.names
        for name in self.names:
            self._until_done("create_queue", QueueName=name, Attributes={"VisibilityTimeout": "5"})

    def purge(self) -> int:
        """Throw all messages away; return of how many queues."""
        for name in self.names:
            url = self._until_done("get_queue_url", QueueName=name)["QueueUrl"]
            with contextlib.suppress(ClientError):
                self._client.purge_queue(QueueUrl=url)
        return len(self.names)

    def delete_queues(self) -> None:
        """Delete all queues: calls are answered NonExistentQueue."""
        for name in self.names:
            url = self._until_done("get_queue_url", QueueName=name)["QueueUrl"]
            with contextlib.suppress(ClientError):
                self._client.delete_queue(QueueUrl=url)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def close(self) -> None:
        """End it."""
        self.kill()
        self._client.close()

    def _until_done(self, call: str, **arguments: Any) -> Any:
        for left in reversed(range(20)):
            try:
                return getattr(self._client, call)(**arguments)
            except (BotoCoreError, ClientError):
                if not left:
                    raise
                time.sleep(0.25)
        raise AssertionError("unreachable")
