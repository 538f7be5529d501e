"""A Lambda without Lambda: the real runtime interface client, and the API that it asks for work.

`Function` starts `python -m awslambdaric` as Lambda does and answers it over HTTP on loopback. It
hands out invocations, takes what they come to, kills a process that is out of time, and starts the
next one cold. In between, a test may freeze the process, as Lambda does.

`Mapping` is the part of an event source mapping that matters here: it receives from a real SQS
endpoint, invokes, and deletes what the answer does not name.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.support.processes import RunningProcess
from tests.support.sqs import SqsQueue

ARN: Final = "arn:aws:sqs:us-east-1:123456789012:"
_INIT_S: Final = 60.0
_NEXT: Final = "/2018-06-01/runtime/invocation/next"


class FunctionError(Exception):
    """What an invocation failed with: the error's type and message, as AWS would report them."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass
class Call:
    """An invocation."""

    event: Any
    limit_s: float
    """The function's time-out; what a process takes to start is not counted."""
    ends_at: float = float("inf")
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    handed_out: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: FunctionError | None = None

    def end(self, *, answer: Any = None, error: FunctionError | None = None) -> None:
        if not self.done.is_set():
            self.answer, self.error = answer, error
            self.done.set()


class Function:
    """A function's only environment.

    Args:
        handler: `module.name`, as Lambda's setting.
        folder: The folder of the code, which is the working directory too.
        env: The function's environment variables.
        timeout_s: The function's time-out.
    """

    def __init__(
        self,
        handler: str,
        *,
        folder: Path,
        env: AnyMapping[str, str],
        timeout_s: float = 60.0,
        python: str = sys.executable,
        options: Sequence[str] = (),
    ) -> None:
        self.timeout_s = timeout_s
        self.starts = 0
        self.started_at = self.ready_at = 0.0
        """When the process was started, and when it asked for its first invocation."""
        self._command = [python, *options, "-m", "awslambdaric", handler]
        self._folder = folder
        self._waiting: queue.Queue[Call | None] = queue.Queue()
        self._calls: dict[str, Call] = {}
        self._process: RunningProcess | None = None
        self._outputs: list[str] = []
        self._closed = False
        function = self

        class Handler(_Handler):
            owner = function

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="lambda-runtime", daemon=True
        )
        self._thread.start()
        self._env = {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": "workhorse",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_REGION": "us-east-1",
            "LAMBDA_TASK_ROOT": str(folder),
            "_HANDLER": handler,
            **env,
        }

    # -- invoking --------------------------------------------------------------------------------

    def begin(self, event: Any, *, timeout_s: float | None = None) -> Call:
        """Begin an invocation; it starts the process where there is none."""
        if self._process is None or self._process.exit_code is not None:
            self._start()
        call = Call(event, self.timeout_s if timeout_s is None else timeout_s)
        self._calls[call.id] = call
        self._waiting.put(call)
        return call

    def finish(self, call: Call, *, within: float | None = None) -> Any:
        """Wait for an invocation's end; return its answer.

        Raises:
            FunctionError: It failed, was killed for its time-out, or its process has ended.
        """
        starts_until = time.time() + _INIT_S
        until = float("inf") if within is None else time.time() + within
        while not call.done.wait(0.02):
            if self.process.exit_code is not None:
                call.end(error=FunctionError("Runtime.ExitError", f"{self.process.exit_code}"))
            elif time.time() >= min(until, call.ends_at) or (
                time.time() >= starts_until and not call.handed_out.is_set()
            ):
                self.kill()
                call.end(error=FunctionError("Sandbox.Timedout", "the function ran out of time"))
        if call.error is not None:
            raise call.error
        return call.answer

    def invoke(self, event: Any, *, timeout_s: float | None = None) -> Any:
        """Invoke, and wait; as `begin` and `finish`."""
        return self.finish(self.begin(event, timeout_s=timeout_s))

    # -- the process -----------------------------------------------------------------------------

    @property
    def process(self) -> RunningProcess:
        assert self._process is not None, "the function was not invoked yet"
        return self._process

    def freeze(self) -> None:
        """Stop the process where it stands."""
        self.process.send_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on."""
        self.process.send_group(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; the next invocation starts another."""
        self.process.kill()

    def output(self) -> str:
        """Return what all processes so far have written."""
        now = self._process.output() if self._process is not None else ""
        return "".join(self._outputs) + now

    def close(self) -> None:
        """End the process and the API."""
        self._closed = True
        if self._process is not None:
            self._outputs.append(self._process.output())
            self._process.close()
            self._process = None
        self._waiting.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _start(self) -> None:
        if self._process is not None:
            self._outputs.append(self._process.output())
            self._process.close()
        self.starts += 1
        self.started_at, self.ready_at = time.time(), 0.0
        self._process = RunningProcess(self._command, env=self._env, cwd=self._folder)

    # -- the API ---------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        """Wait for the next invocation; None when there is none to come."""
        self.ready_at = self.ready_at or time.time()
        call = None if self._closed else self._waiting.get()
        if call is not None:
            call.ends_at = time.time() + call.limit_s
            call.handed_out.set()
        return call

    def take(self, path: str, body: bytes) -> None:
        """Take what an invocation, or the process's start, came to."""
        what = json.loads(body or b"null")
        if path.endswith("/init/error"):
            error = FunctionError(what["errorType"], what["errorMessage"])
            for call in list(self._calls.values()):
                call.end(error=error)
            return
        call_id, kind = path.split("/")[-2:]
        call = self._calls.pop(call_id)
        if kind == "response":
            call.end(answer=what)
        else:
            call.end(error=FunctionError(what["errorType"], what["errorMessage"]))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    owner: Function

    def do_GET(self) -> None:
        call = self.owner.next_call() if self.path == _NEXT else None
        if call is None:
            self.close_connection = True
            return
        self._reply(
            200,
            json.dumps(call.event).encode(),
            {
                "Lambda-Runtime-Aws-Request-Id": call.id,
                "Lambda-Runtime-Deadline-Ms": str(round(call.ends_at * 1000)),
                "Lambda-Runtime-Invoked-Function-Arn": (
                    "arn:aws:lambda:us-east-1:123456789012:function:workhorse"
                ),
                "Lambda-Runtime-Trace-Id": "Root=1-0-0;Sampled=0",
            },
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.owner.take(self.path, body)
        self._reply(202, b'{"status":"OK"}', {})

    def _reply(self, status: int, body: bytes, headers: AnyMapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with suppress(OSError):  # the process may have gone
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
        pass


# -- the event source mapping ----------------------------------------------------------------------


def record_of(message: AnyMapping[str, Any], queue_name: str) -> dict[str, Any]:
    """Return a received message as a function is handed it."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": f"{ARN}{queue_name}",
        "awsRegion": "us-east-1",
    }


def a_record(body: Any, *, queue_name: str = "workhorse-default", **fields: Any) -> dict[str, Any]:
    """Return a record that was never in a queue."""
    attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"}
    return {
        "messageId": str(uuid.uuid4()),
        "receiptHandle": "handle",
        "body": body,
        "attributes": {**attributes, **fields.pop("attributes", {})},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"{ARN}{queue_name}",
        "awsRegion": "us-east-1",
        **fields,
    }


class Mapping:
    """Receives from a queue and invokes a function, once for each `poll`."""

    def __init__(self, source: SqsQueue, function: Function) -> None:
        self._source = source
        self._function = function

    def poll(self, limit: int = 10, *, timeout_s: float | None = None) -> list[str] | None:
        """Receive, invoke, delete; return the bodies that the function wants kept.

        None where there was no message. What a failed invocation was handed stays in the queue.
        """
        messages = self._source.take(limit)
        if not messages:
            return None
        event = {"Records": [record_of(message, self._source.name) for message in messages]}
        answer = self._function.invoke(event, timeout_s=timeout_s)
        failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
        for message in messages:
            if message["MessageId"] not in failed:
                self._source.let_go(message)
        return [message["Body"] for message in messages if message["MessageId"] in failed]
