"""A function under the real runtime interface client, its queue at an endpoint, and its store."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lanes import wire
from tests.support.eventually import eventually
from tests.support.lambda_runtime import Function, Mapping, a_record
from tests.support.postgres import PostgresServer
from tests.support.sqs import SqsEndpoint, SqsQueue, moto_server
from workhorse.app import Workhorse
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import NewRun, RunState, RunView
from workhorse.ports import Wakeup
from workhorse.store.base.database import Store
from workhorse.store.base.migrating import migrate
from workhorse.store.operators.viewing import show
from workhorse.store.producing.enqueueing import enqueue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
QUEUE = "default"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[SqsEndpoint]:
    with moto_server(look_s=0.05) as made:
        yield made


class Deployed:
    """A deployed function: its database, its queue, and what its handlers were seen to do."""

    server: PostgresServer

    def __init__(self, url: str, endpoint: SqsEndpoint, folder: Path) -> None:
        self.url = url
        self.endpoint = endpoint
        self.witness_file = folder / "witness"
        self.witness_file.write_text("")
        self.prefix = f"wh-{uuid.uuid4().hex[:8]}-"
        self.queue = self.make_queue(QUEUE)
        self.store = Store.open(url)
        self._functions: list[Function] = []
        self._folder = folder

    def make_queue(self, name: str, **options: Any) -> SqsQueue:
        return self.endpoint.create_queue(f"{self.prefix}{name}", **options)

    def function(
        self, handler: str = "program.handler", *, timeout_s: float = 60.0, **settings: str
    ) -> Function:
        """Return a function that is not started yet; settings are WORKHORSE_<NAME>."""
        given = {
            "database_url": self.url,
            "aws_endpoint_url": self.endpoint.url,
            "aws_region": "us-east-1",
            "sqs_queue_prefix": self.prefix,
            "min_time_left_seconds": "3",
            **settings,
        }
        env = {f"WORKHORSE_{name.upper()}": value for name, value in given.items()}
        function = Function(
            handler,
            folder=HERE,
            env={**env, "PYTHONPATH": str(ROOT), "WITNESS": str(self.witness_file)},
            timeout_s=timeout_s,
        )
        self._functions.append(function)
        return function

    def mapping(self, function: Function) -> Mapping:
        return Mapping(self.queue, function)

    def app(self, **settings: Any) -> Workhorse:
        """Return an app of the test's own on the same database and queues, with no tasks."""
        return Workhorse(
            database_url=self.url,
            lane="sqs",
            aws_endpoint_url=self.endpoint.url,
            aws_region="us-east-1",
            sqs_queue_prefix=self.prefix,
            **settings,
        )

    # -- runs ------------------------------------------------------------------------------------

    def new(self, task: str, payload: Any = "one", **fields: Any) -> RunId:
        """Store a run without any wakeup."""
        given: dict[str, Any] = {"queue": QUEUE, "payload": json.dumps(payload)}
        run = NewRun(id=new_run_id(), task=task, **(given | fields))
        self.store.run(enqueue, [run], reach=no_reach)
        return run.id

    def put(self, *run_ids: str, queue: str = QUEUE) -> None:
        """Put wakeups into the queue."""
        for run_id in run_ids:
            self.queue.put(body_of(run_id, queue))

    def view(self, run_id: RunId) -> RunView:
        return self.store.run(show, run_id)

    def state(self, run_id: RunId) -> RunState:
        return self.view(run_id).state

    def witnessed(self) -> list[str]:
        return self.witness_file.read_text().splitlines()

    def sees(self, what: str, *, within: float = 20.0) -> None:
        """Wait until a handler was seen to do something."""
        eventually(lambda: any(what in line for line in self.witnessed()), within=within, what=what)

    def close(self) -> None:
        for function in self._functions:
            function.close()
            print(f"--- function, {function.starts} starts\n{function.output()}")
        self.store.close()


def body_of(run_id: str, queue: str = QUEUE) -> str:
    return wire.encode(Wakeup(RunId(run_id), queue))


def event_of(*bodies: Any, **fields: Any) -> dict[str, Any]:
    return {"Records": [a_record(body, **fields) for body in bodies]}


def counted(function: Function, name: str) -> int:
    """Return what the function's process has counted, by its last invocation."""
    last = re.findall(r"counted (\{.*\})$", function.output(), re.MULTILINE)[-1]
    return int(json.loads(last).get(name, 0))


@pytest.fixture
def deployed(database_url: str, endpoint: SqsEndpoint, tmp_path: Path) -> Iterator[Deployed]:
    """On SQLite and then on PostgreSQL."""
    made = Deployed(database_url, endpoint, tmp_path)
    yield made
    made.close()


@pytest.fixture
def on_postgres(postgresql_url: str, endpoint: SqsEndpoint, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(postgresql_url, endpoint, tmp_path)
    yield made
    made.close()


@pytest.fixture
def own_postgres_deployed(
    own_postgres: PostgresServer, endpoint: SqsEndpoint, tmp_path: Path
) -> Iterator[Deployed]:
    """On a server that the test may stop."""
    url = own_postgres.databases.url(own_postgres.databases.create())
    made = Deployed(url, endpoint, tmp_path)
    migrate(made.store)
    made.server = own_postgres
    yield made
    made.close()
